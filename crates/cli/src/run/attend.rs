//! Attends to one command of a running sandbox until it ends: `mica exec` and `mica attach`.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use micabox::{Error, Handle, LostReason, Process};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use signal_hook::consts::{SIGKILL, SIGWINCH};

use super::exit::{exit_code_of, unwritten};
use super::keys::Keys;
use super::signals::{Signals, ends_processes};
use super::{streams, terminal};

use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::output::write_stderr;

/// Exit code after a timeout, as coreutils' `timeout` has it.
const EXIT_TIMEOUT: u8 = 124;

/// How mica attends to a command.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Whether mica's stdin is passed on to the command.
    pub interactive: bool,
    /// Whether mica's signals are passed on to the command.
    pub proxies_signals: bool,
    /// The keys that leave the command running, if it has a terminal.
    pub keys: Keys,
    /// What mica says about a command that was left running.
    pub farewell: String,
}

/// Attends to `process` until it ends or the user leaves it. Returns the exit code.
pub fn attend(mut process: Process, attention: &Attention, signals: &Signals) -> Outcome {
    signals.begin();
    let has_terminal = process.has_terminal();
    let is_typed = has_terminal && attention.interactive;
    let raw = if is_typed {
        terminal::Raw::enter()?
    } else {
        None
    };
    let keys = is_typed.then(|| attention.keys.clone());
    let stdin = process.stdin.take();
    let pressed = stdin.map(|stdin| streams::relay(stdin, keys)).transpose()?;
    let handle = process.handle();
    let outcome = watch(&handle, has_terminal, pressed, attention, signals);
    // Before any message.
    drop(raw);
    let end = outcome?;
    if end == End::Left {
        write_stderr(&attention.farewell);
    }
    Ok(match end {
        End::Left => 0,
        End::Code(code) => code,
    })
}

/// How mica's attention ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The user left the command running.
    Left,
    /// The command ended.
    Code(u8),
}

fn watch(
    handle: &Handle,
    has_terminal: bool,
    mut pressed: Option<UnixStream>,
    attention: &Attention,
    signals: &Signals,
) -> Result<End, Failure> {
    if has_terminal {
        resize(handle);
    }
    loop {
        // All sources are checked in each turn; none of the checks blocks.
        for signal in signals.take() {
            match signal {
                SIGWINCH if has_terminal => resize(handle),
                signal if attention.proxies_signals => handle.signal(signal),
                signal if ends_processes(signal) => {
                    return Ok(End::Code(exit_code_of(signal)));
                }
                _ => {}
            }
        }
        match handle.wait_timeout(Duration::ZERO) {
            Ok(None) => {}
            Ok(Some(_)) if handle.timed_out() => return Ok(End::Code(EXIT_TIMEOUT)),
            Ok(Some(status)) => {
                if let Some(failure) = unwritten(handle) {
                    return Err(failure);
                }
                let code = u8::try_from(status.code()).unwrap_or(EXIT_MICA);
                return Ok(End::Code(code));
            }
            Err(Error::Lost(lost)) if lost.reason == LostReason::Closed => {
                write_stderr("mica: the sandbox has ended\n");
                return Ok(End::Code(exit_code_of(SIGKILL)));
            }
            Err(error) => return Err(error.into()),
        }
        let read = pressed
            .as_ref()
            .map(|mut pressed| pressed.read(&mut [0; 1]));
        match read {
            Some(Ok(1)) => {
                handle.leave();
                return Ok(End::Left);
            }
            Some(Ok(_)) => pressed = None,
            _ => {}
        }
        let (inbox, command) = (signals.as_fd(), handle.as_fd());
        let mut fds = vec![
            PollFd::from_borrowed_fd(inbox, PollFlags::IN),
            PollFd::from_borrowed_fd(command, PollFlags::IN),
        ];
        let pressed = pressed.as_ref().map(AsFd::as_fd);
        fds.extend(pressed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // EINTR means that a signal has arrived.
        let _ = poll(&mut fds, None);
    }
}

/// Sets the size of the command's terminal to that of the user's.
fn resize(handle: &Handle) {
    if let Some(size) = terminal::size() {
        handle.resize(size);
    }
}
