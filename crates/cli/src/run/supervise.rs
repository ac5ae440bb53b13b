//! From the start of a sandbox to its end: signals, streams, time limits, exit codes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use micabox::{Cancel, Command, Error, ExitStatus, Handle, LogStream, Sandbox};
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
    SIGWINCH,
};

use super::flags::Timing;
use super::{Terms, detached, streams, terminal};
use crate::Outcome;
use crate::failure::{EXIT_MICA, Failure};
use crate::output::{millis, raw, size, stderr_is_terminal, warn_json, write_stderr};
use crate::visible;

/// Exit code after `--timeout`, as coreutils' `timeout` has it.
const EXIT_TIMEOUT: u8 = 124;

/// How long a command may take to be gone after SIGKILL before its machine goes.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// How often a sandbox is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Signals that concern us or the command. All others keep their default.
const CAUGHT: [i32; 9] = [
    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH,
];

/// Something that the main thread must react to.
enum Event {
    Signal(i32),
    /// The command has ended, or its sandbox.
    Exited(Result<ExitStatus, Error>),
    /// One of the two outputs has been passed on to its end, or can't be.
    Output(io::Result<()>),
    /// Nobody reads our stdout any more.
    Closed,
    /// The sandbox has ended, in order or not.
    Ended(Result<(), Error>),
}

/// The signals that this process gets.
pub struct Signals {
    started: Arc<AtomicBool>,
    events: Sender<Event>,
    inbox: Receiver<Event>,
}

impl Signals {
    /// Catches signals from here on. Until a sandbox has started, one that ends
    /// processes gives the start up.
    pub fn catch(cancel: Cancel) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::of(&error).context("setting up signals");
        let mut signals = signal_hook::iterator::Signals::new(CAUGHT).map_err(failed)?;
        let (events, inbox) = channel();
        let started = Arc::new(AtomicBool::new(false));
        let thread = {
            let (events, started) = (events.clone(), Arc::clone(&started));
            move || {
                for signal in signals.forever() {
                    let ends = matches!(signal, SIGINT | SIGTERM | SIGHUP | SIGQUIT);
                    if ends && !started.load(Ordering::Acquire) {
                        cancel.cancel();
                    }
                    if events.send(Event::Signal(signal)).is_err() {
                        return;
                    }
                }
            }
        };
        spawn("signals", thread)?;
        Ok(Self {
            started,
            events,
            inbox,
        })
    }

    /// The first signal so far that ends processes.
    fn first_ending(&self) -> Option<i32> {
        self.inbox.try_iter().find_map(|event| match event {
            Event::Signal(signal @ (SIGINT | SIGTERM | SIGHUP | SIGQUIT)) => Some(signal),
            _ => None,
        })
    }
}

/// Runs `command` in the sandbox to its end, and ends the sandbox; the exit code. Without
/// one, it is the command that goes on in this copy of a machine.
pub fn supervise(
    sandbox: Result<Sandbox, Error>,
    command: Option<&Command>,
    terms: &Terms,
    signals: Signals,
) -> Outcome {
    signals.started.store(true, Ordering::Release);
    let signal = signals.first_ending();
    let sandbox = match (sandbox, signal) {
        (Ok(sandbox), None) => sandbox,
        // Given up at the user's wish, which they know.
        (Ok(_) | Err(Error::Cancelled), Some(signal)) => return Ok(exit_code_of(signal)),
        (Err(error), _) => return Err(error.into()),
    };
    let outcome = run_in(&sandbox, command, terms, &signals);
    let (code, error) = match &outcome {
        Ok(code) => (*code, None),
        Err(failure) => (
            failure.code.max(EXIT_MICA),
            Some(failure.message().to_owned()),
        ),
    };
    if let Some(format) = terms.timing {
        print_timings(&sandbox, format);
    }
    // On record is how the command ended, but that files were lost is worse news.
    let saved = end(&sandbox, &signals);
    let error = error.or_else(|| Some(saved.as_ref().err()?.to_string()));
    sandbox.set_exit(i32::from(code), error)?;
    saved.map_err(Failure::from).and(outcome)
}

/// Ends the sandbox. That takes as long as its files need to be written, unless the user
/// insists.
fn end(sandbox: &Sandbox, signals: &Signals) -> Result<(), Error> {
    let mut warnings = Warnings::default();
    let mut is_warned = false;
    std::thread::scope(|scope| {
        let events = signals.events.clone();
        scope.spawn(move || events.send(Event::Ended(sandbox.end())));
        loop {
            match signals.inbox.recv_timeout(LOOK) {
                Ok(Event::Ended(result)) => return result,
                Ok(Event::Signal(SIGINT | SIGTERM | SIGHUP)) if is_warned => sandbox.kill(),
                Ok(Event::Signal(SIGINT | SIGTERM | SIGHUP)) => {
                    is_warned = true;
                    write_stderr(
                        "mica: the sandbox's files are being written; \
                         once more gives up what is left of them\n",
                    );
                }
                Ok(_) => {}
                Err(_) => warnings.look(sandbox),
            }
        }
    })
}

/// What a user is told while a sandbox runs.
#[derive(Default)]
struct Warnings {
    is_full: bool,
}

impl Warnings {
    fn look(&mut self, sandbox: &Sandbox) {
        let is_full = sandbox.is_stalled();
        if is_full && !self.is_full {
            write_stderr(
                "mica: the host's disk is full: what the sandbox writes waits until there is \
                 room\n",
            );
        }
        self.is_full = is_full;
    }
}

fn run_in(
    sandbox: &Sandbox,
    command: Option<&Command>,
    terms: &Terms,
    signals: &Signals,
) -> Outcome {
    // Not earlier: until here, Ctrl-C is for us.
    let raw = match terms.tty && terms.interactive && !terms.detached {
        true => terminal::Raw::enter()?,
        false => None,
    };
    let started = match command {
        Some(command) => sandbox.exec(command).map(Some),
        None => sandbox.adopted(),
    };
    let mut process = match started {
        Ok(Some(process)) => process,
        Ok(None) => return Err(Failure::new("nothing runs in the sandbox")),
        Err(Error::Lost(_)) if sandbox.is_stopping() => return Ok(exit_code_of(SIGKILL)),
        Err(Error::Start(failed)) => {
            let code = u8::try_from(failed.exit_code()).unwrap_or(EXIT_MICA);
            return Err(Failure::from(Error::Start(failed)).code(code));
        }
        Err(error) => return Err(error.into()),
    };
    let handle = process.handle();
    let mut log = None;
    if terms.detached {
        log = Some(Arc::new(sandbox.log()?));
        detached::let_go(sandbox)?;
    }
    resize(&handle, terms);

    let mut outputs = 0;
    for (output, stream, fd) in [
        (process.stdout.take(), LogStream::Stdout, raw::stdout_fd()),
        (process.stderr.take(), LogStream::Stderr, raw::stderr_fd()),
    ] {
        let Some(output) = output else { continue };
        let (events, log) = (signals.events.clone(), log.clone());
        outputs += 1;
        spawn("output", move || {
            let copied = streams::copy_output(output, |bytes| match &log {
                Some(log) => {
                    // A full disk is no reason to end the command.
                    let _ = log.write(stream, bytes);
                    Ok(())
                }
                None => streams::write_all(fd, bytes),
            });
            let _ = events.send(Event::Output(copied));
        })?;
    }
    // Of a detached command, or one that nobody attached to, it stays open and silent.
    let is_passed_on = terms.interactive && !terms.detached;
    if let Some(stdin) = process.stdin.take_if(|_| is_passed_on) {
        spawn("stdin", move || streams::copy_stdin(stdin))?;
    }
    if !terms.detached {
        let events = signals.events.clone();
        spawn("stdout-watch", move || {
            streams::wait_for_closed_stdout();
            let _ = events.send(Event::Closed);
        })?;
    }
    let (events, waiting) = (signals.events.clone(), handle.clone());
    spawn("wait", move || {
        let _ = events.send(Event::Exited(waiting.wait()));
    })?;

    let watch = Watch {
        sandbox,
        handle,
        terms,
        outputs,
        status: None,
        warnings: Warnings::default(),
        interrupted: false,
        ending: Ending::No,
        timed_out: false,
        deadline: terms
            .timeout
            .filter(|timeout| !timeout.is_zero())
            .and_then(|timeout| Instant::now().checked_add(timeout)),
    };
    let outcome = watch.until_the_end(&signals.inbox);
    drop(raw);
    outcome
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Nobody wants it yet.
    No,
    /// The command has its stop signal.
    Asked,
    /// The command has SIGKILL.
    Killed,
    /// The machine is killed, as nobody could see more of it.
    Unseen,
    /// The machine is killed, since the user insists or the command resists.
    Pulled,
}

/// A running command and what has happened to it.
struct Watch<'a> {
    sandbox: &'a Sandbox,
    handle: Handle,
    terms: &'a Terms,
    /// How many outputs have not come to their end.
    outputs: usize,
    status: Option<ExitStatus>,
    warnings: Warnings,
    interrupted: bool,
    ending: Ending,
    timed_out: bool,
    /// When the next step to the end is due.
    deadline: Option<Instant>,
}

impl Watch<'_> {
    /// Until the command has ended and all of its output is written; the exit code.
    fn until_the_end(mut self, inbox: &Receiver<Event>) -> Outcome {
        loop {
            if let Some(status) = self.status.filter(|_| self.outputs == 0) {
                return Ok(self.code(status));
            }
            let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
            let due = self
                .deadline
                .map_or(LOOK, |deadline| left(deadline).min(LOOK));
            match inbox.recv_timeout(due) {
                Err(RecvTimeoutError::Timeout) => {
                    self.warnings.look(self.sandbox);
                    if self
                        .deadline
                        .is_some_and(|deadline| left(deadline).is_zero())
                    {
                        self.next_step();
                    }
                }
                // The signals' thread has a sender for as long as we run.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new("the threads that serve the command died"));
                }
                Ok(Event::Signal(signal)) => self.signal(signal),
                Ok(Event::Closed) => self.nobody_sees(),
                // Later.
                Ok(Event::Ended(_)) => {}
                Ok(Event::Output(Ok(()))) => self.outputs -= 1,
                Ok(Event::Output(Err(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
                    self.outputs -= 1;
                    self.nobody_sees();
                }
                Ok(Event::Output(Err(error))) => {
                    self.sandbox.kill();
                    return Err(Failure::of(&error).context("writing the command's output"));
                }
                Ok(Event::Exited(Ok(status))) => self.status = Some(status),
                Ok(Event::Exited(Err(error))) => return self.lost(error),
            }
            if let (Some(_), Ending::Unseen | Ending::Pulled) = (self.status, self.ending) {
                // Whoever should take the rest of the output does not.
                self.outputs = 0;
            }
        }
    }

    fn signal(&mut self, signal: i32) {
        match signal {
            SIGWINCH => resize(&self.handle, self.terms),
            SIGINT if !self.interrupted && self.ending == Ending::No => {
                self.interrupted = true;
                self.handle.signal(SIGINT);
            }
            SIGINT | SIGTERM | SIGHUP => match self.ending {
                Ending::No if self.status.is_none() => self.ask(),
                _ => self.pull(),
            },
            other => self.handle.signal(other),
        }
    }

    /// The deadline has passed.
    fn next_step(&mut self) {
        match self.ending {
            Ending::No => {
                self.timed_out = true;
                self.ask();
            }
            Ending::Asked => {
                self.ending = Ending::Killed;
                self.handle.signal(SIGKILL);
                self.due_in(AFTER_KILL);
            }
            Ending::Killed | Ending::Unseen | Ending::Pulled => self.pull(),
        }
    }

    fn ask(&mut self) {
        self.ending = Ending::Asked;
        self.handle.signal(self.sandbox.stop_signal());
        self.due_in(Duration::from_secs(self.terms.stop_timeout));
        if self.interrupted && stderr_is_terminal() {
            write_stderr("mica: stopping; Ctrl-C again kills\n");
        }
    }

    fn pull(&mut self) {
        self.ending = Ending::Pulled;
        self.deadline = None;
        self.sandbox.kill();
    }

    fn nobody_sees(&mut self) {
        self.ending = Ending::Unseen;
        // Something may have to be saved: then only the command is killed.
        if self.sandbox.record().upper.is_kept() {
            self.handle.signal(SIGKILL);
            self.due_in(AFTER_KILL);
            return;
        }
        self.deadline = None;
        self.sandbox.kill();
    }

    fn due_in(&mut self, time: Duration) {
        self.deadline = Instant::now().checked_add(time);
    }

    /// The exit code of a command that ended with `status`.
    fn code(&self, status: ExitStatus) -> u8 {
        match (self.ending, self.timed_out) {
            (Ending::Unseen, _) => exit_code_of(SIGPIPE),
            (Ending::Asked, true) => EXIT_TIMEOUT,
            _ => u8::try_from(status.code()).unwrap_or(EXIT_MICA),
        }
    }

    /// The sandbox ended before its command.
    fn lost(&self, error: Error) -> Outcome {
        match self.ending {
            Ending::Unseen => Ok(exit_code_of(SIGPIPE)),
            Ending::Pulled => Ok(exit_code_of(SIGKILL)),
            _ if self.sandbox.is_stopping() => Ok(exit_code_of(SIGKILL)),
            _ => Err(error.into()),
        }
    }
}

/// Tells the command's terminal, if it has one, the size of ours.
fn resize(handle: &Handle, terms: &Terms) {
    if let Some(size) = terminal::size().filter(|_| terms.tty) {
        handle.resize(size);
    }
}

fn exit_code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(EXIT_MICA)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    match std::thread::Builder::new().name(name.into()).spawn(body) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::of(&error).context("starting a thread")),
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
                    let steps = timings.agent_steps.iter();
                    let steps = steps
                        .map(|(name, time)| format!("{} {}", visible::line(name), millis(*time)));
                    let steps: Vec<_> = steps.collect();
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
