//! Sockets in directories.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The socket's name. The directory belongs to one user and is closed to all others; the owner
/// accepts no other user either.
const SOCKET: &str = "control";

/// The listening socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens in `directory`. Replaces the socket of an owner that was killed: the caller holds
    /// the sandbox's lock.
    pub(crate) fn bind(directory: &Path) -> io::Result<Self> {
        let path = directory.join(SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = listen(directory, SOCKET.as_ref())?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Connects to the owner of the sandbox in `directory`.
///
/// # Errors
/// Those of open(2) and connect(2).
pub fn connect_to_owner(directory: &Path) -> io::Result<UnixStream> {
    connect(directory, SOCKET.as_ref())
}

/// Connects to the socket `name` in `directory`.
///
/// # Errors
/// Those of open(2) and connect(2).
pub fn connect(directory: &Path, name: &OsStr) -> io::Result<UnixStream> {
    with_short_path(directory, name, UnixStream::connect)
}

/// Makes the socket `name` in `directory`, and listens on it.
///
/// # Errors
/// Those of open(2) and bind(2).
pub fn listen(directory: &Path, name: &OsStr) -> io::Result<UnixListener> {
    with_short_path(directory, name, UnixListener::bind)
}

/// Returns whether a process has the socket `name` in `directory` open, unless that can't be found
/// out. A listener notices nothing: a connection of another type is refused before that.
pub fn is_open(directory: &Path, name: &OsStr) -> bool {
    let connect = |path: PathBuf| UnixDatagram::unbound()?.connect(path);
    match with_short_path(directory, name, connect) {
        Err(error) => error.kind() != io::ErrorKind::ConnectionRefused,
        Ok(()) => true,
    }
}

/// Calls `use_path` with a short path of the socket: a socket's address has 108 bytes, and a store
/// may lie deeper than that.
fn with_short_path<T>(
    directory: &Path,
    name: &OsStr,
    use_path: impl FnOnce(PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    let directory = fs::File::open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    use_path(path.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_socket_is_known_from_one_that_was_left() {
        let directory = tempfile::tempdir().unwrap();
        let name = OsStr::new("socket");
        let listener = listen(directory.path(), name).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(is_open(directory.path(), name));
        let error = listener.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        assert!(!is_open(directory.path(), name));
    }
}
