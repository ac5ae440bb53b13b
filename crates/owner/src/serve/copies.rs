//! Copies of a command's output, for clients that have attached to the command.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use micabox_wire::{MAX_DATA, SendWindow, WindowError};
use rustix::io::Errno;

use super::client::ClientId;
use crate::descriptor::Descriptor;

/// The copies of one output.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<Copy>);

/// A copy.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) client: (ClientId, u32),
    to: Target,
    /// Bytes that the client has not accepted yet.
    pending: VecDeque<u8>,
}

/// Where a copy goes.
#[derive(Debug)]
pub(super) enum Target {
    /// Nowhere: the client only gets the message of the command's end.
    Nothing,
    Descriptor(Descriptor),
    /// To the client's connection, as far as the client has granted.
    Frames(SendWindow),
}

impl Copies {
    /// Adds a copy of all later bytes for a client.
    pub(super) fn add(&mut self, client: (ClientId, u32), to: Target) {
        self.0.push(Copy {
            client,
            to,
            pending: VecDeque::new(),
        });
    }

    /// Removes a client's copy.
    pub(super) fn remove(&mut self, client: (ClientId, u32)) {
        self.0.retain(|copy| copy.client != client);
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns whether none is behind.
    pub(super) fn are_written(&self) -> bool {
        self.0.iter().all(|copy| copy.pending.is_empty())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Copy> {
        self.0.iter()
    }

    /// Grants a client's copy more bytes, if it is one in frames.
    ///
    /// # Errors
    /// [`WindowError::Overflow`].
    pub(super) fn grant(&mut self, client: (ClientId, u32), bytes: u32) -> Result<(), WindowError> {
        let mut copies = self.0.iter_mut();
        match copies.find(|copy| copy.client == client).map(|c| &mut c.to) {
            Some(Target::Frames(window)) => window.grant(bytes),
            _ => Ok(()),
        }
    }

    /// Writes `data` to all copies, after what is pending; frames are handed to `send`. Returns the
    /// clients whose descriptors can't be written to, each with the reason.
    pub(super) fn write(
        &mut self,
        data: &[u8],
        mut send: impl FnMut((ClientId, u32), &[u8]),
    ) -> Vec<((ClientId, u32), Errno)> {
        let mut broken = Vec::new();
        for copy in &mut self.0 {
            match &mut copy.to {
                Target::Nothing => {}
                Target::Descriptor(descriptor) => {
                    if let Err(why) = descriptor.write_after(&mut copy.pending, data) {
                        broken.push((copy.client, why));
                    }
                }
                Target::Frames(window) => {
                    copy.pending.extend(data);
                    while !copy.pending.is_empty() && window.available() > 0 {
                        let (front, _) = copy.pending.as_slices();
                        let count = front.len().min(window.available()).min(MAX_DATA);
                        send(copy.client, front.get(..count).unwrap_or_default());
                        copy.pending.drain(..count);
                        // No more was sent than the window allows.
                        let _ = window.take(count);
                    }
                }
            }
        }
        broken
    }
}

impl Copy {
    /// Returns its descriptor, if it has one, and whether that must be written to.
    pub(super) fn descriptor(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.to {
            Target::Descriptor(descriptor) => Some((descriptor.as_fd(), !self.pending.is_empty())),
            Target::Nothing | Target::Frames(_) => None,
        }
    }
}
