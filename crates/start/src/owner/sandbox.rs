//! A sandbox in the hands of its owner, from the creator's message to its end.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use micabox_disks::snapshot as memory;
use micabox_error::{Error, ErrorKind, random};
use micabox_ground::{chain, clock};
use micabox_owner::protocol::{Failure, Reply, frame, preamble};
use micabox_owner::{Launch, Outcome, Start, protocol};
use micabox_parsers::Claim;
use micabox_state::{Directory, Lock, ProcessId, Registration};
use micabox_vmm::{Error as MachineError, Machine};
use micabox_wire::{Boot, Identity};
use tracing::{info_span, warn};

use super::job::SandboxJob;
use super::log;
use super::machine::Started;
use crate::network::{self, Connection, Link, Running};
use crate::registrar::Registrar;

/// A sandbox whose locks this owner has.
pub(super) struct Sandbox {
    job: SandboxJob,
    registrar: Registrar,
    directory: PathBuf,
}

impl Sandbox {
    /// Takes the sandbox over, with its locks from the beginning of `files`.
    pub(super) fn new(
        job: SandboxJob,
        files: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        if let Some(filter) = &job.log {
            log::subscribe(filter);
        }
        let missing = || io::Error::from(io::ErrorKind::InvalidData);
        let lock = Lock::taken_over(File::from(files.next().ok_or_else(missing)?));
        let claim = job.has_claim.then(|| files.next()).flatten();
        let claim = claim.map(|file| Claim::taken_over(file.into()));
        let directory = Directory::open(&job.store).map_err(io::Error::other)?;
        let registration = Registration::of(directory, job.record.clone(), lock);
        let directory = registration.path().to_owned();
        let registrar = Registrar::new(
            registration,
            job.record.spec.auto_remove,
            job.is_restart,
            claim,
        );
        Ok(Self {
            job,
            registrar,
            directory,
        })
    }

    /// Owns the sandbox until its end, with the machine and the network that `start` returns. A
    /// failed start is reported to the creator.
    pub(super) fn own(
        mut self,
        creator: UnixStream,
        start: impl FnOnce(&mut Self) -> Result<(Started, Option<Connection>), Error>,
    ) -> io::Result<()> {
        let id = self.job.record.short_id().to_owned();
        let _span = info_span!("owner", id).entered();
        let started = start(&mut self).and_then(|(started, network)| {
            let identity = self.identity(network.as_ref())?;
            Ok((started, network, identity))
        });
        match started {
            Ok((started, network, identity)) => {
                micabox_owner::serve(self.launch(started, network, identity, creator))
            }
            Err(error) => self.fail(&error, &creator),
        }
    }

    /// Starts the sandbox's network on its machine's link.
    pub(super) fn start_network(
        &mut self,
        link: Option<Link>,
    ) -> Result<Option<Connection>, Error> {
        let connection = network::start(&self.job.record.spec.network, link)?;
        if let Some(connection) = &connection {
            self.registrar.has_ports(connection.network.published());
        }
        Ok(connection)
    }

    /// Returns a file that the machine's process holds open for as long as it may use the sandbox's
    /// disk.
    pub(super) fn lifeline(&self) -> Result<Arc<File>, Error> {
        self.registrar.lifeline()
    }

    /// Records the processes of the sandbox.
    pub(super) fn machine_started(&mut self, started: &Started) -> Result<(), Error> {
        let machine = ProcessId::of(started.machine.pid());
        self.registrar.machine_started(ProcessId::own(), machine)
    }

    /// As [`Sandbox::machine_started`], for a container or a machine without a disk: it ends with this
    /// process, so its record may wait until the sandbox is ready for commands.
    pub(super) fn is_given(&mut self, started: &Started) {
        let machine = ProcessId::of(started.machine.pid());
        self.registrar.has_machine(ProcessId::own(), machine);
    }

    /// Returns what the event loop needs.
    fn launch(
        self,
        started: Started,
        network: Option<Connection>,
        identity: Identity,
        creator: UnixStream,
    ) -> Launch {
        let holds_nothing = self.holds_nothing();
        let job = self.job;
        let start = if started.is_restored {
            Start::Restore {
                identity: Box::new(identity),
                main: job.main,
                setup: job.setup,
            }
        } else {
            Start::Boot(Box::new(Boot {
                lowers: job.lowers,
                upper: job.upper,
                init: job.record.spec.init,
                identity,
                setup: job.setup,
            }))
        };
        let learns = job.template.filter(|_| started.lacks_list);
        let learn = learns.map(|template| {
            Box::new(move |machine: &dyn Machine| memory::learn(&template, machine)) as _
        });
        let defaults = job.record.defaults;
        let confinement = defaults.map(|command| command.confinement);
        let confinement = confinement.unwrap_or_default();
        let saves = job
            .saves
            .map(|spec| serde_json::to_value(spec).unwrap_or_default());
        Launch {
            machine: started.machine,
            start,
            timeout: job.record.spec.boot_timeout.unwrap_or(started.timeout),
            network: network.map(|connection| Box::new(Running(connection.network)) as _),
            holds_nothing,
            learn,
            disk: job.disk,
            stop_signal: job.stop_signal,
            confinement,
            saves,
            directory: self.directory,
            creator,
            registrar: Box::new(self.registrar),
        }
    }

    /// Reports a failed start to the creator.
    fn fail(mut self, error: &Error, mut creator: &UnixStream) -> io::Result<()> {
        warn!(error = chain(error), "the sandbox does not start");
        let kind = match error {
            Error::Machine(
                MachineError::Unsupported { .. } | MachineError::Config(_) | MachineError::Size(_),
            ) => protocol::Kind::Unsupported,
            Error::Machine(MachineError::NoLimits { .. }) => protocol::Kind::Unlimited,
            Error::Machine(_) => protocol::Kind::Machine,
            error if error.kind() == ErrorKind::InUse => protocol::Kind::InUse,
            _ => protocol::Kind::Invalid,
        };
        let failure = Failure::new(kind, chain(error));
        micabox_owner::Registrar::ended(
            &mut self.registrar,
            &Outcome {
                code: None,
                failure: Some(&failure),
                is_abandoned: false,
                disk_is_in_use: false,
            },
        );
        drop(self.registrar);
        let mut bytes = preamble().to_vec();
        frame::encode(0, &Reply::Failed(failure), &mut bytes);
        creator.write_all(&bytes)
    }

    /// Returns whether the machine holds nothing that another sandbox may ask for.
    fn holds_nothing(&self) -> bool {
        let job = &self.job;
        let publishes = !job.record.spec.network.published().is_empty();
        let uses_volumes = job.record.volumes().next().is_some();
        job.disk.is_none() && !uses_volumes && !job.has_claim && !job.has_sockets && !publishes
    }

    fn identity(&self, connection: Option<&Connection>) -> Result<Identity, Error> {
        let record = &self.job.record;
        let hostname = self.job.record.spec.hostname.as_deref();
        Ok(Identity {
            hostname: hostname.unwrap_or(record.short_id()).to_owned(),
            machine_id: record.id.clone(),
            // Without a network there is no name server.
            resolv_conf: connection
                .map(|connection| connection.resolv_conf.clone())
                .unwrap_or_default(),
            network: connection.map(|connection| connection.boot),
            wall_clock: clock::now_as_parts(),
            entropy: random()?,
        })
    }
}
