//! A command that runs in a filesystem which is there for as long.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::iterator::Signals;

use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::umask;

/// Exit codes of a command that is not there, and of one that can't be run, as shells have them.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_RUNNABLE: u8 = 126;

/// Runs a command in a directory; returns its exit code. Signals to end are passed on.
pub(super) fn run_in(
    place: &Path,
    program: &OsString,
    arguments: &[OsString],
    mut signals: Signals,
) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(place);
    let mut child = umask::with_users(|| command.spawn()).map_err(|error| {
        let failure = Failure::of(&error).context(&program.to_string_lossy());
        failure.code(match error.kind() {
            ErrorKind::NotFound => EXIT_NOT_FOUND,
            ErrorKind::PermissionDenied => EXIT_NOT_RUNNABLE,
            _ => EXIT_MICA,
        })
    })?;
    let failed = |error: &io::Error| Failure::of(error).context("waiting for the command");
    let process = Pid::from_child(&child);
    let process =
        pidfd_open(process, PidfdFlags::empty()).map_err(|error| failed(&error.into()))?;
    let stop = signals.handle();
    let forward = thread::spawn(move || {
        for signal in signals.forever() {
            // The terminal sends its own signals to the command as well.
            if let Some(signal) = Signal::from_named_raw(signal)
                && matches!(signal, Signal::TERM | Signal::HUP)
            {
                let _ = pidfd_send_signal(&process, signal);
            }
        }
    });
    let status = child.wait().map_err(|error| failed(&error));
    stop.close();
    let _ = forward.join();
    Ok(code(status?))
}

/// Returns the exit code of a command, as shells have it.
fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(EXIT_MICA)
}
