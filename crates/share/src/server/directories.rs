//! Requests about directories that are open.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use micabox_fuse::message::{ENTRY_ATTRIBUTES, Entry, Reply, Request};
use micabox_fuse::opcode;
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, SeekFrom, fstat, openat, seek};
use rustix::io::Errno;

use super::contents::{KEEP_CACHE, NO_HANDLE};
use super::{Server, bounded};
use crate::handles::Handle;
use crate::nodes::ROOT;
use crate::owner::path;
use crate::shown::{self, Shown};

/// Bytes of entries that are read from the host at a time: about as many as the answer has room for.
const PIECES: std::ops::RangeInclusive<usize> = 600..=32 << 10;

/// The guest may keep the entries that it reads (`FOPEN_CACHE_DIR`), as long as attributes say that
/// the directory has not changed.
const CACHE_ENTRIES: u32 = 1 << 3;

/// The number of the open root of a file that is shared: no handle has it.
const ONLY: u64 = 0;

impl Server {
    pub(super) fn open_directory(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let file = self.directory(request.node)?;
        let mut flags = 0;
        if self.is_watched(request.node) {
            flags |= CACHE_ENTRIES;
            if self.is_unchanged(request.node, &file)? {
                flags |= KEEP_CACHE;
            }
        }
        self.opened(file, flags, reply);
        Ok(())
    }

    fn directory(&self, node: u64) -> Result<OwnedFd, Errno> {
        let place = self.nodes.get(node)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path(&place), flags, Mode::empty())
    }

    /// Returns an open directory: the one of this number, or one that is opened for this request alone.
    pub(super) fn opened_directory(&self, node: u64, handle: u64) -> Result<Arc<Handle>, Errno> {
        match handle {
            NO_HANDLE => Ok(Arc::new(Handle::new(self.directory(node)?))),
            number => self.handles.get(number),
        }
    }

    /// Answers with entries from a place on, as many as have room; with their attributes if
    /// `is_plus`.
    pub(super) fn entries(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
        is_plus: bool,
    ) -> Result<(), Errno> {
        let mut body = request.body;
        let (handle, offset, size) = (body.u64()?, body.u64()?, bounded(body.u32()?));
        let handle = self.opened_directory(request.node, handle)?;
        let mut place = handle.place();
        if *place != offset {
            seek(&handle.file, SeekFrom::Start(offset))?;
        }
        // Unknown until all that was read is taken.
        *place = u64::MAX;
        let piece = if is_plus { size / 6 } else { size } as usize;
        let mut space = vec![MaybeUninit::uninit(); piece.clamp(*PIECES.start(), *PIECES.end())];
        let mut directory = RawDir::new(&handle.file, &mut space);
        let mut next = offset;
        while let Some(entry) = directory.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if reply.length() == 0 => return Err(error),
                Err(_) => return Ok(()),
            };
            let name = entry.file_name();
            let after = entry.next_entry_cookie();
            let found = Entry {
                number: entry.ino(),
                after,
                mode: entry.file_type().as_raw_mode(),
                name: name.to_bytes(),
            };
            let is_self = matches!(name.to_bytes(), b"." | b"..");
            if reply.length().saturating_add(found.length(is_plus)) > size as usize {
                return Ok(());
            }
            if is_plus {
                // Of an entry without attributes the guest asks itself, or sees that it is gone.
                let known = (!is_self).then(|| self.nodes.look_up(request.node, name));
                match known.and_then(Result::ok) {
                    Some(known) => self.add_entry(request, &known, reply)?,
                    None => reply.bytes(&[0; ENTRY_ATTRIBUTES]),
                }
            }
            reply.directory_entry(&found);
            next = after;
            if directory.is_buffer_empty() {
                // All that was read is in the reply: the next request continues here.
                break;
            }
        }
        *place = next;
        Ok(())
    }

    /// Answers a request about the root of a share that is one file: a directory with one entry.
    pub(super) fn serve_only_entry(
        &self,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let name = self.only.as_deref().unwrap_or_default();
        let file = self.nodes.get(ROOT)?;
        let stat = fstat(&*file)?;
        let mut body = request.body;
        match request.opcode {
            opcode::INIT => self.begin(request, reply),
            opcode::DESTROY => self.end(),
            opcode::SETXATTR => self.set_extended(request),
            opcode::STATFS => self.room(request, reply),
            opcode::RELEASEDIR | opcode::FSYNCDIR => Ok(()),
            opcode::GETATTR => {
                let owner = self.owner();
                let shown = Shown {
                    uid: owner.uid,
                    gid: owner.gid,
                    mode: FileType::Directory.as_raw_mode() | 0o755,
                };
                let mut stat = stat;
                stat.st_nlink = 2;
                let valid = self.validity.of(FileType::Directory);
                shown::only_attributes(reply, &stat, &shown, valid.attributes);
                Ok(())
            }
            opcode::LOOKUP if body.name()? == name => {
                let place = openat(
                    CWD,
                    path(&file),
                    OFlags::PATH | OFlags::CLOEXEC,
                    Mode::empty(),
                );
                let found = self.nodes.count_lookup(ROOT, name, place?, true)?;
                self.add_entry(request, &found, reply)
            }
            opcode::LOOKUP => Err(Errno::NOENT),
            opcode::OPENDIR => {
                reply.u64(ONLY);
                reply.u64(0);
                Ok(())
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                body.u64()?;
                let offset = body.u64()?;
                if offset == 0 {
                    if request.opcode == opcode::READDIRPLUS {
                        reply.bytes(&[0; ENTRY_ATTRIBUTES]);
                    }
                    let entry = Entry {
                        number: stat.st_ino,
                        after: 1,
                        mode: FileType::RegularFile.as_raw_mode(),
                        name: name.to_bytes(),
                    };
                    reply.directory_entry(&entry);
                }
                Ok(())
            }
            _ => Err(Errno::PERM),
        }
    }
}
