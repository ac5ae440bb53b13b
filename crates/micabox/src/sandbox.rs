//! The [`Sandbox`] of a creator, which is a client of the sandbox's owner.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use micabox_image::Store;
use micabox_image::store::Image;
use micabox_owner::protocol::{Exec, Failure, Frame, Info, Reply, Request};
use micabox_owner::{Client, Lost};
use oci_spec::image::Config;

use crate::own_process::OwnProcess;
use crate::process::{Begin, ExecOptions, Process};
use crate::snapshot::memory;
use crate::state::Record;
use crate::timings::Timings;
use crate::{Builder, Command, CommandError, Error, Expiry, Overrides};

/// How long an owner may take to exit once its sandbox is over.
const OWNER_END: Duration = Duration::from_secs(30);

/// How long an owner may take to reply to a request that needs no waiting.
const ANSWER: Duration = Duration::from_secs(30);

/// A virtual machine with an image's files as its root. Dropping it ends it at once, with
/// everything that runs in it and every change in memory; for a disk that is like a power cut.
/// [`Sandbox::end`] loses nothing.
///
/// The machine belongs to a process of its own, the owner, of which this is a client. The owner
/// ends with this process, however this process ends, unless the sandbox is
/// [detached](Sandbox::detach).
#[derive(Debug)]
pub struct Sandbox {
    creator: Mutex<Creator>,
    /// The creator's connection, for poll(2).
    socket: OwnedFd,
    directory: PathBuf,
    record: Record,
    config: Config,
    /// The time from the beginning until the machine was started.
    planned: Duration,
    stop_signal: i32,
    /// Whether the owner is left to itself when this is dropped.
    is_left: bool,
    /// The measurements of a command that has ended.
    info: Mutex<Option<Info>>,
}

/// The creator's connection, and the end that was received on it.
#[derive(Debug)]
struct Creator {
    client: Client,
    /// None once another thread waits for it, and for an owner of a pool.
    process: Option<OwnProcess>,
    ended: Option<Ended>,
}

/// A sandbox that was just started.
pub(crate) struct Created {
    pub(crate) client: Client,
    /// None if the owner is not this process's child.
    pub(crate) process: Option<OwnProcess>,
    pub(crate) directory: PathBuf,
    pub(crate) record: Record,
    pub(crate) config: Config,
    pub(crate) planned: Duration,
    pub(crate) stop_signal: i32,
}

/// An event of a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Whether the guest's writes wait because the host's disk is full.
    Stalled(bool),
    /// The sandbox is over.
    Ended(Ended),
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The exit code of the command with the sandbox's lifetime, if there was one
    /// ([`ExecOptions::lifetime`]).
    pub code: Option<u8>,
    failure: Option<Failure>,
}

impl Ended {
    /// Returns what went wrong at the end, if anything: the guest was lost, or not everything that
    /// the sandbox keeps could be written.
    pub fn error(&self) -> Option<Error> {
        self.failure.clone().map(Error::from)
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
                process: created.process,
                ended: None,
            }),
            socket,
            directory: created.directory,
            record: created.record,
            config: created.config,
            planned: created.planned,
            stop_signal: created.stop_signal,
            is_left: false,
            info: Mutex::new(None),
        })
    }

    /// Creates a sandbox from `image` in `store`, with defaults.
    ///
    /// # Errors
    /// As [`Builder::create`].
    pub fn create(store: &Store, image: &Image) -> Result<Self, Error> {
        Self::builder(store, image).create()
    }

    /// Returns a builder for a sandbox from `image` in `store`.
    pub fn builder(store: &Store, image: &Image) -> Builder {
        Builder::new(store, image)
    }

    /// Returns the record as of when the sandbox was ready for commands.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the directory of the sandbox's state, with its owner's socket.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes a command of the image's configuration and `overrides`, as `docker run` has it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn image_command(&self, overrides: &Overrides) -> Result<Command, CommandError> {
        Command::from_image(&self.config, overrides)
    }

    /// Makes a command with the image's environment, user and directory, as `docker exec` has it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn command(&self, overrides: &Overrides) -> Result<Command, CommandError> {
        Command::in_image(&self.config, overrides)
    }

    /// Returns the signal with which [`Sandbox::stop`] asks the first command to end.
    pub fn stop_signal(&self) -> i32 {
        self.stop_signal
    }

    /// Returns whether the sandbox is ending, perhaps because of another process, or has ended.
    pub fn is_stopping(&self) -> bool {
        self.info().is_none_or(|info| info.ending)
    }

    /// Sets when the sandbox ends by itself; what is None stays as it is.
    ///
    /// # Errors
    /// [`Error::OwnerGone`].
    pub fn expire(&self, expiry: &Expiry) -> Result<Expiry, Error> {
        let client = Client::connect(&self.directory).map_err(|_| Error::OwnerGone);
        Ok(crate::expiry::set(expiry, &mut client?)?.expiry)
    }

    /// Starts a command with pipes for its streams, and waits until it runs.
    ///
    /// # Errors
    /// [`Error::Start`] if the guest can't start it, [`Error::Lost`] if the guest is lost.
    pub fn exec(&self, command: &Command) -> Result<Process, Error> {
        self.exec_with(command, ExecOptions::piped(command.stdin))
    }

    /// Starts a command as [`Sandbox::exec`] does, with `options`.
    ///
    /// # Errors
    /// As [`Sandbox::exec`].
    pub fn exec_with(&self, command: &Command, options: ExecOptions) -> Result<Process, Error> {
        self.start(Begin::Exec(Exec::try_from(command)?), options)
    }

    /// Reattaches the first command of the sandbox that this one is a copy of, as if it had just
    /// been started here.
    ///
    /// # Errors
    /// As [`Sandbox::exec`]; [`Error::Refused`] if the copy was made for other commands.
    pub fn reattach(&self, options: ExecOptions) -> Result<Process, Error> {
        let command = self.record.defaults.as_ref();
        let exec = Exec {
            tty: command.and_then(|command| command.tty),
            ..Exec::default()
        };
        self.start(Begin::Reattach(exec), options)
    }

    fn start(&self, begin: Begin, options: ExecOptions) -> Result<Process, Error> {
        let client = Client::connect(&self.directory).map_err(|_| Lost::closed().into());
        let process = client.and_then(|client| Process::start(client, begin, options));
        process.map_err(|error| match error {
            // The creator's connection has the reason.
            Error::Lost(lost) => Error::Lost(self.why_lost().unwrap_or(lost)),
            error => error,
        })
    }

    /// Returns why the sandbox was lost, if its owner sent a reason.
    fn why_lost(&self) -> Option<Lost> {
        let deadline = Instant::now().checked_add(ANSWER);
        let ended = self.wait_until(deadline).ok()??;
        ended.failure?.lost.map(|lost| *lost)
    }

    /// Returns the bytes of memory that the sandbox's machine does not share with files or with
    /// machines restored from the same snapshot. None if it has ended.
    pub fn own_memory(&self) -> Option<u64> {
        let measured = lock(&self.info).as_ref().and_then(|info| info.own_memory);
        measured.or_else(|| self.info()?.own_memory)
    }

    /// Saves the machine into a template's directory.
    pub(crate) fn save(&self, directory: &Path) -> Result<(), Error> {
        memory::save(&self.record, &self.directory, directory, false).map(drop)
    }

    /// Returns the phases of the time until the first command's first output. After the sandbox's
    /// end they are known only if the command was [measured](ExecOptions::measure) and its
    /// [handle](crate::Handle) [noted](Sandbox::note).
    pub fn timings(&self) -> Timings {
        let measured = lock(&self.info).clone();
        let info = measured.or_else(|| self.info()).unwrap_or_default();
        Timings::new(self.planned, &info)
    }

    /// Keeps the measurements of a command that has ended, for [`Sandbox::timings`].
    pub fn note(&self, command: &crate::Handle) {
        *lock(&self.info) = command.info();
    }

    /// Asks the first command to end, kills it after `grace`, and shuts the sandbox down. If the
    /// guest does not shut down soon after, its machine is killed.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guest does not confirm that everything is saved. The sandbox has
    /// ended all the same.
    pub fn stop(&self, grace: Duration) -> Result<(), Error> {
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.finish(&Request::Stop { grace })
    }

    /// Requests what [`Sandbox::stop`] does, without waiting for it; [`Sandbox::event`] reports the
    /// end.
    pub fn begin_stop(&self, grace: Duration) {
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        // Without an owner it is over.
        let _ = self.connect(&Request::Stop { grace });
    }

    /// Lets the sandbox continue without this process, until the command that has its
    /// [lifetime](ExecOptions::lifetime) ends or the sandbox is stopped. A command may end before this: the
    /// sandbox is then over as it would be without this process, which is no error.
    ///
    /// # Errors
    /// [`Error::Lost`] if its guest was lost, and others that [`Ended::error`] has.
    pub fn detach(mut self) -> Result<(), Error> {
        let mut creator = lock(&self.creator);
        // That the owner is gone shows below, after what it has sent.
        let _ = creator.client.request(1, &Request::Detach, &[]);
        let reply = creator.reply(1, Instant::now().checked_add(ANSWER));
        let process = creator.process.take();
        let ended = creator.ended.clone();
        match (reply, ended) {
            (Some(Reply::Detached), _) => {
                drop(creator);
                self.is_left = true;
                if let Some(owner) = process {
                    owner.goes_on();
                }
                Ok(())
            }
            // Its owner has recorded the end, and leaves.
            (_, Some(ended)) => {
                drop(creator);
                self.is_left = true;
                if let Some(owner) = process {
                    owner.ends();
                }
                ended.error().map_or(Ok(()), Err)
            }
            (Some(Reply::Failed(failure)), None) => Err(failure.into()),
            _ => Err(Lost::closed().into()),
        }
    }

    /// Returns whether the guest's writes to its disk wait because the host's disk is full. They
    /// continue when there is room.
    pub fn is_stalled(&self) -> bool {
        self.info().is_some_and(|info| info.stalled)
    }

    /// Ends the sandbox after its commands. The guest shuts down if the sandbox has a disk, or a
    /// network that may not have sent everything yet; otherwise there is nothing to lose, and the
    /// machine is killed. Has no effect after [`Sandbox::kill`], which another thread may call
    /// meanwhile: while the host's disk is full, this waits for room on it.
    ///
    /// # Errors
    /// As [`Sandbox::stop`].
    pub fn end(&self) -> Result<(), Error> {
        self.finish(&Request::End)
    }

    /// Kills the sandbox and everything in it. What was not flushed to a disk is lost.
    pub fn kill(&self) {
        // Without an owner there is no machine either.
        let _ = self.connect(&Request::Kill);
    }

    /// Leaves a sandbox that has ended ([`Event::Ended`]) to its owner, which waits until the kernel
    /// has taken the machine apart; [`wait_for_processes`](crate::wait_for_processes) waits for that. The same as dropping it for one that has not ended.
    pub fn leave(mut self) {
        let mut creator = lock(&self.creator);
        let is_over = creator.ended.is_some();
        let owner = is_over.then(|| creator.process.take()).flatten();
        drop(creator);
        self.is_left = is_over;
        if let Some(owner) = owner {
            owner.ends();
        }
    }

    /// Waits until the sandbox is over. None if `deadline` passes first.
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

    /// Waits for the sandbox's next event; None if `deadline` passes first. After the end, every
    /// call returns it.
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

    /// Sends a request whose reply comes when the sandbox is over.
    fn finish(&self, request: &Request) -> Result<(), Error> {
        // Without an owner it is over.
        let Ok(mut client) = self.connect(request) else {
            return Ok(());
        };
        match client.reply(1, None) {
            Ok(Some(Reply::Failed(failure))) => Err(failure.into()),
            Ok(_) => Ok(()),
            Err(_) if self.record.spec.upper.is_kept() => Err(Error::OwnerGone),
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
    /// Returns a descriptor that is readable when [`Sandbox::event`] may have an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        let mut creator = lock(&self.creator);
        // An end by request is recorded. The end of the connection alone would count as the death
        // of this process.
        let _ = creator.client.request(1, &Request::Kill, &[]);
        creator.client.end();
        wait_for_owner(&mut creator);
    }
}

impl Creator {
    /// Receives the reply to the request `number`, and keeps the sandbox's end if that comes before. None when
    /// `deadline` passes first, or the owner is gone.
    fn reply(&mut self, number: u32, deadline: Option<Instant>) -> Option<Reply> {
        loop {
            match self.client.receive(deadline) {
                Ok(Some(Frame::Message(0, Reply::Ended { code, failure }))) => {
                    self.ended = Some(Ended { code, failure });
                }
                Ok(Some(Frame::Message(of, reply))) if of == number => return Some(reply),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// Waits until an owner that was requested to end is gone, with everything of its sandbox.
fn wait_for_owner(creator: &mut Creator) {
    let deadline = Instant::now().checked_add(OWNER_END);
    while let Ok(Some(_)) = creator.client.receive(deadline) {}
    if let Some(owner) = creator.process.take() {
        owner.ends();
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time of day: seconds since 1970-01-01 UTC, and nanoseconds.
pub(crate) fn now() -> (i64, u32) {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => (
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            since.subsec_nanos(),
        ),
        Err(_) => (0, 0),
    }
}
