//! The environment of a forked process: its program's may hold passwords, and stays in its memory.

#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::ptr;

use crate::title::Bounds;

/// The place of the environment's bounds among the fields of `/proc/self/stat` from the third on
/// (proc_pid_stat(5): fields 50 and 51).
const FIELD: usize = 47;

/// Overwrites this process's environment, which is empty afterwards but for the variables with these names.
///
/// # Safety
/// This process must have one thread, and no reference into its environment.
pub(crate) unsafe fn forget(kept: &[&str]) {
    let value = |name: &&str| env::var_os(name).map(|value| (OsString::from(*name), value));
    let kept: Vec<(OsString, OsString)> = kept.iter().filter_map(value).collect();
    if let Some(Bounds { begin, length }) = Bounds::find(FIELD) {
        // SAFETY: the kernel put the strings there, in writable memory of this process, and the caller answers for
        // references to them. They end with a zero byte, and still do.
        unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(begin), 0, length) };
    }
    // SAFETY: no other thread reads the environment meanwhile.
    unsafe {
        libc::clearenv();
        for (name, value) in kept {
            env::set_var(name, value);
        }
    }
}
