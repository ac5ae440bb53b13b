//! What a guest is told of a file, and for how long.

use std::time::Duration;

use micabox_fuse::message::{Attributes, Reply, Until};
use rustix::fs::{FileType, Stat};

use crate::settled::is_settled;

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
        is_unsettled: !is_settled(stat),
    }
}

/// Adds a file to a reply, and what is known of it.
pub(crate) fn entry(reply: &mut Reply, node: u64, stat: &Stat, shown: &Shown, valid: Valid) {
    reply.entry(node, &attributes(stat, shown), valid.name, valid.attributes);
}

/// Adds that there is no such file to a reply.
pub(crate) fn no_entry(reply: &mut Reply, valid: Valid) {
    reply.entry(0, &Attributes::default(), valid.name, valid.attributes);
}

/// Adds a file's attributes to a reply.
pub(crate) fn only_attributes(reply: &mut Reply, stat: &Stat, shown: &Shown, valid: Until) {
    reply.only_attributes(&attributes(stat, shown), valid);
}

/// How long the guest may use a name and what it leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Valid {
    pub(crate) name: Until,
    pub(crate) attributes: Until,
}

/// How long the guest may use what it was told, where nothing tells of changes.
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

    /// Returns that of a file of this type.
    pub(crate) fn of(self, kind: FileType) -> Valid {
        Valid {
            name: Until::Time(match kind {
                FileType::Directory => self.directory,
                _ => self.name,
            }),
            attributes: Until::Time(self.attributes),
        }
    }
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
