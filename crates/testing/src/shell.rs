//! Runs other programs through the shell.

use std::path::Path;
use std::process::Command;

/// Runs a script in `directory` and returns its stdout. The script stops at the first command that
/// fails, and finds administrators' programs too.
///
/// # Panics
/// If the script fails, with all its output.
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
