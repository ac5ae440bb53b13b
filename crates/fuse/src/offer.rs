//! What a server offers at the start of a session (`FUSE_INIT`).

use rustix::io::Errno;

use crate::message::{Body, MAJOR, MINOR, MOST_DATA, Reply};

/// Flags of `FUSE_INIT`, each of which a server has to be made for.
#[expect(missing_docs, reason = "the kernel's names")]
pub mod flag {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
    /// Not of mainline (`kernel/patches`): the kernel has a table of versions.
    pub const VERSIONS: u64 = 1 << 63;
}

/// Oldest minor version that is spoken: that of Linux 5.4.
const OLDEST: u32 = 31;

/// What a server offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Flags ([`flag`]), of which the kernel uses those that it knows.
    pub flags: u64,
    /// Requests that the kernel sends without waiting for them (readahead, writing back).
    pub background: u16,
}

impl Offer {
    /// Answers the first request: the kernel's own version and flags are in `body`. Returns the reply
    /// and the flags that both sides have.
    ///
    /// # Errors
    /// `EPROTO` for a kernel before Linux 5.4.
    pub fn answer(self, body: Body<'_>) -> Result<(Reply, u64), Errno> {
        let (readahead, known) = asked(body)?;
        let flags = known & (self.flags | flag::INIT_EXT | flag::MAX_PAGES | flag::BIG_WRITES);
        let mut reply = Reply::new();
        reply.u32(MAJOR);
        reply.u32(MINOR);
        reply.u32(readahead.max(MOST_DATA));
        reply.u32(flags as u32);
        reply.u16(self.background);
        reply.u16(self.background / 4 * 3);
        reply.u32(MOST_DATA);
        reply.u32(1); // Times are in nanoseconds.
        reply.u16(u16::try_from(MOST_DATA / 4096).unwrap_or(u16::MAX));
        reply.u16(0); // No mapping of the server's memory.
        reply.u32((flags >> 32) as u32);
        reply.bytes(&[0; 28]);
        Ok((reply, flags))
    }
}

/// Returns the bytes that the kernel reads ahead, and the flags that it knows.
fn asked(mut body: Body<'_>) -> Result<(u32, u64), Errno> {
    let (major, minor) = (body.u32()?, body.u32()?);
    let (readahead, low) = (body.u32()?, body.u32()?);
    if major < MAJOR || minor < OLDEST {
        return Err(Errno::PROTO);
    }
    let mut known = u64::from(low);
    if known & flag::INIT_EXT != 0 {
        known |= u64::from(body.u32().unwrap_or(0)) << 32;
    }
    Ok((readahead, known))
}

/// Returns the flags that the kernel knows, from the first request's body; none if that is no such body.
pub fn known(body: Body<'_>) -> u64 {
    asked(body).map_or(0, |(_, known)| known)
}
