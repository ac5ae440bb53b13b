//! Requests about contents.

use micabox_fuse::Answer;
use micabox_fuse::message::{MOST_DATA, Reply, Request};
use micabox_memfs::{Errno, Kill, Seek};

use super::Tree;

/// Flags of a write (`FUSE_WRITE_*`): it comes from the kernel's cache; it clears set-id bits.
const FROM_CACHE: u32 = 1 << 0;
const KILL_SET_ID: u32 = 1 << 2;

/// How to allocate (`FALLOC_FL_*`, `linux/falloc.h`). The kernel sends no other flag to FUSE: collapsing
/// and inserting ranges fails before it asks (`fuse_file_fallocate`).
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

/// Where to seek to (lseek(2)).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Most bytes that are copied for one request: the thread serves no other meanwhile.
const COPY_MAX: u64 = 64 << 20;

impl Tree<'_> {
    pub(super) fn read(&self, request: &Request<'_>, answer: Answer<'_>) {
        let mut body = request.body;
        let parameters = || -> Result<_, Errno> {
            body.u64()?; // The open file.
            Ok((body.u64()?, body.u32()?.min(MOST_DATA)))
        };
        let (offset, size) = match { parameters }() {
            Ok(parameters) => parameters,
            Err(error) => return answer.reply(Err(error)),
        };
        let mut answer = Some(answer);
        let sent = self
            .files
            .read(request.node, offset, size.into(), |pieces| {
                if let Some(answer) = answer.take() {
                    answer.pieces(&pieces);
                }
            });
        if let (Err(error), Some(answer)) = (sent, answer) {
            answer.reply(Err(error));
        }
    }

    pub(super) fn write(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        body.u64()?; // The open file.
        let (offset, size, flags) = (body.u64()?, body.u32()?, body.u32()?);
        body.u64()?; // The owner of a lock.
        body.u64()?; // Flags of the open file, and padding.
        let data = body.bytes(size)?;
        let written = if flags & FROM_CACHE != 0 {
            // The kernel takes a part that was not written for written.
            self.files.write_back(request.node, offset, data)?;
            data.len()
        } else {
            let kills = flags & KILL_SET_ID != 0;
            let kill = if kills {
                Kill::SetId
            } else {
                Kill::Capabilities
            };
            self.files
                .write_and_kill(request.node, offset, data, kill)?
        };
        Ok(count(written as u64))
    }

    pub(super) fn allocate(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        body.u64()?; // The open file.
        let (offset, length, mode) = (body.u64()?, body.u64()?, body.u32()?);
        let keep_size = mode & KEEP_SIZE != 0;
        match mode & !KEEP_SIZE {
            0 => self
                .files
                .allocate(request.node, offset, length, keep_size)?,
            PUNCH_HOLE if keep_size => self.files.punch(request.node, offset, length)?,
            ZERO_RANGE => self.files.zero(request.node, offset, length, keep_size)?,
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(Reply::new())
    }

    pub(super) fn seek(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        body.u64()?; // The open file.
        let (offset, whence) = (body.u64()?, body.u32()?);
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        let mut reply = Reply::new();
        reply.u64(self.files.seek(request.node, offset, what)?);
        Ok(reply)
    }

    pub(super) fn copy(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        body.u64()?; // The open file.
        let from = (request.node, body.u64()?);
        let to = body.u64()?;
        body.u64()?; // The other open file.
        let to = (to, body.u64()?);
        let length = body.u64()?.min(COPY_MAX);
        Ok(count(self.files.copy(from, to, length)?))
    }
}

/// Answers with a number of bytes (`fuse_write_out`).
fn count(bytes: u64) -> Reply {
    let mut reply = Reply::new();
    reply.u64(bytes);
    reply
}
