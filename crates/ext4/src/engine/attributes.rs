//! Changes owners, permissions and times.

use super::{Ext4, Ino};
use crate::device::BlockDevice;
use crate::error::Result;
use crate::format::inode::S_IFMT;
use micabox_file::Timestamp;

/// Attributes to change; `None` leaves an attribute unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions with set-uid, set-gid and sticky bit: the lower 12 bits.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the contents.
    pub mtime: Option<Timestamp>,
    /// Last change of the inode; the current time if `None`.
    pub ctime: Option<Timestamp>,
}

impl<D: BlockDevice> Ext4<D> {
    /// Changes attributes of an inode. Times outside the range of an inode (1901 to 2446; to 2038
    /// with inodes of 128 bytes) are replaced with the nearest possible one.
    ///
    /// # Errors
    ///
    /// [`crate::Errno::Stale`] if the inode is not in use, and damage.
    pub fn set_attributes(&mut self, ino: Ino, set: &SetAttributes) -> Result<()> {
        self.begin()?;
        let encode = |time| self.geometry.encode_time(time);
        let (atime, mtime) = (set.atime.map(encode), set.mtime.map(encode));
        let ctime = encode(set.ctime.unwrap_or(self.now()));
        let raw = &mut self.inode_mut(ino)?.raw;
        if let Some(permissions) = set.permissions {
            raw.mode = (raw.mode & S_IFMT) | (permissions & !S_IFMT);
        }
        if let Some(uid) = set.uid {
            raw.set_uid(uid);
        }
        if let Some(gid) = set.gid {
            raw.set_gid(gid);
        }
        if let Some(time) = atime {
            (raw.atime, raw.atime_extra) = time;
        }
        if let Some(time) = mtime {
            (raw.mtime, raw.mtime_extra) = time;
        }
        (raw.ctime, raw.ctime_extra) = ctime;
        Ok(())
    }
}
