//! The request of statx(2), the only one that returns a file's time of birth.

use micabox_fuse::message::{Reply, Request};
use micabox_memfs::{Errno, Timestamp};

use super::{FOREVER, Tree, mode};

/// All basic attributes, and the time of birth (`STATX_BASIC_STATS | STATX_BTIME`).
const KNOWN: u32 = 0xfff;

impl Tree<'_> {
    /// Answers with `fuse_statx_out`.
    pub(super) fn extended_attributes(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let stat = self.files.stat(request.node)?;
        let mut reply = Reply::new();
        reply.u64(FOREVER.as_secs());
        reply.u32(FOREVER.subsec_nanos());
        reply.u32(0); // Flags.
        reply.bytes(&[0; 16]);
        // `fuse_statx`.
        reply.u32(KNOWN);
        reply.u32(4096); // Bytes to read and write at a time.
        reply.u64(0); // No attributes of statx(2), nor any that could be.
        reply.u32(stat.links);
        reply.u32(stat.uid);
        reply.u32(stat.gid);
        reply.u16(u16::try_from(mode(&stat)).unwrap_or_default());
        reply.u16(0);
        reply.u64(stat.number);
        reply.u64(stat.size);
        reply.u64(stat.blocks);
        reply.u64(0);
        for Timestamp { seconds, nanos } in [stat.atime, stat.born, stat.ctime, stat.mtime] {
            reply.u64(seconds as u64);
            reply.u32(nanos);
            reply.u32(0);
        }
        reply.u32(stat.device.0);
        reply.u32(stat.device.1);
        reply.bytes(&[0; 8 + 14 * 8]);
        Ok(reply)
    }
}
