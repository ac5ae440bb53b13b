//! One connection: the guest's end in smoltcp, the host's in the kernel, and the bytes, ends and
//! resets that are passed from one to the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{Socket, State};

use super::request::Request;

/// Identifies a connection that the guest requested: its port, and the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) guest_port: u16,
    pub(super) to: SocketAddrV4,
}

/// Which side opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The guest requested it.
    Guest(Key),
    /// It came to a published port; the guest sees it come from this port of the gateway.
    Host(u16),
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) origin: Origin,
    pub(super) host: TcpStream,
    pub(super) stage: Stage,
    /// Whether the host's socket may have data to read, and room to write.
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The host's side has sent its last byte, and the guest's socket is closed for sending.
    host_ended: bool,
    /// The guest has sent its last byte.
    guest_ended: bool,
    /// The end of the guest's data has been passed on to the host's side.
    end_passed_on: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The host's side is connecting. Only its result decides whether the guest's request is
    /// accepted, reset, or answered as unreachable.
    Connecting(Request),
    /// Bytes flow.
    Open(SocketHandle),
}

/// The state of a connection after a pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The connection continues.
    Alive,
    /// All data is delivered; smoltcp may still have packets to send.
    Over,
    /// Nothing is left to deliver or to send.
    Gone,
}

impl Flow {
    pub(super) fn new(origin: Origin, host: TcpStream, stage: Stage) -> Self {
        Self {
            origin,
            host,
            stage,
            readable: false,
            writable: false,
            host_ended: false,
            guest_ended: false,
            end_passed_on: false,
        }
    }

    /// Moves data in both directions, as far as possible.
    pub(super) fn pump(&mut self, guest: &mut Socket<'_>) -> Fate {
        if guest.state() == State::Listen {
            // The guest reset the connection instead of completing it. The socket must not accept
            // another request.
            self.reset_host();
            return Fate::Gone;
        }
        self.guest_ended |= matches!(
            guest.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        if self.move_to_host(guest).is_err() || self.move_to_guest(guest).is_err() {
            guest.abort();
            return Fate::Over;
        }
        match guest.state() {
            State::Closed if guest.can_recv() => Fate::Alive,
            State::Closed => {
                if !(self.guest_ended && self.host_ended) {
                    self.reset_host();
                }
                Fate::Over
            }
            // Both ends have been notified. Only a network with stray packets would need the wait.
            State::TimeWait if self.end_passed_on => Fate::Over,
            _ => Fate::Alive,
        }
    }

    fn move_to_host(&mut self, guest: &mut Socket<'_>) -> Result<(), Broken> {
        while self.writable && guest.can_recv() {
            let written = guest.recv(|bytes| match (&self.host).write(bytes) {
                Ok(count) => (count, Ok(count)),
                Err(error) => (0, Err(error)),
            });
            match written.map_err(|_| Broken)? {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken),
            }
        }
        if self.guest_ended && !self.end_passed_on && !guest.can_recv() {
            // The connection may have been reset in the meantime, which reading reports.
            let _ = self.host.shutdown(Shutdown::Write);
            self.end_passed_on = true;
        }
        Ok(())
    }

    fn move_to_guest(&mut self, guest: &mut Socket<'_>) -> Result<(), Broken> {
        while self.readable && !self.host_ended && guest.can_send() {
            let read = guest.send(|room| match (&self.host).read(room) {
                Ok(count) => (count, Ok(count)),
                Err(error) => (0, Err(error)),
            });
            match read.map_err(|_| Broken)? {
                Ok(0) => {
                    self.host_ended = true;
                    guest.close();
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken),
            }
        }
        Ok(())
    }

    /// Makes the host's kernel send a reset when the socket closes.
    pub(super) fn reset_host(&self) {
        let _ = sockopt::set_socket_linger(&self.host, Some(Duration::ZERO));
    }
}

/// The host's side or the guest's was reset.
struct Broken;
