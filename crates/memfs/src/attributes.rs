//! Attributes of inodes, and how they change (inode(7), chown(2), write(2)).

use crate::Result;
use crate::clock::now;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, State};
use crate::lists;
use crate::mode::{GROUP_EXECUTES, SET_GID, SET_UID};
use crate::xattr::set::{self, CAPABILITY};
use micabox_file::{Stat, Timestamp};

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub enum Time {
    /// That of the clock.
    Now,
    /// This one.
    At(Timestamp),
}

/// Which privileges of a file a change of its contents clears; each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kill {
    /// Nothing is cleared.
    Nothing,
    /// File capabilities (`security.capability`) are cleared.
    #[default]
    Capabilities,
    /// Set-id bits go as well: the writer lacks `CAP_FSETID`. Of a file that its group does not execute, the
    /// set-group-id bit stays.
    SetId,
    /// That bit is cleared too: the writer is not in the file's group (`setattr_should_drop_sgid`).
    BothSetIds,
}

/// A change of attributes: of those that are given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Permission, set-id and sticky bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a file, in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<Time>,
    /// Time of the last change of the contents.
    pub mtime: Option<Time>,
    /// Time of the last change; otherwise the clock's.
    pub ctime: Option<Timestamp>,
    /// What is cleared: from [`Kill::SetId`] on always, [`Kill::Capabilities`] only if the size is set.
    pub kill: Kill,
}

impl Filesystem {
    /// Returns an inode's attributes.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn stat(&self, number: u64) -> Result<Stat> {
        Ok(self.inode(number)?.stat())
    }

    /// Changes attributes. An access control list follows the permissions, and a new owner or group
    /// takes set-id bits and capabilities from what may be executed.
    ///
    /// # Errors
    /// `ESTALE`; for a size `EISDIR`, `EINVAL` and `EFBIG`; over a lower `ENOSPC`.
    pub fn set(&self, number: u64, change: &Change) -> Result<Stat> {
        let inode = self.inode(number)?;
        self.keep(&inode)?;
        if let Some(size) = change.size {
            let mut contents = inode.contents_mut()?;
            contents.truncate(size, self.room())?;
            let mut state = inode.state();
            self.kill(&mut state, change.kill);
            state.modified(now());
        }
        self.set_state(&inode, change);
        Ok(inode.stat())
    }

    fn set_state(&self, inode: &Inode, change: &Change) {
        let now = now();
        let mut state = inode.state();
        let is_given_away = change.uid.is_some() || change.gid.is_some();
        if change.kill >= Kill::SetId {
            self.kill(&mut state, change.kill);
        } else if is_given_away && !inode.is_directory() {
            self.kill(&mut state, Kill::SetId);
        }
        if let Some(mode) = change.mode {
            state.mode = mode & 0o7777;
            lists::follow_mode(&mut state);
        }
        state.uid = change.uid.unwrap_or(state.uid);
        state.gid = change.gid.unwrap_or(state.gid);
        let time = |time| match time {
            Time::Now => now,
            Time::At(time) => time,
        };
        state.atime = change.atime.map_or(state.atime, time);
        state.mtime = change.mtime.map_or(state.mtime, time);
        state.ctime = change.ctime.unwrap_or(now);
    }

    /// Clears set-id bits and file capabilities, at the level of `kill`.
    pub(crate) fn kill(&self, state: &mut State, kill: Kill) {
        if kill >= Kill::SetId {
            state.mode &= !SET_UID;
            // Without execution by the group the bit once meant mandatory locks.
            if state.mode & GROUP_EXECUTES != 0 || kill == Kill::BothSetIds {
                state.mode &= !SET_GID;
            }
        }
        if kill != Kill::Nothing {
            set::remove(self.room(), &mut state.xattrs, CAPABILITY);
        }
    }

    /// Returns a symbolic link's target.
    ///
    /// # Errors
    /// `EINVAL` if it is none, `ESTALE`.
    pub fn read_link(&self, number: u64) -> Result<Vec<u8>> {
        Ok(self.inode(number)?.target()?.to_vec())
    }
}
