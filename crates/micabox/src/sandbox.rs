//! The [`Sandbox`] of a creator, which is a client of the sandbox's owner.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_ground::lock;
use micabox_image::Store;
use micabox_image::store::Image;
use micabox_operations::ExecOptions;
use micabox_owner::protocol::{Exec, Info, Reply, Request};
use micabox_owner::{Client, Lost};
use micabox_spec::{Command, CommandError, Expiry, Overrides};
use micabox_start::{Creator, Ended, Event};
use micabox_state::Record;

use crate::Builder;
use crate::files::Shared;
use crate::process::{Begin, Process};
use crate::timings::Timings;

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
    creator: Creator,
    /// The measurements of a command that has ended.
    info: Mutex<Option<Info>>,
    /// The connection of its files.
    shared: Arc<Shared>,
}

impl Sandbox {
    pub(crate) fn of(creator: Creator) -> Self {
        Self {
            creator,
            info: Mutex::new(None),
            shared: Arc::default(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
        &self.creator.started().record
    }

    /// Returns the directory of the sandbox's state, with its owner's socket.
    pub fn directory(&self) -> &Path {
        &self.creator.started().directory
    }

    /// Makes a command of the image's configuration and `overrides`, as `docker run` has it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn image_command(&self, overrides: &Overrides) -> Result<Command, CommandError> {
        Command::from_image(&self.creator.started().config, overrides)
    }

    /// Makes a command with the image's environment, user and directory, as `docker exec` has it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn command(&self, overrides: &Overrides) -> Result<Command, CommandError> {
        Command::in_image(&self.creator.started().config, overrides)
    }

    /// Returns the signal with which [`Sandbox::stop`] asks the first command to end.
    pub fn stop_signal(&self) -> i32 {
        self.creator.started().stop_signal
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
        let client =
            Client::connect(&self.creator.started().directory).map_err(|_| Error::OwnerGone);
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
        let command = self.creator.started().record.defaults.as_ref();
        let exec = Exec {
            tty: command.and_then(|command| command.tty),
            ..Exec::default()
        };
        self.start(Begin::Reattach(exec), options)
    }

    fn start(&self, begin: Begin, options: ExecOptions) -> Result<Process, Error> {
        let client =
            Client::connect(&self.creator.started().directory).map_err(|_| Lost::closed().into());
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
        ended.lost()
    }

    /// Returns the bytes of memory that the sandbox's machine does not share with files or with
    /// machines restored from the same snapshot. None if it has ended.
    pub fn own_memory(&self) -> Option<u64> {
        let measured = lock(&self.info).as_ref().and_then(|info| info.own_memory);
        measured.or_else(|| self.info()?.own_memory)
    }

    /// Returns the phases of the time until the first command's first output. After the sandbox's
    /// end they are known only if the command was [measured](ExecOptions::measure) and its
    /// [handle](crate::Handle) [noted](Sandbox::note).
    pub fn timings(&self) -> Timings {
        let measured = lock(&self.info).clone();
        let info = measured.or_else(|| self.info()).unwrap_or_default();
        Timings::new(self.creator.started().planned, &info)
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
    pub fn detach(self) -> Result<(), Error> {
        self.creator.detach()
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

    /// Leaves a sandbox that has ended ([`Event::Ended`](micabox_start::Event::Ended)) to its owner, which waits until the
    /// kernel has taken the machine apart; [`wait_for_processes`](crate::wait_for_processes) waits for that. The same as
    /// dropping it for one that has not ended.
    pub fn leave(self) {
        self.creator.leave();
    }

    /// Waits until the sandbox is over. None if `deadline` passes first.
    ///
    /// # Errors
    /// [`Error::OwnerGone`].
    pub fn wait_until(&self, deadline: Option<Instant>) -> Result<Option<Ended>, Error> {
        self.creator.wait_until(deadline)
    }

    /// Waits for the sandbox's next event; None if `deadline` passes first. After the end, every
    /// call returns it.
    ///
    /// # Errors
    /// [`Error::OwnerGone`].
    pub fn event(&self, deadline: Option<Instant>) -> Result<Option<Event>, Error> {
        self.creator.event(deadline)
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
            Err(_) if self.creator.started().record.spec.upper.is_kept() => Err(Error::OwnerGone),
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
        let client = Client::connect(&self.creator.started().directory)?;
        client.request(1, request, &[])?;
        Ok(client)
    }
}

impl AsFd for Sandbox {
    /// Returns a descriptor that is readable when [`Sandbox::event`] may have an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.creator.as_fd()
    }
}
