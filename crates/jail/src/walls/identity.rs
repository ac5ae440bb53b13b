//! Whom the jailed process is to the host.

use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{Error, step};

/// `nobody` and `nogroup`, who own nothing on any system: who a jailed process is inside.
pub(super) const NOBODY: u32 = 65534;

/// Who this worker is to be, if root started it.
static USER: OnceLock<u32> = OnceLock::new();

/// Says who this process is to become.
pub(crate) fn assign(uid: u32) {
    let _ = USER.set(uid);
}

/// Gives up root's identity, and its groups with it but for one. Others keep their own, which
/// is the least that they have.
pub(super) fn become_nobody(group: Option<u32>) -> Result<(), Error> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // The process has one thread, so the thread's identity is the process's.
    let groups: Vec<_> = group.map(Gid::from_raw).into_iter().collect();
    set_thread_groups(&groups).map_err(step("leaving root's groups"))?;
    let own = USER.get().copied().unwrap_or(NOBODY);
    let number = match become_user(own) {
        // This root is one of a container that has fewer users.
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
