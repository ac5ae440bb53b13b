//! A sandbox: created, used, ended.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use micabox_image::Store;
use micabox_image::store::Image;
use micabox_vmm::Machine;
use oci_spec::image::Config;

use crate::agent::{Agent, OUTPUT_WINDOW};
use crate::base::Claim;
use crate::builder::random;
use crate::error::{Lost, LostReason};
use crate::plan::Plan;
use crate::process::{Handle, Process};
use crate::snapshot::memory;
use crate::state::control::{self, Answer, Control, Reply, Request};
use crate::state::{ProcessId, Record, Registration, Sandboxes, Status};
use crate::timings::{Start, Timings};
use crate::upper::Paused;
use crate::{Builder, Command, CommandError, Error, Overrides, SavedMachine, Spec};

/// How long the first command has after its stop signal if nobody says otherwise; as
/// with Docker.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How long a guest may take to kill its commands and to power off.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a guest may take to say all that it has to say.
const REST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a guest may take to write what is still in its memory to its disk. A host
/// whose disk is busy needs long for a guest's memory full; killing it would lose some.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(600);

/// A virtual machine with an image's files as its root. Dropping it ends it at once,
/// and with it everything that ran in it and every change to its files in memory; to a
/// disk that is a power cut. [`Sandbox::end`] loses nothing.
pub struct Sandbox {
    // In the order in which they must go: first the socket that could ask for things,
    // then the machine, last the record that says who is responsible for it.
    control: Option<Control>,
    inner: Arc<Inner>,
    registration: Mutex<Registration>,
    config: Config,
    start: Start,
    plan: Plan,
    /// Given up after the machine is gone.
    _root_disk: Option<Claim>,
}

/// A guest that is up, and what it runs on.
pub(crate) struct Guest {
    pub(crate) agent: Agent,
    pub(crate) machine: Arc<dyn Machine>,
    /// Ends with the sandbox.
    pub(crate) network: Option<micabox_net::Network>,
    /// What to save with its memory, or why that can't be.
    pub(crate) saves: Result<Spec, String>,
    /// The agent's number for a command that goes on in this copy of a machine.
    pub(crate) adopted: Option<u32>,
}

/// What requests from other processes can reach.
struct Inner {
    agent: Agent,
    machine: Arc<dyn Machine>,
    /// Goes after the machine, which would otherwise see a link go down.
    network: Option<micabox_net::Network>,
    stop_signal: i32,
    saves: Result<Spec, String>,
    adopted: Option<u32>,
    /// The first command.
    main: Mutex<Option<Handle>>,
    /// Held by whoever ends the sandbox, or saves it.
    ending: Mutex<()>,
    is_ending: AtomicBool,
    /// There is a disk that the guest must flush before it ends.
    keeps: bool,
    /// The guest has said that everything is saved.
    is_saved: AtomicBool,
    /// Somebody wanted it to end without that.
    is_killed: AtomicBool,
}

impl Sandbox {
    /// A sandbox whose guest is up.
    pub(crate) fn new(
        guest: Guest,
        root_disk: Option<Claim>,
        stop_signal: i32,
        registration: Registration,
        config: Config,
        start: Start,
        plan: Plan,
    ) -> Result<Self, Error> {
        let inner = Arc::new(Inner {
            agent: guest.agent,
            machine: guest.machine,
            network: guest.network,
            stop_signal,
            saves: guest.saves,
            adopted: guest.adopted,
            main: Mutex::new(None),
            ending: Mutex::new(()),
            is_ending: AtomicBool::new(false),
            keeps: registration.record().upper.is_kept(),
            is_saved: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
        });
        let control = Control::serve(registration.path(), {
            let inner = Arc::clone(&inner);
            let (record, path) = (
                registration.record().clone(),
                registration.path().to_owned(),
            );
            move |request| {
                let done = match request {
                    Request::Stop { grace } => inner.stop(grace).map_err(|error| error.to_string()),
                    Request::Save { directory } => inner.save(&record, &path, &directory),
                    Request::Hold => return inner.hold(),
                };
                match done {
                    Ok(()) => Answer::Done.into(),
                    Err(why) => Answer::Failed(why).into(),
                }
            }
        })
        .map_err(|source| Error::System {
            what: "listening for requests",
            source,
        })?;
        Ok(Self {
            control: Some(control),
            inner,
            registration: Mutex::new(registration),
            config,
            start,
            plan,
            _root_disk: root_disk,
        })
    }

    /// Has everybody see that it runs, now that it listens: who sees that may ask it to stop,
    /// and takes one without an ear for one that hangs.
    pub(crate) fn announce(&self, auto_remove: bool) -> Result<(), Error> {
        self.registration().update(|record| {
            record.status = Status::Running { since: now().0 };
            record.auto_remove = auto_remove;
        })
    }

    /// A sandbox from `image` in `store`, with defaults.
    ///
    /// # Errors
    /// As [`Builder::create`].
    pub fn create(store: &Store, image: &Image) -> Result<Self, Error> {
        Self::builder(store, image).create()
    }

    /// A sandbox from `image` in `store`.
    pub fn builder<'a>(store: &'a Store, image: &Image) -> Builder<'a> {
        Builder::new(store, image)
    }

    /// What is on record about it.
    pub fn record(&self) -> Record {
        self.registration().record().clone()
    }

    /// How the image's bytes reach it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The command that the image's configuration and `overrides` make, as
    /// `docker run` has it.
    ///
    /// # Errors
    /// As [`CommandError`] says.
    pub fn image_command(&self, overrides: &Overrides) -> Result<Command, CommandError> {
        Command::from_image(&self.config, overrides)
    }

    /// A command with the image's environment, user and directory, as `docker exec`
    /// has it.
    ///
    /// # Errors
    /// As [`CommandError`] says.
    pub fn command(&self, overrides: &Overrides) -> Result<Command, CommandError> {
        Command::in_image(&self.config, overrides)
    }

    /// The signal with which [`Sandbox::stop`] asks the first command to end.
    pub fn stop_signal(&self) -> i32 {
        self.inner.stop_signal
    }

    /// Whether somebody, perhaps in another process, is ending the sandbox.
    pub fn is_stopping(&self) -> bool {
        self.inner.is_ending.load(Ordering::Acquire)
    }

    /// Starts a command and waits until it runs. The first one is the one that
    /// [`Sandbox::stop`] asks to end.
    ///
    /// # Errors
    /// [`Error::Start`] if the guest can't, [`Error::Lost`] if there is no guest.
    pub fn exec(&self, command: &Command) -> Result<Process, Error> {
        if command.argv.is_empty() {
            return Err(CommandError::Nothing.into());
        }
        let process = Process::start(self.inner.agent.shared(), command.to_wire(OUTPUT_WINDOW))?;
        lock(&self.inner.main).get_or_insert_with(|| process.handle());
        Ok(process)
    }

    /// The first command of the sandbox that this one is a copy of, going on in here; as if
    /// it had just been started. None if the copy was made for other commands.
    ///
    /// # Errors
    /// As [`Sandbox::exec`].
    pub fn adopted(&self) -> Result<Option<Process>, Error> {
        let Some(id) = self.inner.adopted else {
            return Ok(None);
        };
        let process = Process::adopted(self.inner.agent.shared(), id)?;
        lock(&self.inner.main).get_or_insert_with(|| process.handle());
        Ok(Some(process))
    }

    /// Bytes of memory that the sandbox's machine has for itself alone: what it does not
    /// share with files or with machines that go on from the same one. None if it has
    /// ended.
    pub fn own_memory(&self) -> Option<u64> {
        private_memory(self.inner.machine.pid())
    }

    /// Saves the machine into a template's directory.
    pub(crate) fn save(&self, directory: &Path) -> Result<(), String> {
        let (record, own) = {
            let registration = self.registration();
            (
                registration.record().clone(),
                registration.path().to_owned(),
            )
        };
        self.inner.save(&record, &own, directory)
    }

    /// Where the time until the first command's first output went.
    pub fn timings(&self) -> Timings {
        let main = lock(&self.inner.main).as_ref().map(Handle::moments);
        self.start.timings(main)
    }

    /// Asks the first command to end, kills it after `grace`, and ends the sandbox in
    /// order.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guest can't say that everything is saved. The sandbox
    /// has ended all the same.
    pub fn stop(&self, grace: Duration) -> Result<(), Error> {
        self.inner.stop(grace)
    }

    /// Ends the sandbox after its commands: in order if it has a disk, or a network that what
    /// they sent may not have left yet; at once if there is nothing to lose. Does nothing more
    /// after [`Sandbox::kill`].
    ///
    /// # Errors
    /// As [`Sandbox::stop`].
    pub fn end(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let can_lose = inner.keeps || inner.network.is_some();
        if can_lose && !inner.is_killed.load(Ordering::Acquire) {
            return self.inner.stop(Duration::ZERO);
        }
        self.inner.machine.kill();
        Ok(())
    }

    /// Ends the sandbox at once, and everything in it. What was not flushed to a disk is
    /// lost.
    pub fn kill(&self) {
        self.inner.is_killed.store(true, Ordering::Release);
        self.inner.machine.kill();
    }

    /// Sets what is remembered of its end, if anything is.
    ///
    /// # Errors
    /// [`Error::State`] if that can't be written.
    pub fn set_exit(&self, code: i32, error: Option<String>) -> Result<(), Error> {
        self.registration().update(|record| {
            record.status = Status::Exited {
                code,
                at: now().0,
                error,
            };
        })
    }

    /// Where its state is on disk.
    pub(crate) fn directory(&self) -> PathBuf {
        self.registration().path().to_owned()
    }

    fn registration(&self) -> MutexGuard<'_, Registration> {
        lock(&self.registration)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Whoever waits for a stop gets an answer soon.
        self.inner.machine.kill();
        drop(self.control.take());
        let _ = self.inner.machine.wait(SHUTDOWN_TIMEOUT);
        let mut registration = self.registration();
        if registration.record().status.is_live() && !registration.record().auto_remove {
            let end = Status::Exited {
                code: 128 + libc::SIGKILL,
                at: now().0,
                error: None,
            };
            let _ = registration.update(|record| record.status = end);
        }
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sandbox").field(&self.record()).finish()
    }
}

/// Bytes of anonymous memory of a process and its children, one of which may be the one
/// that runs the machine.
fn private_memory(pid: u32) -> Option<u64> {
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_ascii_whitespace();
    let children = children.filter_map(|child| private_memory(child.parse().ok()?));
    Some(resident.saturating_sub(shared) * PAGE + children.sum::<u64>())
}

impl Inner {
    /// Saves the machine into a snapshot's directory; why not.
    fn save(&self, record: &Record, own: &Path, directory: &Path) -> Result<(), String> {
        let spec = self.saves.clone()?;
        self.save_as(spec, record, own, directory)
            .map_err(|error| error.to_string())
    }

    fn save_as(
        &self,
        spec: Spec,
        record: &Record,
        own: &Path,
        directory: &Path,
    ) -> Result<(), Error> {
        // Not while it ends.
        let _one_at_a_time = lock(&self.ending);
        let files = memory::create(directory)?;
        let mut copied = Ok(());
        let saved = self
            .agent
            .rest(Instant::now() + REST_TIMEOUT, random()?, now, || {
                self.machine.save(&files, &mut || {
                    if self.keeps {
                        copied = memory::copy_disk(own, directory);
                    }
                })
            })?;
        saved?;
        copied.map_err(|source| Error::System {
            what: "copying its disk",
            source,
        })?;
        let main = lock(&self.main).as_ref().map(Handle::id);
        memory::describe(
            directory,
            &SavedMachine {
                memory_mib: record.memory_mib,
                cpus: record.cpus,
                upper: record.upper,
                spec,
                main,
                memory: None,
            },
        )
    }

    fn stop(&self, grace: Duration) -> Result<(), Error> {
        self.is_ending.store(true, Ordering::Release);
        let _one_at_a_time = lock(&self.ending);
        let result = match self.end_commands(grace) {
            Ok(()) => self.shut_down(),
            Err(error) => Err(error),
        };
        let is_safe = !self.keeps || self.is_saved.load(Ordering::Acquire);
        self.machine.kill();
        let _ = self.machine.wait(SHUTDOWN_TIMEOUT);
        match result {
            // It ended by itself meanwhile, or somebody else ended it.
            Err(Error::Lost(Lost {
                reason: LostReason::Machine(_) | LostReason::Closed,
                ..
            })) if is_safe => Ok(()),
            result => result,
        }
    }

    /// Has the machine stand still for as long as the reply's other half lasts.
    fn hold(&self) -> Reply {
        match ProcessId::of(self.machine.pid()).map(Paused::new) {
            Some(Ok(paused)) => Reply {
                answer: Answer::Done,
                held: Some(Box::new(paused)),
            },
            Some(Err(error)) => Answer::Failed(error.to_string()).into(),
            // It has just ended.
            None => Answer::Done.into(),
        }
    }

    fn end_commands(&self, grace: Duration) -> Result<(), Error> {
        let Some(main) = lock(&self.main).clone() else {
            return Ok(());
        };
        main.signal(self.stop_signal);
        if main.wait_timeout(grace)?.is_none() {
            main.signal(libc::SIGKILL);
            main.wait_timeout(SHUTDOWN_TIMEOUT)?;
        }
        Ok(())
    }

    fn shut_down(&self) -> Result<(), Error> {
        let timeout = match self.keeps {
            true => FLUSH_TIMEOUT,
            false => SHUTDOWN_TIMEOUT,
        };
        if self.agent.shut_down(Instant::now() + timeout)? {
            self.is_saved.store(true, Ordering::Release);
        } else if self.keeps {
            let problem = format!("the guest did not finish within {timeout:?}");
            return Err(Lost::unflushed(problem).into());
        }
        Ok(())
    }
}

impl Sandboxes {
    /// Ends a sandbox, whoever made it: as [`Sandbox::stop`] if its creator lives.
    /// Nothing happens if it has ended.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`], [`Error::Ambiguous`]; [`Error::Stuck`] if it does not
    /// end even when its machine is killed.
    pub fn stop(&self, name_or_id: &str, grace: Duration) -> Result<Record, Error> {
        let found = self.find(name_or_id)?;
        if !found.record.status.is_live() {
            return Ok(found.record);
        }
        // The grace, the guest's way down, and the same again for a busy host.
        let flush = match found.record.upper.is_kept() {
            true => FLUSH_TIMEOUT,
            false => SHUTDOWN_TIMEOUT,
        };
        let patience = grace
            .saturating_add(flush)
            .saturating_add(2 * SHUTDOWN_TIMEOUT);
        let answer = control::ask(&found.path, &Request::Stop { grace }, patience);
        if answer.is_ok() && self.wait_for_end(&found, SHUTDOWN_TIMEOUT) {
            return match answer {
                Ok(Answer::Failed(problem)) if found.record.upper.is_kept() => {
                    Err(Lost::unflushed(problem).into())
                }
                _ => Ok(found.record),
            };
        }
        // Its creator hangs, or has no ear yet. Without its machine it will end.
        if let Some(machine) = self.find(&found.record.id)?.record.machine {
            machine.kill();
        }
        if !self.wait_for_end(&found, SHUTDOWN_TIMEOUT) {
            return Err(Error::Stuck {
                name: found.record.name,
                after: patience,
            });
        }
        Ok(found.record)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time of day: seconds since 1970-01-01 UTC, and nanoseconds.
pub(crate) fn now() -> (i64, u32) {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => (
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            since.subsec_nanos(),
        ),
        Err(_) => (0, 0),
    }
}
