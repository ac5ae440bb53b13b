//! Requests as frames on a stream: each is as long as its header says, and so is each reply.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use micabox_fuse::message::{HEADER, LARGEST};

use crate::server::Server;

/// Requests that are served side by side.
const THREADS: usize = 4;

/// Serves requests until the stream ends.
///
/// # Errors
/// If the peer breaks the protocol, or a thread can't be started.
pub(crate) fn serve(server: &Server, stream: UnixStream) -> io::Result<()> {
    let whole = stream.try_clone()?;
    let writer = Mutex::new(stream.try_clone()?);
    let reader = Mutex::new(stream);
    let work = || -> io::Result<()> {
        let mut request = Vec::new();
        loop {
            {
                let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                if !receive(&mut reader, &mut request)? {
                    return Ok(());
                }
            }
            if let Some(reply) = server.answer(&request) {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                writer.write_all(&reply)?;
            }
        }
    };
    // All threads end with the first.
    let work = || {
        let ended = work();
        let _ = whole.shutdown(Shutdown::Both);
        ended
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..THREADS)
            .map(|index| {
                std::thread::Builder::new()
                    .name(format!("share{index}"))
                    .spawn_scoped(scope, work)
            })
            .collect::<io::Result<_>>()?;
        let mut result = work();
        for thread in threads {
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a thread died")));
            result = result.and(ended);
        }
        result
    })
}

/// Receives a request. False at the end of the stream.
fn receive(stream: &mut UnixStream, request: &mut Vec<u8>) -> io::Result<bool> {
    request.clear();
    request.resize(HEADER, 0);
    match stream.read_exact(request) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        result => result?,
    }
    let length = request.first_chunk().copied().map_or(0, u32::from_le_bytes) as usize;
    if !(HEADER..=LARGEST).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    request.resize(length, 0);
    stream.read_exact(request.get_mut(HEADER..).unwrap_or_default())?;
    Ok(true)
}
