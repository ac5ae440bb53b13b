//! Host users of jailed processes: each worker that root starts gets a user of its own.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::process::geteuid;

/// The first of the users, in a range that systemd's list of users (`UIDS-GIDS.md`) marks unused,
/// and their number.
const FIRST: u32 = 0x7000_0000;
const COUNT: u32 = 1 << 16;

/// A user that no other worker on this host has while the claim lives, as long as their owners
/// share a network namespace. The name of an abstract socket marks the user as taken; the kernel
/// frees it when the owner ends in any way.
#[derive(Debug)]
pub struct Claim {
    uid: u32,
    _taken: UnixDatagram,
}

impl Claim {
    /// Claims a user for a worker that root starts; None if a user starts it, since the worker
    /// keeps that identity.
    ///
    /// # Errors
    /// If all users are taken.
    pub fn new() -> io::Result<Option<Self>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        // Processes with neighbouring IDs begin in different places.
        let begin = std::process::id().wrapping_mul(64);
        for number in 0..COUNT {
            let uid = FIRST + begin.wrapping_add(number) % COUNT;
            let name = SocketAddr::from_abstract_name(format!("micabox-user-{uid}"))?;
            match UnixDatagram::bind_addr(&name) {
                Ok(taken) => return Ok(Some(Self { uid, _taken: taken })),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("all users for workers are taken"))
    }

    /// The user's number, which is also its group's.
    pub fn uid(&self) -> u32 {
        self.uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_workers_of_root_are_one_user() {
        let claims: Vec<_> = (0..100).map(|_| Claim::new().unwrap()).collect();
        if !geteuid().is_root() {
            assert!(claims.iter().all(Option::is_none));
            return;
        }
        let mut users: Vec<u32> = claims.iter().flatten().map(Claim::uid).collect();
        users.sort_unstable();
        users.dedup();
        assert_eq!(users.len(), 100);
        assert!(users.iter().all(|uid| (FIRST..FIRST + COUNT).contains(uid)));
        // Dropping a claim frees its user.
        drop(claims);
        assert!(users.contains(&Claim::new().unwrap().unwrap().uid()));
    }
}
