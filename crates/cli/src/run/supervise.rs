//! Attends to a sandbox until its end: signals, streams, exit codes.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use micabox::{Command, Ended, Error, Event, ExecOptions, Handle, Process, Sandbox, Stdio};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::stdio::stdin;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGWINCH};

use super::attend::{Attention, attend};
use super::exit::{exit_code_of, start_failure, unwritten};
use super::flags::Timing;
use super::options::AttachOptions;
use super::signals::Signals;
use super::{streams, terminal};

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{
    millis, print, raw, size, stderr_is_terminal, warn_json, write_stderr,
};
use micabox_program::visible;

/// How long the end of a command may be outstanding when its sandbox has ended.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Runs `command` in the sandbox and returns the exit code. Without one, reattaches the command of
/// this copy of a machine. The sandbox ends with the command.
pub fn supervise(
    sandbox: Result<Sandbox, Error>,
    command: Option<&Command>,
    options: &AttachOptions,
    signals: Signals,
) -> Outcome {
    let sandbox = created(sandbox, &signals)?;
    let sandbox = match sandbox {
        Ok(sandbox) => sandbox,
        Err(code) => return Ok(code),
    };
    // Not earlier: until here, Ctrl-C is for mica.
    let raw = if options.tty && options.interactive {
        terminal::Raw::enter()?
    } else {
        None
    };
    let process = start(&sandbox, command, exec_options(options));
    let mut process = match process {
        Ok(process) => process,
        Err(Error::Lost(_)) if sandbox.is_stopping() => return Ok(exit_code_of(SIGKILL)),
        Err(error) => return Err(start_failure(error)),
    };
    let keys = (options.tty && options.interactive).then(|| options.detach_keys.clone());
    let stdin = process.stdin.take();
    let pressed = stdin.map(|stdin| streams::relay(stdin, keys)).transpose()?;
    let handle = process.handle();
    let watch = Watch {
        sandbox: &sandbox,
        handle: handle.clone(),
        options,
        raw,
        pressed,
        is_over: false,
        heard: None,
        is_asked: false,
        is_warned: false,
    };
    let ended = match watch.until_the_end(&signals)? {
        Ok(ended) => ended,
        Err(code) => {
            let name = sandbox.record().name.clone();
            sandbox.detach()?;
            write_stderr(&farewell(&name));
            return Ok(code);
        }
    };
    sandbox.leave();
    match (ended.error(), unwritten(&handle), ended.code) {
        (Some(error), ..) => Err(error.into()),
        (None, Some(failure), _) => Err(failure),
        (None, None, code) => Ok(code.unwrap_or(exit_code_of(SIGKILL))),
    }
}

/// Starts `command` in the sandbox, unless that is to be idle, and detaches the sandbox once the
/// command runs. The inner error is an exit code.
pub fn detach(
    sandbox: Result<Sandbox, Error>,
    command: Option<&Command>,
    options: &AttachOptions,
    signals: &Signals,
) -> Result<Result<Detached, u8>, Failure> {
    let sandbox = match created(sandbox, signals)? {
        Ok(sandbox) => sandbox,
        Err(code) => return Ok(Err(code)),
    };
    let detached = Detached {
        id: sandbox.record().id.clone(),
        name: sandbox.record().name.clone(),
    };
    if !options.idle {
        start(&sandbox, command, exec_options(options)).map_err(start_failure)?;
    }
    sandbox.detach()?;
    Ok(Ok(detached))
}

/// Starts `command` in the sandbox, detaches the sandbox and attends to the command as `mica attach` does. A signal
/// ends mica, not the command.
pub fn follow(
    sandbox: Result<Sandbox, Error>,
    command: Option<&Command>,
    options: &AttachOptions,
    signals: &Signals,
) -> Outcome {
    let sandbox = match created(sandbox, signals)? {
        Ok(sandbox) => sandbox,
        Err(code) => return Ok(code),
    };
    let attention = Attention {
        interactive: options.interactive,
        proxies_signals: false,
        keys: options.detach_keys.clone(),
        farewell: farewell(&sandbox.record().name),
    };
    let process = start(&sandbox, command, exec_options(options)).map_err(start_failure)?;
    sandbox.detach()?;
    attend(process, &attention, signals)
}

/// What mica says of a sandbox that it leaves running.
pub fn farewell(name: &str) -> String {
    format!("mica: detached; `mica attach {name}` returns to it\n")
}

/// A detached sandbox.
#[derive(Debug, Serialize)]
pub struct Detached {
    /// Its ID.
    pub id: String,
    /// Its name.
    pub name: String,
}

impl Detached {
    /// Prints its ID.
    pub fn print(&self) -> Result<(), Failure> {
        print(&format!("{}\n", self.id))
    }
}

/// Returns the sandbox, or the exit code if a signal cancelled its start.
fn created(
    sandbox: Result<Sandbox, Error>,
    signals: &Signals,
) -> Result<Result<Sandbox, u8>, Failure> {
    signals.begin();
    match (sandbox, signals.first_ending()) {
        (Ok(sandbox), None) => Ok(Ok(sandbox)),
        // Cancelled by the user: no message is needed.
        (Ok(_) | Err(Error::Cancelled), Some(signal)) => Ok(Err(exit_code_of(signal))),
        (Err(error), _) => Err(error.into()),
    }
}

fn start(
    sandbox: &Sandbox,
    command: Option<&Command>,
    options: ExecOptions,
) -> Result<Process, Error> {
    match command {
        Some(command) => sandbox.exec_with(command, options),
        None => sandbox.reattach(options),
    }
}

/// Converts the options of a command: its streams, and how long it may run.
fn exec_options(options: &AttachOptions) -> ExecOptions {
    let idle = || {
        if options.has_stdin {
            Stdio::Idle
        } else {
            Stdio::Null
        }
    };
    let streams = match (options.detached, options.interactive) {
        (true, _) => streams_of(idle(), Stdio::Log, Stdio::Log),
        (false, true) => our_streams(true),
        (false, false) => ExecOptions {
            stdin: idle(),
            ..our_streams(false)
        },
    };
    let [without_stdout, without_stderr] = options.silent;
    let or_nothing = |stream, is_silent| if is_silent { Stdio::Null } else { stream };
    ExecOptions {
        lifetime: true,
        timeout: options.timeout.filter(|timeout| !timeout.is_zero()),
        grace: Duration::from_secs(options.stop_timeout),
        detach: options.detached || options.continues,
        measure: options.timing.is_some(),
        stdout: or_nothing(streams.stdout, without_stdout),
        stderr: or_nothing(streams.stderr, without_stderr),
        ..streams
    }
}

fn streams_of(stdin: Stdio, stdout: Stdio, stderr: Stdio) -> ExecOptions {
    ExecOptions {
        stdin,
        stdout,
        stderr,
        ..ExecOptions::default()
    }
}

/// Hands mica's own streams over to a command; stdin only if it is `interactive`.
pub fn our_streams(interactive: bool) -> ExecOptions {
    let output = |fd: BorrowedFd<'_>| match fd.try_clone_to_owned() {
        Ok(fd) => Stdio::Descriptor(fd),
        // The stream is closed.
        Err(_) => Stdio::Null,
    };
    let stdin = if !interactive {
        Stdio::Null
    } else if rustix::termios::isatty(stdin()) {
        // Only the job in a terminal's foreground can read it: not the owner.
        Stdio::Piped
    } else {
        output(stdin())
    };
    streams_of(stdin, output(raw::stdout_fd()), output(raw::stderr_fd()))
}

/// The state of an attached command.
struct Watch<'a> {
    sandbox: &'a Sandbox,
    handle: Handle,
    options: &'a AttachOptions,
    /// The terminal in raw mode, until the command is over.
    raw: Option<terminal::Raw>,
    /// Readable when the user has pressed the detach keys.
    pressed: Option<UnixStream>,
    is_over: bool,
    /// The signal that asked the command to end, in place of a stop.
    heard: Option<i32>,
    /// The user has asked for a stop.
    is_asked: bool,
    /// The user was notified that files are being written.
    is_warned: bool,
}

impl Watch<'_> {
    /// Handles events until the sandbox is over. The inner error is the exit code if the user has left it.
    fn until_the_end(mut self, signals: &Signals) -> Result<Result<Ended, u8>, Failure> {
        self.resize();
        loop {
            // All sources are checked in each turn; none of the checks blocks.
            for signal in signals.take() {
                self.signal(signal);
            }
            if !self.is_over && !matches!(self.handle.wait_timeout(Duration::ZERO), Ok(None)) {
                self.over();
            }
            if self.keys_are_pressed() && !self.is_over {
                self.handle.leave();
                return Ok(Err(0));
            }
            match self.sandbox.event(Some(Instant::now()))? {
                Some(Event::Ended(ended)) => {
                    // The end of the command is on a connection of its own.
                    let _ = self.handle.wait_timeout(LAST_WORD);
                    self.over();
                    return Ok(Ok(ended));
                }
                Some(Event::Stalled(true)) => write_stderr(
                    "mica: the host's disk is full: what the sandbox writes waits until there is \
                     room\n",
                ),
                Some(Event::Stalled(false)) => {}
                None => {
                    let (inbox, sandbox, command) =
                        (signals.as_fd(), self.sandbox.as_fd(), self.handle.as_fd());
                    let mut fds = vec![
                        PollFd::from_borrowed_fd(inbox, PollFlags::IN),
                        PollFd::from_borrowed_fd(sandbox, PollFlags::IN),
                    ];
                    if !self.is_over {
                        fds.push(PollFd::from_borrowed_fd(command, PollFlags::IN));
                    }
                    let pressed = self.pressed.as_ref().map(AsFd::as_fd);
                    fds.extend(pressed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
                    // EINTR means that a signal has arrived.
                    let _ = poll(&mut fds, None);
                }
            }
        }
    }

    fn keys_are_pressed(&mut self) -> bool {
        let Some(mut pressed) = self.pressed.as_ref() else {
            return false;
        };
        match pressed.read(&mut [0; 1]) {
            Ok(1) => true,
            Ok(_) => {
                self.pressed = None;
                false
            }
            Err(_) => false,
        }
    }

    /// Handles the end of the command or of its sandbox.
    fn over(&mut self) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        drop(self.raw.take());
        if let Some(format) = self.options.timing {
            self.sandbox.note(&self.handle);
            print_timings(self.sandbox, format);
        }
    }

    /// Handles a signal. The command gets all of them as they are, but for those that ask for a stop: SIGTERM,
    /// and another one of SIGINT and SIGHUP if the first did not end it.
    fn signal(&mut self, signal: i32) {
        match signal {
            SIGWINCH if self.options.tty => self.resize(),
            SIGINT | SIGTERM | SIGHUP if self.is_over => self.insist(),
            SIGINT | SIGHUP if self.heard.is_none() && !self.is_asked => {
                self.heard = Some(signal);
                self.handle.signal(signal);
            }
            SIGINT | SIGTERM | SIGHUP if !self.is_asked => self.ask(),
            SIGINT | SIGTERM | SIGHUP => self.sandbox.kill(),
            other => self.handle.signal(other),
        }
    }

    fn ask(&mut self) {
        self.is_asked = true;
        let grace = Duration::from_secs(self.options.stop_timeout);
        self.sandbox.begin_stop(grace);
        if self.heard == Some(SIGINT) && stderr_is_terminal() {
            write_stderr("mica: stopping; Ctrl-C again kills\n");
        }
    }

    /// Handles a signal after the command's end, while the sandbox's files are being written: the
    /// first one warns, the second one kills.
    fn insist(&mut self) {
        if self.is_warned {
            self.sandbox.kill();
            return;
        }
        self.is_warned = true;
        write_stderr(
            "mica: the sandbox's files are being written; \
             once more gives up what is left of them\n",
        );
    }

    /// Sets the size of the command's terminal, if it has one, to that of the user's.
    fn resize(&self) {
        if let Some(size) = terminal::size().filter(|_| self.options.tty) {
            self.handle.resize(size);
        }
    }
}

fn print_timings(sandbox: &Sandbox, format: Timing) {
    let timings = sandbox.timings();
    let text = match format {
        Timing::Json => {
            let ms = |time: Duration| time.as_secs_f64() * 1000.0;
            let object = |list: Vec<(String, Duration)>| -> serde_json::Value {
                list.into_iter()
                    .map(|(name, time)| (name, serde_json::Value::from(ms(time))))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            };
            let phases = timings.phases().into_iter();
            let phases = phases.map(|(name, time)| (name.to_owned(), time)).collect();
            let value = serde_json::json!({
                "unit": "ms",
                "phases": object(phases),
                "agent_steps": object(timings.agent_steps.clone()),
                "total": ms(timings.total()),
                "own_memory": sandbox.own_memory(),
            });
            return warn_json(&value);
        }
        Timing::Text => {
            let mut text = String::from("mica: time until the first output:\n");
            for (name, time) in timings.phases() {
                text.push_str(&format!("  {name:<14}{:>12}", millis(time)));
                if name == "agent mounts" {
                    let steps: Vec<_> = timings
                        .agent_steps
                        .iter()
                        .map(|(name, time)| format!("{} {}", visible::line(name), millis(*time)))
                        .collect();
                    text.push_str(&format!("   ({})", steps.join(", ")));
                }
                text.push('\n');
            }
            text.push_str(&format!(
                "  {:<14}{:>12}\n",
                "total",
                millis(timings.total())
            ));
            if let Some(bytes) = sandbox.own_memory() {
                text.push_str(&format!("  {:<14}{:>12}\n", "own memory", size(bytes)));
            }
            text
        }
    };
    write_stderr(&text);
}
