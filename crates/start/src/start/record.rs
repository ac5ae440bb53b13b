//! What is recorded of a start: the sandbox's record, and the settings for later starts and copies.

use micabox_error::{Error, random};
use micabox_ground::{clock, hex};
use micabox_image::Config;
use micabox_spec::words::Signal;
use micabox_spec::{BackendChoice, Command, Overrides, Spec, Upper};
use micabox_state::{ID_LENGTH, ProcessId, Record, Status};
use micabox_vmm::{Acceleration, Backend};

use super::Start;
use crate::plan::Plan;

/// Most virtual processors that a sandbox gets by default.
const MOST_CPUS: usize = 4;

impl Start {
    /// Makes the record of a start. `auto_remove` is set, so that a failed start leaves no record.
    pub(super) fn record(&self, plan: &Plan, backend: &dyn Backend) -> Result<Record, Error> {
        let id = random::<{ ID_LENGTH / 2 }>()?;
        let creator = ProcessId::own();
        let (created, created_nanos) = clock::now_as_parts();
        Ok(Record {
            id: hex(id),
            name: String::new(),
            base: self.base.name(),
            command: self.description.clone(),
            created,
            created_nanos,
            spec: self.settled(backend),
            transport: plan.transport,
            root: plan.root,
            backend: choice_of(backend),
            defaults: Some(self.defaults()?),
            published: self.spec.network.published().to_vec(),
            auto_remove: true,
            owner: creator,
            creator,
            machine: None,
            status: Status::Starting,
        })
    }

    /// Returns the settings with what the backend gives by default: another start has the same.
    fn settled(&self, backend: &dyn Backend) -> Spec {
        let mut spec = self.spec.clone();
        spec.machine.cpus = Some(self.cpus(backend));
        spec
    }

    /// Returns the number of virtual processors.
    pub(super) fn cpus(&self, backend: &dyn Backend) -> u8 {
        let cpus = self.spec.machine.cpus;
        cpus.unwrap_or_else(|| default_cpus(backend))
    }

    /// Returns the first command, or that of the sandbox that this one is a copy of.
    fn original_command(&self) -> Option<Command> {
        let of_copy = || {
            let origin = self.origin.as_ref()?;
            origin.name.as_ref()?;
            origin.machine.as_ref()?.spec.command.clone()
        };
        self.spec.command.clone().or_else(of_copy)
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
        if self.spec.upper == Upper::Tmpfs && self.has_patches() {
            return Err("its patches are no longer in a file (run it with `--upper disk`)".into());
        }
        if let Upper::Folder { path } = &self.spec.upper {
            return Err(format!(
                "its changes are in the folder {path}, which one sandbox has"
            ));
        }
        if self.spec.setup.shares() > 0 {
            return Err("it shares folders of this machine, which another one would change".into());
        }
        if self.spec.machine.nested_virtualization {
            return Err("it may run virtual machines of its own (--nested-virtualization)".into());
        }
        if self.spec.setup.volumes().iter().any(|used| !used.read_only) {
            return Err("it writes to a volume, which has one writer".into());
        }
        if self.base.disk().is_some() {
            return Err("its root is a disk of yours, which may change".into());
        }
        let settled = self.settled(backend);
        Ok(settled.saved(plan.transport, plan.root, self.original_command()))
    }

    pub(super) fn stop_signal_for(&self, config: &Config) -> i32 {
        self.spec
            .stop_signal
            .or_else(|| {
                config
                    .stop_signal()
                    .as_deref()?
                    .parse::<Signal>()
                    .ok()
                    .map(|signal| signal.0)
            })
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
