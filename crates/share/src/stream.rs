//! Requests as frames on a stream: each is as long as its header says, and so is each reply.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use micabox_fuse::message::{HEADER, LARGEST, Reply};
use micabox_ground::lock;

use crate::server::Server;
use crate::versions::{Slot, Table};

/// Requests that are served side by side.
const THREADS: usize = 4;

/// The number of no request, which replies to none have: they have versions, and the slots that get
/// them; without slots, all get it.
const NO_REQUEST: u64 = 0;

/// The sending side of a stream.
#[derive(Clone)]
pub(crate) struct Writer(Arc<Mutex<UnixStream>>);

impl Writer {
    /// Creates that of a stream.
    ///
    /// # Errors
    /// If the process has too many descriptors.
    pub(crate) fn new(stream: &UnixStream) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(stream.try_clone()?))))
    }

    fn send(&self, reply: &[u8]) -> io::Result<()> {
        let mut stream = lock(&self.0);
        stream.write_all(reply)
    }
}

impl Table for Writer {
    /// The monitor knows the address itself.
    fn write(&self, _address: u64, version: u64, slots: Option<&[Slot]>) {
        let mut reply = Reply::new();
        reply.u64(version);
        for slot in slots.unwrap_or_default() {
            reply.u16(slot.index());
        }
        // A stream that has ended has no guest to tell.
        let _ = self.send(&reply.finish(NO_REQUEST, None));
    }
}

/// Serves requests until the stream ends.
///
/// # Errors
/// If the peer breaks the protocol, or a thread can't be started.
pub(crate) fn serve(server: &Server, stream: UnixStream, writer: &Writer) -> io::Result<()> {
    let whole = stream.try_clone()?;
    let reader = Mutex::new(stream);
    let work = || -> io::Result<()> {
        let mut request = Vec::new();
        loop {
            {
                let mut reader = lock(&reader);
                if !receive(&mut reader, &mut request)? {
                    return Ok(());
                }
            }
            if let Some(reply) = server.answer(&request) {
                writer.send(&reply)?;
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
