//! A sandbox that runs.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use micabox::builder::{FromMemory, Kind};
use micabox::{
    Builder, Cancel, Command, EphemeralSnapshot, Error, ErrorKind, ExecOptions, Exit, Expiry,
    Image, ImageEdit, Limits, Lost, LostReason, Notes, Overrides, Protocol, Record, Reference,
    SandboxRef, Sandboxes, Snapshot, Stats, Stdio, Stopped,
};
use micabox_ground::lock;
use micabox_owner::protocol::{Reply, Request};
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::link::Link;
use crate::{Commands, Files};

/// A sandbox that runs, and a connection to its owner. Clones share both.
///
/// One that was [created](Sandbox::create) here is killed when its last clone is dropped, or this
/// process ends, unless it is [detached](Sandbox::detach). One that was
/// [connected](Sandbox::connect) to continues. While there is a connection, the sandbox is in use: its
/// [idle time](Expiry::idle_timeout) does not begin.
#[derive(Clone, Debug)]
pub struct Sandbox {
    link: Arc<Link>,
    found: SandboxRef,
    creator: Arc<Creator>,
}

/// The creator's part of a sandbox: none if another process made it, or it is detached.
#[derive(Debug, Default)]
struct Creator(Mutex<Option<micabox::Sandbox>>);

impl Drop for Creator {
    fn drop(&mut self) {
        if let Some(sandbox) = lock(&self.0).take() {
            // A task must not wait for its end. Without a thread this does.
            let thread = std::thread::Builder::new().name("sandbox-end".into());
            let _ = thread.spawn(move || drop(sandbox));
        }
    }
}

/// Cancels a start unless it is taken out.
struct CancelWhenDropped(Option<Cancel>);

impl Drop for CancelWhenDropped {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel.cancel();
        }
    }
}

impl Sandbox {
    /// Starts a sandbox and waits until it is ready for commands. If the future is dropped, the start is
    /// cancelled, and nothing of the sandbox is left behind. Replaces what [`Builder::cancel`] has set.
    ///
    /// # Errors
    /// As [`Builder::create`].
    pub async fn create<K: Kind + Send + 'static>(builder: Builder<K>) -> Result<Self, Error> {
        Self::start(builder, |_| Ok(())).await
    }

    async fn start<K: Kind + Send + 'static>(
        builder: Builder<K>,
        then: impl FnOnce(&micabox::Sandbox) -> Result<(), Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let cancel = Cancel::default();
        let mut guard = CancelWhenDropped(Some(cancel.clone()));
        let store = builder.store().clone();
        let builder = builder.cancel(cancel);
        let made = blocking(move || {
            let sandbox = builder.create()?;
            let id = sandbox.record().id.clone();
            let then = then(&sandbox);
            // Where an error follows, and when nothing awaits this any more, it ends the sandbox.
            let creator = Creator(Mutex::new(Some(sandbox)));
            then?;
            let found = Sandboxes::open(&store)?.get(&id)?;
            Ok::<_, Error>((creator, found))
        });
        let (creator, found) = made.await?;
        let link = Link::connect(found.path(), &found.record().name).await?;
        guard.0 = None;
        Ok(Self {
            link,
            found,
            creator: Arc::new(creator),
        })
    }

    /// Finds the running sandbox with this name, ID, or beginning of an ID, whichever program made it.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`], [`Error::Ambiguous`], [`Error::DoesNotRun`].
    pub async fn connect(sandboxes: &Sandboxes, name_or_id: &str) -> Result<Self, Error> {
        let (all, name) = (sandboxes.clone(), name_or_id.to_owned());
        let found = blocking(move || all.get(&name)).await?;
        Self::of(found).await
    }

    /// Connects to a sandbox that was found before.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`].
    pub async fn of(found: SandboxRef) -> Result<Self, Error> {
        Ok(Self {
            link: Link::connect(found.path(), &found.record().name).await?,
            found,
            creator: Arc::default(),
        })
    }

    /// Returns the record as of when the sandbox was created or found.
    pub fn record(&self) -> &Record {
        self.found.record()
    }

    /// Returns the ID: 32 hexadecimal digits.
    pub fn id(&self) -> &str {
        self.found.id()
    }

    /// Returns the sandbox for what the blocking SDK does with it, in [`blocking`](crate::blocking).
    pub fn found(&self) -> &SandboxRef {
        &self.found
    }

    /// Returns whether the connection to its owner is there. It ends with the sandbox, and each request fails then;
    /// [`Sandbox::of`] makes another one to a sandbox that runs.
    pub fn is_connected(&self) -> bool {
        !self.link.is_over()
    }

    /// Returns whether anything else uses the connection: a clone, its [`Commands`] or [`Files`], a command or stream.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.link) > 1
    }

    /// Returns its commands.
    pub fn commands(&self) -> Commands {
        Commands::new(&self.link)
    }

    /// Returns its files, as root.
    pub fn files(&self) -> Files {
        Files::new(&self.link)
    }

    /// Makes a command with the environment, user and directory that the sandbox was made with, and
    /// `overrides`, as `docker exec` does.
    ///
    /// # Errors
    /// [`Error::Command`]; those of [`SandboxRef::base`] for a record of an older version.
    pub fn command(&self, overrides: &Overrides) -> Result<Command, Error> {
        self.found.command(overrides)
    }

    /// Returns the address on this machine that leads to a TCP port of the sandbox.
    ///
    /// # Errors
    /// [`Error::NotPublished`].
    pub fn host(&self, port: u16) -> Result<SocketAddr, Error> {
        let leads = |publish: &&micabox::Publish| {
            publish.guest == port && publish.protocol == Protocol::Tcp
        };
        let publish = self.record().published.iter().find(leads);
        let publish = publish.ok_or_else(|| Error::NotPublished {
            name: self.record().name.clone(),
            port,
        });
        Ok(publish?.host)
    }

    /// Lets the sandbox continue without this process.
    ///
    /// # Errors
    /// [`Error::Lost`] if its guest was lost; [`Error::Refused`] if another process made it, or it is detached.
    pub async fn detach(&self) -> Result<(), Error> {
        let creator = lock(&self.creator.0).take();
        let creator = creator.ok_or_else(|| Error::Refused {
            kind: ErrorKind::Invalid,
            message: "it does not end with this process".to_owned(),
        })?;
        blocking(move || creator.detach()).await
    }

    /// Kills the sandbox and everything in it, which is like a power cut, and waits until it has ended.
    /// Does nothing if it has.
    ///
    /// # Errors
    /// [`Error::Lost`] if a guest that was about to end had not saved everything.
    pub async fn kill(&self) -> Result<(), Error> {
        let killed = self.ask(Request::Kill, |reply| {
            matches!(reply, Reply::Stopped { .. }).then_some(())
        });
        let killed = killed.await;
        self.end().await;
        match killed {
            Err(error) if !has_ended(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Asks the first command to end, kills it after `grace`, and shuts the sandbox down. If the guest
    /// does not shut down soon after, its machine is killed. If the future is dropped, the sandbox ends
    /// all the same.
    ///
    /// # Errors
    /// As [`SandboxRef::stop`].
    pub async fn stop(&self, grace: Duration) -> Result<Stopped, Error> {
        let found = self.found.clone();
        let stopped = blocking(move || found.stop(grace)).await;
        match &stopped {
            // It may run on.
            Err(error) if !has_ended(error) => {}
            _ => self.end().await,
        }
        stopped
    }

    /// Waits for the end of the connection, and for the owner if it is this process's.
    async fn end(&self) {
        self.link.ended().await;
        let creator = lock(&self.creator.0).take();
        if let Some(creator) = creator {
            let gone = blocking(move || {
                drop(creator);
                Ok::<_, Error>(())
            });
            // It can't fail.
            let _ = gone.await;
        }
    }

    /// Waits until the sandbox is over. Returns the exit code of the command with its lifetime, if there
    /// was one.
    ///
    /// # Errors
    /// What went wrong at its end, if anything; [`Error::DoesNotRun`] if it was over before;
    /// [`Error::Lost`] if its owner was killed.
    pub async fn wait(&self) -> Result<Option<u8>, Error> {
        let ended = self.ask(Request::Wait, |reply| match reply {
            Reply::Ended { code, failure } => Some((code, failure)),
            _ => None,
        });
        match ended.await? {
            (_, Some(failure)) => Err(failure.into()),
            (code, None) => Ok(code),
        }
    }

    /// Returns whether the sandbox runs, or is paused, and is not about to end.
    pub async fn is_running(&self) -> bool {
        let info = self.ask(Request::Info, |reply| match reply {
            Reply::Info(info) => Some(info),
            _ => None,
        });
        info.await.is_ok_and(|info| !info.ending)
    }

    /// Sends the first command a signal: its number on Linux, 1 to 64.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::Refused`] if the sandbox has no command, or there is no such
    /// signal.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        let request = Request::SignalFirst { signal };
        self.ask(request, |reply| (reply == Reply::Signaled).then_some(()))
            .await
    }

    /// Stops the sandbox's processors until [`Sandbox::resume`]; see [`SandboxRef::pause`].
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::Paused`] if it is paused already.
    pub async fn pause(&self) -> Result<(), Error> {
        self.ask(Request::Pause, |reply| {
            (reply == Reply::Paused).then_some(())
        })
        .await
    }

    /// Lets a paused sandbox continue.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::Refused`] if it is not paused.
    pub async fn resume(&self) -> Result<(), Error> {
        self.ask(Request::Unpause, |reply| {
            (reply == Reply::Unpaused).then_some(())
        })
        .await
    }

    /// Returns what the sandbox uses of its host.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`].
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.ask(Request::Stats, |reply| match reply {
            Reply::Stats(stats) => Some(stats),
            _ => None,
        })
        .await
    }

    /// Changes when the sandbox ends by itself, now and in later starts; what is None stays as it is.
    /// Returns all of it.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`] if it has ended and can't be started again.
    pub async fn expire(&self, expiry: Expiry) -> Result<Expiry, Error> {
        let found = self.found.clone();
        blocking(move || found.expire(&expiry)).await
    }

    /// Ends the sandbox in so long, as [`Sandbox::stop`] does; zero is never. Its owner measures the time.
    ///
    /// # Errors
    /// As [`Sandbox::expire`].
    pub async fn set_timeout(&self, timeout: Duration) -> Result<Expiry, Error> {
        if timeout.is_zero() {
            return self
                .expire(Expiry {
                    max_life: Some(Duration::ZERO),
                    idle_timeout: None,
                })
                .await;
        }
        let found = self.found.clone();
        blocking(move || Ok(found.end_in(timeout)?.expiry)).await
    }

    /// Gives the sandbox another name. Its host name stays, and [`Sandbox::record`] has the former one.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::NameTaken`], [`Error::NoSuchSandbox`].
    pub async fn rename(&self, name: &str) -> Result<(), Error> {
        let (found, name) = (self.found.clone(), name.to_owned());
        blocking(move || found.rename(&name)).await
    }

    /// Copies the sandbox's disk at one moment.
    ///
    /// # Errors
    /// As [`SandboxRef::snapshot`].
    pub async fn snapshot(&self, name: &str) -> Result<(Snapshot, Notes), Error> {
        let (found, name) = (self.found.clone(), name.to_owned());
        blocking(move || found.snapshot(&name)).await
    }

    /// Saves the sandbox at one moment: its memory, its processes, and its disk if it has one.
    ///
    /// # Errors
    /// As [`SandboxRef::snapshot_with_memory`].
    pub async fn snapshot_with_memory(&self, name: &str) -> Result<Snapshot, Error> {
        let (found, name) = (self.found.clone(), name.to_owned());
        blocking(move || found.snapshot_with_memory(&name)).await
    }

    /// Makes an image of the sandbox's changes, with these names.
    ///
    /// # Errors
    /// As [`SandboxRef::commit`].
    pub async fn commit(
        &self,
        changes: ImageEdit,
        references: Vec<Reference>,
    ) -> Result<(Image, Notes), Error> {
        let found = self.found.clone();
        blocking(move || found.commit(&changes, &references, &Limits::default())).await
    }

    /// Makes copies that continue where the sandbox is (KVM only); all of them, or none. A first command
    /// goes on in each, with its output in the copy's log, and the copy ends with it.
    ///
    /// # Errors
    /// Those of [`SandboxRef::ephemeral_snapshot`] and [`Sandbox::create`].
    pub async fn fork(&self, count: u16) -> Result<Vec<Self>, Error> {
        let found = self.found.clone();
        let moment = Arc::new(blocking(move || found.ephemeral_snapshot()).await?);
        // Dropping it cancels those that are not made yet.
        let mut starts = JoinSet::new();
        for _ in 0..count {
            starts.spawn(copy(Arc::clone(&moment)));
        }
        let mut copies = Vec::new();
        while let Some(copy) = starts.join_next().await {
            match copy {
                Ok(copy) => copies.push(copy?),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => return Err(Error::Cancelled),
                },
            }
        }
        Ok(copies)
    }

    /// Makes a request, and takes what is wanted of its reply.
    async fn ask<T>(
        &self,
        request: Request,
        wanted: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, Error> {
        let reply = self.link.ask(&request).await?;
        // Another reply is one that the protocol does not have.
        Ok(wanted(reply).ok_or_else(Lost::closed)?)
    }
}

/// Starts a copy of a machine.
async fn copy(moment: Arc<EphemeralSnapshot>) -> Result<Sandbox, Error> {
    let machine = moment.snapshot().memory.as_ref();
    let has_command = machine.is_some_and(|machine| machine.has_first_command());
    let builder: Builder<FromMemory> = blocking(move || moment.restore()).await?;
    if !has_command {
        return Sandbox::create(builder).await;
    }
    let begin = |sandbox: &micabox::Sandbox| {
        let options = ExecOptions {
            stdin: Stdio::Idle,
            stdout: Stdio::Log,
            stderr: Stdio::Log,
            detach: true,
            lifetime: true,
            ..ExecOptions::default()
        };
        sandbox.reattach(options).map(drop)
    };
    Sandbox::start(builder.reattach(), begin).await
}

/// Returns whether a request failed because the sandbox had ended, and was not lost: then something may not be saved.
fn has_ended(error: &Error) -> bool {
    match error {
        Error::Lost(lost) => matches!(
            lost.reason,
            LostReason::Closed
                | LostReason::Stopped
                | LostReason::Machine(Exit::Killed { by_us: true, .. })
        ),
        error => matches!(
            error.kind(),
            ErrorKind::NotRunning | ErrorKind::Disconnected
        ),
    }
}
