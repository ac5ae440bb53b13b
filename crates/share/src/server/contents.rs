//! Requests about open files.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use micabox_fuse::message::{Reply, Request};
use micabox_fuse::opcode;
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, SeekFrom, copy_file_range, fallocate, fdatasync,
    fstat, fsync, openat, syncfs,
};
use rustix::io::{Errno, ReadWriteFlags, pread, pwritev2};

use super::{Server, bounded};
use crate::handles::Handle;
use crate::nodes::Stamp;
use crate::owner::path;
use crate::settled::is_settled;

/// The guest may keep what it has cached of the file (`FOPEN_KEEP_CACHE`).
pub(super) const KEEP_CACHE: u32 = 1 << 1;

/// A write clears set-id bits (`FUSE_WRITE_KILL_SUIDGID`).
const WRITE_KILLS: u32 = 1 << 2;

/// Flush data only (`FUSE_FSYNC_FDATASYNC`).
const DATA_ONLY: u32 = 1;

/// A write is of what a program has changed in memory, at its own offset (`FUSE_WRITE_CACHE`).
const WRITE_IS_CACHED: u32 = 1 << 0;

/// The number that stands for no open file: the guest asked for none, or was given none.
pub(super) const NO_HANDLE: u64 = 0;

/// Returns the flags of a guest's open that the host's open gets: how the file is accessed. What a
/// path means is not the host's business any more, direct I/O is for the guest's cache, and each
/// write says whether it appends.
pub(super) fn usable(asked: OFlags) -> OFlags {
    let kept = OFlags::ACCMODE | OFlags::SYNC | OFlags::DSYNC;
    (asked & kept) | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK
}

impl Server {
    pub(super) fn open(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let asked = OFlags::from_bits_retain(body.u32()?);
        let file = self.open_node(request.node, asked)?;
        let flags = if self.is_upper || self.is_unchanged(request.node, &file)? {
            KEEP_CACHE
        } else {
            0
        };
        self.opened(file, flags, reply);
        Ok(())
    }

    /// Opens a regular file that the guest knows. A FIFO or a device is never opened: those are the
    /// guest's kernel's.
    pub(super) fn open_node(&self, node: u64, asked: OFlags) -> Result<OwnedFd, Errno> {
        let writes = asked & OFlags::ACCMODE != OFlags::RDONLY;
        if self.is_read_only && (writes || asked.contains(OFlags::TRUNC)) {
            return Err(Errno::ROFS);
        }
        if self.nodes.kind(node)? != FileType::RegularFile {
            return Err(Errno::ACCESS);
        }
        let place = self.nodes.get(node)?;
        let flags = usable(asked) | (asked & OFlags::TRUNC);
        openat(CWD, path(&place), flags, Mode::empty())
    }

    /// Returns an open file: the one of this number, or one that is opened for this request alone.
    pub(super) fn opened_file(
        &self,
        node: u64,
        handle: u64,
        asked: OFlags,
    ) -> Result<Arc<Handle>, Errno> {
        match handle {
            NO_HANDLE => Ok(Arc::new(Handle::new(self.open_node(node, asked)?))),
            number => self.handles.get(number),
        }
    }

    /// Returns whether a file is as it was when it was opened last, so that the guest's cache is
    /// valid. Its times must be old enough to tell.
    pub(super) fn is_unchanged(&self, node: u64, file: &OwnedFd) -> Result<bool, Errno> {
        let stat = fstat(file)?;
        let stamp: Stamp = (
            stat.st_mtime,
            stat.st_mtime_nsec,
            stat.st_ctime,
            stat.st_ctime_nsec,
            stat.st_size,
        );
        let before = self.nodes.stamp(node, is_settled(&stat).then_some(stamp));
        Ok(before == Some(stamp))
    }

    /// Adds an open file to the reply (`fuse_open_out`).
    pub(super) fn opened(&self, file: OwnedFd, flags: u32, reply: &mut Reply) {
        reply.u64(self.handles.add(file));
        reply.u32(flags);
        reply.u32(0);
    }

    pub(super) fn read(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let (handle, offset, size) = (body.u64()?, body.u64()?, bounded(body.u32()?));
        let handle = self.opened_file(request.node, handle, OFlags::RDONLY)?;
        reply.fill(size, |place| {
            let mut done = 0;
            // A shorter answer is the end of the file for the guest.
            while let Some(rest) = place.get_mut(done..).filter(|rest| !rest.is_empty()) {
                let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
                match pread(&handle.file, rest, at) {
                    Ok(0) => break,
                    Ok(count) => done = done.saturating_add(count),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(done)
        })?;
        Ok(())
    }

    pub(super) fn write(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let (handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
        let flags = body.u32()?;
        body.u64()?; // The owner of locks.
        let asked = OFlags::from_bits_retain(body.u32()?);
        body.u32()?;
        let data = body.bytes(size)?;
        let synced = asked & (OFlags::SYNC | OFlags::DSYNC);
        let handle = self.opened_file(request.node, handle, OFlags::WRONLY | synced)?;
        if flags & WRITE_KILLS != 0 {
            self.clear_set_id(request, request.node)?;
        }
        let appends = asked.contains(OFlags::APPEND) && flags & WRITE_IS_CACHED == 0;
        let how = if appends {
            ReadWriteFlags::APPEND
        } else {
            ReadWriteFlags::empty()
        };
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
            match pwritev2(&handle.file, &[IoSlice::new(rest)], at, how) {
                Ok(0) => break,
                Ok(count) => done = done.saturating_add(count),
                Err(Errno::INTR) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        reply.u32(u32::try_from(done).unwrap_or(u32::MAX));
        reply.u32(0);
        Ok(())
    }

    pub(super) fn close(&self, request: &Request<'_>) -> Result<(), Errno> {
        let mut body = request.body;
        self.handles.remove(body.u64()?);
        Ok(())
    }

    pub(super) fn flush(&self, request: &Request<'_>) -> Result<(), Errno> {
        let mut body = request.body;
        let (handle, flags) = (body.u64()?, body.u32()?);
        let handle = match request.opcode {
            opcode::FSYNC => self.opened_file(request.node, handle, OFlags::RDONLY)?,
            _ => self.opened_directory(request.node, handle)?,
        };
        if flags & DATA_ONLY != 0 {
            fdatasync(&handle.file)
        } else {
            fsync(&handle.file)
        }
    }

    /// Flushes the filesystem of the share.
    pub(super) fn flush_all(&self, request: &Request<'_>) -> Result<(), Errno> {
        let place = self.nodes.get(request.node)?;
        let directory = openat(
            CWD,
            path(&place),
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        syncfs(directory)
    }

    pub(super) fn allocate(&self, request: &Request<'_>) -> Result<(), Errno> {
        let mut body = request.body;
        let (handle, offset, length) = (body.u64()?, body.u64()?, body.u64()?);
        let mode = FallocateFlags::from_bits(body.u32()?).ok_or(Errno::OPNOTSUPP)?;
        let handle = self.opened_file(request.node, handle, OFlags::WRONLY)?;
        self.clear_set_id(request, request.node)?;
        fallocate(&handle.file, mode, offset, length)
    }

    pub(super) fn seek(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        const DATA: u32 = 3;
        const HOLE: u32 = 4;
        let mut body = request.body;
        let (handle, offset, whence) = (body.u64()?, body.u64()?, body.u32()?);
        let handle = self.opened_file(request.node, handle, OFlags::RDONLY)?;
        let to = match whence {
            DATA => SeekFrom::Data(offset),
            HOLE => SeekFrom::Hole(offset),
            // The guest's kernel knows the others itself.
            _ => return Err(Errno::INVAL),
        };
        reply.u64(rustix::fs::seek(&handle.file, to)?);
        Ok(())
    }

    pub(super) fn copy(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let mut body = request.body;
        let (from, mut from_offset) = (body.u64()?, body.u64()?);
        let to_node = body.u64()?;
        let (to, mut to_offset) = (body.u64()?, body.u64()?);
        let length = body.u64()?.min(1 << 30);
        let from = self.opened_file(request.node, from, OFlags::RDONLY)?;
        let to = self.opened_file(to_node, to, OFlags::WRONLY)?;
        self.clear_set_id(request, to_node)?;
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        let copied = copy_file_range(
            &from.file,
            Some(&mut from_offset),
            &to.file,
            Some(&mut to_offset),
            length,
        )?;
        reply.u32(u32::try_from(copied).unwrap_or(u32::MAX));
        reply.u32(0);
        Ok(())
    }
}
