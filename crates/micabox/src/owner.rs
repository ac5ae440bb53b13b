//! The process that owns a sandbox: what its creator hands over, how it is started, and how it
//! starts the machine before it serves clients.
//!
//! It is this program executed again ([`KIND`]), in a session of its own. Its stdin is the
//! creator's connection. The creator sends a [`Job`] first, with descriptors for locks that the
//! owner takes over. Then both use the owner's protocol.

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
    Acceleration, Backend, BackendChoice, Disk, Machine, MachineConfig, NetworkInterface,
    PmemRegion, Sockets,
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
use crate::{Error, GuestFiles, Network, Spec, worker};

/// The kind of worker that owns a sandbox.
pub(crate) const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "owner";

/// Most bytes of a job: paths of a few hundred layers, and a command line.
const MAX_JOB: u32 = 64 << 20;

/// How long a guest may take to boot: far more than it needs. If it hangs, the error only comes
/// later.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
const EMULATED_BOOT_TIMEOUT: Duration = Duration::from_secs(300);

/// A sandbox to start and to own.
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
    pub(crate) guest: GuestFiles,
    /// RAM including what pmem regions cost, MiB.
    pub(crate) memory_mib: u32,
    pub(crate) pmem: Vec<PmemRegion>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) lowers: Vec<Lower>,
    pub(crate) upper: Upper,
    pub(crate) init: Init,
    pub(crate) hostname: Option<String>,
    pub(crate) network: Network,
    pub(crate) vsock: Option<Sockets>,
    pub(crate) nested_virtualization: bool,
    pub(crate) require_limits: bool,
    /// The directory of the saved machine to restore, and the agent's number for the command to
    /// reattach.
    pub(crate) restore: Option<(PathBuf, Option<u32>)>,
    /// Whether to make the list of the pages that copies of the restored machine write to first.
    pub(crate) learns: bool,
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

/// A sandbox's owner, as its creator sees it.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) connection: UnixStream,
    pub(crate) process: Child,
}

/// Starts the owner and sends it its job, with the locks of the sandbox and of its root disk. Its
/// log goes to `stderr`.
pub(crate) fn start(
    job: &Job,
    lock: &File,
    claim: Option<&File>,
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
    let job = serde_json::to_vec(job)?;
    let length = u32::try_from(job.len())
        .ok()
        .filter(|length| *length <= MAX_JOB);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    let locks: Vec<BorrowedFd<'_>> = [Some(lock), claim]
        .into_iter()
        .flatten()
        .map(AsFd::as_fd)
        .collect();
    socket::send_all(&ours, &length.to_le_bytes(), &locks)?;
    socket::send_all(&ours, &job, &[])?;
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
        let (job, locks) = receive(&connection)?;
        own(job, locks, connection)
    };
    match own() {
        Ok(()) => 0,
        // The creator sees its connection end.
        Err(_) => 1,
    }
}

/// Receives the creator's job, and the locks that come with it.
fn receive(connection: &UnixStream) -> io::Result<(Job, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let mut locks = Vec::new();
    socket::receive_all(connection, &mut length, &mut locks)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_JOB {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut job = vec![0; length as usize];
    socket::receive_all(connection, &mut job, &mut locks)?;
    Ok((serde_json::from_slice(&job)?, locks))
}

/// Starts the sandbox and owns it until its end. A failed start is reported to the creator.
fn own(job: Job, locks: Vec<OwnedFd>, creator: UnixStream) -> io::Result<()> {
    if let Some(filter) = &job.log {
        worker::subscribe(filter);
    }
    let _span = info_span!("owner", id = job.record.short_id()).entered();
    let mut locks = locks.into_iter().map(File::from);
    let missing = || io::Error::from(io::ErrorKind::InvalidData);
    let lock = Lock::taken_over(locks.next().ok_or_else(missing)?);
    let claim = job.has_claim.then(|| locks.next()).flatten();
    let claim = claim.map(Claim::taken_over);
    let directory = Directory::open(&job.store).map_err(io::Error::other)?;
    let registration = Registration::taken_over(directory, job.record.clone(), lock);
    let directory = registration.path().to_owned();
    let mut registrar = Registrar::new(registration, job.auto_remove, job.is_restart, claim);
    match job.launch(&mut registrar) {
        Ok((machine, connection, start, timeout)) => {
            let holds_nothing = job.holds_nothing();
            let template = job.restore.map(|(directory, _)| directory);
            let learn = template.filter(|_| job.learns).map(|template| {
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
    /// Starts the network and the machine.
    fn launch(&self, registrar: &mut Registrar) -> Result<Launched, Error> {
        let choice = if self.is_kvm {
            BackendChoice::Kvm
        } else {
            BackendChoice::Qemu
        };
        let backend = micabox_vmm::expect(choice)?;
        let connection = self.network.start(backend.limits().frame_header)?;
        let interface = connection.as_ref().map(|connection| &connection.interface);
        let machine = self.machine(&*backend, registrar, interface)?;
        let identity = self.identity(connection.as_ref())?;
        let start = match &self.restore {
            Some((_, main)) => Start::Restore {
                identity: Box::new(identity),
                main: *main,
            },
            None => Start::Boot(Box::new(Boot {
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
        &self,
        backend: &dyn Backend,
        registrar: &mut Registrar,
        interface: Option<&NetworkInterface>,
    ) -> Result<Arc<dyn Machine>, Error> {
        let saved = self.restore.as_ref();
        let machine: Arc<dyn Machine> = Arc::from(
            backend.start(&MachineConfig {
                name: format!("mica-{}", self.record.short_id()),
                kernel: self.guest.kernel.clone(),
                initrd: self.guest.initrd.clone(),
                memory_mib: self.memory_mib,
                cpus: self.record.cpus,
                nested_virtualization: self.nested_virtualization,
                require_limits: self.require_limits,
                pmem: self.pmem.clone(),
                disks: self.disks.clone(),
                network: interface.cloned(),
                vsock: self.vsock.clone(),
                cmdline_extra: self.guest.cmdline.clone(),
                lifeline: Some(registrar.lifeline()?),
                resumed: saved
                    .map(|(directory, _)| memory::open(directory))
                    .transpose()?,
            })?,
        );
        let (backend, pid) = (backend.name(), machine.pid());
        info!(
            backend,
            pid,
            is_restored = saved.is_some(),
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
