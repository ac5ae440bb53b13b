//! Requests about attributes.

use std::borrow::Cow;
use std::ffi::CStr;
use std::os::fd::OwnedFd;

use micabox_fuse::message::{Reply, Request};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags,
    chmodat, fstat, fstatfs, fstatvfs, ftruncate, getxattr, getxattr_query, listxattr,
    listxattr_query, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;

use super::acls::ACCESS;
use super::contents::NO_HANDLE;
use super::{Server, bounded};
use crate::attribute::{inside, is_overlays, outside};
use crate::nodes::ROOT;
use crate::owner::{Ids, PLAIN, SPECIAL, can_record, path};
use crate::shown;

/// Which attributes to set (`FATTR_*`).
const MODE: u32 = 1 << 0;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const HANDLE: u32 = 1 << 6;
const ATIME_NOW: u32 = 1 << 7;
const MTIME_NOW: u32 = 1 << 8;
const KILL_SET_ID: u32 = 1 << 11;

/// "Unchanged" in place of a user or group.
const NOBODY: u32 = u32::MAX;

/// The attribute of the root by which the agent says to whom files without a record belong: `UID:GID`.
/// The guest's kernel lets only its root set it, and it is not kept.
const OWNER: &[u8] = b"trusted.micabox.owner";

/// Longest value of an extended attribute, and longest list (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const LONGEST: u32 = 64 << 10;

impl Server {
    pub(super) fn attributes(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        if request.node == ROOT {
            // The guest is about to start a command, which is to see all that was changed before.
            self.catch_up()?;
        }
        // Also of an open file: both are the same file, and its place may have a record.
        self.answer_attributes(request, &*self.nodes.get(request.node)?, reply)
    }

    fn answer_attributes(
        &self,
        request: &Request<'_>,
        file: &OwnedFd,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let stat = fstat(file)?;
        let shown = self.shown(request, request.node, file, &stat);
        let valid = self.valid_attributes(request, &stat);
        shown::only_attributes(reply, &stat, &shown, valid);
        Ok(())
    }

    pub(super) fn set_attributes(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let mut body = request.body;
        let valid = body.u32()?;
        body.u32()?;
        let (handle, size) = (body.u64()?, body.u64()?);
        body.u64()?;
        let (atime, mtime) = (body.u64()?, body.u64()?);
        body.u64()?;
        let (atime_nsec, mtime_nsec) = (body.u32()?, body.u32()?);
        body.u32()?;
        let mode = body.u32()?;
        body.u32()?;
        let (uid, gid) = (body.u32()?, body.u32()?);

        let file = self.nodes.get(request.node)?;
        let stat = fstat(&*file)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut shown = self.shown(request, request.node, &file, &stat);
        let before = shown;
        if valid & MODE != 0 {
            shown.mode = shown.mode & !0o7777 | mode & 0o7777;
        }
        if valid & UID != 0 && uid != NOBODY {
            shown.uid = uid;
        }
        if valid & GID != 0 && gid != NOBODY {
            shown.gid = gid;
        }
        let is_given = valid & (UID | GID) != 0;
        // An overlay clears set-id bits itself, and gives a file that it copies up away after it has
        // set its mode.
        if kind == FileType::RegularFile
            && !self.is_upper
            && valid & MODE == 0
            && (is_given || valid & KILL_SET_ID != 0)
        {
            shown.mode = without_set_id(shown.mode);
        }
        if shown != before {
            // First what may be refused.
            self.show(&file, &stat, shown)?;
            if shown.mode & PLAIN != before.mode & PLAIN || stat.st_mode & SPECIAL != 0 {
                let plain = Mode::from_raw_mode(shown.mode & PLAIN);
                chmodat(CWD, path(&file), plain, AtFlags::empty())?;
            }
        }
        if self.is_upper && valid & MODE != 0 && can_record(kind) {
            self.follow_mode(&file, shown.mode)?;
        }
        if valid & SIZE != 0 {
            if valid & HANDLE != 0 && handle != NO_HANDLE {
                ftruncate(&self.handles.get(handle)?.file, size)?;
            } else {
                ftruncate(self.open_node(request.node, OFlags::WRONLY)?, size)?;
            }
        }
        if valid & (ATIME | MTIME) != 0 {
            let time = |which, now, seconds: u64, nanoseconds: u32| Timespec {
                tv_sec: seconds.cast_signed(),
                tv_nsec: match valid {
                    valid if valid & now != 0 => UTIME_NOW,
                    valid if valid & which != 0 => nanoseconds.into(),
                    _ => UTIME_OMIT,
                },
            };
            let times = Timestamps {
                last_access: time(ATIME, ATIME_NOW, atime, atime_nsec),
                last_modification: time(MTIME, MTIME_NOW, mtime, mtime_nsec),
            };
            utimensat(CWD, path(&file), &times, AtFlags::empty())?;
        }
        self.answer_attributes(request, &file, reply)
    }

    /// Clears a file's set-id bits, as a write does.
    pub(super) fn clear_set_id(&self, request: &Request<'_>, node: u64) -> Result<(), Errno> {
        if self.is_upper {
            return Ok(());
        }
        let file = self.nodes.get(node)?;
        let stat = fstat(&*file)?;
        let mut shown = self.shown(request, node, &file, &stat);
        let cleared = without_set_id(shown.mode);
        if cleared != shown.mode {
            shown.mode = cleared;
            self.show(&file, &stat, shown)?;
        }
        Ok(())
    }

    pub(super) fn room(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let file = self.nodes.get(request.node)?;
        let room = fstatvfs(&*file)?;
        let unit = u32::try_from(fstatfs(&*file)?.f_bsize).unwrap_or(4096);
        reply.u64(room.f_blocks);
        reply.u64(room.f_bfree);
        reply.u64(room.f_bavail);
        reply.u64(room.f_files);
        reply.u64(room.f_ffree);
        reply.u32(unit);
        reply.u32(u32::try_from(room.f_namemax).unwrap_or(255));
        reply.u32(u32::try_from(room.f_frsize).unwrap_or(unit));
        reply.bytes(&[0; 28]);
        Ok(())
    }

    /// Returns the host's name of an extended attribute.
    fn outside<'n>(&self, name: &'n CStr) -> Result<Cow<'n, CStr>, Errno> {
        if self.is_as_it_is {
            return Ok(Cow::Borrowed(name));
        }
        outside(name, self.is_upper)
    }

    /// Returns the name that the host's extended attribute has inside, if it is seen there.
    fn inside<'n>(&self, name: &'n [u8]) -> Option<Cow<'n, [u8]>> {
        if self.is_as_it_is {
            return Some(Cow::Borrowed(name)).filter(|name| !name.is_empty());
        }
        inside(name, self.is_upper)
    }

    pub(super) fn set_extended(&self, request: &Request<'_>) -> Result<(), Errno> {
        let mut body = request.body;
        let (size, flags) = (body.u32()?, body.u32()?);
        let name = body.text()?;
        let value = body.bytes(size)?;
        if request.node == ROOT && name.to_bytes() == OWNER {
            self.set_owner(ids(value).ok_or(Errno::INVAL)?);
            return Ok(());
        }
        if self.is_read_only {
            return Err(Errno::ROFS);
        }
        let kept = self.outside(name)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if self.is_upper && is_overlays(name) && !can_record(self.nodes.kind(request.node)?) {
            // The overlay notes where it copied a symbolic link from. An error would make it do
            // without attributes from then on, and nothing needs this one.
            return Ok(());
        }
        let file = self.nodes.get(request.node)?;
        if self.is_upper && name == ACCESS {
            let stat = fstat(&*file)?;
            let shown = self.shown(request, request.node, &file, &stat);
            return self.set_access(&file, &stat, shown, value);
        }
        setxattr(path(&file), &*kept, value, flags)
    }

    pub(super) fn extended(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let size = body.u32()?;
        body.u32()?;
        let name = self.outside(body.text()?)?;
        let path = path(&*self.nodes.get(request.node)?);
        if size == 0 {
            answer_size(getxattr_query(&path, &*name)?, reply);
            return Ok(());
        }
        reply.fill(size.min(LONGEST), |place| getxattr(&path, &*name, place))?;
        Ok(())
    }

    pub(super) fn list_extended(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let mut body = request.body;
        let size = bounded(body.u32()?);
        let path = path(&*self.nodes.get(request.node)?);
        let mut all = vec![0; listxattr_query(&path)?.saturating_add(256)];
        let length = listxattr(&path, all.as_mut_slice())?;
        let names = all.get(..length).unwrap_or_default();
        let names = names.split(|byte| *byte == 0);
        let names = names.filter_map(|name| self.inside(name));
        let mut seen = Vec::new();
        for name in names {
            seen.extend_from_slice(&name);
            seen.push(0);
        }
        match size {
            0 => answer_size(seen.len(), reply),
            size if seen.len() > size as usize => return Err(Errno::RANGE),
            _ => reply.bytes(&seen),
        }
        Ok(())
    }

    pub(super) fn remove_extended(&self, request: &Request<'_>) -> Result<(), Errno> {
        let mut body = request.body;
        let name = self.outside(body.text()?)?;
        removexattr(path(&*self.nodes.get(request.node)?), &*name)
    }
}

/// Answers how long a value is (`fuse_getxattr_out`).
fn answer_size(size: usize, reply: &mut Reply) {
    reply.u32(u32::try_from(size).unwrap_or(u32::MAX));
    reply.u32(0);
}

/// Returns a regular file's mode as the kernel leaves it when the file is written to or given away:
/// the set-group bit of a file that is not executable by its group stays.
fn without_set_id(mode: u32) -> u32 {
    let executable_by_group = mode & 0o010 != 0;
    mode & !0o4000 & if executable_by_group { !0o2000 } else { !0 }
}

fn ids(text: &[u8]) -> Option<Ids> {
    let (uid, gid) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some(Ids {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
    })
}
