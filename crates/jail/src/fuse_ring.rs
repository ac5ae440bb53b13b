//! A queue of requests to a FUSE server, in memory that it shares with the kernel (`fs/fuse/dev_uring.c`,
//! since Linux 6.14). It is here since the kernel writes to that memory, and `unsafe` is only in this crate.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{from_mut, null_mut};
use std::slice;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bytes of the headers of a request and its answer (`fuse_uring_req_header`): 128 for FUSE's own header,
/// 128 for the operation's, 32 about the place itself (`fuse_uring_ent_in_out`).
pub const RING_HEADERS: usize = 288;

/// Where the headers have the number that an answer repeats (`fuse_uring_ent_in_out.commit_id`).
const COMMIT_ID: usize = 264;

/// Bytes before a place's payload: its headers, in a page of their own.
const PAYLOAD_AT: usize = 4096;

/// Commands (`fuse_uring_cmd`): to offer a place for a request; to answer one, and offer its place again.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Where the length is in an entry of the queue (`io_uring_sqe.len`).
const ENTRY_LENGTH_AT: usize = 24;

/// A queue of requests: those of one processor, for one thread.
pub struct FuseRing {
    // Dropped before the memory that it knows of.
    ring: IoUring<Entry128, cqueue::Entry>,
    places: Vec<Place>,
}

/// Memory for a request and its answer, which is the kernel's or ours, in turns.
struct Place {
    memory: *mut u8,
    payload: usize,
    /// Headers and payload, which the kernel reads when the place is offered for the first time.
    parts: [libc::iovec; 2],
    is_ours: bool,
}

// SAFETY: the memory is the place's alone, and the pointers lead nowhere else.
unsafe impl Send for Place {}

impl FuseRing {
    /// Makes a queue with `places` places, for requests and answers of `payload` bytes at most beyond their
    /// headers. The memory is taken as it is used.
    ///
    /// # Errors
    /// The system's, also if this process may not use io_uring.
    pub fn new(places: u16, payload: usize) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // The kernel writes to the places only while the thread waits for it.
        builder.setup_single_issuer().setup_defer_taskrun();
        // The thread that starts it is to be the one that uses it.
        let ring = builder.setup_r_disabled().build(places.into())?;
        let places = (0..places).map(|_| Place::new(payload));
        Ok(Self {
            ring,
            places: places.collect::<io::Result<_>>()?,
        })
    }

    /// Offers all places in the queue of a processor, and has `answer` answer requests until the filesystem
    /// of `device` (an open `/dev/fuse`) is unmounted. `answer` finds a request in the headers
    /// ([`RING_HEADERS`] bytes) and the payload, and leaves its answer there.
    ///
    /// # Errors
    /// The system's. That the kernel refuses the places is none: requests then come through `device`.
    pub fn serve(
        mut self,
        device: BorrowedFd<'_>,
        processor: u16,
        mut answer: impl FnMut(&mut [u8], &mut [u8]),
    ) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        for index in 0..self.places.len() {
            self.push(device, processor, index, REGISTER, 0);
        }
        let mut offered = self.places.len();
        let (mut is_used, mut end) = (false, Ok(()));
        while offered > 0 {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            let done: Vec<_> = self.ring.completion().collect();
            for done in done {
                let index = done.user_data() as usize;
                let Some(place) = self.places.get_mut(index) else {
                    continue;
                };
                place.is_ours = true;
                if let Ok(error) = u32::try_from(-done.result())
                    && error > 0
                {
                    offered -= 1;
                    end = ended(error.cast_signed());
                    continue;
                }
                let (headers, payload) = place.bytes();
                let commit = headers
                    .get(COMMIT_ID..)
                    .and_then(|bytes| bytes.first_chunk())
                    .map_or(0, |bytes| u64::from_le_bytes(*bytes));
                answer(headers, payload);
                is_used = true;
                self.push(device, processor, index, COMMIT_AND_FETCH, commit);
            }
        }
        if is_used { end } else { Ok(()) }
    }

    /// Gives a place to the kernel, with the next call that submits.
    fn push(
        &mut self,
        device: BorrowedFd<'_>,
        processor: u16,
        index: usize,
        operation: u32,
        commit: u64,
    ) {
        let Some(place) = self.places.get_mut(index) else {
            return;
        };
        place.is_ours = false;
        // `fuse_uring_cmd_req`: flags, the number of the request, the queue.
        let mut command = [0; 80];
        let words = [0, commit, processor.into()].map(u64::to_le_bytes);
        command[..24].copy_from_slice(words.as_flattened());
        let device = types::Fd(device.as_raw_fd());
        let entry = opcode::UringCmd80::new(device, operation).cmd(command);
        let entry = if operation == REGISTER {
            let entry = entry.addr(Some(place.parts.as_ptr() as u64)).build();
            with_length(entry, place.parts.len() as u32)
        } else {
            entry.build()
        };
        let entry = entry.user_data(index as u64);
        // SAFETY: what the entry leads to (`parts`, and the memory that they lead to) is neither moved nor
        // freed while `is_ours` is false.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // There is room for one entry a place, and this one is not in the queue.
        debug_assert!(pushed.is_ok(), "a place was offered twice");
    }
}

/// Returns what the end of a place means: unmounting is no error.
fn ended(error: i32) -> io::Result<()> {
    match error {
        libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Sets the length of an entry, for which `UringCmd80` has no field.
fn with_length(mut entry: Entry128, length: u32) -> Entry128 {
    let start = from_mut(&mut entry).cast::<u8>();
    // SAFETY: an entry is laid out as the kernel's `io_uring_sqe` (`repr(C)`), which has 4 bytes of any value
    // there, aligned since the entry is.
    unsafe { start.add(ENTRY_LENGTH_AT).cast::<u32>().write(length) };
    entry
}

impl Place {
    fn new(payload: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe { mmap_anonymous(null_mut(), PAYLOAD_AT + payload, prot, flags)? };
        let part = |offset, length| libc::iovec {
            iov_base: memory.wrapping_byte_add(offset),
            iov_len: length,
        };
        Ok(Self {
            memory: memory.cast(),
            payload,
            parts: [part(0, RING_HEADERS), part(PAYLOAD_AT, payload)],
            is_ours: true,
        })
    }

    /// Returns headers and payload; nothing while they are the kernel's.
    fn bytes(&mut self) -> (&mut [u8], &mut [u8]) {
        if !self.is_ours {
            return (&mut [], &mut []);
        }
        // SAFETY: the mapping has `PAYLOAD_AT + payload` bytes, which are initialised (anonymous memory is
        // zeroes) and lives as long as the place; the kernel has completed its use of them and does not
        // begin another before `push`, which needs the ring mutably, as the slices do.
        unsafe {
            let headers = slice::from_raw_parts_mut(self.memory, RING_HEADERS);
            let payload = slice::from_raw_parts_mut(self.memory.add(PAYLOAD_AT), self.payload);
            (headers, payload)
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What the kernel may still write to stays until the process ends.
        if self.is_ours {
            // SAFETY: the mapping that `new` made, to which nothing refers any more.
            let _ = unsafe { munmap(self.memory.cast(), PAYLOAD_AT + self.payload) };
        }
    }
}
