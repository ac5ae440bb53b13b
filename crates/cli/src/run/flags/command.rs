//! The flags about a sandbox's first command and mica's terminal: those of `mica run`.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "their documentation is text for --help"
)]

use std::ffi::OsString;

use clap::ValueEnum;

use micabox::words::{Period, boolean};

use crate::run::keys::{DEFAULT as DETACH_KEYS, Keys};

/// What is about the first command, and how mica attends to it.
#[derive(Debug, clap::Args)]
pub struct CommandArgs {
    /// Keep stdin open and pass it on
    #[arg(short, long)]
    pub interactive: bool,

    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,

    /// Leave the sandbox running and print its ID
    ///
    /// `mica logs` shows the command's output.
    #[arg(short, long, conflicts_with = "timing")]
    pub detach: bool,

    /// Run no command: the sandbox is there for `mica exec`, until it is stopped
    #[arg(long, conflicts_with_all = ["from", "timeout", "interactive", "tty"])]
    pub idle: bool,

    /// Print only this output of the command; may be repeated [default: both]
    #[arg(short, long, value_name = "stdout|stderr", value_parser = stream, hide_possible_values = true)]
    pub attach: Vec<Stream>,

    /// Pass signals on to the command; otherwise they end mica, and the sandbox continues
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        hide_possible_values = true,
        value_parser = on_or_off,
        action = clap::ArgAction::Set
    )]
    pub sig_proxy: bool,

    /// Write the sandbox's ID to a file, which must not exist
    #[arg(long, value_name = "FILE")]
    pub cidfile: Option<OsString>,

    /// Keys that leave the sandbox running, with -it
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub detach_keys: Keys,

    /// Stop the command after this time [30, 90s, 5m, 2h]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Period>,

    /// Seconds between that signal and the end [default: 10]
    #[arg(long, value_name = "SECONDS")]
    stop_timeout: Option<u64>,

    /// Program in place of the image's entrypoint; '' for none
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<OsString>,

    /// Print afterwards how long each step to the first output took
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text"
    )]
    pub timing: Option<Timing>,
}

/// `--timing`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Timing {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A stream of the command's, as `--attach` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Passed on with `--interactive`.
    Stdin,
    /// What it prints.
    Stdout,
    /// What it complains about.
    Stderr,
}

fn stream(text: &str) -> Result<Stream, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "stdin" => Ok(Stream::Stdin),
        "stdout" => Ok(Stream::Stdout),
        "stderr" => Ok(Stream::Stderr),
        _ => Err("expected stdin, stdout or stderr"),
    }
}

fn on_or_off(text: &str) -> Result<bool, &'static str> {
    boolean(text).ok_or("expected true or false")
}

impl CommandArgs {
    /// Returns whether stdout and stderr are not printed.
    pub fn silent(&self) -> [bool; 2] {
        let is_named = |stream| self.attach.is_empty() || self.attach.contains(&stream);
        [!is_named(Stream::Stdout), !is_named(Stream::Stderr)]
    }

    /// Returns the seconds between stop signal and SIGKILL.
    pub fn stop_timeout(&self) -> u64 {
        self.stop_timeout
            .unwrap_or(micabox::DEFAULT_GRACE.as_secs())
    }

    /// Returns the first of these flags that is about a command that runs, if there is one.
    pub fn late(&self) -> Option<&'static str> {
        let late = [
            (self.detach, "--detach"),
            (self.timing.is_some(), "--timing"),
            (self.timeout.is_some(), "--timeout"),
            (self.stop_timeout.is_some(), "--stop-timeout"),
        ];
        let mut late = late.into_iter();
        late.find_map(|(is_given, flag)| is_given.then_some(flag))
    }
}
