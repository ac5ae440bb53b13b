//! The result of the tools about commands.

use std::fmt::Write;

use rmcp::schemars::JsonSchema;
use serde::Serialize;

use super::job::News;

/// What a command has written, and how it ended.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Ran {
    /// The number of a command in the background.
    command: Option<u64>,
    /// Whether it still runs.
    running: bool,
    /// The exit code; 128 and the signal's number if a signal ended the command.
    exit_code: Option<i32>,
    /// Whether it was ended by the timeout.
    timed_out: bool,
    /// What it wrote to stdout. A long one lacks its middle, and says so there.
    stdout: String,
    /// What it wrote to stderr, in the same way.
    stderr: String,
    /// How many bytes of stdout are left out.
    stdout_left_out: u64,
    /// How many bytes of stderr are left out.
    stderr_left_out: u64,
    /// Whether `stdout` is what was written; else bytes that are not UTF-8 are replaced in it.
    stdout_is_utf8: bool,
    /// The same of `stderr`.
    stderr_is_utf8: bool,
}

impl Ran {
    /// Makes a result.
    pub fn new(command: Option<u64>, news: News) -> Self {
        let News {
            end,
            stdout,
            stderr,
        } = news;
        Self {
            command,
            running: end.is_none(),
            exit_code: end.map(|end| end.code),
            timed_out: end.is_some_and(|end| end.timed_out),
            stdout: stdout.text,
            stderr: stderr.text,
            stdout_left_out: stdout.left_out,
            stderr_left_out: stderr.left_out,
            stdout_is_utf8: stdout.is_utf8,
            stderr_is_utf8: stderr.is_utf8,
        }
    }

    /// Returns the result as a person reads it.
    pub fn readable(&self) -> String {
        let mut text = match (self.exit_code, self.command) {
            (Some(code), _) if self.timed_out => format!("ended by the timeout, exit code {code}"),
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(command)) => format!("command {command} runs in the background"),
            (None, None) => "it runs".to_owned(),
        };
        for (name, output, is_utf8) in [
            ("stdout", &self.stdout, self.stdout_is_utf8),
            ("stderr", &self.stderr, self.stderr_is_utf8),
        ] {
            if !output.is_empty() {
                let note = if is_utf8 {
                    ""
                } else {
                    " (bytes that are not UTF-8 are replaced)"
                };
                let _ = write!(text, "\n\n{name}{note}:\n{output}");
            }
        }
        text
    }
}
