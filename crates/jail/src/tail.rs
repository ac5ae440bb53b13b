//! Bounded output of a jailed process or its guest.
//!
//! Either can write without end. Its owner never stores all of the output, and the writer never
//! waits for its owner: a thread always drains the pipes, and keeps only their last parts.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use micabox_ground::lock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{read, retry_on_intr};

/// The last part of a stream that a thread drains.
#[derive(Clone, Debug)]
pub struct Tail {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    capacity: usize,
}

impl Tail {
    /// Creates a tail that keeps the last `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: Arc::new(Mutex::new(Ring {
                bytes: VecDeque::new(),
                capacity,
            })),
        }
    }

    /// Drains streams to their ends, each into its tail. Blocks until the last one ends.
    pub fn drain(streams: &[(&Self, BorrowedFd<'_>)]) {
        let mut open = streams.to_vec();
        let mut buffer = [0; 4096];
        while !open.is_empty() {
            let fds = open.iter();
            let mut fds: Vec<_> = fds
                .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
                .collect();
            if open.len() > 1 && retry_on_intr(|| poll(&mut fds, None)).is_err() {
                return;
            }
            let mut is_ready = fds.iter().map(|fd| !fd.revents().is_empty());
            let is_single = open.len() == 1;
            open.retain(|(tail, fd)| {
                if !is_ready.next().unwrap_or_default() && !is_single {
                    return true;
                }
                let count = retry_on_intr(|| read(fd, &mut buffer)).unwrap_or_default();
                tail.push(buffer.get(..count).unwrap_or_default());
                count > 0
            });
        }
    }

    /// As [`Tail::drain`], for one stream in a new thread.
    ///
    /// # Errors
    /// When there can't be another thread.
    pub fn drain_in_thread(
        &self,
        stream: impl AsFd + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let tail = self.clone();
        let thread = std::thread::Builder::new().name("stderr".into());
        thread.spawn(move || Self::drain(&[(&tail, stream.as_fd())]))
    }

    fn push(&self, bytes: &[u8]) {
        let mut ring = lock(&self.ring);
        ring.bytes.extend(bytes);
        let surplus = ring.bytes.len().saturating_sub(ring.capacity);
        ring.bytes.drain(..surplus);
    }

    /// Returns the kept part as text for a terminal. Control characters other than line feeds and
    /// tabs are dropped, so that jailed code can't drive the user's terminal.
    pub fn text(&self) -> String {
        let ring = lock(&self.ring);
        let bytes: Vec<u8> = ring.bytes.iter().copied().collect();
        drop(ring);
        String::from_utf8_lossy(&bytes)
            .chars()
            .filter(|c| matches!(c, '\n' | '\t') || !c.is_control())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn tails_keep_only_the_ends_of_streams() {
        let tails = [Tail::new(8), Tail::new(8)];
        let [(first, mut to_first), (second, mut to_second)] =
            [(); 2].map(|()| std::io::pipe().unwrap());
        let [one, two] = &tails;
        std::thread::scope(|scope| {
            scope.spawn(|| Tail::drain(&[(one, first.as_fd()), (two, second.as_fd())]));
            // More than pipes hold, in turns.
            for _ in 0..64 {
                to_first.write_all(&[b'x'; 16 << 10]).unwrap();
                to_second.write_all(&[b'y'; 16 << 10]).unwrap();
            }
            drop(to_first);
            to_second.write_all(b"the end\n").unwrap();
            drop(to_second);
        });
        assert_eq!(one.text(), "xxxxxxxx");
        assert_eq!(two.text(), "the end\n");
    }

    #[test]
    fn a_tail_contains_no_terminal_escapes() {
        let tail = Tail::new(64);
        tail.push(b"a\x1b[2Jb\r\n\tc\xff\0");
        assert_eq!(tail.text(), "a[2Jb\n\tc\u{fffd}");
    }
}
