//! A connection: a stream socket of the host's on one side, packets on the other.
//!
//! Nothing is kept of what goes to the guest, because it is read from the socket straight
//! into the guest's buffers when the guest has said that it has room. What comes from the
//! guest waits here while the host does not take it: at most [`ROOM`] bytes, as the guest
//! is told. One that sends more is reset.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use super::header::{Operation, RECEIVES, SENDS};
use crate::kvm::virtio::chain::Buffers;

/// Bytes from the guest that wait for the host.
pub(super) const ROOM: u32 = 64 << 10;

/// Most bytes of one packet, what Linux takes (`VIRTIO_VSOCK_MAX_PKT_BUF_SIZE`).
const LARGEST: usize = 64 << 10;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The host's program has not said yet what it wants.
    Greeting,
    /// The guest has been asked, or is about to be.
    Requested,
    /// The owner has been asked for the guest.
    Asked,
    /// Both sides are there.
    Open,
    /// For the guest it is over; the host takes what is left.
    Draining,
}

/// It is over for both sides, and the guest is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What a packet to the guest says, apart from whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Say {
    pub(super) operation: Operation,
    pub(super) flags: u32,
    pub(super) length: u32,
}

/// The host's port and the guest's, which name a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ports {
    pub(super) host: u32,
    pub(super) guest: u32,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// None until the owner has connected.
    pub(super) stream: Option<OwnedFd>,
    pub(super) ports: Ports,
    pub(super) stage: Stage,
    /// It is among those that may have something to say.
    pub(super) queued: bool,
    /// The stream may have something, as far as we know.
    readable: bool,
    /// The host's end is gone altogether.
    hung_up: bool,
    /// The stream has been told that there is no more.
    has_shut_down: bool,

    waiting: VecDeque<u8>,
    /// What the host took, modulo 2^32, and what the guest knows of that.
    forwarded: u32,
    announced: u32,
    /// What was sent to the guest, modulo 2^32, its room and what it passed on.
    sent: u32,
    guest_room: u32,
    guest_forwarded: u32,

    /// What either side does no more: [`RECEIVES`], [`SENDS`].
    guest_stopped: u32,
    host_stopped: u32,
    /// Of which the guest has been told.
    told: u32,
    /// One of these is to be said.
    opening: Option<Operation>,
    owes_credit: bool,
    has_asked_for_credit: bool,
}

impl Connection {
    /// One whose host's program has connected, or that the guest asks for.
    pub(super) fn new(stage: Stage, ports: Ports, stream: Option<OwnedFd>) -> Self {
        Self {
            stream,
            ports,
            stage,
            queued: false,
            readable: true,
            hung_up: false,
            has_shut_down: false,
            waiting: VecDeque::new(),
            forwarded: 0,
            announced: 0,
            sent: 0,
            guest_room: 0,
            guest_forwarded: 0,
            guest_stopped: 0,
            host_stopped: 0,
            told: 0,
            opening: None,
            owes_credit: false,
            has_asked_for_credit: false,
        }
    }

    /// Bytes that the host took, for the next packet.
    pub(super) fn forwarded(&self) -> u32 {
        self.forwarded
    }

    /// The host's program wants port `guest`.
    pub(super) fn request(&mut self, ports: Ports) {
        self.ports = ports;
        self.stage = Stage::Requested;
        self.opening = Some(Operation::REQUEST);
    }

    /// The owner has connected.
    pub(super) fn answer(&mut self, stream: OwnedFd) {
        self.stream = Some(stream);
        self.stage = Stage::Open;
        self.opening = Some(Operation::RESPONSE);
    }

    /// The guest has accepted: the host is told so.
    pub(super) fn accepted(&mut self) -> Result<(), Broken> {
        let line = format!("OK {}\n", self.ports.host);
        let stream = self.stream.as_ref().ok_or(Broken)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if send(stream, line.as_bytes(), flags) != Ok(line.len()) {
            return Err(Broken);
        }
        self.stage = Stage::Open;
        Ok(())
    }

    /// What the guest says of its room, in any packet.
    pub(super) fn set_credit(&mut self, room: u32, forwarded: u32) {
        self.guest_room = room;
        self.guest_forwarded = forwarded;
        // Asked once, Linux says by itself when there is room again.
        self.has_asked_for_credit &= self.credit() == 0;
    }

    /// Bytes that the guest has room for. A guest that lies gets more than it has room
    /// for in the buffers that it has put up, or nothing.
    fn credit(&self) -> u32 {
        let outstanding = self.sent.wrapping_sub(self.guest_forwarded);
        self.guest_room.saturating_sub(outstanding)
    }

    /// The guest wants to know our room.
    pub(super) fn owe_credit(&mut self) {
        self.owes_credit = true;
    }

    /// The host's end of the stream may have something, or has hung up.
    pub(super) fn wake(&mut self, hung_up: bool) {
        self.readable = true;
        self.hung_up |= hung_up;
        if self.hung_up && self.host_stopped & SENDS != 0 {
            self.host_takes_no_more();
        }
    }

    pub(super) fn is_hung_up(&self) -> bool {
        self.hung_up
    }

    /// Data from the guest.
    pub(super) fn deliver(&mut self, mut data: Buffers<'_>) -> Result<(), Broken> {
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if self.guest_stopped & SENDS != 0 || waiting.saturating_add(length) > ROOM {
            return Err(Broken);
        }
        if self.waiting.is_empty() && self.host_stopped & RECEIVES == 0 {
            while data.len() > 0 {
                let stream = self.stream.as_ref().ok_or(Broken)?;
                match data.send(stream.as_raw_fd(), 0) {
                    Ok(count) => {
                        data.take(count);
                        self.forward(count);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => self.host_takes_no_more(),
                }
                if self.host_stopped & RECEIVES != 0 {
                    break;
                }
            }
        }
        if self.host_stopped & RECEIVES != 0 {
            self.forward(data.len());
            return Ok(());
        }
        let mut rest = vec![0; data.len()];
        data.copy_to(&mut rest);
        self.waiting.extend(rest);
        Ok(())
    }

    /// Has the host take what waits. True if it has all, or wants no more.
    pub(super) fn flush(&mut self) -> bool {
        while let (Some(stream), (first, _)) = (&self.stream, self.waiting.as_slices())
            && !first.is_empty()
        {
            match send(stream, first, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.waiting.drain(..count.min(self.waiting.len()));
                    self.forward(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => self.host_takes_no_more(),
            }
        }
        // Once only: it wakes us each time.
        if self.guest_stopped & SENDS != 0
            && !std::mem::replace(&mut self.has_shut_down, true)
            && let Some(stream) = &self.stream
        {
            // It may be closed on the other end.
            let _ = shutdown(stream, Shutdown::Write);
        }
        true
    }

    fn host_takes_no_more(&mut self) {
        self.host_stopped |= RECEIVES;
        let lost = self.waiting.len();
        self.waiting.clear();
        self.forward(lost);
    }

    fn forward(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.forwarded = self.forwarded.wrapping_add(count);
        // Long before the guest has to wait, but not for every packet.
        self.owes_credit |= self.forwarded.wrapping_sub(self.announced) >= ROOM / 2;
    }

    /// The guest does some of this no more. True if it does neither.
    pub(super) fn guest_stops(&mut self, flags: u32) -> bool {
        self.guest_stopped |= flags & (RECEIVES | SENDS);
        if self.guest_stopped & RECEIVES != 0
            && let Some(stream) = &self.stream
        {
            let _ = shutdown(stream.as_fd(), Shutdown::Read);
        }
        self.flush();
        self.guest_stopped == RECEIVES | SENDS
    }

    /// The next thing to say to the guest, whose next buffer has `room`.
    pub(super) fn next(&mut self, room: &mut Buffers<'_>) -> Result<Option<Say>, Broken> {
        let say = |operation| Say {
            operation,
            flags: 0,
            length: 0,
        };
        let said = if self.stage == Stage::Draining {
            None
        } else if let Some(operation) = self.opening.take() {
            Some(say(operation))
        } else if self.stage != Stage::Open {
            None
        } else if let Some(data) = self.receive(room)? {
            Some(data)
        } else if self.host_stopped & !self.told != 0 {
            self.told = self.host_stopped;
            let flags = self.host_stopped;
            Some(Say {
                flags,
                ..say(Operation::SHUTDOWN)
            })
        } else if self.owes_credit {
            Some(say(Operation::CREDIT))
        } else {
            None
        };
        if said.is_some() {
            self.owes_credit = false;
            self.announced = self.forwarded;
        }
        Ok(said)
    }

    /// Data from the host, as much as the guest has room for, or a request for room.
    fn receive(&mut self, room: &mut Buffers<'_>) -> Result<Option<Say>, Broken> {
        let stopped = self.host_stopped & SENDS | self.guest_stopped & RECEIVES;
        if !self.readable || stopped != 0 {
            return Ok(None);
        }
        let credit = usize::try_from(self.credit()).unwrap_or(usize::MAX);
        if credit == 0 {
            let asked = std::mem::replace(&mut self.has_asked_for_credit, true);
            return Ok((!asked).then_some(Say {
                operation: Operation::CREDIT_REQUEST,
                flags: 0,
                length: 0,
            }));
        }
        let stream = self.stream.as_ref().ok_or(Broken)?;
        let place = room.take(credit.min(LARGEST));
        loop {
            return match place.receive(stream.as_raw_fd()) {
                Ok(0) => {
                    self.readable = false;
                    self.host_stopped |= SENDS;
                    if self.hung_up {
                        self.host_takes_no_more();
                    }
                    Ok(None)
                }
                Ok(count) => {
                    let length = u32::try_from(count).unwrap_or(u32::MAX);
                    self.sent = self.sent.wrapping_add(length);
                    Ok(Some(Say {
                        operation: Operation::DATA,
                        flags: 0,
                        length,
                    }))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    Ok(None)
                }
                Err(_) => Err(Broken),
            };
        }
    }
}
