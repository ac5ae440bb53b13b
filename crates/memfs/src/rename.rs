//! Renaming (rename(2)).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use micabox_ground::lock;
use rustix::io::Errno;

use crate::Result;
use crate::children::Held;
use crate::clock::now;
use crate::directory::{Directory, check};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, New};
use crate::number::ROOT;

/// What happens to the names of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The new name is replaced if it is taken.
    Replace,
    /// The new name must be free (`RENAME_NOREPLACE`).
    NoReplace,
    /// Both names are exchanged (`RENAME_EXCHANGE`).
    Exchange,
    /// The new name is replaced; a whiteout, a character device 0:0 with this owner, is left under
    /// the old one (`RENAME_WHITEOUT`).
    Whiteout {
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

/// One side of a rename: a directory, and a name in it.
struct Side<'a> {
    directory: Arc<Inode>,
    name: &'a [u8],
}

/// The entries of both sides' directories, which may be one.
struct Pair<'a> {
    old: &'a mut Directory,
    new: Option<&'a mut Directory>,
}

impl Pair<'_> {
    fn target(&mut self) -> &mut Directory {
        self.new.as_deref_mut().unwrap_or(self.old)
    }
}

impl Filesystem {
    /// Renames, or moves to another directory.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EINVAL` for a directory that would be in itself,
    /// `ENOSPC`, `ENAMETOOLONG`, `ESTALE`.
    pub fn rename(
        &self,
        directory: u64,
        name: &[u8],
        new_directory: u64,
        new_name: &[u8],
        mode: Mode,
    ) -> Result<()> {
        check(new_name)?;
        let old = Side {
            directory: self.inode(directory)?,
            name,
        };
        let new = Side {
            directory: self.inode(new_directory)?,
            name: new_name,
        };
        if directory == new_directory {
            let _moving = lock::read(&self.moving);
            let mut entries = self.entries_mut(&old.directory)?;
            let pair = Pair {
                old: &mut entries,
                new: None,
            };
            return self.rename_locked(&old, &new, pair, mode);
        }
        // Alone: no directory moves while the way from one to the root is followed.
        let _moving = lock::write(&self.moving);
        self.check_cycles(&old, &new, mode)?;
        let mut old_entries = self.entries_mut(&old.directory)?;
        let mut new_entries = self.entries_mut(&new.directory)?;
        let pair = Pair {
            old: &mut old_entries,
            new: Some(&mut new_entries),
        };
        self.rename_locked(&old, &new, pair, mode)
    }

    /// Fails if a directory would become a part of itself.
    fn check_cycles(&self, old: &Side<'_>, new: &Side<'_>, mode: Mode) -> Result<()> {
        // One that is not in memory is above none that is.
        let known = |side: &Side<'_>| -> Result<_> {
            let entries = self.entries(&side.directory)?;
            let child = entries.get(side.name);
            Ok(child.and_then(|child| self.known_child(child)))
        };
        let (moved, target) = (known(old)?, known(new)?);
        if let Some(moved) = moved.filter(|inode| inode.is_directory())
            && self.is_within(&new.directory, moved.number)
        {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target.filter(|inode| inode.is_directory())
            && self.is_within(&old.directory, target.number)
        {
            // A directory that is replaced must be empty, and this one is not.
            return Err(if mode == Mode::Exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            });
        }
        Ok(())
    }

    /// Returns whether a directory is `ancestor` or below it.
    fn is_within(&self, directory: &Arc<Inode>, ancestor: u64) -> bool {
        let mut at = Arc::clone(directory);
        loop {
            if at.number == ancestor {
                return true;
            }
            if at.number == ROOT {
                return false;
            }
            // Of a directory that was removed the parent may be gone.
            let Ok(above) = self.inode(at.parent.load(Ordering::Relaxed)) else {
                return false;
            };
            at = above;
        }
    }

    fn rename_locked(
        &self,
        old: &Side<'_>,
        new: &Side<'_>,
        mut pair: Pair<'_>,
        mode: Mode,
    ) -> Result<()> {
        if pair.target().is_removed {
            return Err(Errno::NOENT);
        }
        let moved = pair.old.get(old.name).ok_or(Errno::NOENT)?;
        let moved = self.child(&old.directory, moved)?;
        let target = pair.target().get(new.name);
        let target = target.map(|target| self.child(&new.directory, target));
        let target = match (target.transpose()?, mode) {
            (Some(_), Mode::NoReplace) => return Err(Errno::EXIST),
            (None, Mode::Exchange) => return Err(Errno::NOENT),
            // Two names of one file: nothing happens.
            (Some(target), _) if target.number == moved.number => return Ok(()),
            (target, _) => target,
        };
        for kept in [&old.directory, &new.directory, &moved.inode()] {
            self.keep(kept)?;
        }
        match (&target, mode) {
            (Some(target), Mode::Exchange) => self.exchange(old, new, pair, &moved, target),
            _ => self.replace(old, new, pair, &moved, target, mode),
        }
    }

    fn exchange(
        &self,
        old: &Side<'_>,
        new: &Side<'_>,
        mut pair: Pair<'_>,
        moved: &Held<'_>,
        target: &Held<'_>,
    ) -> Result<()> {
        self.keep(target)?;
        pair.old.replace(old.name, target.inode());
        pair.target().replace(new.name, moved.inode());
        if pair.new.is_some() {
            self.move_parent(moved, &old.directory, &new.directory);
            self.move_parent(target, &new.directory, &old.directory);
        }
        let now = now();
        moved.state().ctime = now;
        target.state().ctime = now;
        old.directory.state().modified(now);
        new.directory.state().modified(now);
        Ok(())
    }

    fn replace(
        &self,
        old: &Side<'_>,
        new: &Side<'_>,
        mut pair: Pair<'_>,
        moved: &Held<'_>,
        target: Option<Held<'_>>,
        mode: Mode,
    ) -> Result<()> {
        // All that may fail comes first.
        match target
            .as_ref()
            .map(|target| (moved.is_directory(), target.is_directory()))
        {
            Some((true, false)) => return Err(Errno::NOTDIR),
            Some((false, true)) => return Err(Errno::ISDIR),
            _ => {}
        }
        let whiteout = match mode {
            Mode::Whiteout { uid, gid } => {
                let kind = crate::FileKind::CharDevice;
                let new = New::of(kind, 0, (0, 0), uid, gid);
                Some(self.create(&old.directory, &new, 1)?)
            }
            _ => None,
        };
        if let Some(target) = target.as_ref().filter(|target| target.is_directory())
            && let Err(error) = self.remove_if_empty(target)
        {
            if let Some(whiteout) = whiteout {
                self.dispose(&whiteout);
            }
            return Err(error);
        }
        if target.is_none() && whiteout.is_none() && pair.new.is_none() {
            pair.old.rename(old.name, new.name, moved.inode());
        } else {
            match &target {
                Some(_) => pair.target().replace(new.name, moved.inode()),
                None => pair.target().insert(new.name, moved.inode()),
            }
            match whiteout {
                Some(whiteout) => {
                    // It is not given out.
                    whiteout.state().holds = 0;
                    pair.old.replace(old.name, whiteout);
                }
                None => pair.old.remove(old.name),
            }
        }
        if pair.new.is_some() {
            self.move_parent(moved, &old.directory, &new.directory);
        }
        let now = now();
        moved.state().ctime = now;
        old.directory.state().modified(now);
        new.directory.state().modified(now);
        match target {
            Some(target) if target.is_directory() => {
                new.directory.state().lose_directory();
                self.lose_directory(&target);
            }
            Some(target) => self.lose_name(&target),
            None => {}
        }
        Ok(())
    }

    /// Notes that an inode has another parent, where that is known.
    fn move_parent(&self, inode: &Inode, from: &Inode, to: &Inode) {
        if inode.is_directory() {
            from.state().lose_directory();
            to.state().links += 1;
        }
        if inode.is_directory() || inode.is_from_lower() {
            let before = inode.parent.swap(to.number, Ordering::Relaxed);
            if inode.is_from_lower() {
                to.state().holds += 1;
                self.forget(before, 1);
            }
        }
    }
}
