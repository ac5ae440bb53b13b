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

/// RAM for the sandbox's programs and files if nobody says otherwise, MiB. Memory
/// that a guest does not touch costs the host nothing.
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
    /// What it begins with a copy of.
    origin: Option<Origin>,
    /// Boots, whatever templates there are, and makes none.
    cold: bool,
    /// The machine's first command goes on, in place of another one.
    adopts: bool,
    /// The sandbox to start again, by its ID.
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

/// What a sandbox begins with a copy of.
#[derive(Clone)]
struct Origin {
    /// The snapshot's name; a template has none.
    name: Option<String>,
    /// Where it is.
    directory: PathBuf,
    /// The machine to go on from; otherwise it is a disk alone.
    machine: Option<SavedMachine>,
}

impl<'a> Builder<'a> {
    /// A sandbox from `image` in `store`.
    pub fn new(store: &'a Store, image: &Image) -> Self {
        Self::on(store, Base::Image(Box::new(image.clone())))
    }

    /// A sandbox from an image in `store` or from a root disk.
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
            upper: match is_in_place {
                true => Upper::InPlace,
                false => Upper::default(),
            },
            command: None,
            patches: Vec::new(),
            origin: None,
            cold: false,
            adopts: false,
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

    /// The sandbox of `record` once more: on the same disk, with the same settings.
    /// `base` is what the record names.
    ///
    /// # Errors
    /// [`Error::NotKept`] if there is nothing left of it.
    pub fn again(store: &'a Store, base: Base, record: &Record) -> Result<Self, Error> {
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

    /// A name, unique in the store. Otherwise it gets one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The host name inside; otherwise the first 12 digits of the ID.
    #[must_use]
    pub fn hostname(mut self, hostname: impl Into<String>) -> Self {
        self.hostname = Some(hostname.into());
        self
    }

    /// RAM for programs and changed files in MiB. What the kernel needs to describe
    /// the image's pmem is added to it.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Virtual processors. Otherwise as many as the host has, 4 at most, and one where
    /// they are emulated.
    #[must_use]
    pub fn cpus(mut self, cpus: u8) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// How the image's bytes reach the guest.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// What the lower side of the root is.
    #[must_use]
    pub fn root(mut self, root: Root) -> Self {
        self.root = root;
        self
    }

    /// Whom the sandbox reaches, and who reaches it.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Has the sandbox's processors virtualise and count, where the host's do: KVM works inside
    /// then. A hostile guest sees more of the host's kernel. There is no snapshot of its memory.
    #[must_use]
    pub fn nested_virtualization(mut self, wanted: bool) -> Self {
        self.nested_virtualization = wanted;
        self
    }

    /// Has it not start unless a control group limits the machine's process. Otherwise one does
    /// where one can be had ([`micabox_vmm::control_groups`]).
    #[must_use]
    pub fn require_limits(mut self, required: bool) -> Self {
        self.require_limits = required;
        self
    }

    /// Leads to the sandbox's sockets (virtio-vsock, backend `kvm` only): who connects to the
    /// Unix socket at `path`, which must be absolute, and writes `CONNECT PORT\n` reaches that
    /// port in the sandbox, and a program that listens at `path` with `_PORT` behind it is
    /// reached from there at port PORT of address 2. The path goes with the sandbox.
    #[must_use]
    pub fn vsock(mut self, path: impl Into<PathBuf>) -> Self {
        self.vsock = Some(path.into());
        self
    }

    /// Where changes go; a root disk that is written to has no choice.
    #[must_use]
    pub fn upper(mut self, upper: Upper) -> Self {
        self.upper = upper;
        self
    }

    /// Changes to make before the first start, in their order.
    #[must_use]
    pub fn patches(mut self, patches: Vec<Patch>) -> Self {
        self.patches = patches;
        self
    }

    /// Begins with a copy of a snapshot's disk, which is kept; or, if the snapshot is of a
    /// machine, goes on where that was, with memory, processors, network and all else as it
    /// had them. What the sandbox is made from must be the snapshot's.
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

    /// Has the first command of the snapshot's machine go on, as this sandbox's
    /// ([`Sandbox::adopted`](crate::Sandbox::reattach)).
    #[must_use]
    pub fn adopt(mut self) -> Self {
        self.adopts = true;
        self.command = self.machine().map(|machine| machine.spec.command.clone());
        self
    }

    /// Boots, even if a template of a machine like this one is there to go on from.
    #[must_use]
    pub fn cold(mut self) -> Self {
        self.cold = true;
        self
    }

    /// What its first command will be, for when it is started again. Without one it can't
    /// be.
    #[must_use]
    pub fn command(mut self, command: &Command) -> Self {
        self.command = Some(command.clone());
        self
    }

    /// Makes the first command process 1, as plain `docker run` does. Otherwise a
    /// process of ours is, and the sandbox outlives its commands.
    #[must_use]
    pub fn first_command_is_init(mut self) -> Self {
        self.init = Init::FirstExec;
        self
    }

    /// Keeps a record of the sandbox after its end, until somebody removes it.
    #[must_use]
    pub fn keep_record(mut self) -> Self {
        self.auto_remove = false;
        self
    }

    /// The signal that asks the first command to end; otherwise the image's StopSignal,
    /// otherwise SIGTERM.
    #[must_use]
    pub fn stop_signal(mut self, signal: i32) -> Self {
        self.stop_signal = Some(signal);
        self
    }

    /// How long the guest may take to come up.
    #[must_use]
    pub fn boot_timeout(mut self, timeout: Duration) -> Self {
        self.boot_timeout = Some(timeout);
        self
    }

    /// What it is for, in lists of sandboxes: the command, as a rule.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// Which backend, if it is not to be the best one here.
    #[must_use]
    pub fn backend_choice(mut self, choice: BackendChoice) -> Self {
        self.backend_choice = choice;
        self
    }

    /// The guest's kernel and agent; otherwise [`GuestFiles::find`].
    #[must_use]
    pub fn guest(mut self, files: GuestFiles) -> Self {
        self.guest = Some(files);
        self
    }

    /// Lets another thread give the start up.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// The machine to go on from, if it does not boot.
    fn machine(&self) -> Option<&SavedMachine> {
        self.origin.as_ref()?.machine.as_ref()
    }
}
