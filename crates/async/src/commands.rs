//! Commands in a sandbox.

use std::sync::Arc;
use std::time::Instant;

use micabox::{
    Command, Error, ExecOptions, ExitStatus, Finished, GuestProcess, NotedCommand, Stdio,
};
use micabox_operations::connection;
use micabox_owner::protocol::Exec;
use tokio::io::AsyncReadExt;

use crate::link::Link;
use crate::process::{Begin, Process, rest};

/// The commands of a sandbox. Any number of them share its one connection.
#[derive(Clone, Debug)]
pub struct Commands {
    link: Arc<Link>,
}

impl Commands {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::clone(link),
        }
    }

    /// Runs a command to its end, without stdin, and returns all that it has written. If the future is
    /// dropped, the command is killed. An exit code that is not 0 is no error: [`Finished::status`] has
    /// it.
    ///
    /// # Errors
    /// As [`Commands::spawn`], and [`Error::Lost`] if the sandbox ends first.
    pub async fn run(&self, command: &Command) -> Result<Finished, Error> {
        self.run_with(command, ExecOptions::piped(false)).await
    }

    /// Runs a command as [`Commands::run`] does, with `options`.
    ///
    /// ```no_run
    /// # async fn example(sandbox: micabox_async::Sandbox) -> Result<(), micabox::Error> {
    /// use std::time::Duration;
    /// use micabox_async::{Command, ExecOptions};
    ///
    /// let options = ExecOptions {
    ///     timeout: Some(Duration::from_secs(60)),
    ///     ..ExecOptions::piped(false)
    /// };
    /// let built = sandbox.commands().run_with(&Command::new(["make"]), options).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Commands::run`]; [`Error::TimedOut`] if its time was over.
    pub async fn run_with(
        &self,
        command: &Command,
        options: ExecOptions,
    ) -> Result<Finished, Error> {
        let begun = Instant::now();
        let timeout = options.timeout;
        let process = self.spawn_with(command, options).await?;
        let handle = process.handle();
        let finished = process.finish().await?;
        let Some(timeout) = timeout else {
            return Ok(finished);
        };
        // The owner does not say so of one that was sent SIGKILL as well.
        let was_ended = matches!(finished.status, ExitStatus::Signaled(_));
        if handle.timed_out().await? || was_ended && begun.elapsed() >= timeout {
            return Err(Error::TimedOut(timeout));
        }
        Ok(finished)
    }

    /// Starts a command with pipes for its streams, and waits until it runs. If the future is dropped,
    /// the command is killed.
    ///
    /// # Errors
    /// [`Error::Start`] if the guest can't start it; [`Error::DoesNotRun`] if the sandbox does not run,
    /// [`Error::Paused`] if it is paused, [`Error::Lost`] if it ends first.
    pub async fn spawn(&self, command: &Command) -> Result<Process, Error> {
        self.spawn_with(command, ExecOptions::piped(command.stdin))
            .await
    }

    /// Starts a command as [`Commands::spawn`] does, with `options`. With [`ExecOptions::lifetime`] the sandbox
    /// ends with it.
    ///
    /// # Errors
    /// As [`Commands::spawn`].
    pub async fn spawn_with(
        &self,
        command: &Command,
        options: ExecOptions,
    ) -> Result<Process, Error> {
        let exec = Box::new(Exec::try_from(command)?);
        Process::start(&self.link, Begin::Exec(exec), options).await
    }

    /// Attaches to the running command with this process ID inside, whichever client has started it; to
    /// the first command without one. The result has the output from now on, and stdin if no other client has it.
    /// With several clients, the command waits for each of them. It continues when the result is dropped.
    ///
    /// # Errors
    /// [`Error::NoSuchCommand`]; [`Error::Refused`] if there is no first command;
    /// [`Error::DoesNotRun`].
    pub async fn attach(&self, pid: impl Into<Option<u32>>) -> Result<Process, Error> {
        self.attach_with(pid, ExecOptions::piped(true)).await
    }

    /// Attaches to a command as [`Commands::attach`] does. Of `options`, only the streams and the window matter: without
    /// one that is not [`Stdio::Null`], the result is for the command's end and for signals.
    ///
    /// # Errors
    /// As [`Commands::attach`]; [`Error::Refused`] for streams that are idle or the log, or if another client has the
    /// stdin that is to come from a descriptor.
    pub async fn attach_with(
        &self,
        pid: impl Into<Option<u32>>,
        options: ExecOptions,
    ) -> Result<Process, Error> {
        Process::start(&self.link, Begin::Attach(pid.into()), options).await
    }

    /// Connects to a TCP port of the sandbox's 127.0.0.1, which need not be published, and waits until the connection is
    /// made. The process's stdin is what is sent, its stdout what comes; it ends when the other side has ended, and the
    /// connection when the process is dropped.
    ///
    /// # Errors
    /// [`Error::Start`] if nothing listens there; otherwise as [`Commands::spawn`].
    pub async fn connect_to(&self, port: u16) -> Result<Process, Error> {
        self.connect_with(port, ExecOptions::piped(true)).await
    }

    /// Connects as [`Commands::connect_to`] does, with `options`.
    ///
    /// # Errors
    /// As [`Commands::connect_to`].
    pub async fn connect_with(&self, port: u16, options: ExecOptions) -> Result<Process, Error> {
        let exec = Box::new(connection(port));
        Process::start(&self.link, Begin::Exec(exec), options).await
    }

    /// Lists the commands that run and were started with a [note](ExecOptions::note), by whatever program.
    ///
    /// # Errors
    /// [`Error::DoesNotRun`], [`Error::Lost`]; [`Error::OwnerGone`] if the owner is of a version that keeps none.
    pub async fn noted(&self) -> Result<Vec<NotedCommand>, Error> {
        self.link.noted().await
    }

    /// Lists the processes in the sandbox. No program of the image is needed for it.
    ///
    /// # Errors
    /// As [`Commands::run`]; [`Error::BadList`] if the guest sends something else.
    pub async fn list(&self) -> Result<Vec<GuestProcess>, Error> {
        let options = ExecOptions {
            stdout: Stdio::Piped,
            ..ExecOptions::default()
        };
        let begin = Begin::Exec(Box::new(GuestProcess::request()));
        let mut process = Process::start(&self.link, begin, options).await?;
        let stdout = process.stdout.take();
        let list = rest(stdout.map(|stdout| stdout.take(GuestProcess::MAX_LIST + 1))).await;
        let list = list.unwrap_or_default();
        if list.len() as u64 > GuestProcess::MAX_LIST {
            return Err(Error::BadList);
        }
        // A sandbox that ended has the better reason.
        let status = process.wait().await?;
        GuestProcess::parse_list(&list)
            .filter(|_| status.code() == 0)
            .ok_or(Error::BadList)
    }
}
