//! A stream of bytes from a caller to its worker, through memory that both see.
//!
//! The caller fills one part of the memory after the other and the worker reads each where it
//! is: nothing is copied, and what goes through the kernel is a few bytes a part. Only the
//! caller's own mapping can change the memory, so it may trust what it put there.

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

/// Bytes of a part: enough that passing it on costs nothing, few enough for a cache.
const PART: usize = 512 << 10;
/// One to fill, one to read, and two that wait for the slower end.
const PARTS: usize = 4;

/// How often a caller that waits is asked whether to go on.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// The caller's end.
#[derive(Debug)]
pub struct Feed {
    memory: Memory,
    /// Lengths of parts go out, and a byte comes back for each that was read.
    signals: UnixStream,
    /// Parts that were handed over, and how many of them were read.
    sent: usize,
    read: usize,
}

/// The worker's end, which reads parts in place.
#[derive(Debug)]
pub struct Fed {
    memory: Memory,
    signals: File,
    /// Number of the current part.
    part: usize,
    /// Where it goes on in the memory, and how many bytes are left.
    at: usize,
    left: usize,
}

/// Why there is no room for another part.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// The worker wants no more, or is gone.
    #[error("it takes no more")]
    Closed,
    /// The caller waits no longer.
    #[error("it took too long")]
    GivenUp,
    /// The system has an error.
    #[error("{0}")]
    Failed(io::Error),
}

impl Feed {
    /// A feed, and what the worker makes its end of.
    ///
    /// # Errors
    /// If the system has no memory or descriptors to give.
    pub fn new() -> io::Result<(Self, [OwnedFd; 2])> {
        let file = memfd_create("feed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (PART * PARTS) as u64)?;
        let memory = Memory::map(&file, ProtFlags::READ | ProtFlags::WRITE)?;
        // From here on nothing but that mapping can write, and no access is beyond the end.
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let (signals, worker) = UnixStream::pair()?;
        signals.set_read_timeout(Some(TICK))?;
        // Full only for a worker that says that it read what it was not told of yet.
        signals.set_write_timeout(Some(TICK))?;
        let feed = Self {
            memory,
            signals,
            sent: 0,
            read: 0,
        };
        Ok((feed, [file, worker.into()]))
    }

    /// The next part, once the worker has read what was in it. While it has not, `go_on` is
    /// asked once a second.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn room(&mut self, mut go_on: impl FnMut() -> bool) -> Result<&mut [u8], NoRoom> {
        while self.sent - self.read == PARTS {
            // As many as there are parts to be read: more would be a lie, and wait here.
            let mut bytes = [0; PARTS];
            match self.signals.read(&mut bytes) {
                Ok(0) => return Err(NoRoom::Closed),
                Ok(count) => self.read += count,
                Err(error) if is_tick(&error) => match go_on() {
                    true => {}
                    false => return Err(NoRoom::GivenUp),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(closed(error)),
            }
        }
        let number = self.sent % PARTS;
        // SAFETY: within the mapping, which is writable, lives as long as `self`, which the
        // slice borrows, and is no one else's to write to.
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

    /// Says that this is all.
    pub fn end(&self) {
        // A worker that is gone needs no telling.
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
    /// The worker's end of a feed, of the files that [`Feed::new`] gave.
    ///
    /// # Errors
    /// If they are others.
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
        // SAFETY: within the mapping, which lives as long as `self`, which the slice borrows. The
        // caller, whom a worker trusts, changes no part that wasn't given back.
        Ok(unsafe { std::slice::from_raw_parts(self.memory.0.add(self.at).as_ptr(), self.left) })
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.left);
        self.at += count;
        self.left -= count;
        if count > 0 && self.left == 0 {
            // A caller that is gone is noticed by the next read.
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

/// All parts.
#[derive(Debug)]
struct Memory(NonNull<u8>);

// SAFETY: it is memory of this process, like a box.
unsafe impl Send for Memory {}

impl Memory {
    fn map(file: &OwnedFd, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping, where the kernel likes.
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
        // SAFETY: it was mapped so, and nothing that borrows it is left. It can't fail.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PART * PARTS) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fed_comes_out_to_the_last_byte() {
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
    fn only_its_owner_can_change_what_is_fed() {
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
        // SAFETY: asks for more than the memory's seals give.
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
