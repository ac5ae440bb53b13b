//! Host users of jailed processes: each worker that root starts gets a user of its own.

use std::fs;
use std::io;

use rustix::process::geteuid;

use crate::numbers::Taken;

/// The first of the users, in a range that systemd's list of users (`UIDS-GIDS.md`) marks unused,
/// and their number.
const FIRST: u32 = 0x7000_0000;
const COUNT: u32 = 1 << 16;

/// A user that no other worker on this machine has while the claim lives.
#[derive(Debug)]
pub struct Claim(Taken);

impl Claim {
    /// Claims a user for a worker that root starts. None if a user starts it, since the worker keeps that identity;
    /// and none where root is a user namespace's that has no such users.
    ///
    /// # Errors
    /// If all users are taken, or can't be locked.
    pub fn new() -> io::Result<Option<Self>> {
        if !geteuid().is_root() || !has_users() {
            return Ok(None);
        }
        // Processes with neighbouring IDs begin in different places.
        let begin = std::process::id().wrapping_mul(64);
        match Taken::one_of("workers", COUNT, begin)? {
            Some(taken) => Ok(Some(Self(taken))),
            None => Err(io::Error::other("all users for workers are taken")),
        }
    }

    /// The user's number, which is also its group's.
    pub fn uid(&self) -> u32 {
        FIRST + self.0.number()
    }
}

/// Returns whether this process's user namespace has the users.
fn has_users() -> bool {
    let Ok(map) = fs::read_to_string("/proc/self/uid_map") else {
        // Without /proc this is no namespace of a container's making.
        return true;
    };
    map.lines().any(|line| has_all(line).unwrap_or_default())
}

/// Returns whether a line of a map of users (user_namespaces(7)) has all of them.
fn has_all(line: &str) -> Option<bool> {
    let mut numbers = line.split_whitespace().map(str::parse::<u64>);
    let (first, _outside, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let (first, count) = (first.ok()?, count.ok()?);
    Some(first <= FIRST.into() && first + count >= u64::from(FIRST + COUNT))
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

    #[test]
    fn a_claim_is_no_name_that_any_user_could_take_first() {
        let _claim = Claim::new().unwrap();
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let ours: Vec<String> = open
            .filter_map(|entry| {
                fs::read_link(entry.path())
                    .ok()?
                    .into_os_string()
                    .into_string()
                    .ok()
            })
            .filter_map(|to| Some(to.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        let sockets = fs::read_to_string("/proc/self/net/unix").unwrap();
        for line in sockets.lines() {
            let mut fields = line.split_ascii_whitespace().skip(6);
            let is_ours = fields
                .next()
                .is_some_and(|inode| ours.iter().any(|our| our == inode));
            assert!(!is_ours || fields.next().is_none(), "{line}");
        }
    }

    #[test]
    fn a_namespace_may_lack_the_users() {
        assert_eq!(has_all("         0          0 4294967295"), Some(true));
        assert_eq!(has_all("         0       1000          1"), Some(false));
        assert_eq!(has_all("         0     100000      65536"), Some(false));
        assert_eq!(has_all(""), None);
    }
}
