//! The process that owns a sandbox: what its creator hands over, how it is started, and how it
//! starts the machine before it serves clients.
//!
//! It is this program executed again ([`KIND`]), in a session of its own. Its stdin is the
//! creator's connection. The creator sends a [`Job`] first, with the locks that the owner takes over
//! and all files of the machine: the creator has opened and checked them, and the owner opens none.
//! Then both use the owner's protocol.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use micabox_jail::Kind;
use micabox_owner::protocol::{self, Failure, Reply, frame, preamble};
use micabox_owner::{Launch, Outcome, Start, socket};
use micabox_vmm::{
    Acceleration, Backend, BackendChoice, Begin, Disk, FileRef, Machine, MachineConfig,
    MachineFile, NetworkInterface, PmemRegion, Snapshot, Sockets,
};
use micabox_wire::{Boot, Identity, Init, Lower, Upper};
use serde::{Deserialize, Serialize};
use tracing::{info, info_span, warn};

use crate::base::Claim;
use crate::builder::random;
use crate::error::chain;
use crate::network::Connection;
use crate::registrar::Registrar;
use crate::sandbox::now;
use crate::snapshot::memory;
use crate::state::{Directory, Lock, ProcessId, Record, Registration};
use crate::{Error, Network, Spec, worker};

/// The kind of worker that owns a sandbox.
pub(crate) const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "owner";

/// Most bytes of a job: paths of a few hundred layers, and a command line.
const MAX_JOB: u32 = 64 << 20;

/// Bytes of a job's length.
const LENGTH: usize = size_of::<u32>();

/// How long a guest may take to boot: far more than it needs. If it hangs, the error only comes
/// later.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
const EMULATED_BOOT_TIMEOUT: Duration = Duration::from_secs(300);

/// A sandbox to start and to own. Its files are named by their places among the job's descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The root of the store.
    pub(crate) store: PathBuf,
    pub(crate) record: Record,
    /// Whether the record is removed when the sandbox ends.
    pub(crate) auto_remove: bool,
    /// Whether the sandbox is started again.
    pub(crate) is_restart: bool,
    pub(crate) is_kvm: bool,
    pub(crate) origin: Origin,
    /// Additional words for the kernel's command line.
    pub(crate) cmdline: Vec<String>,
    /// RAM including what pmem regions cost, MiB.
    pub(crate) memory_mib: u32,
    pub(crate) pmem: Vec<PmemRegion<FileRef>>,
    pub(crate) disks: Vec<Disk<FileRef>>,
    pub(crate) lowers: Vec<Lower>,
    pub(crate) upper: Upper,
    pub(crate) init: Init,
    pub(crate) hostname: Option<String>,
    pub(crate) network: Network,
    pub(crate) vsock: Option<Sockets>,
    pub(crate) nested_virtualization: bool,
    pub(crate) require_limits: bool,
    /// The directory of a template without the list of the pages that its copies write to first:
    /// the list is made.
    pub(crate) learns: Option<PathBuf>,
    pub(crate) boot_timeout: Option<Duration>,
    pub(crate) stop_signal: i32,
    /// The disk that the guest must flush before it ends.
    pub(crate) disk: Option<PathBuf>,
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
        touched: Option<RawFd>,
        /// The agent's number for the command to reattach.
        main: Option<u32>,
    },
}

/// The descriptors of a job, in the order of their places.
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
}

/// The files of a job that the owner has received, each until it is taken.
struct Received(Vec<Option<File>>);

impl Received {
    fn take(&mut self, place: RawFd) -> io::Result<File> {
        let place = usize::try_from(place).ok();
        let file = place.and_then(|place| self.0.get_mut(place)?.take());
        file.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn file(&mut self, description: FileRef) -> io::Result<MachineFile> {
        let file = self.take(description.number)?;
        Ok(MachineFile::received(file, description))
    }
}

/// A sandbox's owner, as its creator sees it.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) connection: UnixStream,
    pub(crate) process: Child,
}

/// Starts the owner and sends it its job, with the locks of the sandbox and of its root disk, and
/// the job's files. The owner's log goes to `stderr`.
pub(crate) fn start(
    job: &Job,
    lock: &File,
    claim: Option<&File>,
    files: &Descriptors,
    stderr: Stdio,
) -> io::Result<Owner> {
    let (ours, theirs) = UnixStream::pair()?;
    let program = micabox_jail::program(NAME)?;
    let process = Command::new(program)
        .arg0("mica-owner")
        .args(micabox_jail::plain_arguments(NAME, 0))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()?;
    // The job follows its length.
    let mut text = vec![0; LENGTH];
    serde_json::to_writer(&mut text, job)?;
    let length = u32::try_from(text.len().saturating_sub(LENGTH))
        .ok()
        .filter(|length| *length <= MAX_JOB);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    if let Some(place) = text.first_chunk_mut() {
        *place = length.to_le_bytes();
    }
    let locks = std::iter::once(lock).chain(claim);
    let descriptors: Vec<BorrowedFd<'_>> = locks
        .chain(files.0.iter().map(|file| &**file))
        .map(AsFd::as_fd)
        .collect();
    socket::send_descriptors(&ours, &descriptors)?;
    socket::send_all(&ours, &text, &[])?;
    Ok(Owner {
        connection: ours,
        process,
    })
}

/// Runs an owner. Returns its exit code.
fn work(descriptor: RawFd) -> i32 {
    debug_assert_eq!(descriptor, 0);
    // A terminal's signals are for the clients on it.
    let _ = rustix::process::setsid();
    let own = || -> io::Result<()> {
        let connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let null = File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        let (job, files) = receive(&connection)?;
        own(job, files, connection)
    };
    match own() {
        Ok(()) => 0,
        // The creator sees its connection end.
        Err(_) => 1,
    }
}

/// Receives the creator's job, and the locks and files that come with it.
fn receive(connection: &UnixStream) -> io::Result<(Job, Vec<OwnedFd>)> {
    let mut files = socket::receive_descriptors(connection)?;
    let mut length = [0; LENGTH];
    socket::receive_all(connection, &mut length, &mut files)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_JOB {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut job = vec![0; length as usize];
    socket::receive_all(connection, &mut job, &mut files)?;
    Ok((serde_json::from_slice(&job)?, files))
}

/// Starts the sandbox and owns it until its end. A failed start is reported to the creator.
fn own(mut job: Job, files: Vec<OwnedFd>, creator: UnixStream) -> io::Result<()> {
    if let Some(filter) = &job.log {
        worker::subscribe(filter);
    }
    let _span = info_span!("owner", id = job.record.short_id()).entered();
    let mut files = files.into_iter().map(File::from);
    let missing = || io::Error::from(io::ErrorKind::InvalidData);
    let lock = Lock::taken_over(files.next().ok_or_else(missing)?);
    let claim = job.has_claim.then(|| files.next()).flatten();
    let claim = claim.map(Claim::taken_over);
    let directory = Directory::open(&job.store).map_err(io::Error::other)?;
    let registration = Registration::taken_over(directory, job.record.clone(), lock);
    let directory = registration.path().to_owned();
    let mut registrar = Registrar::new(registration, job.auto_remove, job.is_restart, claim);
    let files = Received(files.map(Some).collect());
    match job.launch(files, &mut registrar) {
        Ok((machine, connection, start, timeout)) => {
            let holds_nothing = job.holds_nothing();
            let learn = job.learns.map(|template| {
                Box::new(move |machine: &dyn Machine| memory::learn(&template, machine)) as _
            });
            let saves = job
                .saves
                .map(|spec| serde_json::to_value(spec).unwrap_or_default());
            micabox_owner::serve(Launch {
                machine,
                start,
                timeout,
                network: connection.map(|connection| Box::new(connection.network) as _),
                holds_nothing,
                learn,
                disk: job.disk,
                stop_signal: job.stop_signal,
                saves,
                directory,
                creator,
                registrar: Box::new(registrar),
            })
        }
        Err(error) => {
            warn!(error = chain(&error), "the sandbox does not start");
            let failure = Failure::new(failure_kind(&error), chain(&error));
            micabox_owner::Registrar::ended(
                &mut registrar,
                &Outcome {
                    code: None,
                    failure: Some(&failure),
                    is_abandoned: false,
                    disk_is_in_use: false,
                },
            );
            drop(registrar);
            let mut bytes = preamble().to_vec();
            frame::encode(0, &Reply::Failed(failure), &mut bytes);
            (&creator).write_all(&bytes)
        }
    }
}

fn failure_kind(error: &Error) -> protocol::Kind {
    match error {
        Error::Machine(_) => protocol::Kind::Machine,
        _ => protocol::Kind::Invalid,
    }
}

type Launched = (Arc<dyn Machine>, Option<Connection>, Start, Duration);

impl Job {
    /// Starts the network and the machine. The files are closed once the machine has them.
    fn launch(&mut self, files: Received, registrar: &mut Registrar) -> Result<Launched, Error> {
        let choice = if self.is_kvm {
            BackendChoice::Kvm
        } else {
            BackendChoice::Qemu
        };
        let backend = micabox_vmm::expect(choice)?;
        let connection = self.network.start(backend.limits().frame_header)?;
        let interface = connection.as_ref().map(|connection| &connection.interface);
        let machine = self.machine(&*backend, files, registrar, interface)?;
        let identity = self.identity(connection.as_ref())?;
        let start = match &self.origin {
            Origin::Restore { main, .. } => Start::Restore {
                identity: Box::new(identity),
                main: *main,
            },
            Origin::Boot { .. } => Start::Boot(Box::new(Boot {
                lowers: self.lowers.clone(),
                upper: self.upper.clone(),
                init: self.init,
                identity,
            })),
        };
        let timeout = self.boot_timeout.unwrap_or(match backend.acceleration() {
            Acceleration::Kvm => BOOT_TIMEOUT,
            Acceleration::Emulated { .. } => EMULATED_BOOT_TIMEOUT,
        });
        Ok((machine, connection, start, timeout))
    }

    /// Returns whether the machine holds nothing that another sandbox may ask for.
    fn holds_nothing(&self) -> bool {
        let publishes = match &self.network {
            Network::None => false,
            Network::User(user) => !user.publish.is_empty(),
        };
        self.disk.is_none() && !self.has_claim && self.vsock.is_none() && !publishes
    }

    fn machine(
        &mut self,
        backend: &dyn Backend,
        mut files: Received,
        registrar: &mut Registrar,
        interface: Option<&NetworkInterface>,
    ) -> Result<Arc<dyn Machine>, Error> {
        let missing = |source| Error::System {
            what: "taking over the machine's files",
            source,
        };
        let begin = match &self.origin {
            Origin::Boot { kernel, initrd } => Begin::Boot {
                kernel: files.file(kernel.clone()).map_err(missing)?,
                initrd: files.file(initrd.clone()).map_err(missing)?,
            },
            Origin::Restore {
                state,
                memory,
                touched,
                ..
            } => {
                let mut take = |place: &RawFd| files.take(*place).map_err(missing);
                let mut snapshot = Snapshot::new(take(state)?, take(memory)?);
                snapshot.touched = touched.as_ref().map(take).transpose()?.map(Arc::new);
                Begin::Restore(snapshot)
            }
        };
        let mut file = |description| files.file(description).map_err(missing);
        let pmem = std::mem::take(&mut self.pmem).into_iter();
        let pmem = pmem.map(|region| region.try_map(&mut file));
        let pmem = pmem.collect::<Result<_, _>>()?;
        let disks = std::mem::take(&mut self.disks).into_iter();
        let disks = disks.map(|disk| disk.try_map(&mut file));
        let disks = disks.collect::<Result<_, _>>()?;
        let machine: Arc<dyn Machine> = Arc::from(backend.start(&MachineConfig {
            name: format!("mica-{}", self.record.short_id()),
            begin,
            memory_mib: self.memory_mib,
            cpus: self.record.cpus,
            nested_virtualization: self.nested_virtualization,
            require_limits: self.require_limits,
            pmem,
            disks,
            network: interface.cloned(),
            vsock: self.vsock.clone(),
            cmdline_extra: self.cmdline.clone(),
            lifeline: Some(registrar.lifeline()?),
        })?);
        let (backend, pid) = (backend.name(), machine.pid());
        info!(
            backend,
            pid,
            is_restored = matches!(self.origin, Origin::Restore { .. }),
            "the machine runs"
        );
        registrar.machine_started(ProcessId::own(), ProcessId::of(pid))?;
        Ok(machine)
    }

    fn identity(&self, connection: Option<&Connection>) -> Result<Identity, Error> {
        let hostname = self.hostname.as_deref();
        Ok(Identity {
            hostname: hostname.unwrap_or(self.record.short_id()).to_owned(),
            machine_id: self.record.id.clone(),
            // Without a network there is no name server.
            resolv_conf: connection
                .map(|connection| connection.resolv_conf.clone())
                .unwrap_or_default(),
            network: connection.map(|connection| connection.boot),
            wall_clock: now(),
            entropy: random()?,
        })
    }
}
