//! Requests through memory that is shared with the kernel, a queue a processor (FUSE over io_uring, Linux
//! 6.14): the process that asks, the kernel and this server then take turns on one processor, and none
//! is woken on another.

use std::fs::read_to_string;
use std::os::fd::AsFd;

use micabox_jail::{FuseRing, RING_HEADERS};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::answer::{Answer, header};
use crate::channel::Channel;
use crate::message::{LARGEST, Request};
use crate::session::Server;

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
pub(crate) fn serve(
    ring: FuseRing,
    processor: u16,
    channel: &Channel,
    server: &impl Server,
) -> Result<(), Errno> {
    let mut one = CpuSet::new();
    one.set(processor.into());
    // Without it, or for one that is not there, the thread runs anywhere.
    let _ = sched_setaffinity(None, &one);
    let served = ring.serve(channel.as_fd(), processor, |headers, payload| {
        if let Ok(headers) = headers.try_into() {
            answer(headers, payload, server);
        }
    });
    served.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Answers one request, whose answer takes its place.
fn answer(headers: &mut [u8; RING_HEADERS], payload: &mut [u8], server: &impl Server) {
    let sent = four(headers, PAYLOAD_AT).min(payload.len());
    let (rest, memory) = payload.split_at_mut(sent);
    let (own, operation) = headers.split_at(OPERATION_AT);
    let operation = operation.get(..OPERATION_AT).unwrap_or_default();
    let mut result = Err(Errno::IO);
    let unique = match Request::read_parts(own, operation, rest) {
        // A request that waited would have a place that the kernel's own writing may need.
        Some(request) if server.needs_written(&request) => {
            result = Err(Errno::NOSYS);
            request.unique
        }
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
