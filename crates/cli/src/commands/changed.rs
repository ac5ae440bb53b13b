//! What `mica diff` and `mica commit` read: a sandbox's changes, or those in a mounted tree.

use std::io;
use std::path::PathBuf;

use micabox::{
    Base, Change, Error, Image, ImageEdit, Limits, Mounts, Notes, Reference, SandboxRef, Sandboxes,
};

/// Something with changes.
pub(super) enum Changed {
    Sandbox(Box<SandboxRef>),
    Tree(Mounts, PathBuf),
}

impl Changed {
    /// Finds the sandbox with this name or ID, or else the tree on this directory. A path with a slash is
    /// a directory's.
    pub(super) fn find(sandboxes: &Sandboxes, name: &str) -> Result<Self, Error> {
        let mounts = Mounts::of(sandboxes);
        let place = PathBuf::from(name);
        if name.contains('/') {
            return Ok(Self::Tree(mounts, place));
        }
        match sandboxes.get(name) {
            Err(Error::NoSuchSandbox(_)) if mounts.at(&place)?.is_some() => {
                Ok(Self::Tree(mounts, place))
            }
            found => found.map(|found| Self::Sandbox(Box::new(found))),
        }
    }

    pub(super) fn base(&self) -> Result<Base, Error> {
        match self {
            Self::Sandbox(sandbox) => sandbox.base(),
            Self::Tree(mounts, place) => mounts.base(place),
        }
    }

    /// Returns the command that made the changes, if that is known.
    pub(super) fn command(&self) -> Option<String> {
        match self {
            Self::Sandbox(sandbox) => Some(sandbox.record().command.clone()),
            Self::Tree(..) => None,
        }
    }

    pub(super) fn diff(
        &self,
        each: impl FnMut(Change<'_>) -> io::Result<()>,
    ) -> Result<Notes, Error> {
        match self {
            Self::Sandbox(sandbox) => sandbox.diff(each),
            Self::Tree(mounts, place) => mounts.diff(place, each),
        }
    }

    pub(super) fn commit(
        &self,
        edit: &ImageEdit,
        references: &[Reference],
        limits: &Limits,
    ) -> Result<(Image, Notes), Error> {
        match self {
            Self::Sandbox(sandbox) => sandbox.commit(edit, references, limits),
            Self::Tree(mounts, place) => mounts.commit(place, edit, references, limits),
        }
    }
}
