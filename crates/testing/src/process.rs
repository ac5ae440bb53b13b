//! Other processes.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs a command, and returns what it writes: stdout, then stderr.
///
/// # Panics
/// If it fails, with all of that.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}",
        output.status
    );
    said
}

/// Returns whether a process with this PID exists.
pub fn exists(pid: impl AsRef<OsStr>) -> bool {
    Path::new("/proc").join(pid.as_ref()).exists()
}

/// Returns the children of a process, whichever of its threads started them.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let lists = threads.flatten().flatten().map(|thread| {
        let list = fs::read_to_string(thread.path().join("children"));
        list.unwrap_or_default()
    });
    let text: String = lists.collect();
    let pids = text.split_ascii_whitespace();
    pids.map(|pid| pid.parse().unwrap()).collect()
}

/// Returns the children of a process, theirs, and so on.
#[must_use]
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut all = children(pid);
    let mut seen = 0;
    while let Some(pid) = all.get(seen) {
        all.extend(children(*pid));
        seen += 1;
    }
    all
}
