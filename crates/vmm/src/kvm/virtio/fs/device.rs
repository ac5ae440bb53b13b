//! The filesystem device (specification section 5.11): requests to a server, and its replies.
//!
//! A copy's memory is its own, so no other process can see it. The device copies a request out of
//! the guest's memory, sends it to the server over a stream, and copies the reply back. Each is as
//! long as its header says. What the server may be made to send is checked as the guest's bytes are.
//!
//! The guest may have a table of versions in its memory
//! (`kernel/patches/0002-fuse-versions-for-virtio-fs.patch`), to which the device writes for the server.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use virtio_bindings::virtio_ids::VIRTIO_ID_FS;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::epoll::EventSet;

use crate::kvm::virtio::chain::Places;
use crate::kvm::virtio::{Active, Device, Violation};

/// Bytes of a device's name in its configuration.
const TAG: usize = 36;

/// The queues: for requests that have no reply, and for all others. A request of 1 MiB is 260
/// buffers.
const QUEUE_SIZES: [u16; 2] = [128, 1024];

/// Bytes of a request's header and of a reply's (`fuse_in_header`, `fuse_out_header`).
const REQUEST_HEADER: usize = 40;
const REPLY_HEADER: usize = 16;

/// Most bytes of a request or a reply: 1 MiB of data, and a page for all else.
const LARGEST: usize = (1 << 20) + 4096;

/// Most requests that wait for the server, and most bytes of requests that it has not taken.
const MOST_WAITING: usize = 32;
const MOST_UNSENT: usize = 2 * LARGEST;

/// Requests without a reply (`FUSE_FORGET`, `FUSE_BATCH_FORGET`).
const UNANSWERED: [u32; 2] = [2, 42];

/// The request that begins a conversation, and the one that ends it.
const INIT: u32 = 26;
const DESTROY: u32 = 38;

/// Of the first one: where its flags are, their second word, and the address of the guest's table of
/// versions (`fuse_init_in`); what they say of the others (`FUSE_INIT_EXT`, `FUSE_VERSIONS`).
const FLAGS: usize = REQUEST_HEADER + 12;
const MORE_FLAGS: usize = REQUEST_HEADER + 16;
const VERSIONS: usize = REQUEST_HEADER + 20;
const HAS_MORE_FLAGS: u32 = 1 << 30;
const HAS_VERSIONS: u32 = 1 << 31;

/// Slots of the table, each with a version of eight bytes.
const SLOTS: u16 = 4096;

/// The number of no request: a reply to none has a version, and the slots that get it.
const NO_REQUEST: u64 = 0;

/// The device.
#[derive(Debug)]
pub(crate) struct Fs {
    /// The stream to the server, until it ends or breaks the protocol.
    server: Option<OwnedFd>,
    /// The device's name, and the number of queues for requests.
    config: [u8; TAG + 4],
    /// Bytes for the server, without the first `sent`.
    unsent: Vec<u8>,
    sent: usize,
    /// The beginning of the next reply.
    received: Vec<u8>,
    /// Requests that wait for a reply, by the number that the server knows them by.
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    /// The guest's address of its table of versions.
    versions: Option<u64>,
}

/// A request that waits for its reply.
#[derive(Debug)]
struct Waiting {
    queue: usize,
    head: u16,
    places: Places,
    /// The guest's number of the request.
    unique: u64,
}

impl Fs {
    /// Creates the device `tag`, a name of at most 36 bytes. The stream leads to the server.
    ///
    /// # Errors
    /// If the stream can't be made not to block.
    pub(crate) fn new(server: OwnedFd, tag: &str) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(&server, true)?;
        let mut config = [0; TAG + 4];
        let count = 1_u32.to_le_bytes();
        let (name, queues) = config.split_at_mut(TAG);
        for (place, byte) in name.iter_mut().zip(tag.bytes()) {
            *place = byte;
        }
        queues.copy_from_slice(&count);
        Ok(Self {
            server: Some(server),
            config,
            unsent: Vec::new(),
            sent: 0,
            received: Vec::new(),
            waiting: BTreeMap::new(),
            next: 0,
            versions: None,
        })
    }

    /// Does all work that is possible now.
    fn work(&mut self, active: &mut Active) -> Result<(), Violation> {
        loop {
            let mut has_done = false;
            for queue in 0..QUEUE_SIZES.len() {
                if active.queues.has(queue) {
                    has_done |= self.take(queue, active)?;
                }
            }
            self.transmit();
            has_done |= self.receive(active)?;
            if self.server.is_none() {
                self.fail_waiting(active)?;
            }
            if !has_done {
                return Ok(());
            }
        }
    }

    /// Takes requests from a queue. Returns whether there was one.
    fn take(&mut self, index: usize, active: &mut Active) -> Result<bool, Violation> {
        let mut has_taken = false;
        let mut completed = false;
        while self.waiting.len() < MOST_WAITING && self.unsent.len() < MOST_UNSENT {
            let queue = active.queues.get(index)?;
            let Some((chain, places)) = queue.pop_to_keep(&active.memory)? else {
                break;
            };
            has_taken = true;
            let length = chain.readable.len();
            if !(REQUEST_HEADER..=LARGEST).contains(&length) {
                return Err(Violation::BadBuffer);
            }
            let mut request = vec![0; length];
            // Copied once: the guest may change its memory meanwhile.
            chain.readable.copy_to(&mut request);
            let (declared, opcode) = (word(&request, 0), word(&request, 4));
            let unique = long(&request, 8);
            if declared as usize != length {
                return Err(Violation::BadBuffer);
            }
            match opcode {
                INIT => self.versions = table(&request),
                // The guest frees it when it has the reply.
                DESTROY => self.versions = None,
                _ => {}
            }
            let is_answered = !UNANSWERED.contains(&opcode) && chain.writable.len() > 0;
            if is_answered && chain.writable.len() < REPLY_HEADER {
                return Err(Violation::BadBuffer);
            }
            self.next = self.next.wrapping_add(1);
            for (place, byte) in request.iter_mut().skip(8).zip(self.next.to_le_bytes()) {
                *place = byte;
            }
            if is_answered {
                let waiting = Waiting {
                    queue: index,
                    head: chain.head,
                    places,
                    unique,
                };
                self.waiting.insert(self.next, waiting);
            } else {
                queue.complete(&active.memory, chain.head, 0)?;
                completed = true;
            }
            if self.server.is_some() {
                self.unsent.append(&mut request);
            }
        }
        if completed {
            active.notify(index)?;
        }
        Ok(has_taken)
    }

    /// Sends as much as the server takes now.
    fn transmit(&mut self) {
        while let Some(rest) = self.unsent.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let Some(server) = &self.server else {
                break;
            };
            match send(server, rest, SendFlags::NOSIGNAL) {
                Ok(count) => self.sent = self.sent.saturating_add(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.server = None,
            }
        }
        self.unsent.clear();
        self.sent = 0;
    }

    /// Receives what the server has sent. Returns whether a request was completed.
    fn receive(&mut self, active: &mut Active) -> Result<bool, Violation> {
        let mut has_completed = [false; QUEUE_SIZES.len()];
        while let Some(server) = &self.server {
            let begun = self.received.len();
            let length = if begun < REPLY_HEADER {
                REPLY_HEADER
            } else {
                word(&self.received, 0) as usize
            };
            if begun >= REPLY_HEADER && !(REPLY_HEADER..=LARGEST).contains(&length) {
                eprintln!("the server of a shared folder sent a reply of {length} bytes");
                self.server = None;
                break;
            }
            if begun == length && begun >= REPLY_HEADER {
                let reply = std::mem::take(&mut self.received);
                if long(&reply, 8) == NO_REQUEST {
                    self.outdate(&reply, active);
                } else if let Some(queue) = self.complete(reply, active)?
                    && let Some(flag) = has_completed.get_mut(queue)
                {
                    *flag = true;
                }
                continue;
            }
            self.received.resize(length, 0);
            let rest = self.received.get_mut(begun..).unwrap_or_default();
            let result = rustix::io::read(server, &mut *rest);
            let count = *result.as_ref().unwrap_or(&0);
            self.received.truncate(begun.saturating_add(count));
            match result {
                Ok(0) => self.server = None,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.server = None,
            }
        }
        for (index, _) in has_completed.iter().enumerate().filter(|(_, has)| **has) {
            active.notify(index)?;
        }
        Ok(has_completed.contains(&true))
    }

    /// Writes a version to slots of the guest's table, or to all of them. What the guest has no memory
    /// for is left out.
    fn outdate(&self, message: &[u8], active: &Active) {
        let Some(table) = self.versions else {
            return;
        };
        let version = long(message, REPLY_HEADER);
        let write = |slot: u16| {
            if let Some(at) = table.checked_add(u64::from(slot % SLOTS) * 8) {
                let ram = active.memory.ram();
                let _ = ram.store(version.to_le(), GuestAddress(at), Ordering::Release);
            }
        };
        let slots = message.get(REPLY_HEADER + 8..).unwrap_or_default();
        if slots.is_empty() {
            (0..SLOTS).for_each(write);
        }
        let (slots, _) = slots.as_chunks();
        slots
            .iter()
            .copied()
            .map(u16::from_le_bytes)
            .for_each(write);
    }

    /// Gives the guest a reply. Returns its queue; None if no request waits for it, as after a
    /// reset.
    fn complete(
        &mut self,
        mut reply: Vec<u8>,
        active: &mut Active,
    ) -> Result<Option<usize>, Violation> {
        let Some(waiting) = self.waiting.remove(&long(&reply, 8)) else {
            return Ok(None);
        };
        for (place, byte) in reply.iter_mut().skip(8).zip(waiting.unique.to_le_bytes()) {
            *place = byte;
        }
        let queue = active.queues.get(waiting.queue)?;
        let place = waiting.places.buffers(&active.memory)?;
        if reply.len() > place.len() {
            reply = failure(waiting.unique);
        }
        let written = place.copy_from(&reply);
        queue.complete(&active.memory, waiting.head, written)?;
        Ok(Some(waiting.queue))
    }

    /// Fails all requests, because there is no server.
    fn fail_waiting(&mut self, active: &mut Active) -> Result<(), Violation> {
        for number in self.waiting.keys().copied().collect::<Vec<_>>() {
            if let Some(queue) = self.complete(failure(number), active)? {
                active.notify(queue)?;
            }
        }
        Ok(())
    }
}

impl Device for Fs {
    fn id(&self) -> u32 {
        VIRTIO_ID_FS
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn reset(&mut self) {
        // Replies to them are ignored. What was sent in part must be sent whole.
        self.waiting.clear();
        self.versions = None;
    }

    fn queue(&mut self, _index: usize, active: &mut Active) -> Result<(), Violation> {
        self.work(active)
    }

    fn source(&self) -> Option<(RawFd, EventSet)> {
        let server = self.server.as_ref()?;
        let events = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        Some((server.as_raw_fd(), events))
    }

    fn host(&mut self, active: &mut Active) -> Result<(), Violation> {
        self.work(active)
    }
}

/// Returns the address of the table of versions that a guest names when it begins.
fn table(request: &[u8]) -> Option<u64> {
    let has =
        word(request, FLAGS) & HAS_MORE_FLAGS != 0 && word(request, MORE_FLAGS) & HAS_VERSIONS != 0;
    has.then(|| long(request, VERSIONS))
}

/// Returns the reply to a request that can't be served (`EIO`).
fn failure(unique: u64) -> Vec<u8> {
    let length = REPLY_HEADER as u32; // 16
    let code = -Errno::IO.raw_os_error();
    let bytes = length.to_le_bytes().into_iter().chain(code.to_le_bytes());
    bytes.chain(unique.to_le_bytes()).collect()
}

/// Returns the number at `offset`; 0 behind the end.
fn word(bytes: &[u8], offset: usize) -> u32 {
    let bytes = bytes.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.copied().map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], offset: usize) -> u64 {
    let bytes = bytes.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::kvm::virtio::driver::{Driver, WRITE};

    fn request(length: u32, opcode: u32, unique: u64, rest: usize) -> Vec<u8> {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(opcode.to_le_bytes());
        bytes.extend(unique.to_le_bytes());
        bytes.resize(REQUEST_HEADER + rest, 7);
        bytes
    }

    fn reply(length: u32, unique: u64, rest: &[u8]) -> Vec<u8> {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(unique.to_le_bytes());
        bytes.extend(rest);
        bytes
    }

    fn device() -> (Driver, UnixStream) {
        let (ours, server) = UnixStream::pair().unwrap();
        (
            Driver::new(Box::new(Fs::new(ours.into(), "t").unwrap())),
            server,
        )
    }

    fn send(driver: &mut Driver, bytes: &[u8], room: u32) -> (u16, u64) {
        let out = driver.buffer(bytes);
        let place = driver.buffer(&vec![0; room as usize]);
        let length = u32::try_from(bytes.len()).unwrap();
        let head = driver.add(1, &[(out, length, 0), (place, room, WRITE)]);
        (head, place)
    }

    #[test]
    fn replies_may_come_in_any_order() {
        let (mut driver, mut server) = device();
        let (one, first) = send(&mut driver, &request(44, 1, 70, 4), 24);
        let (two, second) = send(&mut driver, &request(40, 3, 70, 0), 24);
        driver.run(1);
        let mut sent = [0; 84];
        server.read_exact(&mut sent).unwrap();
        // Requests of the guest may have the same number.
        assert_eq!((long(&sent, 8), long(&sent, 52)), (1, 2));
        server.write_all(&reply(24, 2, b"the 2nd.")).unwrap();
        server.write_all(&reply(20, 9, b"none")).unwrap();
        server.write_all(&reply(20, 1, b"1st.")).unwrap();
        driver.host();
        assert_eq!(driver.used(1), [(two, 24), (one, 20)]);
        assert_eq!(driver.read(second, 24), reply(24, 70, b"the 2nd."));
        assert_eq!(driver.read(first, 20), reply(20, 70, b"1st."));
    }

    #[test]
    fn versions_are_written_to_the_table_of_a_guest_that_has_one() {
        let (mut driver, mut server) = device();
        let table = driver.buffer(&[0; SLOTS as usize * 8]);
        let slot = |driver: &Driver, slot: u64| long(&driver.read(table + slot * 8, 8), 0);
        let outdate =
            |driver: &mut Driver, server: &mut UnixStream, version: u64, slots: &[u16]| {
                let slots = slots.iter().flat_map(|slot| slot.to_le_bytes());
                let body: Vec<u8> = version.to_le_bytes().into_iter().chain(slots).collect();
                let length = u32::try_from(REPLY_HEADER + body.len()).unwrap();
                server.write_all(&reply(length, NO_REQUEST, &body)).unwrap();
                driver.host();
            };
        let init = |address: u64| {
            let words = [7, 38, 0, HAS_MORE_FLAGS, HAS_VERSIONS].map(u32::to_le_bytes);
            let body = [words.as_flattened(), &address.to_le_bytes(), &[0; 36]].concat();
            let mut init = request(104, INIT, 1, 0);
            init.extend(body);
            init
        };
        // Without a table, nothing is written.
        outdate(&mut driver, &mut server, 5, &[]);
        send(&mut driver, &init(table), 64);
        driver.run(1);
        outdate(&mut driver, &mut server, 6, &[1, 4095]);
        let at = [0, 1, 2, 4095];
        assert_eq!(at.map(|at| slot(&driver, at)), [0, 6, 0, 6]);
        outdate(&mut driver, &mut server, 7, &[]);
        assert_eq!(at.map(|at| slot(&driver, at)), [7; 4]);
        send(&mut driver, &request(40, DESTROY, 2, 0), 64);
        driver.run(1);
        outdate(&mut driver, &mut server, 8, &[]);
        assert_eq!(at.map(|at| slot(&driver, at)), [7; 4]);
        // A table that is not in the guest's memory harms nothing.
        for wrong in [u64::MAX, u64::MAX - 7, 1 << 40, table + 1] {
            send(&mut driver, &init(wrong), 64);
            driver.run(1);
            outdate(&mut driver, &mut server, 9, &[]);
        }
        assert!(!driver.is_stopped());
        assert_eq!(slot(&driver, 0), 7);
    }

    #[test]
    fn a_reply_without_room_fails_its_request_only() {
        let (mut driver, mut server) = device();
        let (head, place) = send(&mut driver, &request(40, 3, 5, 0), 16);
        driver.run(1);
        server.write_all(&reply(20, 1, b"long")).unwrap();
        driver.host();
        assert_eq!(driver.used(1), [(head, 16)]);
        assert_eq!(driver.read(place, 16), failure(5));
    }

    #[test]
    fn a_server_that_is_gone_or_sends_nonsense_fails_all_requests() {
        for bytes in [&[][..], &reply(u32::MAX, 1, b""), &reply(3, 1, b"")] {
            let (mut driver, mut server) = device();
            let (one, place) = send(&mut driver, &request(40, 3, 5, 0), 64);
            driver.run(1);
            server.write_all(bytes).unwrap();
            drop(server);
            driver.host();
            assert_eq!(driver.used(1), [(one, 16)]);
            assert_eq!(driver.read(place, 16), failure(5));
            let (two, _) = send(&mut driver, &request(40, 3, 6, 0), 64);
            driver.run(1);
            assert_eq!(driver.used(1), [(two, 16)]);
        }
    }

    #[test]
    fn a_request_that_lies_about_its_length_stops_the_device() {
        for (length, rest) in [(41, 0), (39, 0), (40, 1), (u32::MAX, 0)] {
            let (mut driver, _server) = device();
            send(&mut driver, &request(length, 3, 5, rest), 64);
            driver.run(1);
            assert!(driver.is_stopped());
        }
    }
}
