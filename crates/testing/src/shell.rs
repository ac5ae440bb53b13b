//! Other programs, by the shell.

use std::path::Path;
use std::process::Command;

/// What a script wrote to its stdout. It runs in `directory`, stops at the first command that fails,
/// and finds programs for administrators too.
///
/// # Panics
/// If it fails, with all that it wrote.
#[track_caller]
pub fn shell(directory: &Path, script: &str) -> String {
    let output = Command::new("bash")
        .args([
            "-euo",
            "pipefail",
            "-c",
            "PATH=$PATH:/usr/sbin:/sbin; eval \"$0\"",
            script,
        ])
        .current_dir(directory)
        .env("LC_ALL", "C")
        .output()
        .expect("bash");
    let wrote = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (wrote(&output.stdout), wrote(&output.stderr));
    assert!(output.status.success(), "{script}\n{said}{errors}");
    said
}
