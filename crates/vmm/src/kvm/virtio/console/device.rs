//! The console device (specification section 5.3) with one port, which is not a terminal but a
//! stream with a name.

use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;

use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;
use vmm_sys_util::epoll::EventSet;

use super::control::{Control, LENGTH};
use super::state::State;
use crate::kvm::virtio::{Active, Device, Violation};

/// `VIRTIO_CONSOLE_F_MULTIPORT`: messages add, name and remove ports.
const MULTIPORT: u64 = 1 << 1;

/// The port's queues and those of control messages; each pair from the driver's view.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const CONTROL_RECEIVE: usize = 2;
const CONTROL_TRANSMIT: usize = 3;
const QUEUE_SIZES: [u16; 4] = [128, 128, 32, 32];

/// Columns, rows, number of ports, emergency write.
const CONFIG: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// The device. Either side waits for the other: data that the host does not take stays in the
/// driver's queue, data that the driver has no room for stays in the socket.
#[derive(Debug)]
pub(crate) struct Console {
    stream: UnixStream,
    pub(super) control: Control,
    /// Bytes of the next chain to transmit that the host has already taken.
    pub(super) sent: usize,
    /// The host has closed its end.
    closed: bool,
}

impl Console {
    /// Creates a device with a port called `name` that carries `stream`.
    ///
    /// # Errors
    /// If the stream can't be made non-blocking.
    pub(crate) fn new(name: &'static str, stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            control: Control::new(name),
            sent: 0,
            closed: false,
        })
    }

    /// Moves data from the host to the guest.
    fn receive(&mut self, active: &mut Active) -> Result<(), Violation> {
        if self.closed || !active.queues.has(RECEIVE) {
            return Ok(());
        }
        let mut used = false;
        loop {
            let queue = active.queues.get(RECEIVE)?;
            let Some(chain) = queue.pop(&active.memory)? else {
                break;
            };
            if chain.writable.len() == 0 {
                return Err(Violation::BadBuffer);
            }
            match chain.writable.receive(self.stream.as_raw_fd()) {
                Ok(0) => {
                    queue.undo_pop();
                    self.closed = true;
                    self.control.close();
                    self.send_control(active)?;
                    break;
                }
                Ok(count) => {
                    queue.complete(&active.memory, chain.head, count)?;
                    used = true;
                }
                Err(error) => {
                    queue.undo_pop();
                    if error.kind() != io::ErrorKind::Interrupted {
                        break;
                    }
                }
            }
        }
        if used { active.notify(RECEIVE) } else { Ok(()) }
    }

    /// Moves data from the guest to the host.
    fn transmit(&mut self, active: &mut Active) -> Result<(), Violation> {
        if !active.queues.has(TRANSMIT) {
            return Ok(());
        }
        let mut used = false;
        loop {
            let queue = active.queues.get(TRANSMIT)?;
            let Some(chain) = queue.pop(&active.memory)? else {
                break;
            };
            let left = chain.readable.len().saturating_sub(self.sent);
            match chain.readable.send(self.stream.as_raw_fd(), self.sent) {
                Ok(count) if count < left => {
                    self.sent = self.sent.saturating_add(count);
                    queue.undo_pop();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => queue.undo_pop(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    queue.undo_pop();
                    break;
                }
                // All of it is sent; or the host's end is closed, so that it is dropped.
                Ok(_) | Err(_) => {
                    self.sent = 0;
                    queue.complete(&active.memory, chain.head, 0)?;
                    used = true;
                }
            }
        }
        if used {
            active.notify(TRANSMIT)
        } else {
            Ok(())
        }
    }

    /// Handles control messages from the driver.
    fn handle_control(&mut self, active: &mut Active) -> Result<(), Violation> {
        let queue = active.queues.get(CONTROL_TRANSMIT)?;
        while let Some(chain) = queue.pop(&active.memory)? {
            if let Some(message) = chain.readable.read::<LENGTH>() {
                self.control.handle(message);
            }
            queue.complete(&active.memory, chain.head, 0)?;
        }
        active.notify(CONTROL_TRANSMIT)?;
        self.send_control(active)
    }

    /// Sends control messages to the driver.
    fn send_control(&mut self, active: &mut Active) -> Result<(), Violation> {
        if !active.queues.has(CONTROL_RECEIVE) {
            return Ok(());
        }
        let queue = active.queues.get(CONTROL_RECEIVE)?;
        let mut used = false;
        while self.control.is_waiting() {
            let Some(chain) = queue.pop(&active.memory)? else {
                break;
            };
            let message = self.control.next().unwrap_or_default();
            let written = chain.writable.copy_from(&message);
            queue.complete(&active.memory, chain.head, written)?;
            used = true;
        }
        if used {
            active.notify(CONTROL_RECEIVE)
        } else {
            Ok(())
        }
    }
}

impl Device for Console {
    fn id(&self) -> u32 {
        VIRTIO_ID_CONSOLE
    }

    fn features(&self) -> u64 {
        MULTIPORT
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// Linux's driver polls for the end of each message, without a pause.
    fn is_awaited(&self, index: usize) -> bool {
        index == CONTROL_TRANSMIT
    }

    fn config(&self) -> &[u8] {
        &CONFIG
    }

    /// A kernel that ends resets its devices, perhaps before the devices' thread has sent its last
    /// output.
    fn finish(&mut self, active: &mut Active) -> Result<(), Violation> {
        self.transmit(active)
    }

    fn reset(&mut self) {
        self.control.reset();
        self.sent = 0;
        self.closed = false;
    }

    fn queue(&mut self, index: usize, active: &mut Active) -> Result<(), Violation> {
        match index {
            RECEIVE => self.receive(active),
            TRANSMIT => self.transmit(active),
            CONTROL_RECEIVE => self.send_control(active),
            _ => self.handle_control(active),
        }
    }

    fn save(&self) -> Vec<u8> {
        // Encoding to memory does not fail.
        postcard::to_allocvec(&State::of(self)).unwrap_or_default()
    }

    fn resume(&mut self, saved: &[u8]) -> Result<(), postcard::Error> {
        postcard::from_bytes::<State>(saved).map(|state| state.give_to(self))
    }

    fn source(&self) -> Option<(RawFd, EventSet)> {
        let events = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        Some((self.stream.as_raw_fd(), events))
    }

    fn host(&mut self, active: &mut Active) -> Result<(), Violation> {
        self.receive(active)?;
        self.transmit(active)
    }
}

#[cfg(test)]
mod tests;
