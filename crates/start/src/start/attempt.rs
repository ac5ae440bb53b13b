//! An attempt to start a sandbox: from its record to a sandbox that is ready for commands.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use micabox_disks::{Base, mounted_images};
use micabox_error::Error;
use micabox_ground::clock;
use micabox_parsers::Claim;
use micabox_state::{Directory, ProcessId, Record, Registration, Status};
use micabox_vmm::{Backend, Begin};
use tracing::info;

use super::Start;
use crate::creator::{Creator, Started};
use crate::plan::Plan;
use crate::registrar::EXIT_NOT_STARTED;

/// Where a sandbox's machine comes from.
pub(super) enum Machine<'a> {
    /// The sandbox's owner starts it, and additional words for the kernel's command line.
    Owned { begin: Begin, cmdline: &'a [String] },
    /// An owner in a pool has started it from a template.
    Pooled {
        connection: UnixStream,
        template: &'a Path,
    },
}

impl Start {
    /// Starts the sandbox with `machine`. `shared` keeps the image in the store until the sandbox's
    /// lease does.
    pub(super) fn attempt(
        &self,
        shared: impl Sized,
        backend: &dyn Backend,
        mut plan: Plan,
        claim: Option<Claim>,
        machine: Machine<'_>,
        begun: Instant,
    ) -> Result<Creator, Error> {
        let limits = backend.limits();
        let (registered, trees) = self.hold_trees(&limits, || {
            let registration = self.register(&plan, backend)?;
            self.lease(registration.record())?;
            Ok::<_, Error>(registration)
        });
        let mut registration = registered?;
        drop(shared);
        let started = match machine {
            Machine::Pooled {
                connection,
                template,
            } => self.give_to_owner(backend, &plan, connection, template, &registration),
            Machine::Owned { begin, cmdline } => plan
                .write_files(registration.path())
                .and_then(|()| self.attach_upper(&mut plan, registration.path(), &limits))
                .and_then(|()| {
                    if limits.own_kernel {
                        self.attach_disks(&mut plan, &limits)
                    } else {
                        Ok(plan.add_trees(trees?, &limits)?)
                    }
                })
                .and_then(|()| {
                    self.start_owner(
                        backend,
                        &plan,
                        claim.as_ref(),
                        &begin,
                        cmdline,
                        &registration,
                    )
                }),
        };
        let duration = begun.elapsed();
        // The owner has the files.
        drop(plan);
        let created = started.and_then(|owner| self.wait_for_owner(owner));
        let (client, process) = match created {
            Ok(created) => created,
            Err(error) => {
                self.has_failed(&mut registration, &error)?;
                return Err(error);
            }
        };
        let (mut record, directory) = (
            registration.record().clone(),
            registration.path().to_owned(),
        );
        if !record.published.is_empty()
            && let Some(written) = registration.written()
        {
            record.published = written.published;
        }
        info!(
            id = record.short_id(),
            name = record.name,
            ms = begun.elapsed().as_millis() as u64,
            "the sandbox runs"
        );
        // The registration and the claim are the owner's now.
        registration.hand_over();
        if let Some(claim) = claim {
            claim.hand_over();
        }
        let config = self.base.config();
        let started = Started {
            directory,
            record,
            stop_signal: self.stop_signal_for(&config),
            config,
            planned: duration,
        };
        Creator::new(client, process, started)
    }

    /// Records that a sandbox that existed before did not start.
    fn has_failed(&self, registration: &mut Registration, error: &Error) -> Result<(), Error> {
        if self.resumed.is_none() {
            return Ok(());
        }
        let status = if self.is_first {
            Status::Created
        } else {
            Status::Exited {
                code: EXIT_NOT_STARTED,
                at: clock::now_as_parts().0,
                error: Some(error.to_string()),
            }
        };
        registration.update(|record| record.status = status)?;
        // Its owner has released the images.
        if self.is_first {
            self.lease(registration.record())
        } else {
            Ok(())
        }
    }

    /// Leases the images that the sandbox uses: for as long as it runs, if a crash of this machine leaves
    /// nothing of it.
    pub(super) fn lease(&self, record: &Record) -> Result<(), Error> {
        let mut manifests = mounted_images(&self.spec.setup)?;
        if let Base::Image(image) = &self.base {
            manifests.push(image.manifest_digest);
        }
        if manifests.is_empty() {
            return Ok(());
        }
        if record.can_start() {
            self.store.lease(&record.id, &manifests)?;
        } else {
            self.store.lease_until_crash(&record.id, &manifests)?;
        }
        Ok(())
    }

    /// Makes the record, or takes over the record of a sandbox that is started again. If a later
    /// step fails, dropping a new registration leaves nothing behind.
    fn register(&self, plan: &Plan, backend: &dyn Backend) -> Result<Registration, Error> {
        let directory = Directory::open(self.store.root())?;
        match &self.resumed {
            None => directory.register(self.name.as_deref(), self.record(plan, backend)?),
            Some(id) => directory.resume(id, |record| {
                // Counts for later starts as well; all else that can be set counts for this one.
                record.spec.boot_timeout = self.spec.boot_timeout;
                record.transport = plan.transport;
                record.root = plan.root;
                record.owner = ProcessId::own();
                record.creator = ProcessId::own();
                record.machine = None;
                record.published = self.spec.network.published().to_vec();
                record.status = Status::Starting;
            }),
        }
    }
}
