//! Starts processes in the sandbox, and reports how they start and end.

use std::os::fd::{AsFd, OwnedFd};

use micabox_wire::{Decoder, Exec, ExitStatus, StartFailed, StartFailure, ToHost};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::files;
use super::program::failed;
use super::start::{self, SpawnRequest, other};
use super::stdio::{self, AgentEnds};
use super::watches::Watches;
use crate::sandbox::child::{fork, kill};
use crate::sandbox::{PidNamespace, Sandbox};

impl Sandbox {
    /// Starts a process that becomes the command of `spec`. Its [`Report`] says later whether that
    /// succeeded.
    pub fn spawn(
        &mut self,
        id: u32,
        spec: &Exec,
        watches: &mut Watches,
        kept: &[i32],
    ) -> Result<(Process, AgentEnds), StartFailed> {
        let (agent, command) = match spec.tty {
            Some(size) => stdio::terminal(self.place.terminals(), size, spec.stdin)
                .map_err(|errno| other("open a terminal", errno))?,
            None => stdio::pipes(spec.stdin).map_err(|errno| other("make pipes", errno))?,
        };
        let (report, report_in) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| other("make a pipe", errno))?;
        stdio::set_nonblocking(&report).map_err(|errno| other("make a pipe", errno))?;

        let first = matches!(self.pids, PidNamespace::Pending);
        if first && start::is_own(spec) {
            let message = "no process has run in the sandbox".to_owned();
            return Err(failed(StartFailure::Other, message, None));
        }
        let watching = files::is_watch(spec).then(|| watches.join()).transpose();
        let watching = watching.map_err(|errno| other("watch files", errno))?;
        let child = fork().map_err(|errno| match (&self.pids, errno) {
            (PidNamespace::Started(_) | PidNamespace::Owned, Errno::NOMEM) => failed(
                StartFailure::Other,
                "the sandbox's process 1 has ended, and with it the sandbox".to_owned(),
                Some(errno),
            ),
            _ => other("fork", errno),
        })?;
        let Some(pid) = child else {
            start::run(SpawnRequest {
                id,
                spec,
                place: &self.place,
                hostname: &self.hostname,
                first,
                stdio: command,
                report: report_in,
                watching,
                kept,
            });
        };
        if first {
            self.pids = PidNamespace::Owned;
        }
        let mut process =
            Process::new(pid).map_err(|errno| other("open the new process", errno))?;
        process.report = Some(Report {
            pipe: report,
            bytes: Vec::new(),
        });
        Ok((process, agent))
    }
}

/// A child of the agent, not yet waited for.
#[derive(Debug)]
pub struct Process {
    pub pid: Pid,
    /// Readable when the process has ended.
    pub handle: OwnedFd,
    /// The report about its start; None once that is known.
    pub report: Option<Report>,
}

impl Process {
    /// Takes a child that was just forked; kills it on failure.
    pub fn new(pid: Pid) -> rustix::io::Result<Self> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Self {
                pid,
                handle,
                report: None,
            }),
            Err(errno) => {
                kill(pid, libc::SIGKILL);
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                Err(errno)
            }
        }
    }

    /// Waits for a process that is about to end.
    pub fn reap(&self) {
        let _ = waitid(WaitId::PidFd(self.handle.as_fd()), WaitIdOptions::EXITED);
    }

    /// Returns how the process ended, if it has. Must be called only after its report.
    pub fn wait(&self) -> Option<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(self.handle.as_fd()), options).ok()??;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(ExitStatus::Exited(code)),
            (None, Some(signal)) => Some(ExitStatus::Signaled(signal)),
            (None, None) => None,
        }
    }
}

/// The pipe on which a new process sends its PID, and then an error if its command can't start;
/// execve(2) closes the pipe.
#[derive(Debug)]
pub struct Report {
    pub pipe: OwnedFd,
    bytes: Vec<u8>,
}

/// The result of a [`Report`].
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command runs under this PID of its namespace.
    Started(u32),
    /// The command could not be started.
    Failed(StartFailed),
}

impl Report {
    /// Reads the report as far as it has arrived. None while the result is not known. It is
    /// known as soon as the process `has_ended`, even if another process holds the pipe open.
    pub fn read(&mut self, has_ended: bool) -> Option<Outcome> {
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => break,
                Ok(count) => self
                    .bytes
                    .extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(Errno::AGAIN) if has_ended => break,
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        // A process that was killed before its report counts as started: its exit status says what
        // happened.
        let Some((pid, rest)) = self.bytes.split_first_chunk() else {
            return Some(Outcome::Started(0));
        };
        let mut decoder = Decoder::<ToHost>::new();
        decoder.push(rest);
        match decoder.next_message() {
            Ok(Some(ToHost::StartFailed { failure, .. })) => Some(Outcome::Failed(failure)),
            _ => Some(Outcome::Started(u32::from_le_bytes(*pid))),
        }
    }
}
