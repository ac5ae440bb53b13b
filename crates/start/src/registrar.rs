//! Writes a sandbox's record and log for its owner.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use micabox_disks::upper;
use micabox_error::Error;
use micabox_ground::clock;
use micabox_owner::Outcome;
use micabox_owner::protocol::{Kind, Limit, Stream};
use micabox_parsers::Claim;
use micabox_spec::network::{Network, Publish, Rate as NetRate};
use micabox_spec::{DiskRate, Expiry};
use micabox_state::{
    LogStream, LogWriter, ProcessId, Registration, Status, is_valid_name as is_valid,
};
use tracing::{info, warn};

/// Recorded exit code of a sandbox that did not start; Docker's for its own failures.
pub const EXIT_NOT_STARTED: i32 = 125;

/// Recorded exit code of a sandbox whose machine was killed.
pub const EXIT_KILLED: i32 = 128 + libc::SIGKILL;

/// The record of an owner's sandbox. Dropping it leaves a record of the end, or removes the
/// sandbox's directory if the record has `auto_remove`.
#[derive(Debug)]
pub struct Registrar {
    registration: Registration,
    /// Whether the record is removed when the sandbox has ended.
    auto_remove: bool,
    /// Whether the sandbox had a record before this start.
    is_restart: bool,
    is_running: bool,
    log: Option<LogWriter>,
    /// Released after the machine is gone.
    _root_disk: Option<Claim>,
}

impl Registrar {
    pub fn new(
        registration: Registration,
        auto_remove: bool,
        is_restart: bool,
        root_disk: Option<Claim>,
    ) -> Self {
        Self {
            registration,
            auto_remove,
            is_restart,
            is_running: false,
            log: None,
            _root_disk: root_disk,
        }
    }

    /// Returns a file that the machine's process holds open for as long as it may use the sandbox's
    /// disk.
    pub fn lifeline(&self) -> Result<Arc<File>, Error> {
        self.registration.lifeline()
    }

    /// Records the sandbox's processes.
    pub fn machine_started(
        &mut self,
        owner: Option<ProcessId>,
        machine: Option<ProcessId>,
    ) -> Result<(), Error> {
        self.has_machine(owner, machine);
        self.registration.update(|_| {})
    }

    /// As [`Registrar::machine_started`], but the record is written with the next change.
    pub fn has_machine(&mut self, owner: Option<ProcessId>, machine: Option<ProcessId>) {
        let record = self.registration.record_mut();
        record.owner = owner;
        record.machine = machine;
    }

    /// Has the published ports in the record that is written when the sandbox is ready.
    pub fn has_ports(&mut self, published: &[Publish]) {
        self.registration.record_mut().published = published.to_vec();
    }

    /// Records the end, unless the record is removed.
    fn exited(&mut self, code: i32, error: Option<String>) {
        let (at, auto_remove) = (clock::now_as_parts().0, self.auto_remove && self.is_running);
        let status = Status::Exited { code, at, error };
        if !auto_remove {
            // A failed write, for example on a full disk, leaves the old record.
            let _ = self.registration.update(|record| record.status = status);
        }
    }
}

impl micabox_owner::Registrar for Registrar {
    fn running(&mut self) -> io::Result<()> {
        // The machine has the file open.
        let _ = std::fs::remove_file(upper::patches(self.registration.path()));
        self.is_running = true;
        info!("the sandbox is ready for commands");
        let auto_remove = self.auto_remove;
        let updated = self.registration.update(|record| {
            record.status = Status::Running {
                since: clock::now_as_parts().0,
            };
            record.auto_remove = auto_remove;
        });
        self.registration.note("start", &[]);
        updated.map_err(io::Error::other)
    }

    fn detached(&mut self) -> io::Result<()> {
        // From now on output goes to the log, which `mica logs -f` follows before there is any.
        let log = LogWriter::new(self.registration.path());
        // If there is no room for it now, there may be with the first output.
        let _ = log.begin();
        self.log = Some(log);
        let updated = self.registration.update(|record| record.creator = None);
        updated.map_err(io::Error::other)
    }

    fn expires(&mut self, idle_timeout: u64, max_life: u64) -> io::Result<()> {
        let time = |millis| (millis > 0).then(|| Duration::from_millis(millis));
        let expiry = Expiry {
            idle_timeout: time(idle_timeout),
            max_life: time(max_life),
        };
        let spec = &mut self.registration.record_mut().spec;
        if spec.expiry == expiry {
            return Ok(());
        }
        spec.expiry = expiry;
        self.registration.note("update", &[]);
        self.registration.update(|_| {}).map_err(io::Error::other)
    }

    fn limited(&mut self, limit: Limit) -> io::Result<()> {
        info!(?limit, "a limit of the sandbox changes");
        self.registration.note("update", &[]);
        let updated = self.registration.update(|record| match limit {
            Limit::Processors(quota) => record.spec.machine.cpu_quota = quota,
            Limit::Processes(most) => record.spec.setup.pids_limit = Some(most),
            Limit::Disk {
                read,
                write,
                operations,
            } => {
                record.spec.machine.disk_rate = DiskRate {
                    read,
                    write,
                    operations,
                };
            }
            Limit::Network { incoming, outgoing } => {
                if let Network::User(network) = &mut record.spec.network {
                    network.rate = NetRate { incoming, outgoing };
                }
            }
        });
        updated.map_err(io::Error::other)
    }

    fn event(&mut self, action: &str, attributes: &[(&str, String)]) {
        self.registration.note(action, attributes);
    }

    fn paused(&mut self, is_paused: bool) -> io::Result<()> {
        let status = match (&self.registration.record().status, is_paused) {
            (&Status::Running { since }, true) => Status::Paused { since },
            (&Status::Paused { since }, false) => Status::Running { since },
            _ => return Ok(()),
        };
        info!(is_paused, "the sandbox pauses or resumes");
        let action = if is_paused { "pause" } else { "unpause" };
        self.registration.note(action, &[]);
        let updated = self.registration.update(|record| record.status = status);
        updated.map_err(io::Error::other)
    }

    fn rename(&mut self, name: &str) -> io::Result<()> {
        // Any program of the user's may ask.
        if !is_valid(name) {
            return Err(io::Error::other(Error::BadName(name.to_owned())));
        }
        self.registration.rename(name).map_err(io::Error::other)
    }

    fn log(&mut self, stream: Stream, bytes: &[u8]) {
        let stream = match stream {
            Stream::Stdout => LogStream::Stdout,
            Stream::Stderr => LogStream::Stderr,
        };
        let directory = self.registration.path();
        let log = self.log.get_or_insert_with(|| LogWriter::new(directory));
        log.write(stream, bytes);
    }

    fn ended(&mut self, outcome: &Outcome<'_>) {
        let failure = outcome.failure;
        if let Some(Err(error)) = self.log.as_ref().map(LogWriter::finish) {
            warn!(%error, "the end of the sandbox's output is not in its log");
        }
        match failure {
            None => info!(code = outcome.code, "the sandbox ends"),
            Some(failure) => warn!(
                code = outcome.code,
                error = failure.message,
                "the sandbox ends"
            ),
        }
        if outcome.disk_is_in_use {
            self.registration.outlive_us();
        }
        if self.is_running {
            let code = outcome.code.map_or(EXIT_KILLED, i32::from);
            let mut attributes = vec![("exit_code", code.to_string())];
            attributes.extend(failure.map(|failure| ("error", failure.message.clone())));
            self.registration.note("die", &attributes);
        }
        if !self.is_running {
            if self.is_restart {
                let why = failure
                    .map(|failure| format!("the sandbox did not start: {}", failure.message));
                self.exited(EXIT_NOT_STARTED, why);
            }
            return;
        }
        // The record stays at running, which without an owner means dead.
        if outcome.is_abandoned {
            return;
        }
        let problem = failure.map(|failure| match failure.kind {
            Kind::Lost => format!("the sandbox ended: {}", failure.message),
            _ => failure.message.clone(),
        });
        match (outcome.code, problem) {
            (Some(code), problem) => self.exited(code.into(), problem),
            (None, Some(problem)) => self.exited(EXIT_NOT_STARTED, Some(problem)),
            (None, None) => self.exited(EXIT_KILLED, None),
        }
    }
}
