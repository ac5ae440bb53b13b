//! Folders of the host: mounts of virtio-fs devices.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fstat, openat2, setxattr};
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use crate::mount::{self, Filesystem};
use crate::sandbox::{Place, user};

/// The attribute of a share's root that tells its server to whom files without a record belong.
const OWNER: &str = "trusted.micabox.owner";

/// Where a share with one file is mounted, in the agent's namespace.
const PLACES: &str = "/shares";

/// Most bytes that are read of `/etc/passwd` and `/etc/group`.
const LONGEST: u64 = 4 << 20;

/// Mounts a share, or its one file, attached nowhere in the sandbox yet. Files without a record belong
/// to `owner`.
pub fn open(
    tag: &str,
    file: Option<&str>,
    owner: &str,
    read_only: bool,
) -> Result<OwnedFd, mount::Error> {
    let filesystem = Filesystem::new("virtiofs")?;
    filesystem.set("source", tag)?;
    let mut share = filesystem.mount(MountAttrFlags::empty())?;
    let path = format!("/proc/self/fd/{}", share.as_raw_fd());
    setxattr(path, OWNER, owner.as_bytes(), XattrFlags::empty())?;
    if let Some(file) = file {
        let place = format!("{PLACES}/{tag}");
        std::fs::create_dir_all(&place).map_err(|error| {
            rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
        })?;
        mount::attach(&share, &place)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        share = open_tree(CWD, format!("{place}/{file}"), flags)?;
    }
    if read_only {
        mount::make_read_only(&share)?;
    }
    Ok(share)
}

/// Returns the numbers of `user` as the sandbox's files have them, or root's if there are none: a
/// command then fails with the reason.
pub fn owner(user: &str, place: &Place) -> String {
    let Place::Namespace { root, .. } = place else {
        return "0:0".to_owned();
    };
    let (passwd, group) = (text(root, "etc/passwd"), text(root, "etc/group"));
    match user::resolve(user, &passwd, &group) {
        Ok(identity) => format!("{}:{}", identity.uid, identity.gid),
        Err(_) => "0:0".to_owned(),
    }
}

/// Reads a regular file of the sandbox. A missing one is empty.
fn text(root: &OwnedFd, path: &str) -> Vec<u8> {
    let read = || -> std::io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(root, path, flags, Mode::empty(), resolve)?;
        let mut bytes = Vec::new();
        if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile {
            File::from(file).take(LONGEST).read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    };
    read().unwrap_or_default()
}
