//! The jail for a third-party program, which opens files itself and sees only those that it needs.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use landlock::{AccessFs, BitFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::landlock::{Rule, forbid_all_but};
use super::namespaces::{Owner, enter_in_place, enter_mounts, own_directory};
use super::{Error, Walls, close_but, identity, root, step};

/// The part of the host's files that a program sees.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// Directories and files to read and execute. Paths that don't exist are left out.
    pub paths: Vec<PathBuf>,
    /// Files to read, which are also open: they appear at [`View::file_path`].
    pub files: Vec<(PathBuf, RawFd)>,
    /// Devices to read and write.
    pub devices: Vec<PathBuf>,
    /// The group that the process joins if root starts it: the devices' group.
    pub group: Option<u32>,
}

impl View {
    /// Returns the path where the program finds a file, with any set of walls.
    pub fn file_path(descriptor: RawFd) -> PathBuf {
        format!("/proc/self/fd/{descriptor}").into()
    }
}

/// Puts the calling process, which must have one thread only, into a jail with a view, where it may
/// execute a program. The process stays its owner's child, and so is in the owner's process
/// namespace. Where the host refuses namespaces, the process continues within the other walls.
///
/// # Errors
/// [`Error::Step`].
pub fn enter_for_program(view: &View) -> Result<Walls, Error> {
    let owner = Owner::now();
    let own = own_directory().map_err(step("finding itself"))?;
    let is_root = geteuid().is_root();
    let is_user = identity::is_user();
    // Root can reach all paths, so its mounts are made before it gives up that identity. Other
    // users can mount only in a user namespace.
    let is_mounted = is_root && enter_mounts().is_ok();
    if is_mounted {
        root::make_of(view)?;
    }
    identity::become_nobody(view.group, is_user)?;
    let namespaces = match enter_in_place(&own, !is_root) {
        Ok(()) if is_root && !is_mounted => Err("it has no mount namespace".to_owned()),
        Ok(()) if is_root => Ok(()),
        Ok(()) => {
            root::make_of(view)?;
            Ok(())
        }
        Err(error @ Error::Namespaces { .. }) => Err(error.to_string()),
        Err(error) => return Err(error),
    };
    owner.die_with()?;
    let landlock = close_but(|| forbid_all_but(rules(view)?))?;
    Ok(Walls {
        namespaces,
        landlock,
    })
}

/// Returns rules for the paths that exist.
fn rules(view: &View) -> Result<Vec<Rule>, Error> {
    let read = AccessFs::ReadFile;
    let execute = read | AccessFs::Execute;
    let mut rules = Vec::new();
    for path in &view.paths {
        if let Some(found) = find(path)? {
            let access = if path.is_dir() {
                execute | AccessFs::ReadDir
            } else {
                execute
            };
            rules.push((found, access));
        }
    }
    for (_, descriptor) in &view.files {
        // SAFETY: the caller guarantees that it is open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(*descriptor) };
        let file = borrowed
            .try_clone_to_owned()
            .map_err(step("sharing a file"))?;
        rules.push((file, BitFlags::from(read)));
    }
    for path in &view.devices {
        if let Some(found) = find(path)? {
            rules.push((found, read | AccessFs::WriteFile | AccessFs::IoctlDev));
        }
    }
    Ok(rules)
}

fn find(path: &Path) -> Result<Option<OwnedFd>, Error> {
    match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::ACCESS) => Ok(None),
        Err(error) => Err(step("finding what it may see")(io::Error::from(error))),
    }
}
