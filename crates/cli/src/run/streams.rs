//! Bytes between our stdin, stdout and stderr and the command's.

use std::io::{self, Read, Write};

use micabox::{Output, Stdin};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::stdio::stdin;

use crate::output::raw;

/// Bytes moved at a time.
const CHUNK: usize = 64 << 10;

/// Passes our stdin on until it ends or the command reads no more.
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
            // Somebody who shares the terminal with us made it so.
            Err(Errno::AGAIN) => wait_until(stdin(), PollFlags::IN),
            // A terminal that is gone or belongs to another job.
            Err(_) => return,
        }
    }
}

/// Passes what the command writes on until it ends. The error is that of writing.
pub fn copy_output(
    mut from: Output,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        // That the sandbox is gone is told elsewhere.
        let Ok(count @ 1..) = from.read(&mut buffer) else {
            return Ok(());
        };
        write(buffer.get(..count).unwrap_or_default())?;
    }
}

/// Writes everything, however slowly it is taken.
pub fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_until(to, PollFlags::OUT),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits until nobody can read our stdout any more: a pipe or socket whose other end
/// was closed. Does not return for anything else.
pub fn wait_for_closed_stdout() {
    wait_until(raw::stdout_fd(), PollFlags::empty());
}

/// Waits for `event`, an error or a hang-up.
fn wait_until(fd: impl AsFd, event: PollFlags) {
    let mut fds = [PollFd::new(&fd, event)];
    while let Err(Errno::INTR | Errno::AGAIN) = poll(&mut fds, None) {}
}
