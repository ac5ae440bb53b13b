//! Bounded output of a jailed process or its guest.
//!
//! Either can write without end. Its owner never stores all of the output, and the writer never
//! waits for its owner: a thread always drains the pipe, and keeps only the last part.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

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

    /// Drains `source` to its end in a new thread.
    pub fn drain(&self, mut source: impl Read + Send + 'static) -> JoinHandle<()> {
        let tail = self.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match source.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => tail.push(buffer.get(..count).unwrap_or_default()),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        })
    }

    fn push(&self, bytes: &[u8]) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.bytes.extend(bytes);
        let surplus = ring.bytes.len().saturating_sub(ring.capacity);
        ring.bytes.drain(..surplus);
    }

    /// Returns the kept part as text for a terminal. Control characters other than line feeds and
    /// tabs are dropped, so that jailed code can't drive the user's terminal.
    pub fn text(&self) -> String {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
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
    use super::*;

    #[test]
    fn a_tail_keeps_only_the_end() {
        let tail = Tail::new(8);
        tail.drain(std::io::repeat(b'x').take(1 << 20))
            .join()
            .unwrap();
        tail.push(b"the end\n");
        assert_eq!(tail.text(), "the end\n");
    }

    #[test]
    fn a_tail_contains_no_terminal_escapes() {
        let tail = Tail::new(64);
        tail.push(b"a\x1b[2Jb\r\n\tc\xff\0");
        assert_eq!(tail.text(), "a[2Jb\n\tc\u{fffd}");
    }
}
