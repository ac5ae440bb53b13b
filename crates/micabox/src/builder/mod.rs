//! Builder for a [`Sandbox`].

mod kind;
mod restore;

use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use micabox_disks::{Base, Patch};
use micabox_error::Error;
use micabox_image::store::Image;
use micabox_image::{Store, Trim};
use micabox_spec::{
    BackendChoice, Command, DiskRate, Expiry, Mount, Network, Root, Spec, Transport, Upper,
};
use micabox_start::{Cancel, GuestFiles, OwnerLog, Start};
use micabox_wire::Init;

use crate::{Sandbox, SandboxRef, Sandboxes};

pub use kind::{Boots, Fresh, FromDisk, FromMemory, Kind, New, Restart};
pub use micabox_start::default_cpus;
pub use restore::Restore;

/// Builder for a [`Sandbox`]. What it starts is a part of its type, so that it has
/// only the settings that there are for that:
///
/// | type | from | made by |
/// |---|---|---|
/// | `Builder` | an image or a root disk | [`Builder::new`], [`Builder::on`] |
/// | `Builder<FromDisk>` | a snapshot's disk | [`Restore`] |
/// | `Builder<FromMemory>` | a snapshot's machine | [`Restore`] |
/// | `Builder<Restart>` | a sandbox that does not run | [`SandboxRef::restart`](crate::SandboxRef::restart) |
#[derive(Clone)]
pub struct Builder<K: Kind = Fresh> {
    pub(crate) start: Start,
    kind: PhantomData<K>,
}

impl Builder {
    /// Begins a sandbox from `image` in `store`.
    pub fn new(store: &Store, image: &Image) -> Self {
        Self::on(store, Base::Image(Box::new(image.clone())))
    }

    /// Begins a sandbox from an image in `store` or from a root disk.
    pub fn on(store: &Store, base: Base) -> Self {
        Self::of(Start::on(store, base))
    }

    /// Sets where changes go. For a root disk that is written to, only [`Upper::InPlace`] is valid.
    #[must_use]
    pub fn upper(mut self, upper: Upper) -> Self {
        self.start.spec.upper = upper;
        self
    }

    /// Hides what `trim` names: the root is a view of the image without it, which later sandboxes with
    /// the same list share. Nothing is copied, and what the sandbox makes at these paths is there. An
    /// image that is [made](SandboxRef::commit) of the sandbox's changes has it again.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = micabox::Store::open(&micabox::Store::default_root()?)?;
    /// let image = store.image("debian:12")?;
    /// let trim: micabox::Trim = "docs,man,/opt/*/examples".parse()?;
    /// let sandbox = micabox::Builder::new(&store, &image).trim(&trim)?.create()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotTrimmed`] for a root disk; [`Error::Store`]. A stack of layers
    /// ([`Root::Stacked`]) is refused later.
    pub fn trim(mut self, trim: &Trim) -> Result<Self, Error> {
        self.start.base = self.start.base.trimmed(&self.start.store, trim)?;
        Ok(self)
    }
}

impl<K: Boots> Builder<K> {
    /// Creates the sandbox without starting it, with its disk if it has one.
    /// [`SandboxRef::restart`] starts it; so does any other process. Unless its changes are kept, it
    /// can be started once.
    ///
    /// # Errors
    /// [`Error`]; nothing of the sandbox is left behind.
    pub fn create_stopped(self) -> Result<SandboxRef, Error> {
        let sandboxes = Sandboxes::open(self.store())?;
        sandboxes.get(&self.start.create_stopped()?)
    }

    /// Sets the RAM for programs and changed files in MiB. What the kernel needs to describe the
    /// image's pmem is added to it.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.start.spec.machine.memory_mib = mib;
        self
    }

    /// Sets the number of virtual processors. Default: as many as the host has, 4 at most; one
    /// where they are emulated.
    #[must_use]
    pub fn cpus(mut self, cpus: u8) -> Self {
        self.start.spec.machine.cpus = Some(cpus);
        self
    }

    /// Sets how the image's bytes reach the guest.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.start.spec.transport = transport;
        self
    }

    /// Sets what the lower side of the root is.
    #[must_use]
    pub fn root(mut self, root: Root) -> Self {
        self.start.spec.root = root;
        self
    }

    /// Sets whether the guest checks each block of the image that it reads, against a hash tree of the image's disk
    /// (dm-verity). A block that is not what was pulled is an error of reading. The image is a disk then, with one merged
    /// root, and all of it is here first; all else is [`Error::NotChecked`].
    #[must_use]
    pub fn verity(mut self, wanted: bool) -> Self {
        self.start.spec.verity = wanted;
        self
    }

    /// Gives the virtual processors virtualisation and performance counters, where the host's have
    /// them, so that KVM works inside. A hostile guest then reaches more of the host's kernel. The
    /// sandbox can't be saved with its memory.
    #[must_use]
    pub fn nested_virtualization(mut self, wanted: bool) -> Self {
        self.start.spec.machine.nested_virtualization = wanted;
        self
    }

    /// Sets the changes to make before the first start, in order.
    #[must_use]
    pub fn patches(mut self, patches: Vec<Patch>) -> Self {
        self.start.patches = patches;
        self
    }

    /// Sets how many processes and threads all commands together may have, those of later
    /// commands included. Default: as many as the machine's memory has room for. A process with
    /// the capability `SYS_ADMIN`, which root has unless it is dropped, can undo that.
    #[must_use]
    pub fn pids_limit(mut self, processes: u64) -> Self {
        self.start.spec.setup.pids_limit = Some(processes);
        self
    }

    /// Boots even if there is a template for this machine.
    #[must_use]
    pub fn cold(mut self) -> Self {
        self.start.spec.cold = true;
        self
    }

    /// Makes the first command process 1, as plain `docker run` does. By default the agent is
    /// process 1, and the sandbox outlives its commands.
    #[must_use]
    pub fn first_command_is_init(mut self) -> Self {
        self.start.spec.init = Init::FirstExec;
        self
    }
}

impl<K: New> Builder<K> {
    /// Replaces all settings, as in a copy of [`Builder::spec`] with some changed. A machine that continues where it was
    /// keeps what it has from its own start on.
    #[must_use]
    pub fn with_spec(mut self, spec: Spec) -> Self {
        self.start.spec = spec;
        self
    }

    /// Sets the name, unique in the store. Default: a generated one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.start.name = Some(name.into());
        self
    }

    /// Sets the host name inside. Default: the first 12 digits of the ID.
    #[must_use]
    pub fn hostname(mut self, hostname: impl Into<String>) -> Self {
        self.start.spec.hostname = Some(hostname.into());
        self
    }

    /// Sets the description in lists of sandboxes: as a rule, the command.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.start.description = text.into();
        self
    }

    /// Adds a label, which replaces another one of this name. Labels are for programs that find
    /// sandboxes by them; all of a sandbox's have 64 KiB at most.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.start.spec.labels.insert(name.into(), value.into());
        self
    }

    /// Records the first command, for later starts. A sandbox without one can't be started again.
    #[must_use]
    pub fn command(mut self, command: &Command) -> Self {
        self.start.spec.command = Some(command.clone());
        self
    }

    /// Keeps a record of the sandbox after its end, until the sandbox is removed.
    #[must_use]
    pub fn keep_record(mut self) -> Self {
        self.start.spec.auto_remove = false;
        self
    }

    /// Sets the signal that asks the first command to end. Default: the image's StopSignal, or
    /// SIGTERM.
    #[must_use]
    pub fn stop_signal(mut self, signal: i32) -> Self {
        self.start.spec.stop_signal = Some(signal);
        self
    }

    /// Sets the network: which addresses the sandbox reaches, and which ports of the host lead to
    /// it.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.start.spec.network = network;
        self
    }

    /// Mounts a filesystem over a directory of the root, after those that were added before.
    #[must_use]
    pub fn mount(mut self, mount: Mount) -> Self {
        self.start.spec.setup.mounts.push(mount);
        self
    }

    /// Makes the root read-only, with the mounts that Docker makes read-only with it. A process
    /// with the capability `SYS_ADMIN`, which root has unless it is dropped, can undo that.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.start.spec.setup.read_only = true;
        self
    }

    /// Sets how many bytes `/dev/shm` may hold. Default: 64 MiB.
    #[must_use]
    pub fn shm_size(mut self, bytes: u64) -> Self {
        self.start.spec.setup.shm_size = Some(bytes);
        self
    }

    /// Connects the sandbox's vsock (virtio-vsock, backend `kvm` only) to Unix sockets of the host.
    /// A client that connects to the socket at `path`, which must be absolute, and writes
    /// `CONNECT PORT\n` reaches that port in the sandbox. A connection from the sandbox to port PORT
    /// of address 2 reaches the program that listens at `path` followed by `_PORT`. The socket at
    /// `path` is removed with the sandbox.
    #[must_use]
    pub fn vsock(mut self, path: impl Into<PathBuf>) -> Self {
        self.start.spec.vsock = Some(path.into());
        self
    }
}

impl<K: Kind> Builder<K> {
    fn of(start: Start) -> Self {
        Self {
            start,
            kind: PhantomData,
        }
    }

    /// Returns the store that the sandbox is made in.
    pub fn store(&self) -> &Store {
        &self.start.store
    }

    /// Returns what the sandbox is made from.
    pub fn base(&self) -> &Base {
        &self.start.base
    }

    /// Returns the settings.
    pub fn spec(&self) -> &Spec {
        &self.start.spec
    }

    /// Starts the sandbox and waits until it is ready for commands. The first sandbox of a kind boots
    /// and is then saved as a template for later ones, which takes some 100 ms more
    /// ([`Builder::cold`]).
    ///
    /// # Errors
    /// [`Error`]; no record or directory of a new sandbox is left behind.
    pub fn create(self) -> Result<Sandbox, Error> {
        let expiry = self.start.spec.expiry;
        let sandbox = Sandbox::of(self.start.create()?);
        if expiry != Expiry::default() {
            sandbox.expire(&expiry)?;
        }
        Ok(sandbox)
    }

    /// Sets when the sandbox ends by itself, in later starts as well. Default: never.
    #[must_use]
    pub fn expiry(mut self, expiry: Expiry) -> Self {
        // Zero is never.
        self.start.spec.expiry = Expiry::default().changed(&expiry);
        self
    }

    /// Makes the start fail unless a control group limits the machine's process, and that of copies of the machine.
    /// By default, a control group is used where one is available ([`micabox_vmm::control_groups`]).
    #[must_use]
    pub fn require_limits(mut self, required: bool) -> Self {
        self.start.spec.machine.require_limits = required;
        self
    }

    /// Sets how long the guest may take to boot, in later starts as well.
    #[must_use]
    pub fn boot_timeout(mut self, timeout: Duration) -> Self {
        self.start.spec.boot_timeout = Some(timeout);
        self
    }

    /// Sets which backend to use. Default: the best one available.
    #[must_use]
    pub fn backend_choice(mut self, choice: BackendChoice) -> Self {
        self.start.spec.backend = choice;
        self
    }

    /// Sets the guest's kernel and agent. Default: [`GuestFiles::find`].
    #[must_use]
    pub fn guest(mut self, files: GuestFiles) -> Self {
        self.start.guest = Some(files);
        self
    }

    /// Makes the sandbox's owner, a process of its own, log what passes `filter`. The program that
    /// is executed as the owner decides what a filter is: the function that it gave to
    /// [`run_if_worker_with`](crate::run_if_worker_with) gets it.
    #[must_use]
    pub fn owner_log(mut self, filter: impl Into<String>, to: OwnerLog) -> Self {
        self.start.owner_log = Some((filter.into(), to));
        self
    }

    /// Sets how much processor time the machine's process may use, in thousandths of a processor:
    /// at least 10. Without a control group for it, it is not limited
    /// ([`Builder::require_limits`]). Default: a little more than its virtual processors can use.
    #[must_use]
    pub fn cpu_quota(mut self, thousandths: u32) -> Self {
        self.start.spec.machine.cpu_quota = Some(thousandths);
        self
    }

    /// Limits the traffic of each of the sandbox's disks. An image that is mapped as memory
    /// ([`Transport::Pmem`]) is read without a disk.
    #[must_use]
    pub fn disk_rate(mut self, rate: DiskRate) -> Self {
        self.start.spec.machine.disk_rate = rate;
        self
    }

    /// Lets another thread cancel the start.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.start.cancel = cancel;
        self
    }
}
