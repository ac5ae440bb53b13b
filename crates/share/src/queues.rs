//! Requests in queues in the guest's memory, which a monitor shares (vhost-user).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use micabox_fuse::message::LARGEST;
use micabox_ground::lock;
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::bitmap::BitmapMmapRegion;
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, QueueOwnedT};
use vm_memory::{
    Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryLoadGuard,
    GuestMemoryMmap,
};
use vmm_sys_util::epoll::EventSet;

use crate::server::Server;
use crate::versions::{SLOTS, Slot, Table};

type Memory = GuestMemoryAtomic<GuestMemoryMmap<BitmapMmapRegion>>;
type Ring = VringRwLock<Memory>;

/// The queue for what is not answered, and the one for all else.
const QUEUES: usize = 2;

/// Entries of a queue: QEMU's most.
const ENTRIES: usize = 1024;

/// A machine's memory, once the machine has connected.
#[derive(Clone)]
pub(crate) struct Shared(Memory);

impl Shared {
    /// Creates the memory of a machine that has not connected.
    pub(crate) fn new() -> Self {
        Self(Memory::new(GuestMemoryMmap::new()))
    }
}

impl Table for Shared {
    fn write(&self, address: u64, version: u64, slots: Option<&[Slot]>) {
        let memory = self.0.memory();
        let write = |index: u16| {
            if let Some(at) = address.checked_add(u64::from(index) * 8) {
                // The guest may have named what is no memory of its own: nothing is written then.
                let _ = memory.store(version.to_le(), GuestAddress(at), Ordering::Release);
            }
        };
        match slots {
            Some(slots) => slots.iter().for_each(|slot| write(slot.index())),
            None => (0..SLOTS).for_each(write),
        }
    }
}

/// Serves the machine that connects to `listener` and has this memory, until it disconnects.
///
/// # Errors
/// If the monitor breaks the protocol, or a thread can't be started.
pub(crate) fn serve(server: Arc<Server>, memory: Shared, listener: UnixListener) -> io::Result<()> {
    let Shared(memory) = memory;
    let backend = Arc::new(Backend {
        server,
        memory: memory.clone(),
        request: Mutex::default(),
    });
    let failed = |error: vhost_user_backend::Error| io::Error::other(error.to_string());
    let mut daemon = VhostUserDaemon::new("share".into(), backend, memory).map_err(failed)?;
    daemon
        .start(&mut Listener::from(listener))
        .map_err(failed)?;
    // The machine's end looks like a broken connection.
    let _ = daemon.wait();
    Ok(())
}

struct Backend {
    server: Arc<Server>,
    memory: Memory,
    /// Room for a request, which is answered by one thread at a time.
    request: Mutex<Vec<u8>>,
}

impl VhostUserBackend for Backend {
    type Bitmap = BitmapMmapRegion;
    type Vring = Ring;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        ENTRIES
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn update_memory(&self, _memory: Memory) -> io::Result<()> {
        // `self.memory` is the same one.
        Ok(())
    }

    fn handle_event(
        &self,
        queue: u16,
        events: EventSet,
        rings: &[Ring],
        _thread: usize,
    ) -> io::Result<()> {
        if events != EventSet::IN {
            return Ok(());
        }
        let Some(ring) = rings.get(usize::from(queue)) else {
            return Ok(());
        };
        loop {
            // Looks again after it has asked for the next notification.
            ring.disable_notification().map_err(io::Error::other)?;
            self.serve(ring)?;
            if !ring.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }
}

impl Backend {
    fn serve(&self, ring: &Ring) -> io::Result<()> {
        let memory = self.memory.memory();
        loop {
            let chain = {
                let mut state = ring.get_mut();
                let mut chains = state.get_queue_mut().iter(memory.clone());
                let chains = chains
                    .as_mut()
                    .map_err(|error| io::Error::other(error.to_string()))?;
                chains.next()
            };
            let Some(chain) = chain else {
                return Ok(());
            };
            let head = chain.head_index();
            let written = self.answer(&memory, chain);
            ring.add_used(head, written).map_err(io::Error::other)?;
            if ring.needs_notification().map_err(io::Error::other)? {
                ring.signal_used_queue()?;
            }
        }
    }

    /// Answers the request of a chain; returns the number of bytes that were written to it: none if
    /// the driver does not keep to the protocol.
    fn answer(
        &self,
        memory: &GuestMemoryLoadGuard<GuestMemoryMmap<BitmapMmapRegion>>,
        chain: DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap<BitmapMmapRegion>>>,
    ) -> u32 {
        let Ok(reader) = chain.clone().reader(memory) else {
            return 0;
        };
        let Ok(mut writer) = chain.writer(memory) else {
            return 0;
        };
        // Copied before anything in it is looked at: the guest may change its memory meanwhile.
        let mut request = lock(&self.request);
        request.clear();
        request.reserve(reader.available_bytes().min(LARGEST));
        let most = LARGEST as u64 + 1;
        let mut reader = reader.take(most);
        if reader.read_to_end(&mut request).is_err() || request.len() > LARGEST {
            return 0;
        }
        let Some(reply) = self.server.answer(&request) else {
            return 0;
        };
        if reply.len() > writer.available_bytes() || writer.write_all(&reply).is_err() {
            return 0;
        }
        u32::try_from(reply.len()).unwrap_or(0)
    }
}
