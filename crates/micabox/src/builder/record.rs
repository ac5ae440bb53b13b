//! What is recorded of a start: the sandbox's record, and the settings for later starts and copies.

use micabox_net::Publish;
use micabox_vmm::{Acceleration, Backend, BackendChoice};
use oci_spec::image::Config;

use super::{Start, random};
use crate::plan::Plan;
use crate::sandbox::now;
use crate::state::{ID_LENGTH, ProcessId, Record, Status};
use crate::{Command, Error, Network, Overrides, Spec, Upper, signal_number};

/// Most virtual processors that a sandbox gets by default.
const MOST_CPUS: usize = 4;

impl Start {
    /// Makes the record of a start. `auto_remove` is set, so that a failed start leaves no record.
    pub(super) fn record(&self, plan: &Plan, backend: &dyn Backend) -> Result<Record, Error> {
        // The settings of a specification are recorded with that, for those sandboxes that start again.
        let Self {
            store: _, // where the record is
            base,
            name: _,     // given when it is registered, which finds one that is free
            hostname: _, // of the specification
            memory_mib,
            cpus,
            cpu_quota,
            disk_rate,
            transport: _, // what was asked for is of the specification
            root: _,
            init: _, // of the specification
            upper,
            setup,
            shares: _,     // of the machine of this start
            command: _,    // of the specification, and of the defaults
            patches: _,    // a file of the sandbox
            origin: _,     // of this start
            cold: _,       // of the specification
            reattaches: _, // of this start
            resumed: _,    // has a record
            is_first: _,
            is_patched: _,
            labels,
            auto_remove: _, // of the specification, until the start has succeeded
            stop_signal: _, // of the specification
            network: _,     // of the specification
            vsock: _,       // of the specification
            nested_virtualization: _, // of the specification
            require_limits: _, // of the specification
            expiry: _,      // of the specification
            boot_timeout: _, // of the specification
            description,
            backend_choice: _, // of the specification
            guest: _,          // of this version of the program
            owner_log: _,      // of this start
            cancel: _,         // of this start
        } = self;
        let id = random::<{ ID_LENGTH / 2 }>()?;
        let creator = ProcessId::own();
        let (created, created_nanos) = now();
        Ok(Record {
            id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
            name: String::new(),
            base: base.name(),
            command: description.clone(),
            created,
            created_nanos,
            memory_mib: *memory_mib,
            cpus: cpus.unwrap_or_else(|| default_cpus(backend)),
            cpu_quota: *cpu_quota,
            disk_rate: *disk_rate,
            transport: plan.transport,
            root: plan.root,
            upper: upper.clone(),
            setup: setup.clone(),
            backend: choice_of(backend),
            spec: self.spec(),
            defaults: Some(self.defaults()?),
            labels: labels.clone(),
            published: self.published(),
            auto_remove: true,
            owner: creator,
            creator,
            machine: None,
            status: Status::Starting,
        })
    }

    /// Returns the ports to publish, 0 for any of the host's.
    pub(super) fn published(&self) -> Vec<Publish> {
        match &self.network {
            Network::None => Vec::new(),
            Network::User(user) => user.publish.clone(),
        }
    }

    /// Returns the first command, or that of the sandbox that this one is a copy of.
    fn original_command(&self) -> Option<Command> {
        let of_copy = || {
            let origin = self.origin.as_ref()?;
            origin.name.as_ref()?;
            Some(origin.machine.as_ref()?.spec.command.clone())
        };
        self.command.clone().or_else(of_copy)
    }

    /// Returns what commands have unless told otherwise.
    pub(super) fn defaults(&self) -> Result<Command, Error> {
        let command = match self.original_command() {
            Some(command) => command,
            None => Command::in_image(&self.base.config(), &Overrides::default())?,
        };
        Ok(Command {
            argv: Vec::new(),
            // It is the sandbox's own.
            make_workdir: true,
            ..command
        })
    }

    /// Returns the settings that a copy of this sandbox must have as well, or why it can't be
    /// copied.
    pub(super) fn saves(&self, plan: &Plan, backend: &dyn Backend) -> Result<Spec, String> {
        if !backend.limits().snapshots {
            let backend = backend.name();
            return Err(micabox_vmm::Error::NoSnapshots { backend }.to_string());
        }
        if self.upper == Upper::Tmpfs && self.has_patches() {
            return Err("its patches are no longer in a file (run it with `--upper disk`)".into());
        }
        if let Upper::Folder { path } = &self.upper {
            return Err(format!(
                "its changes are in the folder {path}, which one sandbox has"
            ));
        }
        if self.setup.shares() > 0 {
            return Err("it shares folders of this machine, which another one would change".into());
        }
        if self.nested_virtualization {
            return Err("it may run virtual machines of its own (--nested-virtualization)".into());
        }
        if self.setup.volumes().iter().any(|used| !used.read_only) {
            return Err("it writes to a volume, which has one writer".into());
        }
        if self.base.disk().is_some() {
            return Err("its root is a disk of yours, which may change".into());
        }
        let command = self.original_command();
        let nothing = || Command::new(Vec::<String>::new());
        Ok(Spec {
            transport: plan.transport,
            root: plan.root,
            network: self.network.unpublished(),
            ..self.spec_of(command.unwrap_or_else(nothing))
        })
    }

    /// Returns the settings for a later start; none if the sandbox can't be started again.
    fn spec(&self) -> Option<Spec> {
        let command = self.command.clone().filter(|_| self.upper.is_kept())?;
        Some(self.spec_of(command))
    }

    /// Returns the specification with this command: what no field of a record has by itself.
    pub(super) fn spec_of(&self, command: Command) -> Spec {
        let Self {
            store: _,
            base: _,
            name: _,
            hostname,
            memory_mib: _,
            cpus: _,
            cpu_quota: _,
            disk_rate: _,
            transport,
            root,
            init,
            upper: _,
            setup: _,
            shares: _, // of the machine of this start
            command: _,
            patches: _,
            origin: _, // another start boots, or has its own
            cold,
            reattaches: _, // of this start
            resumed: _,
            is_first: _,
            is_patched: _,
            labels: _,
            auto_remove,
            stop_signal,
            network,
            vsock,
            nested_virtualization,
            require_limits,
            expiry,
            boot_timeout,
            description: _,
            backend_choice,
            guest: _,     // of this version of the program
            owner_log: _, // of this start
            cancel: _,    // of this start
        } = self;
        Spec {
            command,
            hostname: hostname.clone(),
            transport: *transport,
            root: *root,
            init: *init,
            stop_signal: *stop_signal,
            network: network.clone(),
            vsock: vsock.clone(),
            nested_virtualization: *nested_virtualization,
            require_limits: *require_limits,
            expiry: *expiry,
            boot_timeout: *boot_timeout,
            backend: *backend_choice,
            cold: *cold,
            auto_remove: *auto_remove,
        }
    }

    pub(super) fn stop_signal_for(&self, config: &Config) -> i32 {
        self.stop_signal
            .or_else(|| signal_number(config.stop_signal().as_deref()?))
            .unwrap_or(libc::SIGTERM)
    }
}

/// Returns how many virtual processors a sandbox has unless it is told otherwise, with this choice of a backend.
pub fn default_cpus_of(choice: BackendChoice) -> u8 {
    micabox_vmm::expect(choice).map_or(1, |backend| default_cpus(&*backend))
}

/// Returns the choice that names a backend.
pub(super) fn choice_of(backend: &dyn Backend) -> BackendChoice {
    match backend.name() {
        "kvm" => BackendChoice::Kvm,
        "host" => BackendChoice::Host,
        _ => BackendChoice::Qemu,
    }
}

pub(super) fn default_cpus(backend: &dyn Backend) -> u8 {
    match backend.acceleration() {
        Acceleration::Kvm | Acceleration::Native => {
            let host = std::thread::available_parallelism().map_or(1, usize::from);
            u8::try_from(host.min(MOST_CPUS)).unwrap_or(1)
        }
        Acceleration::Emulated { .. } => 1,
    }
}
