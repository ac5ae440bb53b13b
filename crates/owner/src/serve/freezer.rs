//! Freezes the machine for as long as a client needs it, and saves it if requested.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use micabox_vmm::{Machine, Snapshot};

use super::Event;
use super::client::ClientId;
use super::wake::Notifier;

/// How long a client that keeps the machine frozen may be silent: its process may be stopped.
const SILENCE: Duration = Duration::from_secs(10);

/// How long a guest may take to quiesce.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client's message about its freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    Hold,
    Thaw,
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

/// A request to freeze.
#[derive(Debug)]
pub(super) struct FreezeRequest {
    pub(super) client: ClientId,
    pub(super) number: u32,
    /// The files that the machine is saved to, if requested.
    pub(super) memory: Option<Snapshot>,
}

/// The current freeze, and the requests that wait for it.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    current: Option<Current>,
    waiting: VecDeque<FreezeRequest>,
}

#[derive(Debug)]
struct Current {
    request: FreezeRequest,
    beats: Option<Sender<Beat>>,
    /// The client is gone, or the sandbox is about to end.
    is_abandoned: bool,
    /// Deadline for the guest to quiesce, while it has not.
    quiesce: Option<Instant>,
}

impl Current {
    fn abandon(&mut self) {
        self.beats = None;
        self.is_abandoned = true;
    }
}

impl Freezer {
    /// Adds a request.
    pub(super) fn push(&mut self, request: FreezeRequest) {
        self.waiting.push_back(request);
    }

    /// Begins the next request, if none is current. Returns whether the guest must be quiesced
    /// first; if not, [`Freezer::freeze`] comes next.
    pub(super) fn begin(&mut self) -> Option<bool> {
        if self.current.is_some() {
            return None;
        }
        let request = self.waiting.pop_front()?;
        let saves = request.memory.is_some();
        self.current = Some(Current {
            request,
            beats: None,
            is_abandoned: false,
            quiesce: saves.then(|| Instant::now() + QUIESCE_TIMEOUT),
        });
        Some(saves)
    }

    /// Freezes the machine in a thread, which waits for the machine's process.
    pub(super) fn freeze(&mut self, machine: &Arc<dyn Machine>, notifier: &Notifier<Event>) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.quiesce = None;
        let (beats, inbox) = channel();
        let (machine, memory) = (Arc::clone(machine), current.request.memory.clone());
        let thread_notifier = notifier.clone();
        let thread = std::thread::Builder::new()
            .name("freeze".into())
            .spawn(move || {
                let mut to_the_end = false;
                let mut meanwhile = || {
                    thread_notifier.notify(Event::Freeze(Freeze::Frozen));
                    to_the_end = hold(&inbox);
                };
                let frozen = match memory {
                    Some(memory) => machine.save(&memory, &mut meanwhile),
                    None => machine.pause(&mut meanwhile),
                };
                let over = frozen
                    .map(|()| to_the_end)
                    .map_err(|error| error.to_string());
                thread_notifier.notify(Event::Freeze(Freeze::Over(over)));
            });
        match thread {
            Ok(_) => current.beats = Some(beats).filter(|_| !current.is_abandoned),
            Err(error) => notifier.notify(Event::Freeze(Freeze::Over(Err(error.to_string())))),
        }
    }

    /// Returns the current request.
    pub(super) fn current(&self) -> Option<&FreezeRequest> {
        self.current.as_ref().map(|current| &current.request)
    }

    /// Returns whether the machine is being saved, with the guest quiesced or about to be.
    pub(super) fn saves(&self) -> bool {
        self.current()
            .is_some_and(|request| request.memory.is_some())
    }

    /// Returns the deadline for the guest to quiesce.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref()?.quiesce
    }

    /// Returns whether the guest must still quiesce before the machine is frozen.
    pub(super) fn is_quiescing(&self) -> bool {
        self.deadline().is_some()
    }

    /// Passes a client's message on to the thread of its freeze.
    pub(super) fn beat(&self, client: ClientId, beat: Beat) {
        if let Some(current) = &self.current
            && current.request.client == client
            && let Some(beats) = &current.beats
        {
            // If the thread has ended, the machine runs again, and the client is about to be
            // notified.
            let _ = beats.send(beat);
        }
    }

    /// Ends the current request and returns it.
    pub(super) fn end(&mut self) -> Option<FreezeRequest> {
        self.current.take().map(|current| current.request)
    }

    /// Drops a client's requests.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.waiting.retain(|request| request.client != client);
        if let Some(current) = &mut self.current
            && current.request.client == client
        {
            current.abandon();
        }
    }

    /// Thaws the machine because the sandbox is about to end. Returns the requests that waited.
    pub(super) fn give_up(&mut self) -> VecDeque<FreezeRequest> {
        if let Some(current) = &mut self.current {
            current.abandon();
        }
        std::mem::take(&mut self.waiting)
    }
}

/// Blocks until the machine need not be frozen any more. Returns whether it was frozen for as long
/// as the client needed. It was not if the client was silent for too long, or is gone, or the
/// sandbox ends.
fn hold(beats: &Receiver<Beat>) -> bool {
    loop {
        match beats.recv_timeout(SILENCE) {
            Ok(Beat::Hold) => {}
            Ok(Beat::Thaw) => return true,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
        }
    }
}
