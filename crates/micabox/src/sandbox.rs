//! A sandbox: created, used, ended.

use std::os::unix::net::UnixStream;
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
use crate::plan::Plan;
use crate::process::{Handle, Process};
use crate::snapshot::memory;
use crate::state::control::{Answer, Asker, Control, Request};
use crate::state::process::children;
use crate::state::{Record, Registration, Status};
use crate::stop::{Patience, SHUTDOWN_TIMEOUT};
use crate::timings::{Start, Timings};
use crate::upper::disk;
use crate::{Builder, Command, CommandError, Error, Overrides, SavedMachine, Spec, Upper};

/// How long a guest may take to say all that it has to say.
const REST_TIMEOUT: Duration = Duration::from_secs(30);

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
pub(crate) struct Inner {
    pub(crate) agent: Agent,
    pub(crate) machine: Arc<dyn Machine>,
    /// Goes after the machine, which would otherwise see a link go down.
    network: Option<micabox_net::Network>,
    pub(crate) stop_signal: i32,
    saves: Result<Spec, String>,
    adopted: Option<u32>,
    /// The first command.
    pub(crate) main: Mutex<Option<Handle>>,
    /// Held by whoever ends the sandbox, or saves it.
    pub(crate) ending: Mutex<()>,
    pub(crate) is_ending: AtomicBool,
    /// How long the guest may take to end.
    pub(crate) patience: Patience,
    /// The connection of whoever has the machine stand still.
    pub(crate) held: Mutex<Option<UnixStream>>,
    /// There is a disk that the guest must flush before it ends: its file.
    pub(crate) keeps: Option<PathBuf>,
    /// The guest has said that everything is saved.
    pub(crate) is_saved: AtomicBool,
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
            patience: Patience::default(),
            held: Mutex::new(None),
            keeps: kept_file(&registration),
            is_saved: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
        });
        let control = Control::serve(registration.path(), {
            let inner = Arc::clone(&inner);
            let (record, path) = (
                registration.record().clone(),
                registration.path().to_owned(),
            );
            move |request, asker| {
                let done = match request {
                    Request::Stop { grace } => inner.stop(Some(grace)),
                    Request::Save { directory } => {
                        let saved = inner.save(&record, &path, &directory);
                        return Some(saved.map_or_else(Answer::Failed, |()| Answer::Done));
                    }
                    Request::Hold => return inner.hold(asker),
                };
                Some(match done {
                    Ok(None) => Answer::Done,
                    Ok(Some(why)) => Answer::Killed(why),
                    Err(error) => Answer::Failed(error.to_string()),
                })
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
    /// order; if its guest does not do that soon after, its machine is killed.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guest can't say that everything is saved. The sandbox
    /// has ended all the same.
    pub fn stop(&self, grace: Duration) -> Result<(), Error> {
        self.inner.stop(Some(grace)).map(drop)
    }

    /// Whether something that the guest writes to its disk waits because the host's disk is
    /// full. It goes on when there is room.
    pub fn is_stalled(&self) -> bool {
        self.inner.machine.is_stalled()
    }

    /// Ends the sandbox after its commands: in order if it has a disk, or a network that what
    /// they sent may not have left yet; at once if there is nothing to lose. Does nothing more
    /// after [`Sandbox::kill`], which another thread may call meanwhile: while the host's disk is
    /// full, this waits for room on it.
    ///
    /// # Errors
    /// As [`Sandbox::stop`].
    pub fn end(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let can_lose = inner.keeps.is_some() || inner.network.is_some();
        if can_lose && !inner.is_killed.load(Ordering::Acquire) {
            return self.inner.stop(None).map(drop);
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
        self.inner.begin_end();
        drop(self.control.take());
        let ended = self.inner.machine.wait(SHUTDOWN_TIMEOUT);
        let mut registration = self.registration();
        if ended.is_none() {
            // It has the disk still.
            registration.outlive_us();
        }
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

/// The file with what a sandbox keeps.
fn kept_file(registration: &Registration) -> Option<PathBuf> {
    let record = registration.record();
    match record.upper {
        Upper::Tmpfs => None,
        Upper::Disk { .. } => Some(disk(registration.path())),
        Upper::InPlace => record.root_disk.as_ref().map(|disk| disk.path.clone()),
    }
}

/// Bytes of anonymous memory of a process and its children, one of which may be the one
/// that runs the machine.
fn private_memory(pid: u32) -> Option<u64> {
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let children = children(pid).into_iter().filter_map(private_memory);
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
                    if self.keeps.is_some() {
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

    /// Has the machine stand still for as long as `asker` needs it; no answer if it is about
    /// to end.
    fn hold(&self, asker: &Asker<'_>) -> Option<Answer> {
        let mut to_the_end = false;
        let paused = self.machine.pause(&mut || {
            *lock(&self.held) = asker.connection().ok();
            // An end that began before has found nobody to hang up on.
            to_the_end = !self.is_ending.load(Ordering::SeqCst) && asker.hold();
            *lock(&self.held) = None;
        });
        match paused {
            Ok(()) => to_the_end.then_some(Answer::Done),
            Err(_) if self.machine.wait(Duration::ZERO).is_some() => None,
            Err(error) => Some(Answer::Failed(error.to_string())),
        }
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
