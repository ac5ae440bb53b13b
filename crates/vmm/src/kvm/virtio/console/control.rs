//! Control messages, which set up ports (specification section 5.3.6.2).

use std::collections::VecDeque;

/// The only port's number.
const PORT: u32 = 0;

/// Events, `VIRTIO_CONSOLE_*`.
const DEVICE_READY: u16 = 0;
const PORT_ADD: u16 = 1;
const PORT_READY: u16 = 3;
const PORT_OPEN: u16 = 6;
const PORT_NAME: u16 = 7;

/// Bytes of a message without a name: port, event, value.
pub(super) const LENGTH: usize = 8;

/// Maximum messages that wait for the driver. A driver causes three in all; one that repeats its
/// requests must take the answers first.
const MAX_WAITING: usize = 16;

/// The exchange of messages about the only port.
#[derive(Debug)]
pub(super) struct Control {
    name: &'static str,
    waiting: VecDeque<Vec<u8>>,
}

impl Control {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.waiting.clear();
    }

    /// Handles a message from the driver.
    pub(super) fn handle(&mut self, message: [u8; LENGTH]) {
        let [a, b, c, d, e, f, g, h] = message;
        let port = u32::from_le_bytes([a, b, c, d]);
        match (u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h])) {
            (DEVICE_READY, 1) => self.queue(PORT_ADD, 1, ""),
            (PORT_READY, 1) if port == PORT => {
                self.queue(PORT_NAME, 1, self.name);
                self.queue(PORT_OPEN, 1, "");
            }
            // The driver may open and close the port at any time; the host's end is always open.
            _ => {}
        }
    }

    /// Reports to the driver that the host's end is closed.
    pub(super) fn close(&mut self) {
        self.queue(PORT_OPEN, 0, "");
    }

    fn queue(&mut self, event: u16, value: u16, name: &str) {
        if self.waiting.len() < MAX_WAITING {
            let mut message = PORT.to_le_bytes().to_vec();
            message.extend(event.to_le_bytes());
            message.extend(value.to_le_bytes());
            message.extend(name.as_bytes());
            self.waiting.push_back(message);
        }
    }

    /// Returns the messages that wait for the driver.
    pub(super) fn waiting(&self) -> &VecDeque<Vec<u8>> {
        &self.waiting
    }

    /// Replaces the waiting messages, keeping at most the maximum.
    pub(super) fn resume(&mut self, waiting: VecDeque<Vec<u8>>) {
        self.waiting = waiting;
        self.waiting.truncate(MAX_WAITING);
    }

    /// Removes and returns the next message for the driver.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
