//! The host's side of the conversation with one guest's agent.
//!
//! Two threads move bytes: one reads messages and files what they say into a shared
//! state, one sends what waits in the [`Outbox`]. Everybody else looks at the state
//! and waits for it to change. The guest is hostile: nothing that it sends makes us
//! hold more than a bounded amount, and what breaks the protocol ends the machine.

mod outbox;
mod pipe;
mod state;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use micabox_vmm::Machine;
use micabox_wire::{
    Adopt, Boot, Exec, ExitStatus, Hello, Identity, MAX_DATA, OutputStream, Phase, Resume,
    StartFailed, ToGuest, ToHost, TtySize, encode, preamble, read_message, write_message,
};

use crate::CommandError;
use crate::error::Lost;
pub(crate) use pipe::OUTPUT_WINDOW;
pub(crate) use state::Moments;
use state::State;

/// How long a machine may take to end once its agent's stream has.
const END_OF_MACHINE: Duration = Duration::from_secs(10);

/// A conversation. Dropping it kills the machine and joins the threads.
pub(crate) struct Agent {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads and all handles share.
pub(crate) struct Shared {
    machine: Arc<dyn Machine>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a boot told.
#[derive(Clone, Debug)]
pub(crate) struct Booted {
    /// When the agent said hello.
    pub(crate) hello_at: Instant,
    /// What it said.
    pub(crate) hello: Hello,
    /// When the root was ready.
    pub(crate) booted_at: Instant,
    /// What the guest did until then.
    pub(crate) phases: Vec<Phase>,
}

impl Agent {
    /// Starts to listen to the agent in `machine`.
    pub(crate) fn start(machine: Arc<dyn Machine>) -> io::Result<Self> {
        Self::listen(machine, true)
    }

    /// Starts to listen to the agent in a copy of a machine: it rests.
    pub(crate) fn of_copy(machine: Arc<dyn Machine>) -> io::Result<Self> {
        Self::listen(machine, false)
    }

    fn listen(machine: Arc<dyn Machine>, greets: bool) -> io::Result<Self> {
        let mut incoming = io::BufReader::with_capacity(2 * MAX_DATA, machine.agent()?);
        let mut outgoing = machine.agent()?;
        let shared = Arc::new(Shared {
            machine,
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        });
        let mut agent = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let listener = Arc::clone(&shared);
        agent.spawn("agent-in", move || listener.listen(&mut incoming, greets))?;
        agent.spawn("agent-out", move || shared.send(&mut outgoing))?;
        Ok(agent)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        self.threads.push(thread);
        Ok(())
    }

    /// What handles to commands hold on to.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Waits for the agent, has it set up the sandbox and waits until that is done.
    ///
    /// # Errors
    /// The guest's own failure, or what became of the machine, or that `deadline`
    /// has passed.
    pub(crate) fn boot(&self, boot: Boot, deadline: Instant) -> Result<Booted, Lost> {
        let late = || Lost::silent(&*self.shared.machine);
        let hello = self
            .shared
            .wait(Some(deadline), |state| state.hello.clone())?;
        let (hello_at, hello) = hello.ok_or_else(late)?;
        self.shared.post(ToGuest::Boot(Box::new(boot)));
        let booted = self
            .shared
            .wait(Some(deadline), |state| state.booted.clone())?;
        let (booted_at, phases) = booted.ok_or_else(late)?;
        Ok(Booted {
            hello_at,
            hello,
            booted_at,
            phases,
        })
    }

    /// Has the copied guest become one of its own, with the original's command `adopt` as
    /// its; when it had.
    ///
    /// # Errors
    /// As [`Agent::boot`].
    pub(crate) fn resume(
        &self,
        identity: Identity,
        adopt: Option<u32>,
        deadline: Instant,
    ) -> Result<Instant, Lost> {
        let adopt = adopt.map(|id| {
            self.shared.lock().adopt(id);
            let output_window = OUTPUT_WINDOW;
            Adopt { id, output_window }
        });
        let resume = Box::new(Resume { identity, adopt });
        self.shared.post(ToGuest::Resume(resume));
        self.shared
            .wait(Some(deadline), |state| state.resumed)?
            .ok_or_else(|| Lost::silent(&*self.shared.machine))
    }

    /// Has the guest rest, so that a copy of it can be made, does `meanwhile`, and has it go
    /// on at the time `wall_clock` says, with fresh randomness.
    pub(crate) fn rest<T>(
        &self,
        deadline: Instant,
        entropy: [u8; 32],
        wall_clock: impl FnOnce() -> (i64, u32),
        meanwhile: impl FnOnce() -> T,
    ) -> Result<T, Lost> {
        self.shared.post(ToGuest::Rest);
        let rests = |state: &mut State| std::mem::take(&mut state.resting).then_some(());
        let result = match self.shared.wait(Some(deadline), rests)? {
            Some(()) => Ok(meanwhile()),
            None => Err(Lost::silent(&*self.shared.machine)),
        };
        let go_on = ToGuest::GoOn {
            wall_clock: wall_clock(),
            entropy,
        };
        self.shared.lock().outbox.release(go_on);
        self.shared.changed.notify_all();
        result
    }

    /// Has the guest end in order: commands killed, files flushed and unmounted.
    pub(crate) fn begin_shut_down(&self) {
        self.shared.post(ToGuest::Shutdown);
    }

    /// Whether it says before `deadline` that it has.
    pub(crate) fn is_shut_down(&self, deadline: Instant) -> Result<bool, Lost> {
        let problem = self
            .shared
            .wait(Some(deadline), |state| state.shut_down.clone())?;
        match problem {
            Some(Some(problem)) => Err(Lost::unflushed(problem)),
            Some(None) => Ok(true),
            None => Ok(false),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.machine.kill();
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds something. None when `deadline` passes first.
    fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Lost> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(Some(found));
            }
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            state = match deadline {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self.changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// Sends `message` soon.
    fn post(&self, message: ToGuest) {
        self.lock().outbox.push(message);
        self.changed.notify_all();
    }

    /// The sending thread.
    fn send(&self, stream: &mut impl io::Write) {
        loop {
            let next = self.wait(None, |state| {
                if state.closing {
                    return Some(None);
                }
                state.outbox.pop().map(Some)
            });
            let Ok(Some(Some(message))) = next else {
                return;
            };
            if matches!(message, ToGuest::Stdin { .. }) {
                // There is room for more.
                self.changed.notify_all();
            }
            // The listening thread learns why the stream broke.
            if write_message(stream, &message).is_err() {
                return;
            }
        }
    }

    /// The listening thread.
    fn listen(&self, stream: &mut impl io::Read, greets: bool) {
        let why = self.listen_until_it_ends(stream, greets);
        let lost = Lost::end_of_conversation(&*self.machine, why, END_OF_MACHINE);
        self.lock().lose(lost);
        self.changed.notify_all();
    }

    /// Why it ended; None when the guest just closed it.
    fn listen_until_it_ends(&self, stream: &mut impl io::Read, greets: bool) -> Option<String> {
        if greets && let Err(error) = preamble::read(stream) {
            return broken(&error);
        }
        loop {
            let message: ToHost = match read_message(stream) {
                Ok(Some(message)) => message,
                Ok(None) => return None,
                Err(error) => return broken(&error),
            };
            let handled = self.lock().handle(message);
            self.changed.notify_all();
            if let Err(violation) = handled {
                return Some(violation);
            }
        }
    }
}

/// A stream that merely ends is no protocol error: the machine's own end says more.
fn broken(error: &micabox_wire::Error) -> Option<String> {
    use micabox_wire::Error::{Io, Truncated};
    match error {
        Io(_) | Truncated => None,
        error => Some(error.to_string()),
    }
}

/// A command in the guest.
impl Shared {
    /// Has a command started; its id.
    ///
    /// # Errors
    /// [`CommandError::TooLong`].
    pub(crate) fn exec(&self, spec: Exec) -> Result<u32, CommandError> {
        let mut state = self.lock();
        let id = state.start(spec.stdin);
        let request = ToGuest::Exec {
            id,
            spec: Box::new(spec),
        };
        // The sending thread could tell nobody.
        if encode(&request, &mut Vec::new()).is_err() {
            state.commands.remove(&id);
            return Err(CommandError::TooLong);
        }
        state.outbox.push(request);
        drop(state);
        self.changed.notify_all();
        Ok(id)
    }

    /// Waits until the command runs or is known not to.
    pub(crate) fn started(&self, id: u32) -> Result<Result<u32, StartFailed>, Lost> {
        let found = self.wait(None, |state| {
            let entry = state.commands.get(&id)?;
            entry.start.clone()
        })?;
        found.ok_or_else(Lost::closed)
    }

    /// Waits for the command's end; None when `deadline` passes first.
    pub(crate) fn exited(
        &self,
        id: u32,
        deadline: Option<Instant>,
    ) -> Result<Option<ExitStatus>, Lost> {
        self.wait(deadline, |state| state.commands.get(&id)?.exit)
    }

    /// When things happened to the command.
    pub(crate) fn moments(&self, id: u32) -> Moments {
        let state = self.lock();
        state
            .commands
            .get(&id)
            .map(|entry| entry.moments)
            .unwrap_or_default()
    }

    /// Sends the command a signal. One that has ended does not mind.
    pub(crate) fn signal(&self, id: u32, signal: i32) {
        self.post_to(id, ToGuest::Signal { id, signal });
    }

    /// Tells the command's terminal its size.
    pub(crate) fn resize(&self, id: u32, size: TtySize) {
        self.post_to(id, ToGuest::Resize { id, size });
    }

    fn post_to(&self, id: u32, message: ToGuest) {
        let mut state = self.lock();
        if state.is_running(id) {
            state.outbox.push(message);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Reads output; 0 at its end.
    pub(crate) fn read(
        &self,
        id: u32,
        stream: OutputStream,
        buffer: &mut [u8],
    ) -> Result<usize, Lost> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = self.wait(None, |state| {
            let Some(entry) = state.commands.get_mut(&id) else {
                return Some((0, false));
            };
            let (count, credit) = entry.output(stream).take(buffer)?;
            let running = entry.exit.is_none();
            if running {
                state.outbox.credit(id, stream, credit);
            }
            Some((count, running && credit.is_some()))
        })?;
        let (count, has_credit) = count.unwrap_or_default();
        if has_credit {
            self.changed.notify_all();
        }
        Ok(count)
    }

    /// Writes stdin: how much was taken, or None if nobody reads it any more.
    pub(crate) fn write(&self, id: u32, data: &[u8]) -> Result<Option<usize>, Lost> {
        if data.is_empty() {
            return Ok(Some(0));
        }
        let taken = self.wait(None, |state| {
            let room = state.outbox.stdin_room();
            let Some(entry) = state.commands.get_mut(&id) else {
                return Some(None);
            };
            if entry.stdin_closed || entry.exit.is_some() || entry.failed() {
                return Some(None);
            }
            let count = data
                .len()
                .min(MAX_DATA)
                .min(room)
                .min(entry.stdin.available());
            let data = data.get(..count).filter(|data| !data.is_empty())?;
            entry.stdin.take(count).ok()?;
            state.outbox.push(ToGuest::Stdin {
                id,
                data: data.to_vec(),
            });
            Some(Some(count))
        })?;
        self.changed.notify_all();
        Ok(taken.flatten())
    }

    /// No more stdin.
    pub(crate) fn close_stdin(&self, id: u32) {
        self.post_to(id, ToGuest::CloseStdin { id });
    }

    /// Nobody will read this output any more.
    pub(crate) fn discard(&self, id: u32, stream: OutputStream) {
        let mut state = self.lock();
        let Some(entry) = state.commands.get_mut(&id) else {
            return;
        };
        let credit = entry.output(stream).discard();
        if entry.exit.is_none() {
            state.outbox.credit(id, stream, credit);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Nobody holds the command any more.
    pub(crate) fn release(&self, id: u32) {
        self.lock().release(id);
    }
}

#[cfg(test)]
mod tests;
