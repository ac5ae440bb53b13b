//! A chain of buffers: one request of a driver to a device.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use virtio_queue::DescriptorChain;
use vm_memory::{GuestAddress, GuestMemoryMmap, VolatileSlice};

use super::Violation;
use crate::kvm::memory::{GuestMemory, Slice, truncation};

/// Maximum pieces of memory that the kernel accepts in one call (`UIO_MAXIOV`). Drivers don't make
/// chains longer than their queues.
const MAX_PIECES: usize = 1024;

/// A chain: buffers that the device reads, then buffers that it writes.
#[derive(Debug)]
pub(crate) struct Chain<'m> {
    /// Identifies the chain when it is completed.
    pub(crate) head: u16,
    pub(crate) readable: Buffers<'m>,
    pub(crate) writable: Buffers<'m>,
}

/// Guest memory in pieces, used as one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers<'m> {
    pieces: Vec<Slice<'m>>,
    length: usize,
}

/// Where the buffers of a chain are that the device writes. Their memory stays when the chain is
/// dropped, and the driver can't move them any more.
#[derive(Debug)]
pub(crate) struct Places(Vec<(GuestAddress, usize)>);

impl Places {
    pub(super) fn of(descriptors: &DescriptorChain<&GuestMemoryMmap>) -> Self {
        let writable = descriptors.clone().writable();
        let places = writable.map(|descriptor| (descriptor.addr(), descriptor.len() as usize));
        Self(places.take(MAX_PIECES).collect())
    }

    /// Returns the buffers.
    pub(crate) fn buffers<'m>(&self, memory: &'m GuestMemory) -> Result<Buffers<'m>, Violation> {
        let mut pieces = Vec::with_capacity(self.0.len());
        for (address, length) in &self.0 {
            if !memory.writable(*address, *length, &mut pieces) {
                return Err(Violation::BadBuffer);
            }
        }
        Ok(pieces.into())
    }
}

impl<'m> Chain<'m> {
    pub(super) fn new(
        descriptors: DescriptorChain<&GuestMemoryMmap>,
        memory: &'m GuestMemory,
    ) -> Result<Self, Violation> {
        let mut chain = Chain {
            head: descriptors.head_index(),
            readable: Buffers::default(),
            writable: Buffers::default(),
        };
        for descriptor in descriptors {
            let length = descriptor.len() as usize;
            let (buffers, valid) = if descriptor.is_write_only() {
                let buffers = &mut chain.writable;
                let valid = memory.writable(descriptor.addr(), length, &mut buffers.pieces);
                (buffers, valid)
            } else {
                if chain.writable.length > 0 {
                    return Err(Violation::BadChain);
                }
                let buffers = &mut chain.readable;
                let valid = memory.readable(descriptor.addr(), length, &mut buffers.pieces);
                (buffers, valid)
            };
            if !valid {
                return Err(Violation::BadBuffer);
            }
            buffers.length = buffers.length.saturating_add(length);
            if buffers.pieces.len() > MAX_PIECES {
                return Err(Violation::BadChain);
            }
        }
        Ok(chain)
    }
}

impl<'m> From<Vec<Slice<'m>>> for Buffers<'m> {
    fn from(pieces: Vec<Slice<'m>>) -> Self {
        let length = pieces
            .iter()
            .fold(0, |sum, piece| piece.len().saturating_add(sum));
        Self { pieces, length }
    }
}

impl<'m> Buffers<'m> {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Removes and returns the first `count` bytes, or all if there are fewer.
    pub(crate) fn take(&mut self, count: usize) -> Buffers<'m> {
        let mut taken = Buffers::default();
        let mut rest = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.drain(..) {
            let wanted = count.saturating_sub(taken.length).min(piece.len());
            match piece.split_at(wanted) {
                Ok((first, second)) => {
                    if wanted > 0 {
                        taken.push(first);
                    }
                    if wanted < piece.len() {
                        rest.push(second);
                    }
                }
                // Not reached: `wanted` is at most the length.
                Err(_) => rest.push(piece),
            }
        }
        self.pieces = rest;
        self.length = self.length.saturating_sub(taken.length);
        taken
    }

    /// Removes and returns the last `count` bytes, or all if there are fewer.
    pub(crate) fn take_back(&mut self, count: usize) -> Buffers<'m> {
        let first = self.take(self.length.saturating_sub(count));
        std::mem::replace(self, first)
    }

    fn push(&mut self, piece: Slice<'m>) {
        self.length = self.length.saturating_add(piece.len());
        self.pieces.push(piece);
    }

    /// Copies to `bytes` from the start; returns how many bytes were copied.
    pub(crate) fn copy_to(&self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in &self.pieces {
            let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) else {
                break;
            };
            done = done.saturating_add(piece.copy_to(rest));
        }
        done
    }

    /// Copies from `bytes` to the start; returns how many bytes fitted.
    pub(crate) fn copy_from(&self, bytes: &[u8]) -> usize {
        let mut done = 0;
        for piece in &self.pieces {
            let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) else {
                break;
            };
            piece.copy_from(rest);
            done = done.saturating_add(rest.len().min(piece.len()));
        }
        done
    }

    /// Reads a fixed number of bytes from the start; None if there are fewer.
    pub(crate) fn read<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.copy_to(&mut bytes) == N).then_some(bytes)
    }

    /// Reads from `file` at `offset`. Returns less than the full length only at the end of the
    /// file.
    pub(crate) fn read_at(&self, file: &File, offset: u64) -> io::Result<usize> {
        self.whole(offset, |vectors, offset| {
            // SAFETY: the vectors describe guest memory that `self` borrows. Any contents are
            // valid.
            unsafe { libc::preadv(file.as_raw_fd(), vectors.as_ptr(), count(vectors), offset) }
        })
    }

    /// Writes all of it to `file` at `offset`.
    pub(crate) fn write_at(&self, file: &File, offset: u64) -> io::Result<()> {
        let written = self.whole(offset, |vectors, offset| {
            // SAFETY: as in `read_at`; the kernel only reads the memory.
            unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count(vectors), offset) }
        })?;
        if written < self.length {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// Reads the bytes that a stream has now. Returns their number, 0 at the stream's end.
    pub(crate) fn receive(&self, stream: RawFd) -> io::Result<usize> {
        let vectors = self.vectors(0);
        // SAFETY: as in `read_at`.
        bytes(unsafe { libc::readv(stream, vectors.as_ptr(), count(&vectors)) })
    }

    /// Writes as many bytes as a stream accepts now, without the first `skip`.
    pub(crate) fn send(&self, stream: RawFd, skip: usize) -> io::Result<usize> {
        let vectors = self.vectors(skip);
        // SAFETY: as in `write_at`.
        bytes(unsafe { libc::writev(stream, vectors.as_ptr(), count(&vectors)) })
    }

    /// Calls `transfer` until all bytes are done or it returns 0.
    fn whole(
        &self,
        offset: u64,
        transfer: impl Fn(&[libc::iovec], libc::off_t) -> isize,
    ) -> io::Result<usize> {
        let mut done = 0_usize;
        while done < self.length {
            let at = offset
                .checked_add(done as u64)
                .and_then(|at| libc::off_t::try_from(at).ok())
                .ok_or(io::ErrorKind::InvalidInput)?;
            match bytes(transfer(&self.vectors(done), at)) {
                Ok(0) => break,
                Ok(count) => done = done.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Returns the memory from `skip` on, for a system call.
    fn vectors(&self, skip: usize) -> Vec<libc::iovec> {
        let mut skip = skip;
        let mut vectors = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            if let Ok(rest) = piece.offset(skipped)
                && !rest.is_empty()
            {
                vectors.push(vector(&rest));
            }
        }
        vectors
    }

    /// Calls `f` with the address and length of each piece in the worker.
    pub(crate) fn for_each_piece(&self, mut f: impl FnMut(*mut u8, usize)) {
        for piece in &self.pieces {
            f(piece.ptr_guard_mut().as_ptr(), piece.len());
        }
    }
}

fn vector(slice: &VolatileSlice<'_>) -> libc::iovec {
    libc::iovec {
        iov_base: slice.ptr_guard_mut().as_ptr().cast(),
        iov_len: slice.len(),
    }
}

fn count(vectors: &[libc::iovec]) -> libc::c_int {
    libc::c_int::try_from(vectors.len()).unwrap_or(libc::c_int::MAX)
}

/// Converts the result of a transfer. Guest memory that does not exist belongs to a truncated file,
/// which ends the machine.
fn bytes(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EFAULT) {
            truncation::end_machine();
        }
        error
    })
}
