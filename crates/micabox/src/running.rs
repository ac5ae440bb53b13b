//! What any process of the same user does with a running sandbox: commands, the first command, and
//! how the sandbox ends.

use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_operations::{ExecOptions, NotedCommand, NotedCommands, connection};
use micabox_owner::Client;
use micabox_owner::protocol::{Exec, Reply, Request, Stats};
use micabox_spec::{Command, Expiry, Overrides};
use micabox_start::{EXIT_KILLED, EXIT_NOT_STARTED};
use micabox_state::{Status, is_valid_name as is_valid};

use crate::SandboxRef;
use crate::expiry::{self, Expires};
use crate::process::{Begin, Process};

/// How long an owner may take to reply to a request that needs no waiting.
const ANSWER: Duration = Duration::from_secs(30);

/// Interval of looks at a sandbox whose owner does not listen.
const POLL: Duration = Duration::from_millis(20);

impl SandboxRef {
    /// Makes a command as `docker exec` does: with the environment, user and directory that the
    /// sandbox was made with (those of its image, changed as its creator wished), and `overrides`.
    ///
    /// # Errors
    /// [`Error::Command`]; those of [`SandboxRef::base`] for a record of an older version.
    pub fn command(&self, overrides: &Overrides) -> Result<Command, Error> {
        Ok(match &self.record().defaults {
            Some(defaults) => Command::beside(defaults, overrides)?,
            None => Command::in_image(&self.base()?.config(), overrides)?,
        })
    }

    /// Starts a command in the sandbox, which must run, with pipes for its streams, and waits until
    /// it runs. Whichever process made the sandbox, the command is this one's: it is killed when
    /// this process ends.
    ///
    /// # Errors
    /// [`Error::Start`] if the guest can't start it; [`Error::DoesNotRun`] if the sandbox does not
    /// run, [`Error::Lost`] if it ends first.
    pub fn exec(&self, command: &Command) -> Result<Process, Error> {
        self.exec_with(command, ExecOptions::piped(command.stdin))
    }

    /// Starts a command as [`SandboxRef::exec`] does, with `options`.
    ///
    /// # Errors
    /// As [`SandboxRef::exec`].
    pub fn exec_with(&self, command: &Command, options: ExecOptions) -> Result<Process, Error> {
        let exec = Exec::try_from(command)?;
        Process::start(self.connect()?, Begin::Exec(exec), options)
    }

    /// Attaches to the first command, which continues when this process ends. Of `options`, only
    /// the streams matter: its outputs from now on are copied to them, and a stdin that is open and
    /// idle (`mica run -d -i`) comes from there. A copy that is not read stops the command. When
    /// nothing reads it any more, the process counts as ended by SIGPIPE.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::Refused`] if the sandbox has no command, or another client
    /// is attached to its stdin.
    pub fn attach(&self, options: ExecOptions) -> Result<Process, Error> {
        Process::start(self.connect()?, Begin::Attach(None), options)
    }

    /// Attaches as [`SandboxRef::attach`] does to the command with this process ID inside, whichever
    /// client has started it.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::NoSuchCommand`]; [`Error::Refused`] if another client is attached
    /// to its stdin.
    pub fn attach_to(&self, pid: u32, options: ExecOptions) -> Result<Process, Error> {
        Process::start(self.connect()?, Begin::Attach(Some(pid)), options)
    }

    /// Connects to a TCP port of the sandbox's 127.0.0.1, which need not be published, and waits until the connection is
    /// made. The process's stdin is what is sent, its stdout what comes; it ends when the other side has ended.
    ///
    /// # Errors
    /// [`Error::Start`] if nothing listens there; otherwise as [`SandboxRef::exec`].
    pub fn connect_to(&self, port: u16, options: ExecOptions) -> Result<Process, Error> {
        Process::start(self.connect()?, Begin::Exec(connection(port)), options)
    }

    /// Lists the commands that run and were started with a [note](ExecOptions::note), by whatever program.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::OwnerGone`] if the owner is of a version that keeps none.
    pub fn commands(&self) -> Result<Vec<NotedCommand>, Error> {
        let mut client = self.connect()?;
        let deadline = Instant::now().checked_add(ANSWER);
        let asked = client.request(1, &Request::Commands, &[]);
        asked.map_err(|_| self.disconnected())?;
        let mut list = NotedCommands::default();
        loop {
            let reply = client.reply(1, deadline);
            let reply = reply.map_err(|_| self.disconnected())?;
            if let Some(all) = list.add(reply.ok_or(Error::OwnerGone)?)? {
                return Ok(all);
            }
        }
    }

    /// Sends the first command a signal: its number on Linux, 1 to 64. A sandbox that still starts has no command
    /// yet: SIGKILL ends its start.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::Starts`] for other signals; [`Error::Refused`] if the sandbox has no
    /// command, or there is no such signal.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        match self.ask(&Request::SignalFirst { signal }) {
            Err(Error::Starts(_)) if signal == libc::SIGKILL => self.stop(Duration::ZERO).map(drop),
            Err(error) => Err(error),
            Ok(Reply::Signaled) => Ok(()),
            Ok(Reply::Failed(failure)) => Err(failure.into()),
            Ok(_) => Err(Error::OwnerGone),
        }
    }

    /// Changes when the sandbox ends by itself, now and in later starts; what is None stays as it is.
    /// Returns all of it.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`] if it has ended and can't be started again.
    pub fn expire(&self, expiry: &Expiry) -> Result<Expiry, Error> {
        match self.ask_about_end(|client| expiry::set(expiry, client)) {
            Err(Error::DoesNotRun(name)) => {
                let changed = self.directory().change(self.id(), |record| {
                    record.can_restart().then(|| {
                        let spec = &mut record.spec;
                        spec.expiry = spec.expiry.changed(expiry);
                        spec.expiry
                    })
                });
                changed?.ok_or(Error::DoesNotRun(name))
            }
            result => Ok(result?.expiry),
        }
    }

    /// Ends the sandbox in so long from now, as [`SandboxRef::stop`] does; later starts end at the age that
    /// it then has. Its owner measures the time: steps of the wall clock change nothing.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`].
    pub fn end_in(&self, time: Duration) -> Result<Expires, Error> {
        self.ask_about_end(|client| expiry::end_in(client, time))
    }

    /// Returns when the sandbox ends by itself.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`].
    pub fn expires(&self) -> Result<Expires, Error> {
        // Without a wish the owner only says what is.
        self.ask_about_end(|client| expiry::set(&Expiry::default(), client))
    }

    fn ask_about_end(
        &self,
        ask: impl FnOnce(&mut Client) -> Result<Expires, Error>,
    ) -> Result<Expires, Error> {
        let said = self.connect().and_then(|mut client| ask(&mut client));
        said.map_err(|error| match error {
            Error::OwnerGone => self.disconnected(),
            error => error,
        })
    }

    /// Stops the sandbox's processors until [`SandboxRef::unpause`]. No command can be started
    /// meanwhile, and those that run do nothing; connections may time out on their other end. A stop
    /// resumes the sandbox first. A machine that is saved runs for that moment.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::Paused`] if it is paused already.
    pub fn pause(&self) -> Result<(), Error> {
        match self.ask(&Request::Pause)? {
            Reply::Paused => Ok(()),
            Reply::Failed(failure) => Err(failure.into()),
            _ => Err(Error::OwnerGone),
        }
    }

    /// Lets a paused sandbox continue.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`]; [`Error::Refused`] if it is not paused.
    pub fn unpause(&self) -> Result<(), Error> {
        match self.ask(&Request::Unpause)? {
            Reply::Unpaused => Ok(()),
            Reply::Failed(failure) => Err(failure.into()),
            _ => Err(Error::OwnerGone),
        }
    }

    /// Returns what the sandbox uses of its host.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`].
    pub fn stats(&self) -> Result<Stats, Error> {
        match self.ask(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            Reply::Failed(failure) => Err(failure.into()),
            _ => Err(Error::OwnerGone),
        }
    }

    /// Gives the sandbox another name, whether it runs or not. Its host name stays.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::NameTaken`], [`Error::NoSuchSandbox`].
    pub fn rename(&self, name: &str) -> Result<(), Error> {
        if !is_valid(name) {
            return Err(Error::BadName(name.to_owned()));
        }
        match self.directory().rename(self.id(), name) {
            // Its owner has the record. The name may be taken until then, but not twice.
            Err(Error::Running(_)) => {}
            result => return result,
        }
        self.directory().check_name(name)?;
        let name = name.to_owned();
        match self.ask(&Request::Rename { name })? {
            Reply::Renamed => Ok(()),
            Reply::Failed(failure) => Err(failure.into()),
            _ => Err(Error::OwnerGone),
        }
    }

    /// Waits until the sandbox has ended. Returns the exit code of its first command: 137 if it was
    /// killed with the sandbox.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`] if it is removed; [`Error::OwnerGone`] if its owner was killed;
    /// [`Error::DoesNotRun`] if it was never started.
    pub fn wait(&self) -> Result<i32, Error> {
        loop {
            if let Ok(mut client) = Client::connect(self.path()) {
                let asked = client.request(1, &Request::Wait, &[]);
                let reply = asked.and_then(|()| client.reply(1, None));
                if let Ok(Some(Reply::Ended { code, failure })) = reply {
                    return Ok(match (code, failure) {
                        (Some(code), _) => code.into(),
                        (None, Some(_)) => EXIT_NOT_STARTED,
                        (None, None) => EXIT_KILLED,
                    });
                }
            }
            match self.reload()?.record().status {
                Status::Exited { code, .. } => return Ok(code),
                Status::Dead => return Err(Error::OwnerGone),
                Status::Created => return Err(Error::DoesNotRun(self.record().name.clone())),
                // It is about to start, or to end.
                Status::Starting | Status::Running { .. } | Status::Paused { .. } => {
                    std::thread::sleep(POLL);
                }
            }
        }
    }

    /// Sends a request whose reply needs no waiting.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, Error> {
        let mut client = self.connect()?;
        let asked = client.request(1, request, &[]);
        let reply = asked.and_then(|()| client.reply(1, Instant::now().checked_add(ANSWER)));
        reply
            .map_err(|_| self.disconnected())?
            .ok_or(Error::OwnerGone)
    }

    /// Returns why the owner has ended the connection.
    fn disconnected(&self) -> Error {
        match self.reload() {
            Ok(now) => match now.record().status {
                Status::Exited { .. } => Error::DoesNotRun(now.record().name.clone()),
                _ => Error::OwnerGone,
            },
            Err(error) => error,
        }
    }

    /// Connects to the owner.
    pub(crate) fn connect(&self) -> Result<Client, Error> {
        Client::connect(self.path()).or_else(|_| {
            let now = self.reload()?;
            let name = now.record().name.clone();
            Err(match now.record().status {
                Status::Starting => Error::Starts(name),
                _ => Error::DoesNotRun(name),
            })
        })
    }
}
