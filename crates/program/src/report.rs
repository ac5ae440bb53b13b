//! What a command of `mica serve` reports to it, for the program at the other end: why it failed.
//!
//! The command opens a file of the server's by the path in [`VARIABLE`]. stderr has the same for people, but
//! not the kind of a failure. The path also says which process is the server, with which a command ends.

use std::fs::OpenOptions;
use std::io::Write;

use micabox::ErrorKind;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

/// The environment variable with the file's path.
pub const VARIABLE: &str = "MICABOX_REPORT";

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "CommandFailed"))]
pub struct Failed {
    /// For programs, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ErrorKind>,
    /// For people: what failed, and why.
    pub message: String,
    /// For people: what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Has this process end with the server that has started it, if one has: a server that is killed can't end
/// its commands.
pub fn end_with_server() {
    if let Some(server) = server()
        && getppid() == Some(server)
    {
        // Without it, it ends when it writes.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
    }
}

fn server() -> Option<Pid> {
    let path = std::env::var(VARIABLE).ok()?;
    let pid = path.strip_prefix("/proc/")?.split('/').next()?;
    Pid::from_raw(pid.parse().ok()?)
}

/// Reports a failure to the server, if there is one. The last one of several counts.
pub fn failed(failed: &Failed) {
    let Some(path) = std::env::var_os(VARIABLE) else {
        return;
    };
    // A server that is gone needs no report.
    if let Ok(mut file) = OpenOptions::new().append(true).open(path)
        && let Ok(mut line) = serde_json::to_vec(failed)
    {
        line.push(b'\n');
        let _ = file.write_all(&line);
    }
}

/// Returns the last failure in a report.
pub fn last(report: &[u8]) -> Option<Failed> {
    let mut lines = report.split(|byte| *byte == b'\n').rev();
    lines.find_map(|line| serde_json::from_slice(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_of_a_report_counts() {
        let report = br#"{"kind":"not_found","message":"one"}
{"message":"two","hint":"do"}
{"message":"cut"#;
        let expected = Failed {
            kind: None,
            message: "two".to_owned(),
            hint: Some("do".to_owned()),
        };
        assert_eq!(last(report), Some(expected));
        assert_eq!(last(b""), None);
    }
}
