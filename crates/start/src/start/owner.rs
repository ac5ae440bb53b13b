//! The owner of a new sandbox: a process that is started for it or waits in a pool, and is given the sandbox.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use micabox_disks::{Base, upper};
use micabox_error::{DiskProblem, Error};
use micabox_holders::{OwnProcess, send};
use micabox_owner::protocol::{Failure, Kind, Reply};
use micabox_owner::{Client, Lost, LostReason};
use micabox_parsers::Claim;
use micabox_spec::Upper;
use micabox_state::Registration;
use micabox_vmm::{Backend, Begin};
use micabox_wire::BootPart;
use rustix::io::Errno;
use tracing::debug;

use super::{OwnerLog, Start};
use crate::owner::{self, Job, Owner};
use crate::plan::Plan;
use crate::share;

/// The file in the sandbox's directory with its owner's log.
const OWNER_LOG: &str = "owner.log";

impl Start {
    /// Starts the owner, which starts the machine.
    pub(super) fn start_owner(
        &self,
        backend: &dyn Backend,
        plan: &Plan,
        claim: Option<&Claim>,
        begin: &Begin,
        cmdline: &[String],
        registration: &Registration,
    ) -> Result<Owner, Error> {
        let record = registration.record();
        let name = format!("mica-{}", record.short_id());
        let shares = share::open(&self.spec.setup)?;
        let (mut machine, mut files) = self.machine_job(name, backend, plan, begin, cmdline);
        let upper = match &self.spec.upper {
            Upper::Folder { path } => Some(self.open_folder(path, upper::folder::PATIENCE)?),
            _ => None,
        };
        machine.shares = self.share_jobs(&mut files, &shares, upper);
        let mut sandbox = self.sandbox_job(backend, plan, &shares, registration);
        sandbox.template = self.template_directory();
        sandbox.has_claim = claim.is_some();
        let job = Job::Sandbox(Box::new((sandbox, machine)));
        let claim = claim.map(|claim| &**claim.file());
        let locks = std::iter::once(registration.lock()).chain(claim);
        let log = self.owner_log(registration.path())?;
        let owner = owner::start(&job, locks.chain(files.iter()), log);
        let owner = owner.map_err(|source| Error::System {
            what: "starting the sandbox's owner",
            source,
        })?;
        debug!(
            pid = owner.process.as_ref().map(OwnProcess::id),
            is_restored = matches!(begin, Begin::Restore(_)),
            "started the owner"
        );
        self.cancel.watch(&owner.connection);
        Ok(owner)
    }

    /// Gives the sandbox to an owner in a pool, which has a machine for it.
    pub(super) fn give_to_owner(
        &self,
        backend: &dyn Backend,
        plan: &Plan,
        connection: UnixStream,
        template: &Path,
        registration: &Registration,
    ) -> Result<Owner, Error> {
        self.cancel.watch(&connection);
        let mut sandbox = self.sandbox_job(backend, plan, &[], registration);
        sandbox.template = Some(template.to_owned());
        // An error shows where the reply is awaited.
        let sent = send(&connection, &sandbox, [registration.lock()]);
        debug!(
            is_sent = sent.is_ok(),
            "gave the sandbox to an owner in the pool"
        );
        Ok(Owner {
            connection,
            process: None,
        })
    }

    /// Returns where the owner's log goes.
    fn owner_log(&self, directory: &Path) -> Result<Option<Stdio>, Error> {
        match self.owner_log {
            None => Ok(None),
            Some((_, OwnerLog::Stderr)) => Ok(Some(Stdio::inherit())),
            Some((_, OwnerLog::File)) => {
                let path = directory.join(OWNER_LOG);
                let mut options = File::options();
                let options = options.append(true).create(true).mode(0o600);
                let file = options.open(&path).map_err(|source| Error::State {
                    what: "opening",
                    path,
                    source,
                })?;
                Ok(Some(file.into()))
            }
        }
    }

    /// Makes the error about a guest that did not boot. What can't be mounted of an image of ours is damaged; a
    /// root disk may need what the kernel does not have.
    fn not_booted(&self, lost: Lost) -> Error {
        const NO_MEMORY: i32 = Errno::NOMEM.raw_os_error();
        match (&lost.reason, &self.base) {
            (LostReason::BootFailed(failed), _)
                if failed.part != BootPart::Root || failed.errno == NO_MEMORY =>
            {
                Error::Boot(lost)
            }
            (LostReason::BootFailed(_), Base::Image(_)) => Error::ImageNotMounted(lost),
            (LostReason::BootFailed(failed), Base::Disk(disk)) => Error::RootDisk {
                path: disk.disk().path.clone(),
                problem: DiskProblem::NotMounted(failed.to_string()),
            },
            _ => Error::Boot(lost),
        }
    }

    /// Waits until the sandbox is ready for commands.
    pub(super) fn wait_for_owner(
        &self,
        owner: Owner,
    ) -> Result<(Client, Option<OwnProcess>), Error> {
        let Owner {
            connection,
            mut process,
        } = owner;
        let lost = |_| Error::Boot(Lost::closed());
        let mut client = Client::over(connection).map_err(lost)?;
        let failure = match client.reply(0, None) {
            Ok(Some(Reply::Up(_))) => return Ok((client, process)),
            Ok(Some(Reply::Failed(failure))) => Some(failure),
            _ => None,
        };
        // The owner holds the sandbox's lock until it has exited.
        client.end();
        while let Ok(Some(_)) = client.receive(None) {}
        if let Some(process) = &mut process {
            process.wait();
        }
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Err(match failure {
            Some(Failure {
                lost: Some(lost), ..
            }) => self.not_booted(*lost),
            Some(failure) if failure.kind == Kind::Unsupported => {
                Error::NotPossible(failure.message)
            }
            Some(failure) if failure.kind == Kind::Unlimited => Error::NoLimits(failure.message),
            Some(failure) if failure.kind == Kind::Machine => {
                Error::MachineNotStarted(failure.message)
            }
            Some(failure) if failure.kind == Kind::InUse => Error::InUse(failure.message),
            Some(failure) => Error::NotStarted(failure.message),
            None => Error::Boot(Lost::closed()),
        })
    }
}
