//! A connection: a stream socket on the host's side, packets on the guest's.
//!
//! Data for the guest is not buffered: it is read from the socket straight into the guest's buffers
//! when the guest has announced room. Data from the guest waits here while the host does not take
//! it: at most [`ROOM`] bytes, which is announced to the guest. A connection whose guest sends more
//! is reset.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use super::header::{Operation, RECEIVES, SENDS};
use crate::kvm::virtio::chain::Buffers;

/// Maximum bytes from the guest that wait for the host.
pub(super) const ROOM: u32 = 64 << 10;

/// Maximum bytes of one packet that Linux accepts (`VIRTIO_VSOCK_MAX_PKT_BUF_SIZE`).
const LARGEST: usize = 64 << 10;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The host's program has not sent its first line yet.
    Greeting,
    /// A request was sent to the guest, or is about to be.
    Requested,
    /// The owner was asked to connect for the guest.
    Asked,
    /// Both sides are connected.
    Open,
    /// The guest has closed it; the host takes the remaining data.
    Draining,
}

/// The connection is broken for both sides, and must be reset in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The contents of a packet to the guest, without its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) operation: Operation,
    pub(super) flags: u32,
    pub(super) length: u32,
}

/// The host's port and the guest's, which identify a connection.
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
    /// Whether it is queued among the connections that may have a packet for the guest.
    pub(super) queued: bool,
    /// Whether the stream may have data, as far as is known.
    readable: bool,
    /// Whether the host's end is closed in both directions.
    hung_up: bool,
    /// Whether the stream is shut down for writing.
    has_shut_down: bool,

    waiting: VecDeque<u8>,
    /// Bytes that the host took, modulo 2^32, and how many of them were announced to the guest.
    forwarded: u32,
    announced: u32,
    /// Bytes sent to the guest, modulo 2^32, the guest's room and the bytes that the guest passed
    /// on.
    sent: u32,
    guest_room: u32,
    guest_forwarded: u32,

    /// What each side has stopped doing: [`RECEIVES`], [`SENDS`].
    guest_stopped: u32,
    host_stopped: u32,
    /// What the guest was told that the host has stopped doing.
    told: u32,
    /// The request or response that must be sent first.
    opening: Option<Operation>,
    owes_credit: bool,
    has_asked_for_credit: bool,
}

impl Connection {
    /// Creates a connection that a program on the host made, or that the guest requested.
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

    /// Returns the bytes that the host took, for the next packet.
    pub(super) fn forwarded(&self) -> u32 {
        self.forwarded
    }

    /// Requests a connection from the guest, for a program on the host.
    pub(super) fn request(&mut self, ports: Ports) {
        self.ports = ports;
        self.stage = Stage::Requested;
        self.opening = Some(Operation::REQUEST);
    }

    /// Accepts the guest's request: the owner has connected `stream`.
    pub(super) fn answer(&mut self, stream: OwnedFd) {
        self.stream = Some(stream);
        self.stage = Stage::Open;
        self.opening = Some(Operation::RESPONSE);
    }

    /// Tells the host's program that the guest has accepted.
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

    /// Sets the guest's room, which every packet announces.
    pub(super) fn set_credit(&mut self, room: u32, forwarded: u32) {
        self.guest_room = room;
        self.guest_forwarded = forwarded;
        // Once asked, Linux announces new room on its own.
        self.has_asked_for_credit &= self.credit() == 0;
    }

    /// Returns the bytes that the guest has room for. A guest that announces wrong numbers gets
    /// more data in its buffers than it has room for, or none.
    fn credit(&self) -> u32 {
        let outstanding = self.sent.wrapping_sub(self.guest_forwarded);
        self.guest_room.saturating_sub(outstanding)
    }

    /// Records that the guest requested the device's room.
    pub(super) fn owe_credit(&mut self) {
        self.owes_credit = true;
    }

    /// Records that the host's end of the stream may have data, or has hung up.
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

    /// Delivers data from the guest.
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

    /// Writes waiting data to the host. Returns true if none is left, or the host's end is closed.
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
        // Once only: each call causes an event.
        if self.guest_stopped & SENDS != 0
            && !std::mem::replace(&mut self.has_shut_down, true)
            && let Some(stream) = &self.stream
        {
            // The other end may be closed.
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
        // Announced long before the guest must wait, but not for every packet.
        self.owes_credit |= self.forwarded.wrapping_sub(self.announced) >= ROOM / 2;
    }

    /// Records what the guest has stopped doing. Returns true if it neither sends nor receives.
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

    /// Returns the next packet to the guest, whose next buffer has `room`.
    pub(super) fn next(&mut self, room: &mut Buffers<'_>) -> Result<Option<Packet>, Broken> {
        let packet = |operation| Packet {
            operation,
            flags: 0,
            length: 0,
        };
        let said = if self.stage == Stage::Draining {
            None
        } else if let Some(operation) = self.opening.take() {
            Some(packet(operation))
        } else if self.stage != Stage::Open {
            None
        } else if let Some(data) = self.receive(room)? {
            Some(data)
        } else if self.host_stopped & !self.told != 0 {
            self.told = self.host_stopped;
            let flags = self.host_stopped;
            Some(Packet {
                flags,
                ..packet(Operation::SHUTDOWN)
            })
        } else if self.owes_credit {
            Some(packet(Operation::CREDIT))
        } else {
            None
        };
        if said.is_some() {
            self.owes_credit = false;
            self.announced = self.forwarded;
        }
        Ok(said)
    }

    /// Reads data from the host, as much as the guest has room for, or requests room from the
    /// guest.
    fn receive(&mut self, room: &mut Buffers<'_>) -> Result<Option<Packet>, Broken> {
        let stopped = self.host_stopped & SENDS | self.guest_stopped & RECEIVES;
        if !self.readable || stopped != 0 {
            return Ok(None);
        }
        let credit = usize::try_from(self.credit()).unwrap_or(usize::MAX);
        if credit == 0 {
            let asked = std::mem::replace(&mut self.has_asked_for_credit, true);
            return Ok((!asked).then_some(Packet {
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
                    Ok(Some(Packet {
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
