//! Errors as a user sees them: `mica: what failed: why`, and a hint with the next step.

use std::error::Error;
use std::fmt::Write;

use micabox::ErrorKind;
use micabox_ground::chain;
use micabox_image::Store;
use micabox_overlay::host::unpack::Problem;

use crate::causes;
use crate::output::write_stderr;
use crate::report::{self, Failed};
use crate::visible;

/// Exit code when mica itself failed, not the command that it ran; as with Docker.
pub const EXIT_MICA: u8 = 125;

/// Exit code of every failed command but `run`.
const EXIT_FAILURE: u8 = 1;

/// Lines of a guest's console that are shown, its last ones.
const CONSOLE_LINES: usize = 20;

/// Most lines that are shown if the kernel reports an oops in them: registers, code and the trace of calls.
const OOPS_LINES: usize = 80;

/// Most characters of a message that are shown: it may quote foreign text.
const MESSAGE_MAX: usize = 2000;

/// Indentation of lines after the first, so that none looks like another message.
const INDENT: &str = "      ";

/// The result of every command: an exit code, or the failure to print.
pub type Outcome = Result<u8, Failure>;

/// A failed command.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What failed and why, in one line.
    message: String,
    /// The next step.
    hint: Option<String>,
    /// The end of the guest's console.
    console: Option<String>,
    /// mica's exit code.
    pub code: u8,
    /// The kind of the SDK's error, if it is one.
    pub kind: Option<ErrorKind>,
}

impl Failure {
    /// Makes a failure with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            console: None,
            code: EXIT_FAILURE,
            kind: None,
        }
    }

    /// Makes a failure of this kind.
    pub fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind: Some(kind),
            ..Self::new(message)
        }
    }

    /// Makes a failure that has already been printed.
    pub fn printed(code: u8) -> Self {
        Self::new("").code(code)
    }

    /// Makes a failure with the messages of `error` and its causes.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        Self {
            hint: disk_full(error),
            ..Self::new(chain(error))
        }
    }

    /// Adds the next step.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says it in other words.
    pub fn with_message(mut self, message: String) -> Self {
        self.message = message;
        self
    }

    /// Adds the failed operation in front of the message.
    pub fn context(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Sets the exit code.
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Says where the policy is that does not let an image be used, if that is what failed.
    fn of_policy(self, is_refused: bool) -> Self {
        if is_refused {
            self.hint(
                "the policy is the file that `policy` in mica's settings names, or else \
                 ~/.config/containers/policy.json or /etc/containers/policy.json",
            )
        } else {
            self
        }
    }

    /// Raises the exit code to `code` if it is lower.
    pub fn at_least(mut self, code: u8) -> Self {
        self.code = self.code.max(code);
        self
    }

    /// Returns what failed and why.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns what to do about it.
    pub fn next_step(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Writes the failure to stderr.
    pub fn print(&self) {
        if self.message.is_empty() {
            return;
        }
        let mut text = format!("mica: {}\n", indented(&self.message));
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "{INDENT}{}", indented(hint));
        }
        if let Some(console) = &self.console {
            let _ = writeln!(text, "{INDENT}the last lines of the guest's console:");
            for line in last_lines(console) {
                let line = line.replace('\t', "    ");
                let _ = writeln!(text, "{INDENT}| {}", visible::line(&line));
            }
        }
        write_stderr(&text);
        self.report();
    }

    /// Reports the failure to the server that this is a command of, if it is one.
    pub fn report(&self) {
        report::failed(&Failed {
            kind: self.kind,
            message: cut(self.message.clone()),
            hint: self.hint.clone(),
        });
    }
}

/// Returns the last lines of a guest's console; of a kernel that reports an oops, all since that began.
fn last_lines(console: &str) -> Vec<&str> {
    /// The first oops since the start has it in its header, which a few lines may precede.
    const HEADER: &str = "[#1]";
    const BEFORE: usize = 6;
    let lines: Vec<&str> = console.lines().collect();
    let header = lines.iter().position(|line| line.contains(HEADER));
    let last = lines.len().saturating_sub(CONSOLE_LINES);
    let from = header.map_or(last, |header| {
        let begin = header.saturating_sub(BEFORE);
        begin.max(lines.len().saturating_sub(OOPS_LINES)).min(last)
    });
    lines.get(from..).unwrap_or_default().to_vec()
}

/// Writes several failures to stderr.
pub fn print_all(failures: &[Failure]) {
    failures.iter().for_each(Failure::print);
}

/// Indents all lines of a message but the first, and cuts it.
fn indented(message: &str) -> String {
    cut(message.trim_end().replace('\n', &format!("\n{INDENT}")))
}

/// Cuts a message to [`MESSAGE_MAX`] characters: the operation is at its beginning, and the cause at its
/// end.
pub fn cut(message: String) -> String {
    let mut places = message.char_indices().map(|(at, _)| at);
    let count = places.clone().count();
    if count <= MESSAGE_MAX {
        return message;
    }
    let half = MESSAGE_MAX / 2;
    let (head, tail) = (places.nth(half), places.nth(count - 2 * half - 1));
    let (head, tail) = head.zip(tail).unwrap_or_default();
    let (head, tail) = (message.get(..head), message.get(tail..));
    format!("{}…{}", head.unwrap_or_default(), tail.unwrap_or_default())
}

impl From<micabox::Error> for Failure {
    fn from(error: micabox::Error) -> Self {
        let mut failure = Self::of(&error);
        failure.hint = causes::hint(&error).map(str::to_owned).or(failure.hint);
        failure.console = error.console().map(str::to_owned);
        failure.kind = Some(error.kind());
        failure
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let failure = Self::of(&problem);
        match problem {
            Problem::Archive(_) | Problem::Foreign(_) => {
                failure.context("reading the sandbox's archive")
            }
            Problem::Place(_) | Problem::Host { .. } => failure,
        }
    }
}

/// Returns the hint for a full disk of this machine, if it is the cause of an error. The message says which disk.
fn disk_full(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    let mut is_full = false;
    while let Some(error) = cause {
        is_full |= error.downcast_ref().is_some_and(causes::is_full);
        cause = error.source();
    }
    let store = is_full.then(Store::default_root)?.ok()?;
    Some(format!(
        "free some space there; where it is the disk of the store, {}, `mica store prune` removes \
         what is not in use",
        store.display()
    ))
}

impl From<micabox_image::SaveError> for Failure {
    fn from(error: micabox_image::SaveError) -> Self {
        match error {
            micabox_image::SaveError::Store(error) => error.into(),
            error => Self::of(&error),
        }
    }
}

/// Errors of the store and other libraries are shown without a hint for each.
macro_rules! from_words {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::of(&error)
            }
        }
    )*};
}

impl From<micabox_transfer::PullError> for Failure {
    fn from(error: micabox_transfer::PullError) -> Self {
        use micabox_transfer::PullError as Pull;
        let kind = match &error {
            Pull::Cancelled { .. } => Some(ErrorKind::Cancelled),
            Pull::Never { .. } => Some(ErrorKind::NotFound),
            Pull::Registry(failed) if failed.reason.is_missing() => Some(ErrorKind::NotFound),
            Pull::Registry(failed) if failed.reason.is_outage() => Some(ErrorKind::Unreachable),
            Pull::Beside { source, .. } if source.is_outage() => Some(ErrorKind::Unreachable),
            Pull::Refused { .. }
            | Pull::Signatures { .. }
            | Pull::Beside { .. }
            | Pull::Policy(_) => Some(ErrorKind::Invalid),
            Pull::Snapshot { .. } => Some(ErrorKind::Damaged),
            _ => None,
        };
        let is_refused = matches!(error, Pull::Refused { .. });
        Self {
            kind,
            ..Self::of(&error).of_policy(is_refused)
        }
    }
}

impl From<micabox_image::LoadError> for Failure {
    fn from(error: micabox_image::LoadError) -> Self {
        use micabox_image::LoadError as Load;
        let is_refused = matches!(error, Load::Refused { .. });
        let is_policy = is_refused || matches!(error, Load::Policy(_) | Load::Policed { .. });
        Self {
            kind: is_policy.then_some(ErrorKind::Invalid),
            ..Self::of(&error).of_policy(is_refused)
        }
    }
}

impl From<micabox_image::store::Error> for Failure {
    fn from(error: micabox_image::store::Error) -> Self {
        micabox::Error::from(error).into()
    }
}

from_words!(
    micabox_transfer::PushError,
    micabox_transfer::settings::ConfigError,
    micabox::CommandError
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_is_shown_from_the_header_of_an_oops() {
        let all: Vec<String> = (0..200).map(|number| format!("line {number}")).collect();
        let shown = |header: usize| {
            let mut all = all.clone();
            all[header] = "Oops: invalid opcode: 0000 [#1] SMP".to_owned();
            let console = all.join("\n");
            let lines = last_lines(&console);
            (lines.len(), lines[0].to_owned())
        };
        assert_eq!(last_lines(&all.join("\n"))[..], all[180..]);
        assert_eq!(shown(150), (56, "line 144".to_owned()));
        assert_eq!(shown(190), (20, "line 180".to_owned()));
        assert_eq!(shown(10), (80, "line 120".to_owned()));
        assert_eq!(last_lines("one"), ["one"]);
        assert!(last_lines("").is_empty());
    }

    #[test]
    fn a_long_message_keeps_its_beginning_and_its_cause() {
        let short = "é".repeat(MESSAGE_MAX);
        assert_eq!(cut(short.clone()), short);
        let long = format!("reading {}: no such file", "é".repeat(100_000));
        let shown = cut(long);
        assert!(shown.starts_with("reading é") && shown.ends_with("é: no such file"));
        assert_eq!(shown.chars().count(), MESSAGE_MAX + 1, "{shown}");
    }
}
