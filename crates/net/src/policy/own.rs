//! The host's own addresses: asks the kernel about each address.
//!
//! The request is `RTM_GETROUTE` (rtnetlink(7)), which looks an address up as this process's own
//! connection to it would be. So the answer covers every interface, local routes and policy
//! routing, and is as current as the connection that follows; a list of the interfaces' addresses
//! would have to be kept up to date, and would lack local routes and policy routing. The request
//! always has the same 36 bytes, and one byte of the answer counts.

use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Types of messages (`linux/rtnetlink.h`, `linux/netlink.h`).
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const ERROR: u16 = 2;
/// The flag of a request (`NLM_F_REQUEST`).
const REQUEST: u16 = 1;
/// The attribute with the address (`RTA_DST`).
const DESTINATION: u16 = 1;
/// The type of a route that ends on this machine (`RTN_LOCAL`).
const LOCAL: u8 = 2;
/// The address family in a message (`AF_INET`).
const INET: u8 = 2;

/// Sizes in bytes of a message's header (`struct nlmsghdr`), of a route (`struct rtmsg`), of an
/// attribute with an address.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const ATTRIBUTE: usize = 8;
const QUESTION: usize = HEADER + ROUTE + ATTRIBUTE;

/// Offset of a route's type (`rtm_type`).
const KIND: usize = HEADER + 7;

/// Bytes of an answer that are read: only its type is needed.
const ANSWER: usize = 64;

/// A socket for route requests to the kernel.
#[derive(Debug)]
pub(crate) struct OwnAddresses {
    socket: OwnedFd,
    /// The sequence number of the last request.
    sequence: Cell<u32>,
}

impl OwnAddresses {
    /// Opens the socket.
    ///
    /// # Errors
    /// When the host is out of descriptors or has no rtnetlink.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0, the default, is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self {
            socket,
            sequence: Cell::new(0),
        })
    }

    /// Whether packets to `address` stay on this machine. True if the kernel's answer is an error.
    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        self.ask(address).unwrap_or(true)
    }

    fn ask(&self, address: Ipv4Addr) -> Result<bool, Errno> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        send(
            &self.socket,
            &question(sequence, address),
            SendFlags::empty(),
        )?;
        // The kernel replies before `send` returns.
        loop {
            let mut answer = [0; ANSWER];
            let (_, length) = recv(&self.socket, &mut answer, RecvFlags::TRUNC)?;
            let answer = answer.get(..length.min(ANSWER)).unwrap_or_default();
            match parse(answer) {
                Some((number, found)) if number == sequence => return Ok(found != Found::Other),
                // A late answer to an earlier request.
                Some(_) => {}
                None => return Err(Errno::INVAL),
            }
        }
    }
}

fn question(sequence: u32, address: Ipv4Addr) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    let fields: [(usize, &[u8]); 8] = [
        (0, &(QUESTION as u32).to_ne_bytes()),
        (4, &GET_ROUTE.to_ne_bytes()),
        (6, &REQUEST.to_ne_bytes()),
        (8, &sequence.to_ne_bytes()),
        (HEADER, &[INET, 32]), // all bits of the address
        (HEADER + ROUTE, &(ATTRIBUTE as u16).to_ne_bytes()),
        (HEADER + ROUTE + 2, &DESTINATION.to_ne_bytes()),
        (HEADER + ROUTE + 4, &address.octets()),
    ];
    for (at, field) in fields {
        if let Some(place) = bytes.get_mut(at..at + field.len()) {
            place.copy_from_slice(field);
        }
    }
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The route ends on this machine.
    Local,
    /// The route leaves this machine, or there is none.
    Other,
    /// The kernel reported another error.
    Unknown,
}

/// Parses an answer: its sequence number, and its result.
fn parse(bytes: &[u8]) -> Option<(u32, Found)> {
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let sequence = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
    let found = match kind {
        NEW_ROUTE if *bytes.get(KIND)? == LOCAL => Found::Local,
        NEW_ROUTE => Found::Other,
        ERROR => {
            let code = i32::from_ne_bytes(*bytes.get(HEADER..)?.first_chunk()?);
            match Errno::from_raw_os_error(code.checked_neg()?) {
                // There is no route: a connection will fail in the same way.
                Errno::NETUNREACH | Errno::HOSTUNREACH => Found::Other,
                _ => Found::Unknown,
            }
        }
        _ => return None,
    };
    Some((sequence, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_the_hosts_own_addresses() {
        let own = OwnAddresses::new().unwrap();
        for address in [[127, 0, 0, 1], [127, 9, 9, 9]] {
            assert!(own.contains(address.into()), "{address:?}");
        }
        // A documentation address (RFC 5737), with or without a route to it.
        assert!(!own.contains([203, 0, 113, 7].into()));
    }

    #[test]
    fn a_malformed_netlink_answer_is_none() {
        let mut answer = question(7, Ipv4Addr::LOCALHOST);
        assert_eq!(parse(&answer), None);
        answer[4] = NEW_ROUTE as u8;
        assert_eq!(parse(&answer), Some((7, Found::Other)));
        answer[KIND] = LOCAL;
        assert_eq!(parse(&answer), Some((7, Found::Local)));
        assert_eq!(parse(&answer[..KIND]), None);
        answer[4] = ERROR as u8;
        for (errno, found) in [
            (Errno::NETUNREACH, Found::Other),
            (Errno::NOMEM, Found::Unknown),
        ] {
            let code = -errno.raw_os_error();
            answer[HEADER..HEADER + 4].copy_from_slice(&code.to_ne_bytes());
            assert_eq!(parse(&answer), Some((7, found)));
        }
    }
}
