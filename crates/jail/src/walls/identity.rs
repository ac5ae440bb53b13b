//! Whom the jailed process is to the host.

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{Error, step};

/// `nobody` and `nogroup`, who own nothing on any system.
pub(super) const NOBODY: u32 = 65534;

/// Gives up root's identity, and its groups with it. Others keep their own, which is the
/// least that they have.
pub(super) fn become_nobody() -> Result<(), Error> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    // The process has one thread, so the thread's identity is the process's.
    set_thread_groups(&[]).map_err(step("leaving root's groups"))?;
    set_thread_res_gid(gid, gid, gid).map_err(step("leaving root's group"))?;
    set_thread_res_uid(uid, uid, uid).map_err(step("becoming nobody"))
}
