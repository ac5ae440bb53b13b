//! Requests about attributes.

use micabox_fuse::message::{Reply, Request};
use micabox_memfs::{Change, Errno, Kill, Stat, Time, Timestamp};

use super::{Tree, VALID, attributes};

/// Which attributes to set (`FATTR_*`).
const MODE: u32 = 1 << 0;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const ATIME_NOW: u32 = 1 << 7;
const MTIME_NOW: u32 = 1 << 8;
const CTIME: u32 = 1 << 10;
const KILL_SET_ID: u32 = 1 << 11;

/// The open file through which it is done (`FATTR_FH`), no attribute.
const FILE: u32 = 1 << 6;

impl Tree<'_> {
    pub(super) fn attributes(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        Ok(answer(&self.files.stat(request.node)?))
    }

    pub(super) fn set_attributes(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let valid = body.u32()?;
        body.u32()?; // Padding.
        body.u64()?; // The open file.
        let size = body.u64()?;
        body.u64()?; // The owner of a lock.
        // Seconds before 1970 are negative, as the kernel has them.
        let seconds = [body.u64()?, body.u64()?, body.u64()?].map(|seconds| seconds as i64);
        let [atime, mtime, ctime] = {
            let [a, m, c] = seconds;
            [(a, body.u32()?), (m, body.u32()?), (c, body.u32()?)]
        }
        .map(|(seconds, nanos)| Timestamp { seconds, nanos });
        let mode = body.u32()? & 0o7777;
        body.u32()?;
        let (uid, gid) = (body.u32()?, body.u32()?);

        let given = |flag: u32| valid & flag != 0;
        let time = |flag, now, time| match (given(flag), given(now)) {
            (false, _) => None,
            (true, true) => Some(Time::Now),
            (true, false) => Some(Time::At(time)),
        };
        let change = Change {
            mode: given(MODE).then_some(mode as u16),
            uid: given(UID).then_some(uid),
            gid: given(GID).then_some(gid),
            size: given(SIZE).then_some(size),
            atime: time(ATIME, ATIME_NOW, atime),
            mtime: time(MTIME, MTIME_NOW, mtime),
            ctime: given(CTIME).then_some(ctime),
            // To set nothing is what is left of the kernel's removal of set-id bits before a user
            // without the right to them changes contents (`file_remove_privs`, `fuse_setattr`). The kernel
            // has checked groups for it, which requests do not carry.
            kill: if valid & !FILE == 0 {
                Kill::BothSetIds
            } else if given(KILL_SET_ID) {
                Kill::SetId
            } else {
                Kill::Capabilities
            },
        };
        Ok(answer(&self.files.set(request.node, &change)?))
    }

    pub(super) fn read_link(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut reply = Reply::new();
        reply.bytes(&self.files.read_link(request.node)?);
        Ok(reply)
    }

    /// Answers with what is taken and free (`fuse_statfs_out`).
    pub(super) fn room(&self) -> Reply {
        const BLOCK: u64 = 4096;
        let (limits, usage) = (self.files.limits(), self.files.usage());
        let blocks = limits.bytes / BLOCK;
        let free = blocks.saturating_sub(usage.bytes.div_ceil(BLOCK));
        let mut reply = Reply::new();
        for number in [
            blocks,
            free,
            free,
            limits.inodes,
            limits.inodes.saturating_sub(usage.inodes),
        ] {
            reply.u64(number);
        }
        reply.u32(BLOCK as u32);
        reply.u32(micabox_memfs::NAME_MAX as u32);
        reply.u32(BLOCK as u32);
        reply.bytes(&[0; 28]);
        reply
    }
}

fn answer(stat: &Stat) -> Reply {
    let mut reply = Reply::new();
    reply.only_attributes(&attributes(stat), VALID);
    reply
}
