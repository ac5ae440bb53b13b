//! To whom files belong inside.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use micabox_fuse::message::Request;
use micabox_ground::lock;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;

use super::Server;
use crate::owner::{self, Ids, can_record};
use crate::shown::Shown;

/// The user of requests that no process makes.
const NO_USER: u32 = u32::MAX;

/// Most owners that are kept in memory.
const MOST: usize = 1 << 16;

/// Owners of files of an upper layer that can't have a record, by device and inode number: symbolic
/// links, sockets and FIFOs. Until the server ends, they belong to whom the guest gave them.
#[derive(Debug, Default)]
pub(super) struct Given(Mutex<HashMap<(u64, u64), Ids>>);

impl Given {
    fn get(&self, stat: &Stat) -> Option<Ids> {
        let given = lock(&self.0);
        given.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    fn note(&self, stat: &Stat, ids: Ids) {
        let mut given = lock(&self.0);
        let key = (stat.st_dev, stat.st_ino);
        if given.len() < MOST || given.contains_key(&key) {
            given.insert(key, ids);
        }
    }
}

impl Server {
    /// Returns the owner inside of files without a record.
    pub(super) fn owner(&self) -> Ids {
        let both = self.owner.load(Ordering::Relaxed);
        Ids {
            uid: (both >> 32) as u32,
            gid: (both & 0xffff_ffff) as u32,
        }
    }

    pub(super) fn set_owner(&self, ids: Ids) {
        let both = u64::from(ids.uid) << 32 | u64::from(ids.gid);
        self.owner.store(both, Ordering::Relaxed);
    }

    /// Returns what a request shows of a file. A symbolic link, which can't have a record, belongs to
    /// the user who looks at it, for programs set the times of the links that they make.
    ///
    /// The users of an upper layer all look through the overlay, as one: there, what can't have a
    /// record belongs to whom it was given, or to its directory's owner.
    pub(super) fn shown(
        &self,
        request: &Request<'_>,
        node: u64,
        file: &OwnedFd,
        stat: &Stat,
    ) -> Shown {
        if self.is_as_it_is {
            return Shown {
                uid: stat.st_uid,
                gid: stat.st_gid,
                mode: stat.st_mode,
            };
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        let owner = match request.uid {
            _ if self.is_upper && can_record(kind) => self.owner(),
            _ if self.is_upper => self.owner_without_record(node, stat),
            0 | NO_USER => self.owner(),
            uid if kind == FileType::Symlink => Ids {
                uid,
                gid: request.gid,
            },
            _ => self.owner(),
        };
        owner::shown(file, stat, owner)
    }

    fn owner_without_record(&self, node: u64, stat: &Stat) -> Ids {
        let of_directory = || -> Result<Ids, Errno> {
            let directory = self.nodes.get(self.nodes.parent(node)?)?;
            let shown = owner::shown(&directory, &fstat(&*directory)?, self.owner());
            Ok(Ids {
                uid: shown.uid,
                gid: shown.gid,
            })
        };
        let given = self.given.get(stat);
        given.unwrap_or_else(|| of_directory().unwrap_or_else(|_| self.owner()))
    }

    /// Makes the guest see `shown` of a file.
    ///
    /// # Errors
    /// As [`owner::show`].
    pub(super) fn show(&self, file: &OwnedFd, stat: &Stat, shown: Shown) -> Result<(), Errno> {
        if self.is_upper && !can_record(FileType::from_raw_mode(stat.st_mode)) {
            let ids = Ids {
                uid: shown.uid,
                gid: shown.gid,
            };
            self.given.note(stat, ids);
            return Ok(());
        }
        owner::show(file, shown, self.owner())
    }
}
