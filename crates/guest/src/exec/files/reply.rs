//! Writes replies to an operation's streams.

use std::io;
use std::os::fd::AsFd;

use micabox_wire::encode;
use micabox_wire::files::FileReply;
use rustix::io::Errno;

/// Writes a reply.
pub fn send(to: &impl AsFd, reply: &FileReply) -> io::Result<()> {
    let mut frame = Vec::new();
    encode(reply, &mut frame).map_err(io::Error::other)?;
    write_all(to, &frame)
}

/// Writes all bytes.
pub fn write_all(to: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
