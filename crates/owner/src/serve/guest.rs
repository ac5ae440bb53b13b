//! The guest: the stream to its agent, and how far its start is.

use std::time::{Duration, Instant};

use micabox_ground::clock;
use micabox_wire::{Boot, Hello, OutputStream, Phase, ToGuest};

use crate::Lost;
use crate::guest::Link;

/// The guest.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) link: Link,
    /// Whether the agent's stream is read.
    pub(super) is_linked: bool,
    pub(super) begun: Instant,
    /// The message to send when the agent's hello arrives.
    boot: Option<Box<Boot>>,
    pub(super) hello: Option<(Instant, Hello)>,
    pub(super) up: Option<(Instant, Vec<Phase>)>,
    /// Deadline for the guest's start.
    pub(super) up_deadline: Option<Instant>,
    /// How long the guest may take to answer.
    pub(super) patience: Duration,
    pub(super) lost: Option<Lost>,
}

impl Guest {
    /// Begins to wait for a guest, which gets `boot` when its agent says hello.
    pub(super) fn new(link: Link, boot: Option<Box<Boot>>, patience: Duration) -> Self {
        let now = Instant::now();
        Self {
            link,
            is_linked: true,
            begun: now,
            boot,
            hello: None,
            up: None,
            up_deadline: now.checked_add(patience),
            patience,
            lost: None,
        }
    }

    /// Adds a message to those that are sent when the guest takes them.
    pub(super) fn send(&mut self, message: ToGuest) {
        self.link.outbox.push(message);
    }

    /// Grants the guest more bytes of an output, if credit is due.
    pub(super) fn credit(&mut self, id: u32, stream: OutputStream, bytes: Option<u32>) {
        self.link.outbox.credit(id, stream, bytes);
    }

    /// Handles the agent's hello: the guest boots.
    ///
    /// # Errors
    /// A violation of the protocol, as those of the other methods.
    pub(super) fn greeted(&mut self, now: Instant, hello: Hello) -> Result<(), String> {
        let boot = self.boot.take();
        let mut boot = boot.ok_or("an unexpected Hello from the guest")?;
        // It was described before the machine started; times in folders of the host are its.
        boot.identity.wall_clock = clock::now_as_parts();
        self.hello = Some((now, hello));
        self.send(ToGuest::Boot(boot));
        Ok(())
    }

    /// Checks that the guest may report that it has booted.
    pub(super) fn check_booted(&self) -> Result<(), String> {
        if self.hello.is_none() || self.up.is_some() {
            return Err("an unexpected Booted from the guest".into());
        }
        Ok(())
    }

    /// Checks that the guest may report that it can't boot.
    pub(super) fn check_boot_failed(&self) -> Result<(), String> {
        if self.up.is_some() {
            return Err("BootFailed from a guest that had booted".into());
        }
        Ok(())
    }

    /// Checks that the guest may report that it runs as a copy.
    pub(super) fn check_restored(&self) -> Result<(), String> {
        if self.hello.is_some() || self.boot.is_some() || self.up.is_some() {
            return Err("an unexpected Restored from the guest".into());
        }
        Ok(())
    }

    /// Notes that the guest is ready for commands.
    pub(super) fn set_up(&mut self, now: Instant, phases: Vec<Phase>) {
        self.up = Some((now, phases));
        self.up_deadline = None;
    }

    /// Returns when the guest became ready for commands.
    pub(super) fn up_since(&self) -> Option<Instant> {
        self.up.as_ref().map(|(at, _)| *at)
    }
}
