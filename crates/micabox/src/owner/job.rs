//! What an owner is sent: messages of JSON, each behind its length and with descriptors.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use micabox_owner::socket;
use micabox_spec::{BackendChoice, Machine, Spec};
use micabox_vmm::{Disk, FileRef, MachineFile, PmemRegion, Sockets, Tree};
use micabox_wire::{Lower, Setup, Upper};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::state::Record;

/// Most bytes of a message: paths of a few hundred layers, and a command line.
const MAX: u32 = 64 << 20;

/// Bytes of a message's length.
const LENGTH: usize = size_of::<u32>();

/// The first message to an owner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// From a sandbox's creator: start the machine, and own the sandbox. The sandbox's locks come
    /// before the machine's files.
    Sandbox(Box<(SandboxJob, MachineJob)>),
    /// From a pool: start the machine, answer whether it runs ([`Ready`]), and wait for the
    /// connection of a creator, who sends a [`SandboxJob`].
    Pooled(Box<MachineJob>),
}

/// Whether the machine of a pool runs, or why not.
pub(crate) type Ready = Result<(), String>;

/// A machine to start. Its files are named by their places among the descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MachineJob {
    /// The name of its process.
    pub(crate) name: String,
    pub(crate) backend: BackendChoice,
    pub(crate) origin: Origin,
    /// Additional words for the kernel's command line.
    pub(crate) cmdline: Vec<String>,
    /// Its memory includes what pmem regions cost.
    pub(crate) machine: Machine,
    pub(crate) pmem: Vec<PmemRegion<FileRef>>,
    pub(crate) disks: Vec<Disk<FileRef>>,
    pub(crate) trees: Vec<Tree<RawFd>>,
    pub(crate) has_network: bool,
    pub(crate) vsock: Option<Sockets>,
    pub(crate) shares: Vec<ShareJob>,
    /// As [`micabox_vmm::MachineConfig::max_processes`].
    pub(crate) max_processes: Option<u64>,
}

/// A folder or file of the host to share.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ShareJob {
    pub(crate) tag: String,
    /// None for a device that waits for a copy's folder.
    pub(crate) source: Option<RawFd>,
    pub(crate) read_only: bool,
    pub(crate) cached: bool,
    /// Whether what is mounted below the folder is shared as well.
    pub(crate) with_mounts: bool,
    /// Whether it is the upper layer of the sandbox's overlay.
    pub(crate) upper: bool,
    /// The name of the share's only entry, if it is a file.
    pub(crate) only: Option<String>,
}

/// A sandbox to own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SandboxJob {
    /// The root of the store.
    pub(crate) store: PathBuf,
    pub(crate) record: Record,
    /// Whether the sandbox is started again.
    pub(crate) is_restart: bool,
    pub(crate) lowers: Vec<Lower>,
    pub(crate) upper: Upper,
    /// The agent's number for the command to reattach.
    pub(crate) main: Option<u32>,
    /// What the machine gets in addition to what it was saved with.
    pub(crate) setup: Setup,
    /// The directory of the template that the machine is restored from. If it has no list of the
    /// pages that its copies write to first, the list is made.
    pub(crate) template: Option<PathBuf>,
    pub(crate) stop_signal: i32,
    /// The disk that the guest must flush before it ends.
    pub(crate) disk: Option<PathBuf>,
    /// Whether programs of the host reach sockets of the guest.
    pub(crate) has_sockets: bool,
    /// The settings that a copy of the sandbox must have as well, or why it can't be copied.
    pub(crate) saves: Result<Spec, String>,
    /// Whether the job comes with the lock of a root disk.
    pub(crate) has_claim: bool,
    /// What the owner logs on its stderr, if anything.
    pub(crate) log: Option<String>,
}

/// What a machine begins from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Origin {
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
pub(crate) struct Descriptors(Vec<Arc<File>>);

impl Descriptors {
    /// Adds a descriptor and returns its place.
    pub(crate) fn add(&mut self, file: Arc<File>) -> RawFd {
        let place = RawFd::try_from(self.0.len()).unwrap_or(RawFd::MAX);
        self.0.push(file);
        place
    }

    pub(crate) fn file(&mut self, file: &MachineFile) -> FileRef {
        let place = self.add(Arc::clone(file.file()));
        file.describe(place)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &File> {
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

/// Sends a message with its descriptors, for [`receive`].
pub(crate) fn send<'a>(
    connection: &UnixStream,
    message: &impl Serialize,
    descriptors: impl IntoIterator<Item = &'a File>,
) -> io::Result<()> {
    // The message follows its length.
    let mut text = vec![0; LENGTH];
    serde_json::to_writer(&mut text, message)?;
    let length = u32::try_from(text.len().saturating_sub(LENGTH))
        .ok()
        .filter(|length| *length <= MAX);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    if let Some(place) = text.first_chunk_mut() {
        *place = length.to_le_bytes();
    }
    let descriptors = descriptors.into_iter().map(AsFd::as_fd);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.collect();
    socket::send_descriptors(connection, &descriptors)?;
    socket::send_all(connection, &text, &[])
}

/// Receives a message and the descriptors that come with it.
pub(crate) fn receive<T: DeserializeOwned>(
    connection: &UnixStream,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut files = socket::receive_descriptors(connection)?;
    let mut length = [0; LENGTH];
    socket::receive_all(connection, &mut length, &mut files)?;
    let length = u32::from_le_bytes(length);
    if length > MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length as usize];
    socket::receive_all(connection, &mut message, &mut files)?;
    Ok((serde_json::from_slice(&message)?, files))
}
