//! Reads and writes descriptors that a client hands over for a command's streams, without blocking.
//!
//! The event loop must not block on a descriptor, and must not make the client's own open file
//! non-blocking, since other processes may share it. Pipes and terminals are reopened; sockets have
//! a flag for each call; regular files never block for long.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, open};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Bytes that a pipe which poll(2) reports as writable accepts without blocking, if no other
/// process writes to it at the same moment: PIPE_BUF.
const PIPE_BUF: usize = 4096;

/// A client's descriptor.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: OwnedFd,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Non-blocking, or never blocks.
    Plain,
    Socket,
    /// Could not be reopened: at most [`PIPE_BUF`] bytes at a time.
    Careful,
}

/// The direction of a stream, seen from the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

impl Descriptor {
    /// Prepares a descriptor for reading or writing.
    pub(crate) fn new(fd: OwnedFd, way: Way) -> Self {
        let kind = fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_nonblocking = fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        match kind {
            Ok(FileType::Socket) => Self {
                fd,
                kind: Kind::Socket,
            },
            Ok(FileType::Fifo | FileType::CharacterDevice) if !is_nonblocking => {
                let access = match way {
                    Way::In => OFlags::RDONLY,
                    Way::Out => OFlags::WRONLY,
                };
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                match open(path, flags, Mode::empty()) {
                    Ok(fd) => Self {
                        fd,
                        kind: Kind::Plain,
                    },
                    Err(_) => Self {
                        fd,
                        kind: Kind::Careful,
                    },
                }
            }
            _ => Self {
                fd,
                kind: Kind::Plain,
            },
        }
    }

    /// Writes some of `bytes`. Returns how many; 0 if it accepts none now.
    pub(crate) fn write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        let result = rustix::io::retry_on_intr(|| match self.kind {
            Kind::Plain => rustix::io::write(&self.fd, bytes),
            Kind::Socket => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                rustix::net::send(&self.fd, bytes, flags)
            }
            Kind::Careful => {
                let mut ready = [rustix::event::PollFd::new(
                    &self.fd,
                    rustix::event::PollFlags::OUT,
                )];
                let now = rustix::event::Timespec::default();
                if rustix::event::poll(&mut ready, Some(&now))? == 0 {
                    return Err(Errno::AGAIN);
                }
                let count = bytes.len().min(PIPE_BUF);
                rustix::io::write(&self.fd, bytes.get(..count).unwrap_or_default())
            }
        });
        match result {
            Err(Errno::AGAIN) => Ok(0),
            result => result,
        }
    }

    /// Writes `pending` and then `data`, as far as they are accepted now; the rest stays pending.
    /// Returns the number of bytes written.
    pub(crate) fn write_after(
        &self,
        pending: &mut VecDeque<u8>,
        mut data: &[u8],
    ) -> rustix::io::Result<usize> {
        let mut written = 0;
        while !pending.is_empty() {
            let (front, _) = pending.as_slices();
            let count = self.write(front)?;
            if count == 0 {
                break;
            }
            pending.drain(..count);
            written += count;
        }
        while pending.is_empty() && !data.is_empty() {
            let count = self.write(data)?;
            if count == 0 {
                break;
            }
            written += count;
            data = data.get(count..).unwrap_or_default();
        }
        pending.extend(data);
        Ok(written)
    }

    /// Reads after poll(2) has reported the descriptor. Returns the number of bytes, 0 at the end;
    /// None if there is nothing to read after all.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
        let result = rustix::io::retry_on_intr(|| match self.kind {
            Kind::Plain | Kind::Careful => rustix::io::read(&self.fd, &mut *buffer),
            Kind::Socket => {
                let received = rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT);
                received.map(|(count, _)| count)
            }
        });
        match result {
            Err(Errno::AGAIN) => Ok(None),
            result => result.map(Some),
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn writing_to_a_full_pipe_never_blocks_and_the_pipe_stays_blocking_for_others() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let theirs = Descriptor::new(writer.try_clone().unwrap().into(), Way::Out);
        let mut total = 0;
        loop {
            match theirs.write(&[0; 10_000]).unwrap() {
                0 => break,
                count => total += count,
            }
        }
        assert!(total > 32 << 10, "{total}");
        let flags = fcntl_getfl(&writer).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        drop(reader);
        writer.write_all(b"x").unwrap_err();
        assert_eq!(theirs.write(b"x"), Err(Errno::PIPE));
    }

    #[test]
    fn a_files_offset_is_shared_with_the_client() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut ours = file.reopen().unwrap();
        ours.write_all(b"before ").unwrap();
        let theirs = Descriptor::new(ours.try_clone().unwrap().into(), Way::Out);
        assert_eq!(theirs.write(b"between "), Ok(8));
        ours.write_all(b"after").unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "before between after");
    }
}
