//! One operation: a command of the agent's own.

use std::io::{self, Read};
use std::path::Path;

use micabox_error::Error;
use micabox_operations::{ExecOptions, FileTask, LeftOut, Stdio};
use micabox_owner::Client;
use micabox_owner::protocol::{Exec, Place};
use micabox_wire::Message;
use micabox_wire::files::{FileReply, FileRequest};
use micabox_wire::read_message;

use super::Files;
use crate::process::{Begin, Process};

/// Where an operation's streams come from and go to.
#[derive(Debug, Default)]
pub struct Ends {
    pub stdin: Stdio,
    pub stdout: Stdio,
}

/// An operation that has begun. Dropping it ends it, done or not.
#[derive(Debug)]
pub struct Operation {
    pub process: Process,
    task: FileTask,
    is_over: bool,
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.is_over {
            self.process.handle().signal(libc::SIGKILL);
        }
    }
}

impl Files {
    /// Begins an operation.
    pub(crate) fn start(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
        ends: Ends,
    ) -> Result<Operation, Error> {
        let task = FileTask::new(what, path);
        let exec = FileTask::exec(request, &self.user, self.answer_timeout);
        let options = ExecOptions {
            stdin: ends.stdin,
            stdout: ends.stdout,
            stderr: Stdio::Piped,
            ..ExecOptions::default()
        };
        let client = Client::connect(&self.directory);
        let client = client.map_err(|_| Error::DoesNotRun(self.name.clone()))?;
        let process = Process::start(client, Begin::Exec(exec), options);
        Ok(Operation {
            process: process.map_err(|error| task.not_begun(error))?,
            task,
            is_over: false,
        })
    }

    /// Performs an operation without a reply.
    pub(super) fn perform(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<(), Error> {
        self.call(what, path, request).map(drop)
    }

    /// Performs an operation with one reply.
    pub(super) fn ask(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<FileReply, Error> {
        let reply = self.call(what, path, request)?;
        let reply = read_message(&mut &*reply).ok().flatten();
        reply.ok_or(Error::BadReply)
    }

    /// Performs an operation whose replies are few. Returns them.
    fn call(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<Vec<u8>, Error> {
        let task = FileTask::new(what, path);
        let exec = Exec {
            stdout: Place::Frames,
            stderr: Place::Frames,
            ..FileTask::exec(request, &self.user, self.answer_timeout)
        };
        let over = self.shared.perform(&self.directory, &self.name, exec);
        let Some(over) = over.map_err(|error| task.not_begun(error))? else {
            return self.call_alone(what, path, request);
        };
        task.end(over.status, &*over.stderr)?;
        Ok(over.stdout)
    }

    /// As [`Files::call`], on a connection of its own.
    fn call_alone(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<Vec<u8>, Error> {
        const MOST: u64 = FileReply::MAX_FRAME as u64 + 4;
        let ends = Ends {
            stdout: Stdio::Piped,
            ..Ends::default()
        };
        let mut operation = self.start(what, path, request, ends)?;
        let mut replies = Vec::new();
        if let Some(stdout) = operation.process.stdout.take() {
            // The end has the better reason.
            let _ = stdout.take(MOST).read_to_end(&mut replies);
        }
        operation.end()?;
        Ok(replies)
    }
}

impl Operation {
    /// Waits for the operation's end. Returns what was left out.
    pub fn end(&mut self) -> Result<Vec<LeftOut>, Error> {
        drop(self.process.stdin.take());
        self.is_over = true;
        let status = self.process.wait()?;
        match self.process.stderr.take() {
            Some(stderr) => self.task.end(status, stderr),
            None => self.task.end(status, io::empty()),
        }
    }
}
