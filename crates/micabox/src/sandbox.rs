//! A sandbox: created, used, ended. It is a client of its owner.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use micabox_image::Store;
use micabox_image::store::Image;
use micabox_owner::protocol::{Exec, Failure, Frame, Info, Reply, Request};
use micabox_owner::{Client, Lost};
use oci_spec::image::Config;

use crate::plan::Plan;
use crate::process::{ExecOptions, Process, error};
use crate::snapshot::memory;
use crate::state::Record;
use crate::timings::Timings;
use crate::{Builder, Command, CommandError, Error, Overrides};

/// How long an owner may take to be gone once its sandbox is over.
const OWNER_END: Duration = Duration::from_secs(30);

/// How long an owner may take to answer what it can answer at once.
const ANSWER: Duration = Duration::from_secs(30);

/// A virtual machine with an image's files as its root. Dropping it ends it at once, and with it
/// everything that ran in it and every change to its files in memory; to a disk that is a power
/// cut. [`Sandbox::end`] loses nothing.
///
/// The machine belongs to a process of its own, the owner, which this is a client of. The owner
/// ends with this process, however it ends, unless the sandbox is [detached](Sandbox::detach).
#[derive(Debug)]
pub struct Sandbox {
    creator: Mutex<Creator>,
    /// The creator's connection, for poll(2).
    socket: OwnedFd,
    directory: PathBuf,
    record: Record,
    config: Config,
    /// The time until the machine was started.
    planned: Duration,
    plan: Plan,
    stop_signal: i32,
    is_detached: bool,
    /// What was measured of a command that has ended.
    info: Mutex<Option<Info>>,
}

/// The creator's connection and what it has told.
#[derive(Debug)]
struct Creator {
    client: Client,
    /// None once it is waited for elsewhere.
    process: Option<Child>,
    ended: Option<Ended>,
}

/// A sandbox that was just started.
pub(crate) struct Created {
    pub(crate) client: Client,
    pub(crate) process: Child,
    pub(crate) directory: PathBuf,
    pub(crate) record: Record,
    pub(crate) config: Config,
    pub(crate) planned: Duration,
    pub(crate) plan: Plan,
    pub(crate) stop_signal: i32,
}

/// What happens to a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Whether what it writes waits because the host's disk is full.
    Stalled(bool),
    /// It is over.
    Ended(Ended),
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The exit code of the command that had its lifetime, if one had
    /// ([`ExecOptions::lifetime`]).
    pub code: Option<u8>,
    failure: Option<Failure>,
}

impl Ended {
    /// What went wrong at the end, if something did: the guest was lost, or not everything that
    /// the sandbox keeps could be written.
    pub fn error(&self) -> Option<Error> {
        self.failure.clone().map(error)
    }
}

impl Sandbox {
    pub(crate) fn new(created: Created) -> Result<Self, Error> {
        let socket = created.client.as_fd().try_clone_to_owned();
        let socket = socket.map_err(|source| Error::System {
            what: "sharing a connection",
            source,
        })?;
        Ok(Self {
            creator: Mutex::new(Creator {
                client: created.client,
                process: Some(created.process),
                ended: None,
            }),
            socket,
            directory: created.directory,
            record: created.record,
            config: created.config,
            planned: created.planned,
            plan: created.plan,
            stop_signal: created.stop_signal,
            is_detached: false,
            info: Mutex::new(None),
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

    /// What was on record about it when it was ready for commands.
    pub fn record(&self) -> &Record {
        &self.record
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
        self.stop_signal
    }

    /// Whether the sandbox is being ended, perhaps by another process, or has ended.
    pub fn is_stopping(&self) -> bool {
        self.info().is_none_or(|info| info.ending)
    }

    /// Starts a command and waits until it runs, with pipes for its streams. The first one is
    /// the one that [`Sandbox::stop`] asks to end.
    ///
    /// # Errors
    /// [`Error::Start`] if the guest can't, [`Error::Lost`] if there is no guest.
    pub fn exec(&self, command: &Command) -> Result<Process, Error> {
        self.exec_with(command, ExecOptions::piped(command.stdin))
    }

    /// Starts a command as [`Sandbox::exec`] does, attended to as `options` say.
    ///
    /// # Errors
    /// As [`Sandbox::exec`].
    pub fn exec_with(&self, command: &Command, options: ExecOptions) -> Result<Process, Error> {
        if command.argv.is_empty() {
            return Err(CommandError::Nothing.into());
        }
        self.start(command.to_exec(), options, false)
    }

    /// The first command of the sandbox that this one is a copy of, going on in here as if it
    /// had just been started.
    ///
    /// # Errors
    /// As [`Sandbox::exec`]; [`Error::Refused`] if the copy was made for other commands.
    pub fn reattach(&self, options: ExecOptions) -> Result<Process, Error> {
        self.start(Exec::default(), options, true)
    }

    fn start(&self, exec: Exec, options: ExecOptions, reattach: bool) -> Result<Process, Error> {
        let process = Process::start(&self.directory, exec, options, reattach);
        process.map_err(|error| match error {
            // The creator hears more.
            Error::Lost(lost) => Error::Lost(self.why_lost().unwrap_or(lost)),
            error => error,
        })
    }

    /// Why there is no more talking to the sandbox, if it has ended with a reason.
    fn why_lost(&self) -> Option<Lost> {
        let deadline = Instant::now().checked_add(ANSWER);
        let ended = self.wait_until(deadline).ok()??;
        ended.failure?.lost.map(|lost| *lost)
    }

    /// Bytes of memory that the sandbox's machine has for itself alone: what it does not
    /// share with files or with machines that go on from the same one. None if it has
    /// ended.
    pub fn own_memory(&self) -> Option<u64> {
        let measured = lock(&self.info).as_ref().and_then(|info| info.own_memory);
        measured.or_else(|| self.info()?.own_memory)
    }

    /// Saves the machine into a template's directory.
    pub(crate) fn save(&self, directory: &Path) -> Result<(), Error> {
        memory::save(&self.record, &self.directory, directory).map(drop)
    }

    /// Where the time until the first command's first output went. After the sandbox's end this
    /// is known of a command that was [measured](ExecOptions::measure) and whose
    /// [handle](crate::Handle) was [noted](Sandbox::note).
    pub fn timings(&self) -> Timings {
        let measured = lock(&self.info).clone();
        let info = measured.or_else(|| self.info()).unwrap_or_default();
        Timings::new(self.planned, &info)
    }

    /// Keeps what was measured of a command that has ended, for [`Sandbox::timings`].
    pub fn note(&self, command: &crate::Handle) {
        *lock(&self.info) = command.info();
    }

    /// Asks the first command to end, kills it after `grace`, and ends the sandbox in
    /// order; if its guest does not do that soon after, its machine is killed.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guest can't say that everything is saved. The sandbox
    /// has ended all the same.
    pub fn stop(&self, grace: Duration) -> Result<(), Error> {
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.finish(&Request::Stop { grace })
    }

    /// Asks for what [`Sandbox::stop`] does, without waiting for it: [`Sandbox::event`] tells.
    pub fn begin_stop(&self, grace: Duration) {
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        // Without an owner it is over.
        let _ = self.connect(&Request::Stop { grace });
    }

    /// Has the sandbox go on without this process: until the command that has its
    /// [lifetime](ExecOptions::lifetime) ends, or it is stopped.
    ///
    /// # Errors
    /// [`Error::Lost`] if it has ended.
    pub fn detach(mut self) -> Result<(), Error> {
        let mut creator = lock(&self.creator);
        let told = creator.client.request(1, &Request::Detach, &[]);
        let deadline = Instant::now().checked_add(ANSWER);
        let reply = told.and_then(|()| creator.client.reply(1, deadline));
        let process = creator.process.take();
        drop(creator);
        match reply {
            Ok(Some(Reply::Detached)) => {
                self.is_detached = true;
                reap(process);
                Ok(())
            }
            Ok(Some(Reply::Failed(failure))) => Err(error(failure)),
            _ => Err(self.why_lost().unwrap_or_else(Lost::closed).into()),
        }
    }

    /// Whether something that the guest writes to its disk waits because the host's disk is
    /// full. It goes on when there is room.
    pub fn is_stalled(&self) -> bool {
        self.info().is_some_and(|info| info.stalled)
    }

    /// Ends the sandbox after its commands: in order if it has a disk, or a network that what
    /// they sent may not have left yet; at once if there is nothing to lose. Does nothing more
    /// after [`Sandbox::kill`], which another thread may call meanwhile: while the host's disk is
    /// full, this waits for room on it.
    ///
    /// # Errors
    /// As [`Sandbox::stop`].
    pub fn end(&self) -> Result<(), Error> {
        self.finish(&Request::End)
    }

    /// Ends the sandbox at once, and everything in it. What was not flushed to a disk is
    /// lost.
    pub fn kill(&self) {
        // Without an owner there is no machine either.
        let _ = self.connect(&Request::Kill);
    }

    /// Waits until the sandbox is over: until `deadline`, if there is one.
    ///
    /// # Errors
    /// [`Error::OwnerGone`].
    pub fn wait_until(&self, deadline: Option<Instant>) -> Result<Option<Ended>, Error> {
        loop {
            match self.event(deadline)? {
                Some(Event::Ended(ended)) => return Ok(Some(ended)),
                Some(Event::Stalled(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// What happens next to the sandbox; None if nothing does until `deadline`. The end happens
    /// again and again.
    ///
    /// # Errors
    /// [`Error::OwnerGone`].
    pub fn event(&self, deadline: Option<Instant>) -> Result<Option<Event>, Error> {
        loop {
            {
                let mut creator = lock(&self.creator);
                if let Some(ended) = &creator.ended {
                    return Ok(Some(Event::Ended(ended.clone())));
                }
                match creator.client.try_receive() {
                    Ok(Some(Frame::Message(0, Reply::Stalled { stalled }))) => {
                        return Ok(Some(Event::Stalled(stalled)));
                    }
                    Ok(Some(Frame::Message(0, Reply::Ended { code, failure }))) => {
                        creator.ended = Some(Ended { code, failure });
                        continue;
                    }
                    Ok(Some(_)) => continue,
                    Ok(None) => {}
                    Err(_) => return Err(Error::OwnerGone),
                }
            }
            match micabox_owner::wait(self.socket.as_fd(), deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(_) => return Err(Error::OwnerGone),
            }
        }
    }

    /// Makes a request that is answered when the sandbox is over.
    fn finish(&self, request: &Request) -> Result<(), Error> {
        // Without an owner it is over.
        let Ok(mut client) = self.connect(request) else {
            return Ok(());
        };
        match client.reply(1, None) {
            Ok(Some(Reply::Failed(failure))) => Err(error(failure)),
            Ok(_) => Ok(()),
            Err(_) if self.record.upper.is_kept() => Err(Error::OwnerGone),
            Err(_) => Ok(()),
        }
    }

    fn info(&self) -> Option<Info> {
        let mut client = self.connect(&Request::Info).ok()?;
        match client.reply(1, Instant::now().checked_add(ANSWER)) {
            Ok(Some(Reply::Info(info))) => Some(info),
            _ => None,
        }
    }

    fn connect(&self, request: &Request) -> io::Result<Client> {
        let client = Client::connect(&self.directory)?;
        client.request(1, request, &[])?;
        Ok(client)
    }
}

impl AsFd for Sandbox {
    /// Readable when [`Sandbox::event`] may have one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.is_detached {
            return;
        }
        let mut creator = lock(&self.creator);
        // That is on record; an end of the connection alone is the death of this process.
        let _ = creator.client.request(1, &Request::Kill, &[]);
        creator.client.end();
        wait_for_owner(&mut creator);
    }
}

/// Waits until an owner that was told to end is gone, and everything of its sandbox with it.
fn wait_for_owner(creator: &mut Creator) {
    let deadline = Instant::now().checked_add(OWNER_END);
    while let Ok(Some(_)) = creator.client.receive(deadline) {}
    reap(creator.process.take());
}

/// Has an owner that may outlive this sandbox leave no zombie in this process.
fn reap(owner: Option<Child>) {
    let Some(mut owner) = owner else {
        return;
    };
    if !matches!(owner.try_wait(), Ok(Some(_))) {
        // Without a thread it is one until this process ends.
        let thread = std::thread::Builder::new().name("owner-end".into());
        let _ = thread.spawn(move || owner.wait());
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
