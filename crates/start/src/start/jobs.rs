//! From a start's settings to the messages for an owner.

use std::convert::Infallible;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micabox_disks::upper;
use micabox_spec::{Machine, Upper};
use micabox_state::{Registration, SavedMachine, upper_disk, volume_disk};
use micabox_vmm::{Backend, Begin, Limits, Sockets};

use super::Start;
use super::record::choice_of;
use crate::mount;
use crate::owner::{Descriptors, MachineJob, Origin, SandboxJob, ShareJob};
use crate::plan::{Plan, ROOT_SERIAL};
use crate::share::{ONLY, Share, tag};

impl Start {
    /// Describes the machine to start, and returns its files.
    pub(super) fn machine_job(
        &self,
        name: String,
        backend: &dyn Backend,
        plan: &Plan,
        begin: &Begin,
        cmdline: &[String],
    ) -> (MachineJob, Descriptors) {
        let mut files = Descriptors::default();
        let origin = match begin {
            Begin::Boot { kernel, initrd } => Origin::Boot {
                kernel: files.file(kernel),
                initrd: files.file(initrd),
            },
            Begin::Restore(saved) => Origin::Restore {
                state: files.add(Arc::clone(&saved.state)),
                memory: files.add(Arc::clone(&saved.memory)),
                base: saved.base.clone().map(|base| files.add(base)),
                touched: saved.touched.clone().map(|list| files.add(list)),
            },
        };
        let mut file = |file| Ok::<_, Infallible>(files.file(&file));
        let pmem = plan.pmem.iter().cloned();
        let Ok(pmem) = pmem.map(|region| region.try_map(&mut file)).collect();
        let disks = plan.disks.iter().cloned();
        let Ok(disks) = disks.map(|disk| disk.try_map(&mut file)).collect();
        let trees = plan.trees.iter().cloned();
        let trees = trees.map(|tree| tree.map(|file| files.add(file))).collect();
        let spec = self.spec.machine;
        let machine = MachineJob {
            name,
            backend: choice_of(backend),
            origin,
            cmdline: cmdline.to_vec(),
            machine: Machine {
                memory_mib: spec.memory_mib.saturating_add(plan.pmem_overhead_mib()),
                cpus: Some(self.cpus(backend)),
                ..spec
            },
            pmem,
            disks,
            trees,
            store: self.store.root().to_owned(),
            has_network: self.spec.network.is_some(),
            vsock: self.sockets(),
            shares: Vec::new(),
            max_processes: self.spec.setup.pids_limit,
        };
        (machine, files)
    }

    /// Describes the machine's shares, and adds their folders to its files; with the one that its
    /// changes are in, if they are in a folder.
    pub(super) fn share_jobs(
        &self,
        files: &mut Descriptors,
        shares: &[Share],
        upper: Option<File>,
    ) -> Vec<ShareJob> {
        let upper = upper.map(|folder| ShareJob {
            tag: upper::folder::TAG.to_owned(),
            source: Some(files.add(Arc::new(folder))),
            read_only: false,
            cached: false,
            with_mounts: true,
            upper: true,
            only: None,
        });
        let shares = shares.iter().map(|share| ShareJob {
            tag: share.tag(),
            source: Some(files.add(Arc::clone(&share.source))),
            read_only: share.read_only,
            cached: share.cached,
            with_mounts: share.with_mounts,
            upper: false,
            only: share.is_file.then(|| ONLY.to_owned()),
        });
        let unused = (shares.len()..self.shares).map(|index| ShareJob {
            tag: tag(index),
            source: None,
            read_only: true,
            cached: false,
            with_mounts: true,
            upper: false,
            only: None,
        });
        shares.chain(unused).chain(upper).collect()
    }

    /// Describes the sandbox to own, without a root disk's lock and without a template.
    pub(super) fn sandbox_job(
        &self,
        backend: &dyn Backend,
        plan: &Plan,
        shares: &[Share],
        registration: &Registration,
    ) -> SandboxJob {
        let machine = self.machine().filter(|_| self.reattaches);
        SandboxJob {
            store: self.store.root().to_owned(),
            record: registration.record().clone(),
            is_restart: self.resumed.is_some() && !self.is_first,
            lowers: plan.lowers.clone(),
            upper: self.upper_for_guest(),
            main: machine.and_then(SavedMachine::main),
            setup: self.setup_for_guest(shares, &backend.limits()),
            template: None,
            stop_signal: self.stop_signal_for(&self.base.config()),
            disk: self.kept_file(registration.path()),
            has_sockets: self.sockets().is_some(),
            saves: self.saves(plan, backend),
            has_claim: false,
            log: self.owner_log.as_ref().map(|(filter, _)| filter.clone()),
        }
    }

    /// Returns the directory of the template that the sandbox starts from, if it does.
    pub(super) fn template_directory(&self) -> Option<PathBuf> {
        let template = self.origin.as_ref().filter(|origin| origin.name.is_none());
        template.map(|template| template.directory.clone())
    }

    /// Returns a file with something that the sandbox keeps: its changes, or a volume's disk. None
    /// if everything is in memory.
    fn kept_file(&self, directory: &Path) -> Option<PathBuf> {
        match &self.spec.upper {
            Upper::Tmpfs => {
                let volumes = self.spec.setup.volumes().into_iter();
                let mut written = volumes.filter(|used| !used.read_only);
                let written = written.next()?;
                Some(volume_disk(self.store.root(), &written.source.name))
            }
            Upper::Disk { .. } => Some(upper_disk(directory)),
            Upper::Folder { path } => Some(path.into()),
            Upper::InPlace => self.base.disk().map(|disk| disk.path.clone()),
        }
    }

    /// Returns what the guest sets up: what a saved machine has, it has already.
    fn setup_for_guest(&self, shares: &[Share], limits: &Limits) -> micabox_wire::Setup {
        let saved = self.machine().map(|machine| &machine.spec.setup);
        let user = match &self.spec.command {
            Some(command) => command.user.clone(),
            None => self.base.config().user().clone().unwrap_or_default(),
        };
        let setup = mount::for_guest(&self.spec.setup, saved, shares, &user);
        micabox_wire::Setup {
            // Without a kernel of its own, the machine's control group has the limit.
            max_processes: setup.max_processes.filter(|_| limits.own_kernel),
            ..setup
        }
    }

    /// Returns where the sandbox's vsock leads. A restored machine that had one keeps the device,
    /// which then leads nowhere unless a path is set.
    fn sockets(&self) -> Option<Sockets> {
        let has_some = |machine: &SavedMachine| machine.spec.vsock.is_some();
        match &self.spec.vsock {
            Some(path) => Some(Sockets::At(path.clone())),
            None if self.machine().is_some_and(has_some) => Some(Sockets::Nowhere),
            None => None,
        }
    }

    /// Converts where changes go for the guest.
    fn upper_for_guest(&self) -> micabox_wire::Upper {
        match &self.spec.upper {
            Upper::Tmpfs => micabox_wire::Upper::Tmpfs {
                size_bytes: None,
                patches: self.has_patches().then(|| upper::PATCHES_SERIAL.into()),
            },
            Upper::Disk { .. } => micabox_wire::Upper::Disk {
                serial: upper::SERIAL.into(),
            },
            Upper::Folder { .. } => micabox_wire::Upper::Share {
                tag: upper::folder::TAG.into(),
            },
            Upper::InPlace => micabox_wire::Upper::InPlace {
                serial: ROOT_SERIAL.into(),
            },
        }
    }
}
