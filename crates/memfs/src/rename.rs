//! Renaming (rename(2)).

use std::sync::{Arc, PoisonError};

use rustix::io::Errno;

use crate::Result;
use crate::clock::now;
use crate::directory::Directory;
use crate::filesystem::{Filesystem, ROOT};
use crate::inode::{Inode, New};
use crate::names::{check, remove_if_empty};

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
            let _moving = self.moving.read().unwrap_or_else(PoisonError::into_inner);
            let mut entries = old.directory.entries_mut()?;
            let pair = Pair {
                old: &mut entries,
                new: None,
            };
            return self.rename_locked(&old, &new, pair, mode);
        }
        // Alone: no directory moves while the way from one to the root is followed.
        let _moving = self.moving.write().unwrap_or_else(PoisonError::into_inner);
        self.check_cycles(&old, &new, mode)?;
        let mut old_entries = old.directory.entries_mut()?;
        let mut new_entries = new.directory.entries_mut()?;
        let pair = Pair {
            old: &mut old_entries,
            new: Some(&mut new_entries),
        };
        self.rename_locked(&old, &new, pair, mode)
    }

    /// Fails if a directory would become a part of itself.
    fn check_cycles(&self, old: &Side<'_>, new: &Side<'_>, mode: Mode) -> Result<()> {
        let moved = old.directory.entries()?.get(old.name).cloned();
        let target = new.directory.entries()?.get(new.name).cloned();
        if let Some(moved) = moved.filter(|inode| inode.is_directory())
            && self.is_within(&new.directory, moved.number)?
        {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target.filter(|inode| inode.is_directory())
            && self.is_within(&old.directory, target.number)?
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
    fn is_within(&self, directory: &Arc<Inode>, ancestor: u64) -> Result<bool> {
        let mut at = Arc::clone(directory);
        loop {
            if at.number == ancestor {
                return Ok(true);
            }
            if at.number == ROOT {
                return Ok(false);
            }
            let parent = at.entries()?.parent;
            // Of a directory that was removed the parent may be gone.
            let Ok(above) = self.inode(parent) else {
                return Ok(false);
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
        let moved = Arc::clone(pair.old.get(old.name).ok_or(Errno::NOENT)?);
        let target = pair.target().get(new.name).cloned();
        let target = match (target, mode) {
            (Some(_), Mode::NoReplace) => return Err(Errno::EXIST),
            (None, Mode::Exchange) => return Err(Errno::NOENT),
            // Two names of one file: nothing happens.
            (Some(target), _) if target.number == moved.number => return Ok(()),
            (target, _) => target,
        };
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
        moved: &Arc<Inode>,
        target: &Arc<Inode>,
    ) -> Result<()> {
        pair.old.replace(old.name, Arc::clone(target));
        pair.target().replace(new.name, Arc::clone(moved));
        if pair.new.is_some() {
            move_parent(moved, &old.directory, &new.directory)?;
            move_parent(target, &new.directory, &old.directory)?;
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
        moved: &Arc<Inode>,
        target: Option<Arc<Inode>>,
        mode: Mode,
    ) -> Result<()> {
        // All that may fail comes first.
        match target
            .as_deref()
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
            && let Err(error) = remove_if_empty(target)
        {
            if let Some(whiteout) = whiteout {
                self.dispose(&whiteout);
            }
            return Err(error);
        }
        match &target {
            Some(_) => pair.target().replace(new.name, Arc::clone(moved)),
            None => pair.target().insert(new.name, Arc::clone(moved)),
        }
        match whiteout {
            Some(whiteout) => {
                // It is not given out.
                whiteout.state().holds = 0;
                pair.old.replace(old.name, whiteout);
            }
            None => pair.old.remove(old.name),
        }
        if pair.new.is_some() {
            move_parent(moved, &old.directory, &new.directory)?;
        }
        let now = now();
        moved.state().ctime = now;
        old.directory.state().modified(now);
        new.directory.state().modified(now);
        match target {
            Some(target) if target.is_directory() => {
                let mut state = new.directory.state();
                state.links = state.links.saturating_sub(1);
                drop(state);
                self.lose_directory(&target);
            }
            Some(target) => self.lose_name(&target),
            None => {}
        }
        Ok(())
    }
}

/// Notes that a directory has another parent. Of anything else, none is known.
fn move_parent(inode: &Inode, from: &Inode, to: &Inode) -> Result<()> {
    if inode.is_directory() {
        inode.entries_mut()?.parent = to.number;
        let mut state = from.state();
        state.links = state.links.saturating_sub(1);
        drop(state);
        to.state().links += 1;
    }
    Ok(())
}
