//! Requests through memory that is shared with the kernel, a queue a processor (FUSE over io_uring, Linux
//! 6.14): the process that asks, the kernel and this server then take turns on one processor, and none
//! has to be woken on another.

use std::fs::read_to_string;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use micabox_jail::{FuseRing, RING_HEADERS};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::answer::{Answer, header};
use crate::channel::Channel;
use crate::message::{LARGEST, Request};
use crate::session::Server;
use crate::written::Waiting;

/// Requests that are answered or wait in a queue's memory. A further one waits in the kernel.
const PLACES: u16 = 4;

/// Most queues: the kernel wants one for each processor that there may ever be.
const MOST: u16 = 64;

/// What a queue's headers begin with: FUSE's own, and then the operation's.
const OPERATION_AT: usize = 128;
const PLACE_AT: usize = 256;

/// Where the headers have the number of the payload's bytes (`fuse_uring_ent_in_out.payload_sz`).
const PAYLOAD_AT: usize = PLACE_AT + 16;

/// Makes a queue for each processor; none if there can't be one for each.
pub(crate) fn all() -> Vec<FuseRing> {
    let count = match read_to_string("/sys/devices/system/cpu/possible") {
        Ok(list) => processors(&list).filter(|count| *count <= MOST),
        Err(_) => None,
    };
    let rings = (0..count.unwrap_or(0)).map(|_| FuseRing::new(PLACES, LARGEST));
    rings.collect::<Result<_, _>>().unwrap_or_default()
}

/// Returns how many processors a list has that begins at 0 and leaves none out (`0-3`).
fn processors(list: &str) -> Option<u16> {
    let list = list.trim_end();
    let last = list.strip_prefix("0-").or((list == "0").then_some("0"))?;
    last.parse::<u16>().ok()?.checked_add(1)
}

/// Answers the requests of one processor's queue until the filesystem is unmounted.
pub(crate) fn serve<'a>(
    ring: FuseRing,
    processor: u16,
    channel: &'a Channel,
    server: &'a impl Server,
    later: &Sender<Waiting<'a>>,
) -> Result<(), Errno> {
    let mut one = CpuSet::new();
    one.set(processor.into());
    // Without it, or for one that is not there, the thread runs anywhere.
    let _ = sched_setaffinity(None, &one);
    let served = ring.serve(
        channel.as_fd(),
        processor,
        |headers, payload, has_waited| {
            let Ok(headers) = <&mut [u8; RING_HEADERS]>::try_from(headers) else {
                return None;
            };
            if !has_waited && let Some(is_written) = wait(headers, payload, server, later) {
                return Some(is_written);
            }
            answer(headers, payload, server);
            None
        },
    );
    served.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Has a request wait if it needs to; returns what will be set when it has.
fn wait(
    headers: &[u8; RING_HEADERS],
    payload: &[u8],
    server: &impl Server,
    later: &Sender<Waiting<'_>>,
) -> Option<Arc<AtomicBool>> {
    let sent = four(headers, PAYLOAD_AT).min(payload.len());
    let (own, operation) = headers.split_at(OPERATION_AT);
    let request = Request::read_parts(own, operation.get(..OPERATION_AT)?, payload.get(..sent)?)?;
    if !server.needs_written(&request) {
        return None;
    }
    let is_written = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&is_written);
    let then = Box::new(move || shared.store(true, Ordering::Release));
    let node = request.node;
    later.send(Waiting { node, then }).ok()?;
    Some(is_written)
}

/// Answers one request, whose answer takes its place.
fn answer(headers: &mut [u8; RING_HEADERS], payload: &mut [u8], server: &impl Server) {
    let sent = four(headers, PAYLOAD_AT).min(payload.len());
    let (rest, memory) = payload.split_at_mut(sent);
    let (own, operation) = headers.split_at(OPERATION_AT);
    let operation = operation.get(..OPERATION_AT).unwrap_or_default();
    let mut result = Err(Errno::IO);
    let unique = match Request::read_parts(own, operation, rest) {
        Some(request) => {
            let answer = Answer::in_memory(memory, &mut result);
            server.serve(&request, Some(answer));
            request.unique
        }
        None => 0,
    };
    let length = result.unwrap_or(0);
    if sent > 0 {
        payload.copy_within(sent..sent + length, 0);
    }
    let header = header(unique, length, result.err());
    put(headers, 0, &header);
    put(
        headers,
        PAYLOAD_AT,
        &u32::try_from(length).unwrap_or(0).to_le_bytes(),
    );
}

fn four(bytes: &[u8], at: usize) -> usize {
    let number = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    number.map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + what.len()) {
        place.copy_from_slice(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_only_without_gaps() {
        assert_eq!(processors("0\n"), Some(1));
        assert_eq!(processors("0-7\n"), Some(8));
        for other in ["", "1-3", "0-3,8-11", "0-", "0-65535"] {
            assert_eq!(processors(other), None, "{other}");
        }
    }
}
