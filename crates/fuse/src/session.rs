//! A conversation with the kernel, from the mount to the unmount.

use std::thread;

use rustix::io::Errno;

use crate::channel::{Answer, Channel};
use crate::message::{LARGEST, Request, opcode};

/// Answers requests, on several threads at once.
pub trait Server: Sync {
    /// Answers a request. Those to forget something have no answer: for them `answer` is None.
    fn serve(&self, request: &Request<'_>, answer: Option<Answer<'_>>);
}

/// Answers requests until the filesystem is unmounted, on as many threads as there are channels.
///
/// # Errors
/// The system's, of reading a request. The filesystem then answers no request any more once all
/// channels are closed.
pub fn serve(channels: &[Channel], server: &impl Server) -> Result<(), Errno> {
    thread::scope(|scope| {
        let work = |channel| move || serve_channel(channel, server);
        let threads: Vec<_> = channels.iter().map(|one| scope.spawn(work(one))).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(Errno::IO)));
        results.fold(Ok(()), Result::and)
    })
}

fn serve_channel(channel: &Channel, server: &impl Server) -> Result<(), Errno> {
    let mut buffer = vec![0; LARGEST];
    while let Some(length) = channel.receive(&mut buffer)? {
        let bytes = buffer.get(..length).unwrap_or_default();
        let Some(request) = Request::read(bytes) else {
            return Err(Errno::PROTO);
        };
        let answer = match request.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => None,
            _ => Some(Answer::new(channel, request.unique)),
        };
        server.serve(&request, answer);
    }
    Ok(())
}
