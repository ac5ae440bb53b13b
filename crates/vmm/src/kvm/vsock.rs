//! The host's side of a machine's sockets, as far as it needs paths, which the worker does not
//! have.
//!
//! The worker gets the listener that clients of the guest connect to. When the guest connects to a
//! program on the host, the worker sends the port number, and a thread here connects to that
//! program's path and sends the stream back. The worker can choose only the number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recv,
    socket_with, socketpair,
};

use crate::Error;

/// Maximum number of clients that wait for the worker.
const BACKLOG: i32 = 64;

/// The maximum length of a Unix socket's path, including its final zero (`sun_path`), and of what a
/// port adds to a path.
const LONGEST_PATH: usize = 108;
const LONGEST_PORT: usize = "_4294967295".len();

/// A path that leads to a guest. Dropping it removes the path.
#[derive(Debug)]
pub(super) struct Outside {
    path: PathBuf,
}

/// The descriptors for the worker. None of them blocks.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) listener: OwnedFd,
    pub(super) owner: OwnedFd,
}

impl Outside {
    /// Listens at `path`, and serves the worker as long as it lives.
    pub(super) fn open(path: &Path) -> Result<(Self, Inside), Error> {
        let failed = |why: String| Error::File {
            path: path.to_owned(),
            why,
        };
        let length = path.as_os_str().len();
        if length + LONGEST_PORT >= LONGEST_PATH {
            return Err(failed(format!(
                "a socket's path has at most {} bytes, room for a port's number included, and \
                 this one has {length}",
                LONGEST_PATH - LONGEST_PORT - 1
            )));
        }
        let listener = listener(path).map_err(|error| {
            failed(match error {
                Errno::ADDRINUSE => "it exists already: choose another path, or remove it if \
                                     no process uses it"
                    .to_owned(),
                error => format!("listening: {error}"),
            })
        })?;
        // From here on the path must be removed.
        let outside = Self {
            path: path.to_owned(),
        };
        let system = |what| move |source: io::Error| Error::System { what, source };
        let (ours, owner) = pair().map_err(|error| system("making a socket")(error.into()))?;
        let prefix = path.as_os_str().as_bytes().to_vec();
        std::thread::Builder::new()
            .name("vsock".into())
            .spawn(move || serve(&ours, &prefix))
            .map_err(system("starting a thread"))?;
        Ok((outside, Inside { listener, owner }))
    }
}

impl Inside {
    /// Returns descriptors by which no client connects and no program is found.
    pub(super) fn nowhere() -> Result<Self, Error> {
        let made = || {
            // The listener is not bound to a path, and the owner's end is closed.
            let (listener, (_, owner)) = (stream()?, pair()?);
            Ok(Self { listener, owner })
        };
        made().map_err(|error: Errno| Error::System {
            what: "making a socket",
            source: error.into(),
        })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Creates a listener at `path`. Replaces an existing socket that has no listener any more: its
/// owner was killed.
fn listener(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let listener = stream()?;
    // Any other kind of file belongs to another program, although it refuses connections too.
    let is_socket = || {
        let metadata = std::fs::symlink_metadata(path);
        metadata.is_ok_and(|metadata| metadata.file_type().is_socket())
    };
    let is_dead =
        || stream().is_ok_and(|client| connect(&client, &address) == Err(Errno::CONNREFUSED));
    match bind(&listener, &address) {
        Err(Errno::ADDRINUSE) if is_socket() && is_dead() => {
            let _ = std::fs::remove_file(path);
            bind(&listener, &address)?;
        }
        result => result?,
    }
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn stream() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Returns the owner's end, which blocks, and the worker's, which does not.
fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, owner) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    rustix::io::ioctl_fionbio(&owner, true)?;
    Ok((ours, owner))
}

/// Serves the worker's requests until it is gone.
fn serve(worker: &OwnedFd, prefix: &[u8]) {
    loop {
        let mut port = [0; 4];
        match recv(worker, &mut port, RecvFlags::empty()) {
            Ok((4, _)) => {}
            Err(Errno::INTR) => continue,
            // The worker has ended, or breaks the protocol because a guest took it over.
            Ok(_) | Err(_) => return,
        }
        let stream = reach(prefix, u32::from_le_bytes(port)).ok();
        if answer(worker, stream.as_ref().map(AsFd::as_fd)).is_err() {
            return;
        }
    }
}

/// Connects to the program that listens at the path of `port`, without blocking.
fn reach(prefix: &[u8], port: u32) -> Result<OwnedFd, Errno> {
    let path = [prefix, format!("_{port}").as_bytes()].concat();
    let address = SocketAddrUnix::new(path.as_slice())?;
    let stream = stream()?;
    connect(&stream, &address)?;
    Ok(stream)
}

pub(super) fn answer(worker: &OwnedFd, stream: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let byte = [u8::from(stream.is_some())];
    micabox_socket::send(worker, &byte, stream.as_slice())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use micabox_testing::wait_until;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_path_is_taken_over_only_from_an_ended_process_and_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let (outside, inside) = Outside::open(&path).unwrap();
        let error = Outside::open(&path).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");
        drop(inside);
        // As when the owner is killed: the path is left.
        std::mem::forget(outside);
        let (outside, _inside) = Outside::open(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(outside);
        assert!(!path.exists());
        // A file that is not a socket belongs to another program.
        std::fs::write(&path, "mine").unwrap();
        assert!(Outside::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn a_socket_path_without_room_for_a_port_is_refused() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(92)));
        let error = Outside::open(&path).unwrap_err().to_string();
        assert!(error.contains("at most 96 bytes"), "{error}");
    }

    #[test]
    fn the_worker_chooses_nothing_but_the_port() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v");
        let (_outside, inside) = Outside::open(&path).unwrap();
        let host = crate::kvm::virtio::vsock::Host::new(inside.listener, inside.owner).unwrap();
        let program = UnixListener::bind(directory.path().join("v_4294967295")).unwrap();
        let answer = |port| {
            assert!(host.ask(port));
            let mut answer = None;
            wait_until("there is an answer", || {
                answer = host.answer();
                answer.is_some()
            });
            answer.unwrap()
        };
        assert!(answer(7).is_none());
        let mut stream = UnixStream::from(answer(u32::MAX).unwrap());
        let (mut other, _) = program.accept().unwrap();
        std::io::Write::write_all(&mut other, b"hello").unwrap();
        drop(other);
        stream.set_nonblocking(false).unwrap();
        assert_eq!(std::io::read_to_string(&mut stream).unwrap(), "hello");
    }
}
