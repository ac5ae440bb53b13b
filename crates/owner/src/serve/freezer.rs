//! Freezes the machine for as long as a client needs it, and saves it if requested; or pauses it
//! until that is taken back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use micabox_vmm::{Machine, Snapshot};

use super::client::ClientId;
use super::events::{Event, Freeze, Pausing};
use super::wake::Notifier;
use crate::protocol::HOLD_TIMEOUT;

/// How long a guest may take to quiesce.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client's message about its freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    Hold,
    Thaw,
}

/// The next thing to do with the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// The guest must be quiesced; [`Freezer::freeze`] comes next.
    Quiesce,
    Freeze,
    Pause,
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
    /// Whether the machine is to be paused when no request needs it otherwise.
    is_pause_wanted: bool,
    pause: Option<Pause>,
}

/// A thread that keeps the machine paused.
#[derive(Debug)]
struct Pause {
    /// Dropped to end the pause.
    release: Option<Sender<()>>,
    is_paused: bool,
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

    /// Begins the next request, if none is current.
    pub(super) fn begin(&mut self) -> Step {
        if self.current.is_some() {
            return Step::Wait;
        }
        let saves = self.waiting.front().map(|next| next.memory.is_some());
        match (&mut self.pause, saves) {
            (None, None) if self.is_pause_wanted => return Step::Pause,
            (_, None) if self.is_pause_wanted => return Step::Wait,
            // A guest must run to quiesce.
            (Some(pause), None | Some(true)) => {
                pause.release = None;
                return Step::Wait;
            }
            // It is about to be paused, or to run.
            (Some(pause), _) if !pause.is_paused || pause.release.is_none() => return Step::Wait,
            _ => {}
        }
        let Some(request) = self.waiting.pop_front() else {
            return Step::Wait;
        };
        let saves = request.memory.is_some();
        self.current = Some(Current {
            request,
            beats: None,
            is_abandoned: false,
            quiesce: saves.then(|| Instant::now() + QUIESCE_TIMEOUT),
        });
        if saves { Step::Quiesce } else { Step::Freeze }
    }

    /// Returns whether the machine is paused, or about to be.
    pub(super) fn is_pause_wanted(&self) -> bool {
        self.is_pause_wanted
    }

    /// Sets whether the machine is to be paused. [`Freezer::begin`] comes next.
    pub(super) fn want_pause(&mut self, is_wanted: bool) {
        self.is_pause_wanted = is_wanted;
    }

    /// Pauses the machine in a thread.
    pub(super) fn pause(&mut self, machine: &Arc<dyn Machine>, notifier: &Notifier<Event>) {
        let (release, released) = channel::<()>();
        self.pause = Some(Pause {
            release: Some(release),
            is_paused: false,
        });
        let (machine, thread_notifier) = (Arc::clone(machine), notifier.clone());
        let thread = std::thread::Builder::new().name("pause".into());
        let spawned = thread.spawn(move || {
            let mut meanwhile = || {
                thread_notifier.notify(Event::Pause(Pausing::Paused));
                let _ = released.recv();
            };
            let over = machine.pause(&mut meanwhile);
            let over = over.map_err(|error| error.to_string());
            thread_notifier.notify(Event::Pause(Pausing::Over(over)));
        });
        if let Err(error) = spawned {
            notifier.notify(Event::Pause(Pausing::Over(Err(error.to_string()))));
        }
    }

    /// Notes that the machine is paused.
    pub(super) fn paused(&mut self) {
        if let Some(pause) = &mut self.pause {
            pause.is_paused = true;
        }
    }

    /// Notes that the machine is not paused any more.
    pub(super) fn pause_over(&mut self) {
        self.pause = None;
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
        // The pause lasts until the freeze is over.
        let is_paused = self.pause.is_some();
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
                    None if is_paused => {
                        meanwhile();
                        Ok(())
                    }
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

    /// Returns whether the machine is paused, frozen or saved, or about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some() || self.pause.is_some() || self.is_pause_wanted
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
        self.is_pause_wanted = false;
        if let Some(pause) = &mut self.pause {
            pause.release = None;
        }
        std::mem::take(&mut self.waiting)
    }
}

/// Blocks until the machine need not be frozen any more. Returns whether it was frozen for as long
/// as the client needed. It was not if the client was silent for too long, or is gone, or the
/// sandbox ends.
fn hold(beats: &Receiver<Beat>) -> bool {
    loop {
        match beats.recv_timeout(HOLD_TIMEOUT) {
            Ok(Beat::Hold) => {}
            Ok(Beat::Thaw) => return true,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
        }
    }
}
