//! Starts an owner's machine.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use micabox_error::Error;
use micabox_share::Transport;
use micabox_vmm::{
    Acceleration, Backend, Begin, Machine, MachineConfig, NetworkInterface, Share, Snapshot,
};
use tracing::info;

use super::job::{MachineJob, Origin, Received, ShareJob};
use super::parts::LayerServers;
use crate::network::Link;

/// How long a guest may take to boot: far more than it needs. If it hangs, the error only comes
/// later.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
const EMULATED_BOOT_TIMEOUT: Duration = Duration::from_secs(300);

/// A machine that runs.
pub(super) struct Started {
    pub(super) machine: Arc<dyn Machine>,
    /// Whether the guest continues where it was saved.
    pub(super) is_restored: bool,
    /// Whether a saved machine came without the list of the pages that its copies write to first.
    pub(super) lacks_list: bool,
    /// How long the guest may take to start.
    pub(super) timeout: Duration,
}

impl MachineJob {
    pub(super) fn backend(&self) -> Result<Box<dyn Backend>, Error> {
        Ok(micabox_vmm::expect(self.backend)?)
    }

    /// Makes the machine's network link, if it has one.
    pub(super) fn link(&self, backend: &dyn Backend) -> Result<Option<Link>, Error> {
        let header = backend.limits().frame_header;
        self.has_network.then(|| Link::new(header)).transpose()
    }

    /// Starts the machine. Its files are closed once it has them. Its process holds `lifeline` open
    /// for as long as it may use the sandbox's disk.
    pub(super) fn start(
        self,
        backend: &dyn Backend,
        mut files: Received,
        network: Option<NetworkInterface>,
        lifeline: Option<Arc<File>>,
    ) -> Result<Started, Error> {
        let missing = |source| Error::System {
            what: "taking over the machine's files",
            source,
        };
        let is_restored = matches!(self.origin, Origin::Restore { .. });
        let mut lacks_list = false;
        let begin = match self.origin {
            Origin::Boot { kernel, initrd } => Begin::Boot {
                kernel: files.file(kernel).map_err(missing)?,
                initrd: files.file(initrd).map_err(missing)?,
            },
            Origin::Restore {
                state,
                memory,
                base,
                touched,
            } => {
                lacks_list = touched.is_none();
                let mut take = |place| files.take(place).map_err(missing);
                let mut snapshot = Snapshot::new(take(state)?, take(memory)?);
                snapshot.base = base.map(&mut take).transpose()?.map(Arc::new);
                snapshot.touched = touched.map(take).transpose()?.map(Arc::new);
                Begin::Restore(snapshot)
            }
        };
        let mut file = |description| files.file(description).map_err(missing);
        let pmem = self.pmem.into_iter();
        let pmem = pmem.map(|region| region.try_map(&mut file));
        let pmem = pmem.collect::<Result<_, _>>()?;
        let disks = self.disks.into_iter();
        let disks = disks.map(|disk| disk.try_map(&mut file));
        let disks = disks.collect::<Result<_, _>>()?;
        let trees = self.trees.into_iter();
        let trees = trees.map(|tree| tree.try_map(|place| files.take(place).map(Arc::new)));
        let trees = trees.collect::<Result<_, _>>().map_err(missing)?;
        let transport = if backend.limits().vhost_user {
            Transport::VhostUser {
                memory: u64::from(self.machine.memory_mib) << 20,
            }
        } else {
            Transport::Stream
        };
        let shares = self.shares.into_iter().map(|share| {
            let source = share.source.map(|place| files.take(place));
            let source = source.transpose().map_err(missing)?;
            serve(share, source, transport)
        });
        let shares = shares.collect::<Result<_, Error>>()?;
        let machine: Arc<dyn Machine> = Arc::from(backend.start(&MachineConfig {
            name: self.name,
            begin,
            machine: self.machine,
            pmem,
            disks,
            trees,
            parts: Some(Arc::new(LayerServers { store: self.store })),
            network,
            vsock: self.vsock,
            shares,
            cmdline_extra: self.cmdline,
            lifeline,
            max_processes: self.max_processes,
        })?);
        let (backend_name, pid) = (backend.name(), machine.pid());
        info!(backend = backend_name, pid, is_restored, "the machine runs");
        Ok(Started {
            machine,
            is_restored,
            lacks_list,
            timeout: match backend.acceleration() {
                Acceleration::Kvm | Acceleration::Native => BOOT_TIMEOUT,
                Acceleration::Emulated { .. } => EMULATED_BOOT_TIMEOUT,
            },
        })
    }
}

/// Starts the server of a share, if it has a folder.
fn serve(share: ShareJob, source: Option<File>, transport: Transport) -> Result<Share, Error> {
    let Some(source) = source else {
        let socket = UnixStream::pair().map_err(|source| Error::System {
            what: "making a socket",
            source,
        })?;
        return Ok(Share {
            tag: share.tag,
            socket: Arc::new(socket.0.into()),
            server: Arc::new(()),
        });
    };
    let only = share.only.map(CString::new).transpose();
    let settings = micabox_share::Settings {
        read_only: share.read_only,
        cached: share.cached,
        with_mounts: share.with_mounts,
        upper: share.upper,
        as_it_is: false,
        only: only.unwrap_or_default(),
        transport,
    };
    let (server, socket) = micabox_share::start(source.into(), &settings)?;
    Ok(Share {
        tag: share.tag,
        socket: Arc::new(socket),
        server: Arc::new(server),
    })
}
