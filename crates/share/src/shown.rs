//! What a guest is told of a file, and for how long.

use std::time::Duration;

use micabox_fuse::message::{Attributes, Reply};
use rustix::fs::{FileType, Stat};

/// Returns a file's attributes as the guest is told.
fn attributes(stat: &Stat, shown: &Shown) -> Attributes {
    // Numbers as the kernel has them: none is negative, but for times before 1970.
    Attributes {
        number: stat.st_ino,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: (stat.st_atime, stat.st_atime_nsec as u32),
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
        mode: shown.mode,
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: shown.uid,
        gid: shown.gid,
        device: (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        ),
        block_size: u32::try_from(stat.st_blksize).unwrap_or(4096),
    }
}

/// Adds a file to a reply, and what is known of it.
pub(crate) fn entry(reply: &mut Reply, node: u64, stat: &Stat, shown: &Shown, valid: Validity) {
    let names = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => valid.directory,
        _ => valid.name,
    };
    reply.entry(node, &attributes(stat, shown), names, valid.attributes);
}

/// Adds a file's attributes to a reply.
pub(crate) fn only_attributes(reply: &mut Reply, stat: &Stat, shown: &Shown, valid: Validity) {
    reply.only_attributes(&attributes(stat, shown), valid.attributes);
}

/// How long the guest may use what it was told without asking again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// Of the name of a directory.
    pub(crate) directory: Duration,
    /// Of any other name.
    pub(crate) name: Duration,
    /// Of a file's attributes.
    pub(crate) attributes: Duration,
}

impl Validity {
    /// A file is looked up each time that a path to it is used. What comes with an answer serves that
    /// use: the kernel rounds up to a tick of its clock. With zero it would ask for attributes again at
    /// once, and forget directories between two uses.
    pub(crate) const CONSISTENT: Self = Self {
        directory: Duration::from_nanos(1),
        name: Duration::ZERO,
        attributes: Duration::from_nanos(1),
    };

    /// What the host changes may be seen a second late.
    pub(crate) const CACHED: Self = Self {
        directory: Duration::from_secs(1),
        name: Duration::from_secs(1),
        attributes: Duration::from_secs(1),
    };

    /// Only the guest changes the folder: what its kernel knows stays valid.
    pub(crate) const EXCLUSIVE: Self = Self {
        directory: DAY,
        name: DAY,
        attributes: DAY,
    };
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the guest sees of a file's owner and mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The type and all permission bits.
    pub(crate) mode: u32,
}
