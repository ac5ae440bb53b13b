//! A stream of bytes from a caller to its worker through shared memory.
//!
//! The caller fills one part of the memory after another, and the worker reads each part in place:
//! nothing is copied, and only a few bytes a part go through the kernel. Only the caller's mapping
//! can change the memory, so the caller may trust what it put there.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::ptr::{self, NonNull};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a part: large enough that passing it on costs nothing, small enough for a cache.
const PART: usize = 512 << 10;
/// Number of parts: one to fill, one to read, and two that wait for the slower end.
const PARTS: usize = 4;

/// Interval at which a waiting caller is asked whether to continue.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// The caller's end of a feed: passes bytes to a worker through shared memory.
#[derive(Debug)]
pub struct Feed {
    memory: Memory,
    /// Carries the length of each sent part to the worker, and a byte back for each part that was
    /// read.
    signals: UnixStream,
    /// Numbers of parts handed over and of parts read.
    sent: usize,
    read: usize,
}

/// The worker's end of a feed: reads the parts in place.
#[derive(Debug)]
pub struct Fed {
    memory: Memory,
    signals: File,
    /// Number of the current part.
    part: usize,
    /// Offset of the unread bytes in the memory, and how many are left in the part.
    at: usize,
    left: usize,
}

/// Reasons why there is no room for another part.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// The worker closed its end or is gone.
    #[error("it takes no more")]
    Closed,
    /// The caller gave up waiting.
    #[error("it took too long")]
    GivenUp,
    /// A system call failed.
    #[error("{0}")]
    Failed(io::Error),
}

impl Feed {
    /// Creates a feed, and the files from which the worker makes its end ([`Fed::new`]).
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn new() -> io::Result<(Self, [OwnedFd; 2])> {
        let file = memfd_create("feed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (PART * PARTS) as u64)?;
        let memory = Memory::map(&file, ProtFlags::READ | ProtFlags::WRITE)?;
        // From here on only that mapping can write, and no access is beyond the file's end.
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let (signals, worker) = UnixStream::pair()?;
        signals.set_read_timeout(Some(TICK))?;
        // Full only if the worker acknowledges parts that it was not sent yet.
        signals.set_write_timeout(Some(TICK))?;
        let feed = Self {
            memory,
            signals,
            sent: 0,
            read: 0,
        };
        Ok((feed, [file, worker.into()]))
    }

    /// Returns the next part to fill, once the worker has read its previous contents. While it
    /// waits, it calls `keep_going` once a second.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn room(&mut self, mut keep_going: impl FnMut() -> bool) -> Result<&mut [u8], NoRoom> {
        while self.sent - self.read == PARTS {
            // At most as many acknowledgements as there are unread parts: any more would be false,
            // and stay in the socket.
            let mut bytes = [0; PARTS];
            match self.signals.read(&mut bytes) {
                Ok(0) => return Err(NoRoom::Closed),
                Ok(count) => self.read += count,
                Err(error) if is_tick(&error) => {
                    if !keep_going() {
                        return Err(NoRoom::GivenUp);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(closed(error)),
            }
        }
        let number = self.sent % PARTS;
        // SAFETY: the part is within the mapping, which is writable and lives as long as `self`,
        // which the slice borrows; no other code writes to it.
        Ok(unsafe {
            std::slice::from_raw_parts_mut(self.memory.0.add(number * PART).as_ptr(), PART)
        })
    }

    /// Hands over the first `count` bytes of the part that [`Feed::room`] gave.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn hand_over(&mut self, count: usize) -> Result<(), NoRoom> {
        let length = (count.min(PART) as u32).to_le_bytes();
        self.signals.write_all(&length).map_err(closed)?;
        self.sent += 1;
        Ok(())
    }

    /// Ends the stream.
    pub fn end(&self) {
        // Fails only if the worker is gone, which needs no end of stream.
        let _ = self.signals.shutdown(Shutdown::Write);
    }
}

fn is_tick(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn closed(error: io::Error) -> NoRoom {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => NoRoom::Closed,
        _ => NoRoom::Failed(error),
    }
}

impl Fed {
    /// Creates the worker's end of a feed from the files that [`Feed::new`] returned.
    ///
    /// # Errors
    /// If `files` are not those of a feed.
    pub fn new(files: [OwnedFd; 2]) -> io::Result<Self> {
        let [file, signals] = files;
        Ok(Self {
            memory: Memory::map(&file, ProtFlags::READ)?,
            signals: signals.into(),
            part: 0,
            at: 0,
            left: 0,
        })
    }
}

impl BufRead for Fed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 {
            let mut length = [0; 4];
            match self.signals.read_exact(&mut length) {
                Ok(()) => self.left = PART.min(u32::from_le_bytes(length) as usize),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(error),
            }
            self.at = self.part % PARTS * PART;
            self.part += usize::from(self.left > 0);
        }
        // SAFETY: the bytes are within the mapping, which lives as long as `self`, which the slice
        // borrows. The caller, which a worker trusts, changes no part that wasn't given back.
        Ok(unsafe { std::slice::from_raw_parts(self.memory.0.add(self.at).as_ptr(), self.left) })
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.left);
        self.at += count;
        self.left -= count;
        if count > 0 && self.left == 0 {
            // The next read notices a caller that is gone.
            let _ = self.signals.write_all(&[0]);
        }
    }
}

impl Read for Fed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

/// The mapping with all parts.
#[derive(Debug)]
struct Memory(NonNull<u8>);

// SAFETY: the mapping belongs to this value alone, as a box's memory does.
unsafe impl Send for Memory {}

impl Memory {
    fn map(file: &OwnedFd, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                PART * PARTS,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        NonNull::new(start.cast())
            .map(Self)
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping has this address and length, and nothing borrows it any more. It
        // can't fail.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PART * PARTS) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_passes_on_every_byte() {
        let bytes: Vec<u8> = (0..PART * (PARTS * 2) + 5).map(|i| (i / 3) as u8).collect();
        for length in [0, 1, PART, PART * PARTS + 1, bytes.len()] {
            let (mut feed, files) = Feed::new().unwrap();
            let read = std::thread::spawn(move || {
                let mut all = Vec::new();
                Fed::new(files).unwrap().read_to_end(&mut all).unwrap();
                all
            });
            for piece in bytes[..length].chunks(PART) {
                feed.room(|| true).unwrap()[..piece.len()].copy_from_slice(piece);
                feed.hand_over(piece.len()).unwrap();
            }
            feed.end();
            assert!(read.join().unwrap() == bytes[..length], "{length}");
        }
    }

    #[test]
    fn a_worker_cannot_change_what_it_is_fed() {
        let (mut feed, [file, signals]) = Feed::new().unwrap();
        feed.room(|| true).unwrap().fill(7);
        feed.hand_over(PART).unwrap();
        let refused = |result: io::Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        refused(Memory::map(&file, both).map(drop));
        refused(ftruncate(&file, 0).map_err(io::Error::from));
        refused(ftruncate(&file, 1 << 30).map_err(io::Error::from));
        refused(fcntl_add_seals(&file, SealFlags::WRITE).map_err(io::Error::from));
        let mut file = File::from(file);
        refused(file.write_all(b"x"));
        let mapped = Memory::map(&file.try_clone().unwrap().into(), ProtFlags::READ).unwrap();
        let start = mapped.0.as_ptr().cast();
        // SAFETY: requests an access that the memory's seals don't allow.
        let changed = unsafe {
            rustix::mm::mprotect(
                start,
                PART,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )
        };
        assert_eq!(changed, Err(rustix::io::Errno::ACCESS));
        let fed = Fed::new([file.into(), signals]).unwrap();
        assert!(fed.take(PART as u64).bytes().all(|byte| byte.unwrap() == 7));
    }

    #[test]
    fn a_worker_that_takes_nothing_is_waited_for_as_long_as_its_caller_likes() {
        let (mut feed, [_file, signals]) = Feed::new().unwrap();
        for _ in 0..PARTS {
            feed.room(|| unreachable!()).unwrap();
            feed.hand_over(1).unwrap();
        }
        let mut asked = 0;
        let room = feed.room(|| {
            asked += 1;
            asked < 2
        });
        assert!(matches!(room, Err(NoRoom::GivenUp)), "{room:?}");
        assert_eq!(asked, 2);
        drop(signals);
        assert!(matches!(feed.room(|| true), Err(NoRoom::Closed)));
    }
}
