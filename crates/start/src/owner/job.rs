//! What an owner is sent.

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use micabox_spec::{BackendChoice, Machine, Spec};
use micabox_state::Record;
use micabox_vmm::{Disk, FileRef, MachineFile, PmemRegion, Sockets, Tree};
use micabox_wire::{Lower, Setup, Upper};
use serde::{Deserialize, Serialize};

/// The first message to an owner.
#[derive(Debug, Serialize, Deserialize)]
pub enum Job {
    /// From a sandbox's creator: start the machine, and own the sandbox. The sandbox's locks come
    /// before the machine's files.
    Sandbox(Box<(SandboxJob, MachineJob)>),
    /// From a pool: start the machine, answer whether it runs ([`Ready`]), and wait for the
    /// connection of a creator, which sends a [`SandboxJob`].
    Pooled(Box<MachineJob>),
}

/// Whether the machine of a pool runs, or why not.
pub type Ready = Result<(), String>;

/// A machine to start. Its files are named by their places among the descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub struct MachineJob {
    /// The name of its process.
    pub name: String,
    pub backend: BackendChoice,
    pub origin: Origin,
    /// Additional words for the kernel's command line.
    pub cmdline: Vec<String>,
    /// Its memory includes what pmem regions cost.
    pub machine: Machine,
    pub pmem: Vec<PmemRegion<FileRef>>,
    pub disks: Vec<Disk<FileRef>>,
    pub trees: Vec<Tree<RawFd>>,
    /// The root of the store whose images' layers may not be whole.
    pub store: PathBuf,
    pub has_network: bool,
    pub vsock: Option<Sockets>,
    pub shares: Vec<ShareJob>,
    /// As [`micabox_vmm::MachineConfig::max_processes`].
    pub max_processes: Option<u64>,
}

/// A folder or file of the host to share.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShareJob {
    pub tag: String,
    /// None for a device that waits for a copy's folder.
    pub source: Option<RawFd>,
    pub read_only: bool,
    pub cached: bool,
    /// Whether what is mounted below the folder is shared as well.
    pub with_mounts: bool,
    /// Whether it is the upper layer of the sandbox's overlay.
    pub upper: bool,
    /// The name of the share's only entry, if it is a file.
    pub only: Option<String>,
}

/// A sandbox to own.
#[derive(Debug, Serialize, Deserialize)]
pub struct SandboxJob {
    /// The root of the store.
    pub store: PathBuf,
    pub record: Record,
    /// Whether the sandbox is started again.
    pub is_restart: bool,
    pub lowers: Vec<Lower>,
    pub upper: Upper,
    /// The agent's number for the command to reattach.
    pub main: Option<u32>,
    /// What the machine gets in addition to what it was saved with.
    pub setup: Setup,
    /// The directory of the template that the machine is restored from. If it has no list of the
    /// pages that its copies write to first, the list is made.
    pub template: Option<PathBuf>,
    pub stop_signal: i32,
    /// The disk that the guest must flush before it ends.
    pub disk: Option<PathBuf>,
    /// Whether programs of the host reach sockets of the guest.
    pub has_sockets: bool,
    /// The settings that a copy of the sandbox must have as well, or why it can't be copied.
    pub saves: Result<Spec, String>,
    /// Whether the job comes with the lock of a root disk.
    pub has_claim: bool,
    /// What the owner logs on its stderr, if anything.
    pub log: Option<String>,
}

/// What a machine begins from.
#[derive(Debug, Serialize, Deserialize)]
pub enum Origin {
    /// A kernel and the agent.
    Boot { kernel: FileRef, initrd: FileRef },
    /// A saved machine.
    Restore {
        state: RawFd,
        memory: RawFd,
        base: Option<RawFd>,
        touched: Option<RawFd>,
    },
}

/// The descriptors of a machine, in the order of their places.
#[derive(Debug, Default)]
pub struct Descriptors(Vec<Arc<File>>);

impl Descriptors {
    /// Adds a descriptor and returns its place.
    pub fn add(&mut self, file: Arc<File>) -> RawFd {
        let place = RawFd::try_from(self.0.len()).unwrap_or(RawFd::MAX);
        self.0.push(file);
        place
    }

    pub fn file(&mut self, file: &MachineFile) -> FileRef {
        let place = self.add(Arc::clone(file.file()));
        file.describe(place)
    }

    pub fn iter(&self) -> impl Iterator<Item = &File> {
        self.0.iter().map(|file| &**file)
    }
}

/// The files of a machine that the owner has received, each until it is taken.
pub(super) struct Received(Vec<Option<File>>);

impl Received {
    pub(super) fn new(files: impl Iterator<Item = OwnedFd>) -> Self {
        Self(files.map(File::from).map(Some).collect())
    }

    pub(super) fn take(&mut self, place: RawFd) -> io::Result<File> {
        let place = usize::try_from(place).ok();
        let file = place.and_then(|place| self.0.get_mut(place)?.take());
        file.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn file(&mut self, description: FileRef) -> io::Result<MachineFile> {
        let file = self.take(description.number)?;
        Ok(MachineFile::received(file, description))
    }
}
