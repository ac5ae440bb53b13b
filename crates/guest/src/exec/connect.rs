//! Connects to a port of a program in the sandbox, for hosts to which it is not published.

#![expect(
    clippy::disallowed_methods,
    reason = "standard streams lead to the agent here"
)]

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread;

use micabox_wire::{CONNECT, Exec, StartFailed, StartFailure};
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};

use super::program::failed;
use super::stdio::Stream;
use crate::errno::describe;

/// Returns whether the command is a connection, and no program.
pub fn is_connection(spec: &Exec) -> bool {
    spec.argv.first().is_some_and(|name| name == CONNECT)
}

/// Connects to the port that the command names.
pub fn begin(spec: &Exec) -> Result<TcpStream, StartFailed> {
    let refuse = |message: String, errno| failed(StartFailure::Other, message, errno);
    let argument = spec.argv.get(1).map(Vec::as_slice).unwrap_or_default();
    let port = std::str::from_utf8(argument)
        .ok()
        .and_then(|text| text.parse::<u16>().ok())
        .ok_or_else(|| refuse("connect: not a port".to_owned(), Some(Errno::INVAL)))?;
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
        let errno = Errno::from_io_error(&error);
        let words = errno.map_or_else(|| error.to_string(), describe);
        refuse(format!("connect to port {port}: {words}"), errno)
    })
}

/// Sends stdin, and writes what comes to stdout until the other side has ended. Returns the exit code.
pub fn copy(stream: &TcpStream) -> i32 {
    match both_ways(stream) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn both_ways(stream: &TcpStream) -> io::Result<()> {
    // Not io::copy() of the descriptors themselves: splice(2) would keep the pipe locked while the other
    // side does not read, and the agent writes to that pipe.
    let sending = stream.try_clone()?;
    thread::Builder::new().spawn(move || {
        let _ = io::copy(&mut Stream(stdin()), &mut &sending);
        let _ = sending.shutdown(Shutdown::Write);
    })?;
    io::copy(&mut &*stream, &mut Stream(stdout()))?;
    Ok(())
}
