//! Starts a sandbox from its builder: by a boot, or by restoring a saved machine.

use std::convert::Infallible;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_owner::protocol::{Failure, Kind, Reply};
use micabox_owner::{Client, Lost};
use micabox_vmm::{Backend, Begin, Disk, Limits, MachineFile, Sockets};
use tracing::{debug, info, info_span};

use super::record::default_cpus;
use super::{Origin, OwnerLog, Start};
use crate::base::Claim;
use crate::name::is_valid;
use crate::owner::{self, Descriptors, Job, Owner};
use crate::plan::{Plan, ROOT_SERIAL};
use crate::registrar::EXIT_NOT_STARTED;
use crate::sandbox::{Created, now};
use crate::snapshot::memory;
use crate::state::{Directory, ProcessId, Registration, Status};
use crate::template::Template;
use crate::{Base, Error, GuestFiles, Network, Patch, Sandbox, SavedMachine, Upper, patch, upper};

/// The file in the sandbox's directory with its owner's log.
const OWNER_LOG: &str = "owner.log";

/// How long a machine runs idle before it is saved as a template. Its kernel frees what the boot
/// has left when it is idle (RCU). Otherwise every copy would, which is a fifth of the pages that a
/// copy changes until its first output.
const AFTER_BOOT: Duration = Duration::from_millis(100);

/// A machine's devices and the saved machine to restore, if there is one: every file is open and
/// checked.
struct Planned {
    plan: Plan,
    /// The lock of a root disk.
    claim: Option<Claim>,
    saved: Option<micabox_vmm::Snapshot>,
}

impl Start {
    /// Starts the sandbox and waits until it is ready for commands.
    pub(super) fn create(self) -> Result<Sandbox, Error> {
        let begun = Instant::now();
        let _span = info_span!("create", base = %self.base.name()).entered();
        if let Some(name) = self.name.as_deref().filter(|name| !is_valid(name)) {
            return Err(Error::BadName(name.to_owned()));
        }
        if let Some(id) = &self.resumed {
            // The machine of a killed owner uses its files, and holds the lock of a root disk, until
            // it has ended.
            drop(Directory::open(self.store.root())?.hold(id)?);
        }
        let backend = micabox_vmm::expect(self.backend_choice)?;
        let guest = match &self.guest {
            Some(files) => files.clone(),
            None => GuestFiles::find()?,
        };
        // Keeps the image in the store until the sandbox has a lease on it.
        let shared = self.store.shared()?;
        self.check_in_place()?;
        let mut planned = self.plan(&*backend)?;
        let mut template = self.template(&planned.plan, &guest, &*backend);
        if let Some(template) = &template
            && let Some(machine) = template.machine()
            && let Ok(saved) = memory::open(template.directory())
        {
            // Keeps the template from being pruned meanwhile.
            let _kept = self.store.shared()?;
            let warm = Self {
                origin: Some(Origin {
                    name: None,
                    directory: template.directory().to_owned(),
                    machine: Some(machine),
                }),
                ..self.clone()
            };
            let planned = Planned {
                plan: planned.plan.clone(),
                claim: None,
                saved: Some(saved),
            };
            match warm.attempt(self.store.shared()?, &*backend, planned, &guest, begun) {
                // Saved on another processor, or damaged: the template is removed, and made again
                // after a boot.
                Err(Error::Boot(lost)) => {
                    debug!(error = %lost, "the template can't be restored: removed");
                    template.discard();
                }
                result => return result,
            }
        }
        // No machine has run here yet, or not like this.
        let tried = micabox_vmm::choose(self.backend_choice)?;
        if tried.name() != backend.name() {
            // A root disk is locked once.
            drop(planned);
            planned = self.plan(&*tried)?;
            template = self.template(&planned.plan, &guest, &*tried);
        }
        let sandbox = self.attempt(shared, &*tried, planned, &guest, begun)?;
        if let Some(template) = template {
            template.make(|directory| {
                std::thread::sleep(AFTER_BOOT);
                sandbox.save(directory)
            });
        }
        Ok(sandbox)
    }

    /// Plans the machine's devices, and opens and checks the files that it needs.
    fn plan(&self, backend: &dyn Backend) -> Result<Planned, Error> {
        let saved = self.saved_machine(backend)?;
        let limits = backend.limits();
        let (plan, claim) = self.base.plan(self.transport, self.root, &limits)?;
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
    fn template(&self, plan: &Plan, guest: &GuestFiles, backend: &dyn Backend) -> Option<Template> {
        let is_new = self.origin.is_none() && self.resumed.is_none();
        if self.cold
            || self.nested_virtualization
            || !is_new
            || !self.patches.is_empty()
            || !backend.limits().snapshots
        {
            return None;
        }
        let settings = serde_json::json!({
            "memory": self.memory_mib,
            "cpus": self.cpus.unwrap_or_else(|| default_cpus(backend)),
            "upper": self.upper,
            "init": format!("{:?}", self.init),
            "network": matches!(self.network, Network::User(_)),
            "vsock": self.vsock.is_some(),
        });
        let Base::Image(image) = &self.base else {
            return None;
        };
        Template::place(self.store.root(), image, plan, guest, &settings)
    }

    /// Starts the sandbox by a boot or a restore. `shared` keeps the image in the store until the
    /// sandbox's lease does.
    fn attempt(
        &self,
        shared: impl Sized,
        backend: &dyn Backend,
        mut planned: Planned,
        guest: &GuestFiles,
        begun: Instant,
    ) -> Result<Sandbox, Error> {
        let begin = match planned.saved.take() {
            Some(saved) => Begin::Restore(saved),
            None => Begin::Boot {
                kernel: MachineFile::open(&guest.kernel)?,
                initrd: MachineFile::open(&guest.initrd)?,
            },
        };
        let plan = &mut planned.plan;
        let mut registration = self.register(plan, backend)?;
        if let Base::Image(image) = &self.base {
            let id = &registration.record().id;
            self.store.lease(id, &image.manifest_digest)?;
        }
        drop(shared);
        let started = plan
            .write_files(registration.path())
            .and_then(|()| self.attach_upper(plan, registration.path(), &backend.limits()))
            .and_then(|()| self.start_owner(backend, &planned, &begin, guest, &registration));
        let duration = begun.elapsed();
        // The owner has the files.
        drop((planned.plan, begin));
        let created = started.and_then(|owner| self.wait_for_owner(owner));
        let (client, process) = match created {
            Ok(created) => created,
            Err(error) => {
                if self.resumed.is_some() {
                    let message = error.to_string();
                    registration.update(|record| {
                        record.status = Status::Exited {
                            code: EXIT_NOT_STARTED,
                            at: now().0,
                            error: Some(message),
                        };
                    })?;
                }
                return Err(error);
            }
        };
        let (record, directory) = (
            registration.record().clone(),
            registration.path().to_owned(),
        );
        info!(
            id = record.short_id(),
            name = record.name,
            ms = begun.elapsed().as_millis() as u64,
            "the sandbox runs"
        );
        // The registration and the claim are the owner's now.
        registration.hand_over();
        if let Some(claim) = planned.claim {
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

    /// Checks that in-place changes and a root disk that is written to go together, without
    /// patches.
    fn check_in_place(&self) -> Result<(), Error> {
        let is_in_place = self.base.disk().is_some_and(|disk| disk.in_place);
        match (is_in_place, self.upper) {
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
        let has_network = |network: &Network| matches!(network, Network::User(_));
        match (
            has_network(&machine.spec.network),
            has_network(&self.network),
        ) {
            (true, false) => return Err(differs("has a network, which can't be removed")),
            (false, true) => return Err(differs("has no network, and none can be added")),
            _ => {}
        }
        if self.vsock.is_some() && machine.spec.vsock.is_none() {
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
                record.transport = plan.transport;
                record.root = plan.root;
                record.owner = ProcessId::own();
                record.creator = ProcessId::own();
                record.machine = None;
                record.status = Status::Starting;
            }),
        }
    }

    /// Adds a disk to the plan: the disk for changes, or the layer of patches of a sandbox whose
    /// changes are in memory.
    fn attach_upper(
        &self,
        plan: &mut Plan,
        directory: &Path,
        limits: &Limits,
    ) -> Result<(), Error> {
        let (path, size, serial) = match self.upper {
            Upper::Disk { size } => (upper::disk(directory), size, upper::SERIAL),
            Upper::Tmpfs if !self.patches.is_empty() => {
                let contents = self.patches.iter().map(Patch::size);
                let contents = contents.sum::<Result<u64, Error>>()?;
                // The file is sparse, so ample room costs nothing.
                let size = contents.saturating_mul(2).saturating_add(256 << 20);
                (upper::patches(directory), size, upper::PATCHES_SERIAL)
            }
            Upper::Tmpfs | Upper::InPlace => return Ok(()),
        };
        // A sandbox that is started again has its disk already.
        if self.resumed.is_none() {
            debug!(size, is_copy = self.origin.is_some(), "making the disk");
            match &self.origin {
                None => upper::make_disk(&path, size, random()?)?,
                Some(origin) => upper::copy_disk(&memory::disk(&origin.directory), &path)?,
            }
            if !self.patches.is_empty() {
                patch::apply(&path, &self.base, &self.patches)?;
            }
        }
        let read_only = self.upper == Upper::Tmpfs;
        let file = if read_only {
            MachineFile::open(&path)?
        } else {
            MachineFile::open_for_writing(&path)?
        };
        let disk = Disk {
            files: vec![file],
            read_only,
            serial: serial.into(),
        };
        Ok(plan.add_disk(disk, limits)?)
    }

    /// Starts the owner, which starts the machine.
    fn start_owner(
        &self,
        backend: &dyn Backend,
        planned: &Planned,
        begin: &Begin,
        guest: &GuestFiles,
        registration: &Registration,
    ) -> Result<Owner, Error> {
        let Planned { plan, claim, .. } = planned;
        let mut files = Descriptors::default();
        let origin = match begin {
            Begin::Boot { kernel, initrd } => owner::Origin::Boot {
                kernel: files.file(kernel),
                initrd: files.file(initrd),
            },
            Begin::Restore(saved) => owner::Origin::Restore {
                state: files.add(Arc::clone(&saved.state)),
                memory: files.add(Arc::clone(&saved.memory)),
                touched: saved.touched.clone().map(|list| files.add(list)),
                main: self
                    .machine()
                    .filter(|_| self.reattaches)
                    .and_then(|machine| machine.main),
            },
        };
        let template = self.origin.as_ref().filter(|origin| origin.name.is_none());
        let learns = match begin {
            Begin::Restore(saved) if saved.touched.is_none() => template,
            _ => None,
        };
        let mut file = |file| Ok::<_, Infallible>(files.file(&file));
        let pmem = plan.pmem.iter().cloned();
        let Ok(pmem) = pmem.map(|region| region.try_map(&mut file)).collect();
        let disks = plan.disks.iter().cloned();
        let Ok(disks) = disks.map(|disk| disk.try_map(&mut file)).collect();
        let job = Job {
            store: self.store.root().to_owned(),
            disk: self.kept_file(registration.path()),
            record: registration.record().clone(),
            auto_remove: self.auto_remove,
            is_restart: self.resumed.is_some(),
            is_kvm: backend.name() == "kvm",
            origin,
            cmdline: guest.cmdline.clone(),
            memory_mib: self.memory_mib.saturating_add(plan.pmem_overhead_mib()),
            pmem,
            disks,
            lowers: plan.lowers.clone(),
            upper: self.upper_for_guest(),
            init: self.init,
            hostname: self.hostname.clone(),
            network: self.network.clone(),
            vsock: self.sockets(),
            nested_virtualization: self.nested_virtualization,
            require_limits: self.require_limits,
            learns: learns.map(|template| template.directory.clone()),
            boot_timeout: self.boot_timeout,
            stop_signal: self.stop_signal_for(&self.base.config()),
            saves: self.saves(plan, backend),
            has_claim: claim.is_some(),
            log: self.owner_log.as_ref().map(|(filter, _)| filter.clone()),
        };
        let claim = claim.as_ref().map(|claim| &**claim.file());
        let stderr = self.owner_stderr(registration.path())?;
        let owner = owner::start(&job, registration.lock(), claim, &files, stderr);
        let owner = owner.map_err(|source| Error::System {
            what: "starting the sandbox's owner",
            source,
        })?;
        debug!(
            pid = owner.process.id(),
            is_restored = matches!(begin, Begin::Restore(_)),
            "started the owner"
        );
        self.cancel.watch(&owner.connection);
        Ok(owner)
    }

    /// Returns where the owner's log goes.
    fn owner_stderr(&self, directory: &Path) -> Result<Stdio, Error> {
        match self.owner_log {
            None => Ok(Stdio::null()),
            Some((_, OwnerLog::Stderr)) => Ok(Stdio::inherit()),
            Some((_, OwnerLog::File)) => {
                let path = directory.join(OWNER_LOG);
                let mut options = File::options();
                let options = options.append(true).create(true).mode(0o600);
                let file = options.open(&path).map_err(|source| Error::State {
                    what: "opening",
                    path,
                    source,
                })?;
                Ok(file.into())
            }
        }
    }

    /// Waits until the sandbox is ready for commands.
    fn wait_for_owner(&self, owner: Owner) -> Result<(Client, Child), Error> {
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
        let _ = process.wait();
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Err(match failure {
            Some(Failure {
                lost: Some(lost), ..
            }) => Error::Boot(*lost),
            Some(failure) if failure.kind == Kind::Machine => {
                Error::MachineNotStarted(failure.message)
            }
            Some(failure) => Error::NotStarted(failure.message),
            None => Error::Boot(Lost::closed()),
        })
    }

    /// Returns the file with the changes that the sandbox keeps; none if they are in memory.
    fn kept_file(&self, directory: &Path) -> Option<PathBuf> {
        match self.upper {
            Upper::Tmpfs => None,
            Upper::Disk { .. } => Some(upper::disk(directory)),
            Upper::InPlace => self.base.disk().map(|disk| disk.path.clone()),
        }
    }

    /// Returns where the sandbox's vsock leads. A restored machine that had one keeps the device,
    /// which then leads nowhere unless a path is set.
    fn sockets(&self) -> Option<Sockets> {
        let has_some = |machine: &SavedMachine| machine.spec.vsock.is_some();
        match &self.vsock {
            Some(path) => Some(Sockets::At(path.clone())),
            None if self.machine().is_some_and(has_some) => Some(Sockets::Nowhere),
            None => None,
        }
    }

    /// Converts where changes go for the guest.
    fn upper_for_guest(&self) -> micabox_wire::Upper {
        match self.upper {
            Upper::Tmpfs => micabox_wire::Upper::Tmpfs {
                size_bytes: None,
                patches: (!self.patches.is_empty()).then(|| upper::PATCHES_SERIAL.into()),
            },
            Upper::Disk { .. } => micabox_wire::Upper::Disk {
                serial: upper::SERIAL.into(),
            },
            Upper::InPlace => micabox_wire::Upper::InPlace {
                serial: ROOT_SERIAL.into(),
            },
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
    use crate::base::{OpenDisk, RootDisk};

    #[test]
    fn changes_in_place_need_a_writable_root_disk() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let check = |in_place, upper| {
            let path = directory.path().join("root.ext4");
            std::fs::write(&path, b"").unwrap();
            let disk = RootDisk {
                path: path.clone(),
                format: crate::Format::Ext4,
                in_place,
                size: 16 << 20,
                uuid: [1; 16],
                unmapped: None,
                modified: (0, 0),
            };
            let file = MachineFile::open(&path).unwrap();
            let disk = OpenDisk { disk, file };
            let start = Start::on(&store, Base::Disk(disk));
            Start { upper, ..start }.check_in_place()
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
