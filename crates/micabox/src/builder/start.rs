//! Starts a sandbox from its builder: by a boot, or by restoring a saved machine.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_vmm::{Backend, Begin, MachineFile};
use tracing::{debug, info, info_span};

use super::{Origin, Start};
use crate::base::{Claim, mounted_images};
use crate::plan::Plan;
use crate::pool;
use crate::registrar::EXIT_NOT_STARTED;
use crate::sandbox::{Created, now};
use crate::snapshot::memory;
use crate::state::{Directory, ProcessId, Record, Registration, Status};
use crate::template::Template;
use crate::{Base, Error, GuestFiles, Network, Sandbox, SavedMachine, Setup, Upper};

/// How long a machine runs idle before it is saved as a template. Its kernel frees what the boot
/// has left when it is idle (RCU). Otherwise every copy would, which is a fifth of the pages that a
/// copy changes until its first output.
const AFTER_BOOT: Duration = Duration::from_millis(100);

/// A machine's devices and the saved machine to restore, if there is one: every file is open and
/// checked.
pub(super) struct Planned {
    pub(super) plan: Plan,
    /// The lock of a root disk.
    pub(super) claim: Option<Claim>,
    saved: Option<micabox_vmm::Snapshot>,
}

/// Where a sandbox's machine comes from.
enum Machine<'a> {
    /// The sandbox's owner starts it, and additional words for the kernel's command line.
    Owned { begin: Begin, cmdline: &'a [String] },
    /// An owner in a pool has started it from a template.
    Pooled {
        connection: UnixStream,
        template: &'a Path,
    },
}

impl Start {
    /// Starts the sandbox and waits until it is ready for commands.
    pub(super) fn create(self) -> Result<Sandbox, Error> {
        let begun = Instant::now();
        let _span = info_span!("create", base = %self.base.name()).entered();
        self.check()?;
        if let Some(id) = &self.resumed {
            // The machine of a killed owner uses its files, and holds the lock of a root disk, until
            // it has ended.
            drop(Directory::open(self.store.root())?.hold_for_start(id)?);
        }
        let mut backend = micabox_vmm::expect(self.spec.backend)?;
        let guest = match &self.guest {
            Some(files) => files.clone(),
            None if backend.limits().own_kernel => GuestFiles::find()?,
            None => GuestFiles::find_agent()?,
        };
        // Keeps the image in the store until the sandbox has a lease on it.
        let shared = self.store.shared()?;
        let mut planned = self.plan(&*backend)?;
        let mut template = self.template(&planned.plan, &guest, &*backend);
        if let Some(template) = &template
            && self.can_be_pooled()
            && let Some(connection) = pool::claim(self.store.root(), template)
        {
            let plan = planned.plan.clone();
            let pooled = Machine::Pooled {
                connection,
                template: template.directory(),
            };
            match self.attempt(self.store.shared()?, &*backend, plan, None, pooled, begun) {
                // The pool had none left, or its machine has ended.
                Err(Error::Boot(lost)) => {
                    debug!(error = %lost, "no machine from the pool")
                }
                result => return result,
            }
        }
        if let Some(template) = &template
            && self.spec.setup != Setup::default()
            && template.machine().is_none()
            && micabox_vmm::choose(self.spec.backend)?.name() == backend.name()
        {
            // A template has nothing of one sandbox's own: one without a setup makes it.
            debug!("making the template");
            drop(self.bare().create()?);
        }
        if let Some(template) = &template
            && let Some(machine) = template.machine()
            && let Ok(saved) = memory::open(template.directory())
        {
            // Keeps the template from being pruned meanwhile.
            let _kept = self.store.shared()?;
            let warm = self.with_template(template, machine);
            let restored = Machine::Owned {
                begin: Begin::Restore(saved),
                cmdline: &guest.cmdline,
            };
            let plan = planned.plan.clone();
            match warm.attempt(self.store.shared()?, &*backend, plan, None, restored, begun) {
                // Saved on another processor, or damaged: the template is removed, and made again
                // after a boot.
                Err(Error::Boot(lost)) => {
                    debug!(error = %lost, "the template can't be restored: removed");
                    template.discard();
                }
                result => return result,
            }
        }
        // A machine that was saved has run here. Otherwise none may have, or not like this.
        if self.machine().is_none() {
            let tried = micabox_vmm::choose(self.spec.backend)?;
            if tried.name() != backend.name() {
                // A root disk is locked once.
                drop(planned);
                planned = self.plan(&*tried)?;
                template = self.template(&planned.plan, &guest, &*tried);
            }
            backend = tried;
        }
        let Planned { plan, claim, saved } = planned;
        let begin = match saved {
            Some(saved) => Begin::Restore(saved),
            None => Begin::Boot {
                // The host backend reads only the agent's file.
                kernel: MachineFile::open(if backend.limits().own_kernel {
                    &guest.kernel
                } else {
                    &guest.initrd
                })?,
                initrd: MachineFile::open(&guest.initrd)?,
            },
        };
        let machine = Machine::Owned {
            begin,
            cmdline: &guest.cmdline,
        };
        let sandbox = self.attempt(shared, &*backend, plan, claim, machine, begun)?;
        if let Some(template) = template.filter(|_| self.spec.setup == Setup::default()) {
            template.make(|directory| {
                std::thread::sleep(AFTER_BOOT);
                sandbox.save(directory)
            });
        }
        Ok(sandbox)
    }

    /// Returns a start of a sandbox with the same machine, which has nothing else of this one.
    fn bare(&self) -> Self {
        Self {
            name: None,
            spec: self.spec.bare(),
            shares: self.shares(),
            ..self.clone()
        }
    }

    /// Returns how many virtio-fs devices the machine has.
    fn shares(&self) -> usize {
        self.shares.max(self.spec.setup.shares())
    }

    /// Returns the same start, from a template.
    pub(super) fn with_template(&self, template: &Template, machine: SavedMachine) -> Self {
        Self {
            origin: Some(Origin {
                name: None,
                directory: template.directory().to_owned(),
                machine: Some(machine),
            }),
            ..self.clone()
        }
    }

    /// Plans the machine's devices, and opens and checks the files that it needs.
    pub(super) fn plan(&self, backend: &dyn Backend) -> Result<Planned, Error> {
        let saved = self.saved_machine(backend)?;
        let limits = backend.limits();
        if !limits.own_kernel {
            self.check_for_shared_kernel()?;
        }
        let (plan, claim) = self
            .base
            .plan(self.spec.transport, self.spec.root, &limits)?;
        debug!(
            backend = backend.name(),
            transport = %plan.transport,
            reason = plan.reason.as_deref(),
            root = %plan.root,
            regions = plan.pmem.len(),
            disks = plan.disks.len(),
            "planned the machine"
        );
        Ok(Planned { plan, claim, saved })
    }

    /// Returns the place of the template for machines like this one, if there can be one.
    pub(super) fn template(
        &self,
        plan: &Plan,
        guest: &GuestFiles,
        backend: &dyn Backend,
    ) -> Option<Template> {
        // The disk of one that was created without a start may have been written to.
        let is_fresh = self.resumed.is_none() || self.is_first && self.spec.upper == Upper::Tmpfs;
        let is_new = self.origin.is_none() && is_fresh;
        if self.spec.cold
            || self.spec.machine.nested_virtualization
            || !is_new
            || self.has_patches()
            // The overlay is in a template's machine, with its upper layer.
            || matches!(self.spec.upper, Upper::Folder { .. })
            || self.spec.setup.has_disks()
            || !backend.limits().snapshots
        {
            return None;
        }
        let settings = self.spec.in_template(self.cpus(backend), self.shares());
        let Base::Image(image) = &self.base else {
            return None;
        };
        Template::place(self.store.root(), image, plan, guest, &settings)
    }

    /// Starts the sandbox with `machine`. `shared` keeps the image in the store until the sandbox's
    /// lease does.
    fn attempt(
        &self,
        shared: impl Sized,
        backend: &dyn Backend,
        mut plan: Plan,
        claim: Option<Claim>,
        machine: Machine<'_>,
        begun: Instant,
    ) -> Result<Sandbox, Error> {
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
        Sandbox::new(Created {
            client,
            process,
            directory,
            record,
            stop_signal: self.stop_signal_for(&config),
            config,
            planned: duration,
        })
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
                at: now().0,
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

    /// Checks that in-place changes and a root disk that is written to go together, without
    /// patches.
    pub(super) fn check_in_place(&self) -> Result<(), Error> {
        let is_in_place = self.base.disk().is_some_and(|disk| disk.in_place);
        match (is_in_place, &self.spec.upper) {
            (false, Upper::InPlace) => Err(Error::NoPlace),
            (false, _) => Ok(()),
            (true, Upper::InPlace) if self.patches.is_empty() => Ok(()),
            (true, Upper::InPlace) => Err(Error::NotInPlace("a change before the start")),
            (true, _) => Err(Error::NotInPlace("an upper layer")),
        }
    }

    /// Opens the snapshot's machine, if there is one, and checks it and whether it can be restored
    /// with these settings.
    fn saved_machine(&self, backend: &dyn Backend) -> Result<Option<micabox_vmm::Snapshot>, Error> {
        let Some(Origin {
            name: Some(name),
            directory,
            machine: Some(machine),
        }) = &self.origin
        else {
            return Ok(None);
        };
        if !backend.limits().snapshots {
            let backend = backend.name();
            return Err(micabox_vmm::Error::NoSnapshots { backend }.into());
        }
        let differs = |problem| Error::SnapshotDiffers {
            name: name.clone(),
            problem,
        };
        let networks = [&machine.spec.network, &self.spec.network];
        match networks.map(Network::is_some).into() {
            (true, false) => return Err(differs("has a network, which can't be removed")),
            (false, true) => return Err(differs("has no network, and none can be added")),
            _ => {}
        }
        if self.spec.vsock.is_some() && machine.spec.vsock.is_none() {
            return Err(differs("has no sockets (vsock), and none can be added"));
        }
        if self.reattaches && machine.main.is_none() {
            return Err(Error::NothingRuns(name.clone()));
        }
        memory::open_checked(name, directory, machine).map(Some)
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

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        what: "reading random bytes",
        source: error.into(),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use micabox_image::Store;

    use super::*;
    use crate::base::OpenDisk;

    #[test]
    fn changes_in_place_need_a_writable_root_disk() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let check = |in_place, upper| {
            let path = directory.path().join("root.ext4");
            std::fs::write(&path, b"").unwrap();
            let disk = OpenDisk::of_any(&path, in_place);
            let mut start = Start::on(&store, Base::Disk(disk));
            start.spec.upper = upper;
            start.check_in_place()
        };
        assert!(matches!(check(false, Upper::InPlace), Err(Error::NoPlace)));
        assert!(matches!(
            check(true, Upper::Tmpfs),
            Err(Error::NotInPlace(_))
        ));
        check(true, Upper::InPlace).unwrap();
        check(false, Upper::Tmpfs).unwrap();
    }
}
