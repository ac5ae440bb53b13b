//! Copies mica's stdin to the command's.

use std::io::Write;

use micabox::Stdin;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::stdio::stdin;

/// Bytes copied at a time.
const CHUNK: usize = 64 << 10;

/// Copies mica's stdin until it ends or the command stops reading.
pub fn copy_stdin(mut to: Stdin) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match rustix::io::read(stdin(), &mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                let bytes = buffer.get(..count).unwrap_or_default();
                if to.write_all(bytes).is_err() {
                    return;
                }
            }
            Err(Errno::INTR) => {}
            // Another process that shares the terminal has made it non-blocking.
            Err(Errno::AGAIN) => wait_until(stdin(), PollFlags::IN),
            // A terminal that is gone or belongs to another job.
            Err(_) => return,
        }
    }
}

/// Waits for `event`, an error or a hang-up.
fn wait_until(fd: impl AsFd, event: PollFlags) {
    let mut fds = [PollFd::new(&fd, event)];
    while let Err(Errno::INTR | Errno::AGAIN) = poll(&mut fds, None) {}
}
