//! Passes frames on between a container's network interface and the link to its network.
//!
//! Neither side is read from while the other one does not take the last frame, so nothing accumulates.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, readv, write};
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Bytes of the header before a frame on the interface's side, and before one to the machine
/// (`struct virtio_net_hdr_v1`). A frame from the machine has none on the link.
const HEADER: usize = 12;

/// Bytes of the largest frame: IP's largest packet and an ethernet header.
const FRAME: usize = 65_535 + 14;

/// Frames of one side that are passed on before the other side's turn.
const BURST: usize = 64;

/// A direction's frame that waits for its receiver: its length, or none.
type Waiting = Option<usize>;

/// Passes frames on until the network, or one of `ends`, ends: then this can be read.
pub(super) fn run(tap: &OwnedFd, link: &OwnedFd, ends: &[&OwnedFd]) {
    let mut out = vec![0; FRAME];
    let mut into = vec![0; HEADER + FRAME];
    let (mut out_waits, mut into_waits): (Waiting, Waiting) = (None, None);
    let mut ready = Vec::new();
    loop {
        ready.clear();
        ready.extend([
            PollFd::new(tap, wanted(into_waits, out_waits)),
            PollFd::new(link, wanted(out_waits, into_waits)),
        ]);
        ready.extend(ends.iter().map(|end| PollFd::new(*end, PollFlags::IN)));
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let mut ends = ready.iter().skip(2);
        if ends.any(|end| !end.revents().is_empty()) {
            return;
        }
        let outwards = (|| {
            for _ in 0..BURST {
                if out_waits.is_none() {
                    out_waits = from_tap(tap, &mut out)?;
                }
                let Some(length) = out_waits else { break };
                if !sent(send(
                    link,
                    out.get(..length).unwrap_or_default(),
                    SendFlags::DONTWAIT,
                ))? {
                    break;
                }
                out_waits = None;
            }
            Ok::<(), Errno>(())
        })();
        let inwards = (|| {
            for _ in 0..BURST {
                if into_waits.is_none() {
                    into_waits = from_link(link, &mut into)?;
                }
                let Some(length) = into_waits else { break };
                if !written(write(tap, into.get(..length).unwrap_or_default())) {
                    break;
                }
                into_waits = None;
            }
            Ok::<(), Errno>(())
        })();
        if outwards.and(inwards).is_err() {
            return;
        }
    }
}

/// Waits until one of `ends` ends; returns the place of the first that has.
pub(super) fn wait(ends: &[&OwnedFd]) -> Option<usize> {
    let ended = ends.iter().map(|end| PollFd::new(*end, PollFlags::IN));
    let mut ended: Vec<PollFd<'_>> = ended.collect();
    rustix::io::retry_on_intr(|| poll(&mut ended, None)).ok()?;
    ended.iter().position(|end| !end.revents().is_empty())
}

/// Returns what to wait for on one side: room if a frame waits to go there, and a frame if none waits to
/// leave for the other.
fn wanted(to_here: Waiting, from_here: Waiting) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::OUT, to_here.is_some());
    flags.set(PollFlags::IN, from_here.is_none());
    flags
}

/// Reads a frame from the interface, without its header.
fn from_tap(tap: impl AsFd, frame: &mut [u8]) -> Result<Waiting, Errno> {
    let mut header = [0; HEADER];
    let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(frame)];
    match readv(tap, &mut parts) {
        Ok(length) => Ok(length.checked_sub(HEADER).filter(|length| *length > 0)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a frame with its header from the link. The link's end is an error.
fn from_link(link: impl AsFd, frame: &mut [u8]) -> Result<Waiting, Errno> {
    match recv(link, frame, RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(Errno::PIPE),
        Ok((length, _)) => Ok(Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a frame was sent to the link; false if it must be sent again later.
fn sent(result: Result<usize, Errno>) -> Result<bool, Errno> {
    match result {
        Ok(_) | Err(Errno::MSGSIZE) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a frame is gone to the interface, which drops what it can't use.
fn written(result: Result<usize, Errno>) -> bool {
    !matches!(result, Err(Errno::AGAIN | Errno::INTR))
}
