//! Requests that wait until the kernel has written what it has cached of their file.
//!
//! It writes through requests, and is done when those are answered. So what asks for it is a thread that serves
//! no request.

use std::sync::mpsc::Receiver;

use rustix::io::write;

use crate::channel::Channel;

/// The notification that an inode's contents are no longer valid (`FUSE_NOTIFY_INVAL_INODE`). The kernel writes
/// what only it has before it drops the rest.
const INVALIDATE: u32 = 2;

/// A request that waits.
pub(crate) struct Waiting<'a> {
    pub(crate) node: u64,
    /// Serves it.
    pub(crate) then: Box<dyn FnOnce() + Send + 'a>,
}

/// Has files written, and their requests served, until there can be no more.
pub(crate) fn serve(channel: &Channel, waiting: &Receiver<Waiting<'_>>) {
    for Waiting { node, then } in waiting {
        // Fails if the kernel has forgotten the file, or the filesystem is gone.
        let _ = write(channel, &message(node));
        then();
    }
}

/// Returns the message for all of a file (`fuse_out_header`, `fuse_notify_inval_inode_out`).
fn message(node: u64) -> [u8; 40] {
    let code = u64::from(INVALIDATE) << 32 | 40;
    let mut message = [0; 40];
    // No request's number, from the first byte on, to the end.
    let words = [code, 0, node, 0, 0].map(u64::to_le_bytes);
    message.copy_from_slice(words.as_flattened());
    message
}
