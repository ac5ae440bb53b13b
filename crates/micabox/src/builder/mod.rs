//! Builder for a [`Sandbox`](crate::Sandbox).

mod start;

use std::path::PathBuf;
use std::time::Duration;

use micabox_image::Store;
use micabox_image::store::Image;
use micabox_vmm::BackendChoice;
use micabox_wire::Init;

use crate::plan::{Root, Transport};
use crate::{
    Base, Cancel, Command, Error, GuestFiles, Network, Patch, Record, SavedMachine, Snapshot, Upper,
};

pub(crate) use start::random;

/// Default RAM for the sandbox's programs and files, MiB. Memory that a guest does not touch costs
/// the host nothing.
pub const DEFAULT_MEMORY_MIB: u32 = 1024;

/// Builder for a [`Sandbox`](crate::Sandbox).
#[derive(Clone)]
pub struct Builder<'a> {
    store: &'a Store,
    base: Base,
    name: Option<String>,
    hostname: Option<String>,
    memory_mib: u32,
    cpus: Option<u8>,
    transport: Transport,
    root: Root,
    init: Init,
    upper: Upper,
    command: Option<Command>,
    patches: Vec<Patch>,
    /// The snapshot or template that the sandbox starts from.
    origin: Option<Origin>,
    /// Whether to boot without using or making a template.
    cold: bool,
    /// Whether to reattach the saved machine's first command in place of starting one.
    reattaches: bool,
    /// The ID of the sandbox to start again.
    resumed: Option<String>,
    auto_remove: bool,
    stop_signal: Option<i32>,
    network: Network,
    vsock: Option<PathBuf>,
    nested_virtualization: bool,
    require_limits: bool,
    boot_timeout: Option<Duration>,
    description: String,
    backend_choice: BackendChoice,
    guest: Option<GuestFiles>,
    cancel: Cancel,
}

/// A snapshot or template that a sandbox starts from.
#[derive(Clone)]
struct Origin {
    /// The snapshot's name; none for a template.
    name: Option<String>,
    /// The directory of the snapshot or template.
    directory: PathBuf,
    /// The machine to restore; none if only a disk was saved.
    machine: Option<SavedMachine>,
}

impl<'a> Builder<'a> {
    /// Begins a sandbox from `image` in `store`.
    pub fn new(store: &'a Store, image: &Image) -> Self {
        Self::on(store, Base::Image(Box::new(image.clone())))
    }

    /// Begins a sandbox from an image in `store` or from a root disk.
    pub fn on(store: &'a Store, base: Base) -> Self {
        let is_in_place = base.disk().is_some_and(|disk| disk.in_place);
        Self {
            store,
            base,
            name: None,
            hostname: None,
            memory_mib: DEFAULT_MEMORY_MIB,
            cpus: None,
            transport: Transport::default(),
            root: Root::default(),
            init: Init::Reaper,
            upper: if is_in_place {
                Upper::InPlace
            } else {
                Upper::default()
            },
            command: None,
            patches: Vec::new(),
            origin: None,
            cold: false,
            reattaches: false,
            resumed: None,
            auto_remove: true,
            stop_signal: None,
            network: Network::default(),
            vsock: None,
            nested_virtualization: false,
            require_limits: false,
            boot_timeout: None,
            description: String::new(),
            backend_choice: BackendChoice::default(),
            guest: None,
            cancel: Cancel::default(),
        }
    }

    /// Begins another start of the sandbox of `record`, on the same disk and with the same
    /// settings. `base` is the base that the record names.
    ///
    /// # Errors
    /// [`Error::NotKept`] if the sandbox has kept no changes or has no first command on record.
    pub fn restart(store: &'a Store, base: Base, record: &Record) -> Result<Self, Error> {
        let spec = record.spec.clone();
        let Some(spec) = spec.filter(|_| record.upper.is_kept()) else {
            return Err(Error::NotKept(record.name.clone()));
        };
        Ok(Self {
            hostname: spec.hostname,
            memory_mib: record.memory_mib,
            cpus: Some(record.cpus),
            transport: spec.transport,
            root: spec.root,
            init: spec.init,
            upper: record.upper,
            command: Some(spec.command),
            resumed: Some(record.id.clone()),
            auto_remove: false,
            stop_signal: spec.stop_signal,
            network: spec.network,
            vsock: spec.vsock,
            nested_virtualization: spec.nested_virtualization,
            require_limits: spec.require_limits,
            description: record.command.clone(),
            ..Self::on(store, base)
        })
    }

    /// Sets the name, unique in the store. Default: a generated one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the host name inside. Default: the first 12 digits of the ID.
    #[must_use]
    pub fn hostname(mut self, hostname: impl Into<String>) -> Self {
        self.hostname = Some(hostname.into());
        self
    }

    /// Sets the RAM for programs and changed files in MiB. What the kernel needs to describe the
    /// image's pmem is added to it.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Sets the number of virtual processors. Default: as many as the host has, 4 at most; one
    /// where they are emulated.
    #[must_use]
    pub fn cpus(mut self, cpus: u8) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Sets how the image's bytes reach the guest.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets what the lower side of the root is.
    #[must_use]
    pub fn root(mut self, root: Root) -> Self {
        self.root = root;
        self
    }

    /// Sets the network: which addresses the sandbox reaches, and which ports of the host lead to
    /// it.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Gives the virtual processors virtualisation and performance counters, where the host's have
    /// them, so that KVM works inside. A hostile guest then reaches more of the host's kernel. The
    /// sandbox can't be saved with its memory.
    #[must_use]
    pub fn nested_virtualization(mut self, wanted: bool) -> Self {
        self.nested_virtualization = wanted;
        self
    }

    /// Makes the start fail unless a control group limits the machine's process. By default, a
    /// control group is used where one is available ([`micabox_vmm::control_groups`]).
    #[must_use]
    pub fn require_limits(mut self, required: bool) -> Self {
        self.require_limits = required;
        self
    }

    /// Connects the sandbox's vsock (virtio-vsock, backend `kvm` only) to Unix sockets of the host.
    /// A client that connects to the socket at `path`, which must be absolute, and writes
    /// `CONNECT PORT\n` reaches that port in the sandbox. A connection from the sandbox to port PORT
    /// of address 2 reaches the program that listens at `path` followed by `_PORT`. The socket at
    /// `path` is removed with the sandbox.
    #[must_use]
    pub fn vsock(mut self, path: impl Into<PathBuf>) -> Self {
        self.vsock = Some(path.into());
        self
    }

    /// Sets where changes go. For a root disk that is written to, only [`Upper::InPlace`] is valid.
    #[must_use]
    pub fn upper(mut self, upper: Upper) -> Self {
        self.upper = upper;
        self
    }

    /// Sets the changes to make before the first start, in order.
    #[must_use]
    pub fn patches(mut self, patches: Vec<Patch>) -> Self {
        self.patches = patches;
        self
    }

    /// Starts from a copy of a snapshot's disk, which is kept; or, if the snapshot has a machine's
    /// memory, restores that machine, with its memory size, processors, network and all other
    /// settings. The base must be the snapshot's.
    #[must_use]
    pub fn from_snapshot(mut self, snapshot: &Snapshot) -> Self {
        self.origin = Some(Origin {
            name: Some(snapshot.name.clone()),
            directory: snapshot.directory.clone(),
            machine: snapshot.memory.clone(),
        });
        let Some(machine) = &snapshot.memory else {
            self.upper = Upper::Disk {
                size: snapshot.size,
            };
            return self;
        };
        let spec = machine.spec.clone();
        self.memory_mib = machine.memory_mib;
        self.cpus = Some(machine.cpus);
        self.upper = machine.upper;
        self.transport = spec.transport;
        self.root = spec.root;
        self.init = spec.init;
        self.network = spec.network;
        self.stop_signal = self.stop_signal.or(spec.stop_signal);
        self
    }

    /// Reattaches the first command of the snapshot's machine as this sandbox's
    /// ([`Sandbox::reattach`](crate::Sandbox::reattach)).
    #[must_use]
    pub fn reattach(mut self) -> Self {
        self.reattaches = true;
        self.command = self.machine().map(|machine| machine.spec.command.clone());
        self
    }

    /// Boots even if there is a template for this machine.
    #[must_use]
    pub fn cold(mut self) -> Self {
        self.cold = true;
        self
    }

    /// Records the first command, for later starts. A sandbox without one can't be started again.
    #[must_use]
    pub fn command(mut self, command: &Command) -> Self {
        self.command = Some(command.clone());
        self
    }

    /// Makes the first command process 1, as plain `docker run` does. By default the agent is
    /// process 1, and the sandbox outlives its commands.
    #[must_use]
    pub fn first_command_is_init(mut self) -> Self {
        self.init = Init::FirstExec;
        self
    }

    /// Keeps a record of the sandbox after its end, until the sandbox is removed.
    #[must_use]
    pub fn keep_record(mut self) -> Self {
        self.auto_remove = false;
        self
    }

    /// Sets the signal that asks the first command to end. Default: the image's StopSignal, or
    /// SIGTERM.
    #[must_use]
    pub fn stop_signal(mut self, signal: i32) -> Self {
        self.stop_signal = Some(signal);
        self
    }

    /// Sets how long the guest may take to boot.
    #[must_use]
    pub fn boot_timeout(mut self, timeout: Duration) -> Self {
        self.boot_timeout = Some(timeout);
        self
    }

    /// Sets the description in lists of sandboxes: as a rule, the command.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// Sets which backend to use. Default: the best one available.
    #[must_use]
    pub fn backend_choice(mut self, choice: BackendChoice) -> Self {
        self.backend_choice = choice;
        self
    }

    /// Sets the guest's kernel and agent. Default: [`GuestFiles::find`].
    #[must_use]
    pub fn guest(mut self, files: GuestFiles) -> Self {
        self.guest = Some(files);
        self
    }

    /// Lets another thread cancel the start.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Returns the machine to restore; none if the sandbox boots.
    fn machine(&self) -> Option<&SavedMachine> {
        self.origin.as_ref()?.machine.as_ref()
    }
}
