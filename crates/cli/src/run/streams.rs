//! Copies mica's stdin to the command's.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use micabox::Stdin;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::stdio::stdin;

use super::keys::{Keys, Scanner};
use micabox_program::failure::Failure;

/// Bytes copied at a time.
const CHUNK: usize = 64 << 10;

/// Copies mica's stdin to a command's in a thread. With `keys`, until they are pressed: then the
/// result becomes readable. It ends without that when stdin ends or the command stops reading.
pub fn relay(to: Stdin, keys: Option<Keys>) -> Result<UnixStream, Failure> {
    let failed = |error: io::Error| Failure::of(&error).context("starting a thread");
    let (pressed, mut press) = UnixStream::pair().map_err(failed)?;
    pressed.set_nonblocking(true).map_err(failed)?;
    let thread = std::thread::Builder::new().name("stdin".into());
    let copy = move || {
        let rest = copy_stdin(to, keys.map(Scanner::new));
        if rest.is_some() {
            let _ = press.write_all(&[0]);
        }
        // The command's stdin stays open until mica has left it.
        std::mem::forget((rest, press));
    };
    thread.spawn(copy).map_err(failed)?;
    Ok(pressed)
}

/// Copies mica's stdin until it ends or the command stops reading. Returns the command's stdin if
/// the keys were pressed.
fn copy_stdin(mut to: Stdin, mut keys: Option<Scanner>) -> Option<Stdin> {
    let mut buffer = vec![0; CHUNK];
    let mut passed = Vec::new();
    loop {
        match rustix::io::read(stdin(), &mut buffer) {
            Ok(0) => return None,
            Ok(count) => {
                let mut bytes = buffer.get(..count).unwrap_or_default();
                let mut are_pressed = false;
                if let Some(keys) = &mut keys {
                    passed.clear();
                    are_pressed = keys.pass(bytes, &mut passed);
                    bytes = &passed;
                }
                if to.write_all(bytes).is_err() {
                    return None;
                }
                if are_pressed {
                    return Some(to);
                }
            }
            Err(Errno::INTR) => {}
            // Another process that shares the terminal has made it non-blocking.
            Err(Errno::AGAIN) => wait_until(stdin(), PollFlags::IN),
            // A terminal that is gone or belongs to another job.
            Err(_) => return None,
        }
    }
}

/// Waits for `event`, an error or a hang-up.
fn wait_until(fd: impl AsFd, event: PollFlags) {
    let mut fds = [PollFd::new(&fd, event)];
    while let Err(Errno::INTR | Errno::AGAIN) = poll(&mut fds, None) {}
}
