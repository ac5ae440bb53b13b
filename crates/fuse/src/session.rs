//! A FUSE session, from the mount to the unmount.

use std::sync::mpsc::{self, Sender};
use std::thread;

use micabox_jail::FuseRing;
use rustix::io::Errno;

use crate::answer::Answer;
use crate::channel::Channel;
use crate::message::{LARGEST, Request};
use crate::offer::{Offer, flag, known};
use crate::opcode;
use crate::ring;
use crate::written::{self, Waiting};

/// Answers requests, on several threads at once.
pub trait Server: Sync {
    /// Returns what to offer when the conversation begins; with [`flag::OVER_IO_URING`] if this process
    /// may use that.
    fn offer(&self) -> Offer;

    /// Returns whether the kernel is to write what it has cached of a request's file before it is served. Over
    /// io_uring, such a request is refused (`ENOSYS`).
    fn needs_written(&self, request: &Request<'_>) -> bool;

    /// Answers a request. Those to forget something have no answer: for them `answer` is None.
    fn serve(&self, request: &Request<'_>, answer: Option<Answer<'_>>);
}

/// Answers requests until the filesystem is unmounted: on as many threads as there are channels, and where
/// kernel and server offer io_uring, on one for each processor, which then has nearly all requests.
///
/// # Errors
/// The system's, of reading a request. The filesystem then answers no request any more once all
/// channels are closed.
pub fn serve(channels: &[Channel], server: &impl Server) -> Result<(), Errno> {
    let Some(first) = channels.first() else {
        return Ok(());
    };
    let Some(rings) = begin(first, server)? else {
        return Ok(());
    };
    let (later, waiting) = mpsc::channel();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (ring, processor) in rings.into_iter().zip(0..) {
            threads.push(scope.spawn(move || ring::serve(ring, processor, first, server)));
        }
        for channel in channels {
            let later = later.clone();
            threads.push(scope.spawn(move || serve_channel(channel, server, &later)));
        }
        drop(later);
        scope.spawn(move || written::serve(first, &waiting));
        let results = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(Errno::IO)));
        results.fold(Ok(()), Result::and)
    })
}

/// Answers the first request. Returns the queues that are to be used beside channels; None if the
/// filesystem was unmounted first.
fn begin(channel: &Channel, server: &impl Server) -> Result<Option<Vec<FuseRing>>, Errno> {
    let mut buffer = vec![0; LARGEST];
    let Some(length) = channel.receive(&mut buffer)? else {
        return Ok(None);
    };
    let request = Request::read(buffer.get(..length).unwrap_or_default()).ok_or(Errno::PROTO)?;
    if request.opcode != opcode::INIT {
        return Err(Errno::PROTO);
    }
    let mut offer = server.offer();
    let mut rings = Vec::new();
    if known(request.body) & offer.flags & flag::OVER_IO_URING != 0 {
        rings = ring::all();
    }
    if rings.is_empty() {
        offer.flags &= !flag::OVER_IO_URING;
    }
    let reply = offer.answer(request.body).map(|(reply, _)| reply);
    Answer::new(channel, request.unique).reply(reply);
    Ok(Some(rings))
}

fn serve_channel<'a>(
    channel: &'a Channel,
    server: &'a impl Server,
    later: &Sender<Waiting<'a>>,
) -> Result<(), Errno> {
    let mut buffer = vec![0; LARGEST];
    while let Some(length) = channel.receive(&mut buffer)? {
        let bytes = buffer.get(..length).unwrap_or_default();
        let Some(request) = Request::read(bytes) else {
            return Err(Errno::PROTO);
        };
        if server.needs_written(&request) {
            let (node, bytes) = (request.node, bytes.to_vec());
            let then = Box::new(move || {
                if let Some(request) = Request::read(&bytes) {
                    server.serve(&request, Some(Answer::new(channel, request.unique)));
                }
            });
            // The other end is there for as long as this one.
            let _ = later.send(Waiting { node, then });
            continue;
        }
        let answer =
            (!opcode::forgets(request.opcode)).then(|| Answer::new(channel, request.unique));
        server.serve(&request, answer);
    }
    Ok(())
}
