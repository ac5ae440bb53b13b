//! The jailed process's identity on the host.

use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{Error, step};

/// `nobody` and `nogroup`, which own nothing on any system: a jailed process's identity inside.
pub(super) const NOBODY: u32 = 65534;

/// The user that this worker must become, if root started it.
static USER: OnceLock<u32> = OnceLock::new();

/// Sets the user that this process must become.
pub(crate) fn assign(uid: u32) {
    let _ = USER.set(uid);
}

/// Returns whether this process runs as a user of the host, even if it is root in a namespace of
/// its own that has no other user. Needs a mounted /proc.
pub(super) fn is_user() -> bool {
    !geteuid().is_root()
        || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| is_mapped(&map))
}

/// Returns whether root is a different user outside, by a map of users (user_namespaces(7)).
fn is_mapped(map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace();
        numbers.next() == Some("0") && numbers.next().is_some_and(|outside| outside != "0")
    })
}

/// Gives up root's identity and its groups, except for `group`. A process of a user keeps its
/// identity, which already has the fewest privileges; so does root of a user's namespace that has
/// no other user.
pub(super) fn become_nobody(group: Option<u32>, is_user: bool) -> Result<(), Error> {
    if !geteuid().is_root() {
        return Ok(());
    }
    match leave_root(group) {
        Err(_) if is_user => Ok(()),
        result => result,
    }
}

fn leave_root(group: Option<u32>) -> Result<(), Error> {
    // The process has one thread, so the thread's identity is the process's.
    let groups: Vec<_> = group.map(Gid::from_raw).into_iter().collect();
    set_thread_groups(&groups).map_err(step("leaving root's groups"))?;
    let own = USER.get().copied().unwrap_or(NOBODY);
    let number = match become_user(own) {
        // Root of a container with fewer users.
        Err(Errno::INVAL) => become_user(NOBODY),
        result => result,
    };
    number.map_err(step("leaving root's identity"))
}

fn become_user(number: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_users_namespace_is_a_user() {
        assert!(!is_mapped("         0          0 4294967295\n"));
        assert!(is_mapped("         0       1000          1\n"));
        assert!(is_mapped(
            "         0       1000          1\n 1 100000 65536\n"
        ));
        assert!(!is_mapped(""));
    }
}
