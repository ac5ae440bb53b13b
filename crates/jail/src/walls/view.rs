//! The jail of a program that is not ours: it opens files itself, and sees those that it must.

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

/// What a program sees of the host's files.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// Directories and files for reading and executing. Those that there are not are left out.
    pub paths: Vec<PathBuf>,
    /// Files for reading, which are open as well: at [`View::file_path`].
    pub files: Vec<(PathBuf, RawFd)>,
    /// Devices, for reading and writing.
    pub devices: Vec<PathBuf>,
    /// The group to have, if root starts it: that of the devices.
    pub group: Option<u32>,
}

impl View {
    /// Where the program finds a file, whatever walls this host has.
    pub fn file_path(descriptor: RawFd) -> PathBuf {
        format!("/proc/self/fd/{descriptor}").into()
    }
}

/// Puts the calling process, which must have one thread only, into a jail with a view, where it
/// may execute a program. It stays the process that its owner started, and so is in the owner's
/// process namespace. Where the host refuses namespaces, it goes on within the other walls.
///
/// # Errors
/// [`Error::Step`].
pub fn enter_for_program(view: &View) -> Result<Walls, Error> {
    let owner = Owner::now();
    let own = own_directory().map_err(step("finding itself"))?;
    let is_root = geteuid().is_root();
    let is_user = identity::is_user();
    // Root finds all paths, and has its mounts before it is nobody. Others have mounts where
    // they have a user namespace.
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

/// Of what there is.
fn rules(view: &View) -> Result<Vec<Rule>, Error> {
    let read = AccessFs::ReadFile;
    let execute = read | AccessFs::Execute;
    let mut rules = Vec::new();
    for path in &view.paths {
        if let Some(found) = find(path)? {
            let access = match path.is_dir() {
                true => execute | AccessFs::ReadDir,
                false => execute,
            };
            rules.push((found, access));
        }
    }
    for (_, descriptor) in &view.files {
        // SAFETY: the caller says that it is open.
        let file = unsafe { BorrowedFd::borrow_raw(*descriptor) };
        let file = file.try_clone_to_owned().map_err(step("sharing a file"))?;
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
