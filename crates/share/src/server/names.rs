//! Requests about entries of directories.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use micabox_fuse::message::{Reply, Request, device_of};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, fstat, linkat, mkdirat, mknodat,
    openat, readlinkat_raw, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::acls::New;
use super::contents::NO_HANDLE;
use super::{Server, two_names};
use crate::nodes::Found;
use crate::owner::{PLAIN, SPECIAL, path};
use crate::shown::{self, Shown};

/// Directories pass their group on to what is made in them, if they have this bit.
const SET_GROUP: u32 = 0o2000;

/// Longest target of a symbolic link.
const LONGEST_TARGET: u32 = 4096;

impl Server {
    pub(super) fn look_up(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let name = body.name()?;
        match self.nodes.look_up(request.node, name) {
            Ok(found) => self.add_entry(request, &found, reply),
            Err(Errno::NOENT) => {
                self.nodes.forget_entry(request.node, name);
                let valid = self.valid_absence(request).ok_or(Errno::NOENT)?;
                shown::no_entry(reply, valid);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a file to the reply.
    pub(super) fn add_entry(
        &self,
        request: &Request<'_>,
        found: &Found,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (stat, valid) = self.valid_stat(request, found)?;
        let shown = self.shown(request, found.node, &found.file, &stat);
        shown::entry(reply, found.node, &stat, &shown, valid);
        Ok(())
    }

    pub(super) fn read_link(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let link = self.nodes.get(request.node)?;
        reply.fill(LONGEST_TARGET, |place| readlinkat_raw(&*link, c"", place))?;
        Ok(())
    }

    pub(super) fn make_link(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let (name, target) = (body.name()?, body.text()?);
        let directory = self.nodes.get(request.node)?;
        symlinkat(target, &*directory, name)?;
        self.made(request, name, FileType::Symlink, &New::plain(0o777), reply)
    }

    pub(super) fn make_node(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let (mode, device, umask) = (body.u32()?, body.u32()?, body.u32()?);
        body.u32()?;
        let name = body.name()?;
        let directory = self.nodes.get(request.node)?;
        let kind = match FileType::from_raw_mode(mode) {
            FileType::Unknown => FileType::RegularFile,
            kind => kind,
        };
        let (major, minor) = device_of(device);
        if kind == FileType::CharacterDevice && device == 0 && !self.is_upper {
            // A whiteout, which any user may make on the host.
            return Err(Errno::PERM);
        }
        let number = rustix::fs::makedev(major, minor);
        let new = self.new_file(&directory, mode, umask, false)?;
        mknodat(&*directory, name, kind, plain(new.mode), number)?;
        self.made(request, name, kind, &new, reply)
    }

    pub(super) fn make_directory(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let mut body = request.body;
        let (mode, umask) = (body.u32()?, body.u32()?);
        let name = body.name()?;
        let directory = self.nodes.get(request.node)?;
        let new = self.new_file(&directory, mode, umask, true)?;
        mkdirat(&*directory, name, plain(new.mode))?;
        self.made(request, name, FileType::Directory, &new, reply)
    }

    /// Tells of what was just made, once it belongs to whom asked for it. If that fails, it goes.
    fn made(
        &self,
        request: &Request<'_>,
        name: &CStr,
        kind: FileType,
        new: &New,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        self.add_new_entry(request, name, kind, reply, |found| {
            self.give(request, &found.file, &found.stat, kind, new)
        })
    }

    /// Adds an entry that was just made to the reply, after `prepare`. If that fails, the entry goes, as the guest is
    /// told that there is none.
    fn add_new_entry(
        &self,
        request: &Request<'_>,
        name: &CStr,
        kind: FileType,
        reply: &mut Reply,
        prepare: impl FnOnce(&Found) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let directory = self.nodes.get(request.node)?;
        let told = self.nodes.look_up(request.node, name).and_then(|found| {
            let told = prepare(&found).and_then(|()| self.add_entry(request, &found, reply));
            if told.is_err() {
                self.nodes.forget(found.node, 1);
            }
            told
        });
        if told.is_err() {
            let flags = match kind {
                FileType::Directory => AtFlags::REMOVEDIR,
                _ => AtFlags::empty(),
            };
            // The reason why it can't be told of is the better one.
            let _ = unlinkat(&*directory, name, flags);
            self.nodes.forget_entry(request.node, name);
        }
        told
    }

    /// Makes a new file belong to whom asked for it.
    fn give(
        &self,
        request: &Request<'_>,
        file: &OwnedFd,
        stat: &Stat,
        kind: FileType,
        new: &New,
    ) -> Result<(), Errno> {
        let directory = self.nodes.get(request.node)?;
        let above = fstat(&*directory)?;
        let above = self.shown(request, request.node, &directory, &above);
        let mut shown = Shown {
            uid: request.uid,
            gid: request.gid,
            mode: kind.as_raw_mode() | new.mode,
        };
        if above.mode & SET_GROUP != 0 {
            shown.gid = above.gid;
            if kind == FileType::Directory {
                shown.mode |= SET_GROUP;
            }
        }
        match self.show(file, stat, shown) {
            // The host's filesystem has no such attributes: the file is the share's owner's.
            Err(Errno::PERM) => {}
            result => result?,
        }
        self.give_lists(file, new)
    }

    pub(super) fn create(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let (flags, mode, umask) = (body.u32()?, body.u32()?, body.u32()?);
        body.u32()?;
        let name = body.name()?;
        let asked = OFlags::from_bits_retain(flags);
        let directory = self.nodes.get(request.node)?;
        let needs_handle = !(self.opens_by_version() && is_owners(mode, asked));
        let how = if needs_handle {
            asked
        } else {
            // Closing it is then no event.
            asked & !OFlags::ACCMODE | OFlags::RDONLY
        };
        // Never opens what is there already, which may be a link or a FIFO.
        let flags = super::contents::usable(how) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let new = self.new_file(&directory, mode, umask, false)?;
        let file = match openat(&*directory, name, flags, plain(new.mode)) {
            Ok(file) => {
                self.made(request, name, FileType::RegularFile, &new, reply)?;
                file
            }
            Err(Errno::EXIST) if !asked.contains(OFlags::EXCL) => {
                let found = self.nodes.look_up(request.node, name)?;
                let opened = self.open_node(found.node, asked);
                let opened = opened.and_then(|file| {
                    self.add_entry(request, &found, reply)?;
                    Ok(file)
                });
                opened.inspect_err(|_| _ = self.nodes.forget(found.node, 1))?
            }
            Err(error) => return Err(error),
        };
        if needs_handle {
            self.opened(file, 0, reply);
        } else {
            reply.u64(NO_HANDLE);
            reply.u64(0);
        }
        Ok(())
    }

    /// Creates a file without a name (`O_TMPFILE`).
    pub(super) fn create_unnamed(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let mut body = request.body;
        let (flags, mode, umask) = (body.u32()?, body.u32()?, body.u32()?);
        let asked = OFlags::from_bits_retain(flags);
        let directory = self.nodes.get(request.node)?;
        let flags = super::contents::usable(asked) | OFlags::TMPFILE | (asked & OFlags::EXCL);
        let new = self.new_file(&directory, mode, umask, false)?;
        let file = openat(CWD, path(&directory), flags, plain(new.mode))?;
        let place = openat(
            CWD,
            path(&file),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let stat = fstat(&place)?;
        self.give(request, &place, &stat, FileType::RegularFile, &new)?;
        let found = self.nodes.count_lookup(request.node, c"", place, true)?;
        self.add_entry(request, &found, reply)?;
        self.opened(file, 0, reply);
        Ok(())
    }

    pub(super) fn add_name(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let node = body.u64()?;
        let name = body.name()?;
        let file = self.nodes.get(node)?;
        let directory = self.nodes.get(request.node)?;
        // Follows the descriptor's own link, to the file itself.
        linkat(CWD, path(&file), &*directory, name, AtFlags::SYMLINK_FOLLOW)?;
        let kind = self.nodes.kind(node)?;
        self.add_new_entry(request, name, kind, reply, |_| Ok(()))
    }

    pub(super) fn remove(&self, request: &Request<'_>, is_directory: bool) -> Result<(), Errno> {
        let mut body = request.body;
        let name = body.name()?;
        let directory = self.nodes.get(request.node)?;
        self.nodes.pin(request.node, name)?;
        let flags = if is_directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        unlinkat(&*directory, name, flags)?;
        self.nodes.forget_entry(request.node, name);
        Ok(())
    }

    pub(super) fn rename(&self, request: &Request<'_>, has_flags: bool) -> Result<(), Errno> {
        let mut body = request.body;
        let to = body.u64()?;
        let mut flags = RenameFlags::empty();
        if has_flags {
            flags = RenameFlags::from_bits(body.u32()?).ok_or(Errno::INVAL)?;
            body.u32()?;
        }
        if flags.contains(RenameFlags::WHITEOUT) && !self.is_upper {
            return Err(Errno::INVAL);
        }
        let (name, new_name) = two_names(&mut body)?;
        let directories: [Arc<OwnedFd>; 2] = [self.nodes.get(request.node)?, self.nodes.get(to)?];
        let [from, into] = &directories;
        self.nodes.pin(to, new_name)?;
        renameat_with(&**from, name, &**into, new_name, flags)?;
        let mut is_known = self.with_room(|| self.nodes.moved(to, new_name));
        if flags.contains(RenameFlags::EXCHANGE) {
            is_known = is_known.and(self.with_room(|| self.nodes.moved(request.node, name)));
        }
        if is_known.is_err() {
            // Something else has changed it meanwhile.
            self.outdate_name(to, new_name);
            self.outdate_name(request.node, name);
        }
        Ok(())
    }
}

/// Returns whether a file's owner may open it once more in the same way.
fn is_owners(mode: u32, asked: OFlags) -> bool {
    let needed = match asked & OFlags::ACCMODE {
        OFlags::RDONLY => 0o400,
        OFlags::WRONLY => 0o200,
        _ => 0o600,
    };
    mode & needed == needed
}

/// Returns the part of a mode that a file gets outside.
fn plain(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & PLAIN & !SPECIAL)
}
