//! What the event loop hears of besides the guest and the clients: threads and signals.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use micabox_vmm::Machine;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};

use super::wake::{self, Inbox, Notifier};
use crate::Lost;

/// Events from threads to the event loop.
#[derive(Debug)]
pub(super) enum Event {
    /// Progress of a freeze.
    Freeze(Freeze),
    /// Progress of a pause.
    Pause(Pausing),
    /// Why the agent's stream ended.
    Lost(Lost),
    /// Whether the machine is gone, after the wait for its end.
    Gone(bool),
}

/// Progress of a freeze.
#[derive(Debug)]
pub(super) enum Freeze {
    /// The machine is frozen, and saved if requested.
    Frozen,
    /// The machine runs again: whether it was frozen until the client no longer needed it, or why
    /// it could not be frozen.
    Over(Result<bool, String>),
}

/// Progress of a pause.
#[derive(Debug)]
pub(super) enum Pausing {
    /// The machine is paused.
    Paused,
    /// The machine runs again, or why it could not be paused.
    Over(Result<(), String>),
}

/// Where events come from.
#[derive(Debug)]
pub(super) struct Events {
    /// For threads.
    pub(super) notifier: Notifier<Event>,
    pub(super) inbox: Inbox<Event>,
    /// Readable when a signal has asked this process to end.
    pub(super) signals: UnixStream,
}

impl Events {
    /// Makes the queue, and catches the signals that ask this process to end.
    pub(super) fn new() -> io::Result<Self> {
        let (notifier, inbox) = wake::inbox()?;
        Ok(Self {
            notifier,
            inbox,
            signals: catch_signals()?,
        })
    }

    /// Takes the signals that have arrived.
    pub(super) fn take_signals(&self) {
        let _ = (&self.signals).read(&mut [0; 64]);
    }

    /// Runs `body`, which waits for the machine, in a thread.
    pub(super) fn in_a_thread(
        &self,
        machine: &Arc<dyn Machine>,
        body: impl FnOnce(&dyn Machine) -> Event + Send + 'static,
    ) {
        let (thread_machine, notifier) = (Arc::clone(machine), self.notifier.clone());
        let thread = std::thread::Builder::new().name("machine-end".into());
        let spawned = thread.spawn(move || notifier.notify(body(&*thread_machine)));
        if spawned.is_err() {
            // Without a thread, nothing waits for the machine: it is killed.
            machine.kill();
            self.notifier.notify(Event::Gone(false));
        }
    }
}

/// Returns a socket that is readable when a signal has asked this process to end.
fn catch_signals() -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    // A client that closes its end of a pipe ends nothing: the write fails. The runtime of Rust sees
    // to that, but not in a program that is not Rust's.
    signal_hook::flag::register(SIGPIPE, Arc::default())?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}
