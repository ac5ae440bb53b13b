//! The queue of messages to the guest.
//!
//! A guest may stop reading at any moment, so the queue is bounded: stdin from descriptors by
//! [`MAX_STDIN`], stdin from frames by each command's window, credit by adding it up for each
//! stream, everything else by the clients' requests.

use std::collections::{BTreeMap, VecDeque};

use micabox_wire::{OutputStream, ToGuest};

/// Most bytes of stdin in the queue, of all commands together.
const MAX_STDIN: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    messages: VecDeque<ToGuest>,
    credits: BTreeMap<(u32, bool), u32>,
    stdin_bytes: usize,
    /// Nothing is sent because the guest is quiesced.
    held: bool,
    /// The message that a quiesced guest waits for, sent before everything else.
    first: Option<ToGuest>,
}

impl Outbox {
    pub(crate) fn push(&mut self, message: ToGuest) {
        if let ToGuest::Stdin { data, .. } = &message {
            self.stdin_bytes = self.stdin_bytes.saturating_add(data.len());
        }
        self.messages.push_back(message);
    }

    pub(crate) fn credit(&mut self, id: u32, stream: OutputStream, bytes: Option<u32>) {
        if let Some(bytes) = bytes {
            let key = (id, stream == OutputStream::Stderr);
            let sum = self.credits.entry(key).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Returns whether there is a message that may be sent now.
    pub(crate) fn is_ready(&self) -> bool {
        let is_empty = self.first.is_none() && self.credits.is_empty() && self.messages.is_empty();
        !self.held && !is_empty
    }

    /// Returns how many bytes of stdin may be added.
    pub(crate) fn stdin_room(&self) -> usize {
        MAX_STDIN.saturating_sub(self.stdin_bytes)
    }

    /// Takes the next message to send; credit first, so that output flows while stdin waits.
    pub(crate) fn pop(&mut self) -> Option<ToGuest> {
        if self.held {
            return None;
        }
        if let Some(message) = self.first.take() {
            return Some(message);
        }
        if let Some(((id, is_stderr), bytes)) = self.credits.pop_first() {
            let stream = if is_stderr {
                OutputStream::Stderr
            } else {
                OutputStream::Stdout
            };
            return Some(ToGuest::Credit { id, stream, bytes });
        }
        let message = self.messages.pop_front();
        self.held = matches!(message, Some(ToGuest::Quiesce));
        if let Some(ToGuest::Stdin { data, .. }) = &message {
            self.stdin_bytes = self.stdin_bytes.saturating_sub(data.len());
        }
        message
    }

    /// Resumes sending, with the message that a quiesced guest waits for first. A guest that has not been
    /// asked to quiesce yet no longer is.
    pub(crate) fn release(&mut self, message: ToGuest) {
        let is_asking = |message: &ToGuest| matches!(message, ToGuest::Quiesce);
        if let Some(at) = self.messages.iter().position(is_asking) {
            self.messages.remove(at);
            return;
        }
        self.first = Some(message);
        self.held = false;
    }

    /// Removes all messages about a command that has ended.
    pub(crate) fn forget(&mut self, id: u32) {
        self.credits.retain(|(owner, _), _| *owner != id);
        let mut freed = 0_usize;
        self.messages.retain(|message| match message {
            ToGuest::Stdin { id: owner, data } if *owner == id => {
                freed = freed.saturating_add(data.len());
                false
            }
            ToGuest::CloseStdin { id: owner }
            | ToGuest::Signal { id: owner, .. }
            | ToGuest::SignalGroup { id: owner, .. }
            | ToGuest::Resize { id: owner, .. } => *owner != id,
            _ => true,
        });
        self.stdin_bytes = self.stdin_bytes.saturating_sub(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_added_up_and_sent_first() {
        let mut outbox = Outbox::default();
        outbox.push(ToGuest::CloseStdin { id: 1 });
        outbox.credit(1, OutputStream::Stdout, Some(10));
        outbox.credit(1, OutputStream::Stdout, None);
        outbox.credit(1, OutputStream::Stdout, Some(5));
        outbox.credit(1, OutputStream::Stderr, Some(u32::MAX));
        outbox.credit(1, OutputStream::Stderr, Some(1));
        let credit = |stream, bytes| {
            Some(ToGuest::Credit {
                id: 1,
                stream,
                bytes,
            })
        };
        assert_eq!(outbox.pop(), credit(OutputStream::Stdout, 15));
        assert_eq!(outbox.pop(), credit(OutputStream::Stderr, u32::MAX));
        assert_eq!(outbox.pop(), Some(ToGuest::CloseStdin { id: 1 }));
        assert_eq!(outbox.pop(), None);
    }

    #[test]
    fn nothing_is_sent_to_a_quiesced_guest() {
        let mut outbox = Outbox::default();
        outbox.push(ToGuest::Quiesce);
        outbox.push(ToGuest::CloseStdin { id: 1 });
        outbox.credit(1, OutputStream::Stdout, Some(10));
        // Credit first, as always.
        assert!(matches!(outbox.pop(), Some(ToGuest::Credit { .. })));
        assert_eq!(outbox.pop(), Some(ToGuest::Quiesce));
        outbox.credit(1, OutputStream::Stdout, Some(10));
        assert_eq!(outbox.pop(), None);
        let thaw = ToGuest::Thaw {
            wall_clock: (1, 2),
            entropy: [3; 32],
        };
        outbox.release(thaw.clone());
        assert_eq!(outbox.pop(), Some(thaw.clone()));
        assert!(matches!(outbox.pop(), Some(ToGuest::Credit { .. })));
        assert_eq!(outbox.pop(), Some(ToGuest::CloseStdin { id: 1 }));
        // A guest that was not asked is sent neither.
        outbox.push(ToGuest::Quiesce);
        outbox.release(thaw);
        assert_eq!(outbox.pop(), None);
    }

    #[test]
    fn stdin_has_bounded_room() {
        let mut outbox = Outbox::default();
        let data = vec![0; MAX_STDIN];
        outbox.push(ToGuest::Stdin { id: 1, data });
        assert_eq!(outbox.stdin_room(), 0);
        outbox.push(ToGuest::CloseStdin { id: 2 });
        outbox.forget(1);
        assert_eq!(outbox.stdin_room(), MAX_STDIN);
        assert_eq!(outbox.pop(), Some(ToGuest::CloseStdin { id: 2 }));
    }
}
