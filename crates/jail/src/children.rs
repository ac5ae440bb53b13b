//! The end of a process's children, and of those that it gets from others.
//!
//! A process whose parent ends first is left to an ancestor that takes orphans, and otherwise to the first process of
//! its namespace. In a container that may be a program that waits for no orphans, where each would stay as a zombie.

use std::fs;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitpid,
};

/// Makes this process the parent of its descendants' orphans.
///
/// # Errors
/// The system's.
pub fn adopt_orphans() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills this process's children but for some, waits for them, and does the same to orphans that it gets by that.
pub fn end_children_but(spared: &[Pid]) {
    loop {
        let mut children = children();
        children.retain(|child| !spared.contains(child));
        if children.is_empty() {
            return;
        }
        for child in children {
            // Another thread may have waited for it meanwhile, and its number be another process's.
            if let Ok(handle) = pidfd_open(child, PidfdFlags::empty())
                && is_ours(child)
            {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
        }
    }
}

/// Returns the children of all threads; none where the kernel has no lists of them.
fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let numbers = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    let numbers = numbers.filter_map(|number| Pid::from_raw(number.parse().ok()?));
    numbers.collect()
}

/// Returns whether a process is this one's child.
fn is_ours(child: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    // The second field is a name in parentheses, which may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let parent = fields.split_ascii_whitespace().nth(1);
    parent.and_then(|parent| parent.parse().ok()) == Some(getpid().as_raw_pid())
}
