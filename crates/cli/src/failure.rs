//! Errors as a user sees them: `mica: what failed: why`, and a hint with the next step.

use std::error::Error;
use std::fmt::Write;
use std::io;

use micabox::{ErrorKind, LostReason};
use micabox_image::Store;
use micabox_overlay::host::unpack::Problem;
use rustix::io::Errno;

use crate::output::write_stderr;
use crate::report::{self, Failed};
use crate::visible;

/// Exit code when mica itself failed, not the command that it ran; as with Docker.
pub const EXIT_MICA: u8 = 125;

/// Exit code of every failed command but `run`.
const EXIT_FAILURE: u8 = 1;

/// Most lines of a guest's console that are shown.
const CONSOLE_LINES: usize = 20;

/// Most characters of a message that are shown: it may quote foreign text.
const MESSAGE_MAX: usize = 2000;

/// Indentation of lines after the first, so that none looks like another message.
const INDENT: &str = "      ";

/// A failed command.
#[derive(Debug)]
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
        let message = chain(error);
        let hint = disk_full(&message);
        Self {
            hint,
            ..Self::new(message)
        }
    }

    /// Adds the next step.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
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
            let lines: Vec<&str> = console.lines().collect();
            let from = lines.len().saturating_sub(CONSOLE_LINES);
            for line in lines.iter().skip(from) {
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

/// Formats an error and its causes in one line. Some errors include their causes already.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            let _ = write!(text, ": {words}");
        }
        cause = error.source();
    }
    text
}

impl From<micabox::Error> for Failure {
    fn from(error: micabox::Error) -> Self {
        let mut failure = Self::of(&error);
        failure.hint = hint(&error).map(str::to_owned).or(failure.hint);
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

/// Returns the hint for a full disk, if the message has the system's text for one. The message says
/// which disk.
fn disk_full(message: &str) -> Option<String> {
    let is_full = [Errno::NOSPC, Errno::DQUOT].map(|errno| std::io::Error::from(errno).to_string());
    if !is_full.iter().any(|words| message.contains(words)) {
        return None;
    }
    let store = Store::default_root().ok()?;
    Some(format!(
        "free some space there; where it is the disk of the store, {}, `mica store prune` removes \
         what is not in use",
        store.display()
    ))
}

/// Returns the hint for an error of the SDK, which does not know our commands.
fn hint(error: &micabox::Error) -> Option<&'static str> {
    use micabox::Error as E;
    Some(match error {
        E::NoGuest { .. } => {
            "build the guest with `make guest`, or name its directory in MICABOX_GUEST"
        }
        E::ImageFile { .. } => {
            "`mica store fsck --repair` removes what is damaged; then pull the image again"
        }
        E::Boot(lost) => match lost.reason {
            LostReason::BootFailed(_) => {
                "if the image's files are damaged, `mica store fsck --repair` removes them; \
                 then pull the image again"
            }
            LostReason::Machine(_) | LostReason::Silent => {
                "`mica doctor` checks what a machine needs"
            }
            _ => return None,
        },
        E::NotSaved { .. } | E::Machine(micabox_vmm::Error::NoSnapshots { .. }) => {
            "`mica doctor` says whether this machine has a KVM that works"
        }
        E::Machine(_) | E::MachineNotStarted(_) => "`mica doctor` checks what a machine needs",
        E::Share { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "`-v` makes a missing folder, `--mount` does not"
        }
        E::NoPool => {
            "a pool's machines are restored from a template and have no disk and no sockets; \
             `mica run --log debug` says what a sandbox starts from"
        }
        E::NameTaken { .. } => "choose another name, or remove that one with `mica rm`",
        E::SnapshotExists(_) => "choose another name, or remove that one with `mica snapshot rm`",
        E::NoSuchSandbox(_) => "`mica ps -a` lists all sandboxes",
        E::DoesNotRun(_) => "`mica ps -a` shows how it ended",
        E::Unlimited(_) => "`mica doctor` says what control groups need",
        E::Paused => "`mica unpause` lets it continue",
        E::NotKept(_) => "run it with `--upper disk`",
        E::InFolder { .. } => {
            "`mica diff` and `mica commit` read the folder, and it can be copied once the sandbox \
             has stopped"
        }
        E::UpperFolder { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "make the folder that it is in"
        }
        E::UpperFolder { .. } => {
            "name a folder that is empty or has only a sandbox's changes, on a filesystem such as \
             ext4, XFS or Btrfs"
        }
        E::UpperInUse(_) => "one sandbox uses it at a time: stop that one, or name another folder",
        E::NotInFolder(_) => {
            "omit --add, --mkdir, --symlink and --remove, or run it with `--upper disk`"
        }
        E::InPlace { .. } => {
            "look inside with `mica ext4 ls FILE` and `mica ext4 cp` once it has stopped"
        }
        E::NoImage(_) => "`mica snapshot create` keeps its changes, or `mica cp` gets files out",
        E::NotTrimmed(_) => "omit `--root stacked`: a merged root shows the same",
        E::NotInPlace(_) => "omit :rw, and the file is not changed",
        E::RootDisk { problem, .. } => return root_disk_hint(problem),
        E::RootDiskUnnamed(_) => "name the file: `mica run --from SNAPSHOT --root-disk FILE`",
        E::NothingRuns(_) => "add a COMMAND: `mica run --from NAME COMMAND`",
        E::HasMemory(_) => "make a snapshot of the disk alone, without --memory",
        E::NoSuchSnapshot(_) => "`mica snapshot ls` lists all snapshots",
        E::NoSuchTree(_) => {
            "`mica images`, `mica ps -a` and `mica snapshot ls` list what there is; `mica pull` gets images"
        }
        E::Mount(micabox_mount::Error::NoHelper(_)) => {
            "install fuse3, or give a command, which alone sees the tree, if that is not a directory: `mica mount ... -- COMMAND`"
        }
        E::MountedAlready(_) => "`mica umount` unmounts it",
        E::MountedFolder(_) => "look there, or mount the image",
        E::MountedUpper { .. } => {
            "without `--upper` they are in memory: `mica commit` makes an image of them"
        }
        E::MountedReadOnly(_) => "`mica mount --rw` mounts one that can be changed",
        E::NotByKernel { .. } => "omit `--with kernel`: a process of mica's then serves it",
        E::NotMounted(_) => "`mica mount` lists what is; `umount` unmounts what is not mica's",
        E::NoSuchVolume(_) => "`mica volume ls` lists all volumes",
        E::VolumeExists(_) => "choose another name, or remove that one with `mica volume rm`",
        E::VolumeInUse { .. } => {
            "a volume has one writer or many readers: mount it with :ro, or stop the sandbox"
        }
        E::Ambiguous(_) => "give more digits of the ID",
        E::Running(_) => "stop it first with `mica stop`",
        _ => return None,
    })
}

/// Returns the hint for a problem of a root disk.
fn root_disk_hint(problem: &micabox::DiskProblem) -> Option<&'static str> {
    use micabox::DiskProblem as P;
    Some(match problem {
        P::Dirty => {
            "`mica ext4 replay FILE` puts them in place, as `e2fsck -p FILE` does; or have the \
             sandbox do it with `--root-disk FILE:rw`"
        }
        P::Partitioned(_) => {
            "`sfdisk -d FILE` lists the partitions; cut one out with \
             `dd if=FILE of=root.img bs=512 skip=START count=SIZE`"
        }
        P::Foreign(what) if what.contains("VM") || what.contains("VHDX") => CONVERT,
        P::Foreign(what) if what.contains("qcow2") => CONVERT,
        P::Foreign(what) if what.starts_with("compressed") => "decompress it first",
        P::Foreign(_) | P::Unknown => {
            "make one with `mke2fs -d DIRECTORY FILE SIZE` or `mkfs.erofs FILE DIRECTORY`"
        }
        P::Busy => "`mica ps` lists running sandboxes; without :rw, any number may share the file",
        P::Changed => "make a new sandbox, or restore the file's contents",
        P::ReadOnlyFormat => "omit :rw: changes then go to memory, or to `--upper disk`",
        P::Another => "a copy of the file has the same UUID; another filesystem does not",
        P::Missing(_) | P::Unusable(_) => return None,
    })
}

const CONVERT: &str = "`qemu-img convert -O raw IMAGE FILE` makes a raw one";

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
        let cancelled = matches!(error, micabox_transfer::PullError::Cancelled { .. });
        Self {
            kind: cancelled.then_some(ErrorKind::Cancelled),
            ..Self::of(&error)
        }
    }
}

impl From<micabox_image::store::Error> for Failure {
    fn from(error: micabox_image::store::Error) -> Self {
        micabox::Error::from(error).into()
    }
}

from_words!(
    micabox_image::LoadError,
    micabox_image::SaveError,
    micabox_transfer::PushError,
    micabox_transfer::settings::ConfigError,
    micabox::CommandError
);

#[cfg(test)]
mod tests {
    use super::*;

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
