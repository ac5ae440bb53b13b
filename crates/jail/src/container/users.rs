//! The users of a container: a range of the host's that own nothing there.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, getgid, getuid};

use crate::numbers::Taken;

/// Number of users and groups of a container: 0 to 65,535.
pub const USERS: u32 = 1 << 16;

/// The first range, above the users of jailed workers, and the number of ranges up to the largest
/// user that every program takes for one.
const FIRST: u32 = 0x7001_0000;
const RANGES: u32 = 0xfff;

/// A range of users that no other container on this machine has while this lives.
#[derive(Debug)]
pub struct Users(Taken);

impl Users {
    /// Claims a range, as root.
    ///
    /// # Errors
    /// If all are taken, or can't be locked.
    pub fn claim() -> io::Result<Self> {
        match Taken::one_of("containers", RANGES, std::process::id())? {
            Some(taken) => Ok(Self(taken)),
            None => Err(io::Error::other("all users for containers are taken")),
        }
    }

    /// The first user's number, which is also the first group's.
    pub fn first(&self) -> u32 {
        FIRST + self.0.number() * USERS
    }
}

/// Maps the users and groups of a process's namespace to those from this one on.
pub(super) fn map(pid: Pid, first: u32) -> io::Result<()> {
    write(pid, first, first, USERS)
}

/// Maps the calling user and group alone, to root.
pub(super) fn map_own(pid: Pid) -> io::Result<()> {
    // A user may give up no group in exchange for a group of their own.
    fs::write(format!("/proc/{}/setgroups", pid.as_raw_nonzero()), "deny")?;
    write(pid, getuid().as_raw(), getgid().as_raw(), 1)
}

/// Maps all users and groups of this process's namespace, which has `count` of each from 0 on.
pub(super) fn map_all(pid: Pid, count: u32) -> io::Result<()> {
    write(pid, 0, 0, count)
}

fn write(pid: Pid, user: u32, group: u32, count: u32) -> io::Result<()> {
    for (name, first) in [("gid_map", group), ("uid_map", user)] {
        let map = format!("0 {first} {count}");
        fs::write(format!("/proc/{}/{name}", pid.as_raw_nonzero()), map)?;
    }
    Ok(())
}

/// Returns how many users this process's namespace has from 0 on.
pub(super) fn count() -> io::Result<u32> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let count = map.split_whitespace().nth(2);
    let count = count.and_then(|count| count.parse().ok());
    count.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Opens a process's user namespace.
pub(super) fn namespace(pid: Pid) -> io::Result<OwnedFd> {
    Ok(File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero()))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs root"]
    fn no_two_containers_have_a_user_in_common() {
        let claims: Vec<_> = (0..20).map(|_| Users::claim().unwrap()).collect();
        let mut users: Vec<u32> = claims.iter().map(Users::first).collect();
        users.sort_unstable();
        assert!(users.windows(2).all(|pair| pair[1] - pair[0] >= USERS));
        assert!(users[0] >= FIRST && users[19] < 1 << 31);
    }
}
