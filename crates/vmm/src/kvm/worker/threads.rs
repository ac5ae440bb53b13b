//! The worker's threads: one for each processor, one for each slow device, and the first one for
//! all other devices.

use std::io;
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use micabox_ground::lock;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use super::filters::Thread;
use super::machine::{Error, system};
use crate::kvm::ending::Ending;
use crate::kvm::memory::truncation;
use crate::kvm::virtio::mmio::Transport;

/// Waits for events, and calls their subscribers.
pub(super) struct Loop(EventManager<Arc<Mutex<Subscriber>>>);

type Subscriber = dyn MutEventSubscriber + Send;

impl Loop {
    pub(super) fn new() -> Result<Self, Error> {
        EventManager::new().map(Self).map_err(events)
    }

    pub(super) fn add(&mut self, subscriber: Arc<Mutex<Subscriber>>) {
        self.0.add_subscriber(subscriber);
    }

    /// Handles events until the machine has ended.
    pub(super) fn run(&mut self, end: &End) -> Result<Ending, Error> {
        loop {
            if let Some(ending) = end.ending.get() {
                // The guest's last output may have arrived while other events were handled.
                self.turn(0)?;
                return Ok(ending.clone());
            }
            self.turn(-1)?;
        }
    }

    /// As [`Loop::run`], for one slow device. The device is not locked while it waits for the host or
    /// for its rate, so that its machine can be paused, saved and ended.
    pub(super) fn run_slow(
        &mut self,
        device: &Mutex<Transport>,
        end: &End,
    ) -> Result<Ending, Error> {
        let mut wait = None;
        loop {
            if let Some(ending) = end.ending.get() {
                return Ok(ending.clone());
            }
            self.turn(wait.map_or(-1, milliseconds))?;
            let mut device = lock(device);
            if wait.is_some() {
                device.process_pending();
            }
            wait = device.stalled();
        }
    }

    /// Handles all pending events; waits for one for at most `timeout` milliseconds, or without
    /// limit if it is -1.
    fn turn(&mut self, timeout: i32) -> Result<(), Error> {
        match self.0.run_with_timeout(timeout) {
            Err(event_manager::Error::Epoll(error)) if error.errno() == libc::EINTR => Ok(()),
            result => result.map(drop).map_err(events),
        }
    }
}

/// Returns a time for epoll_wait(2), rounded up.
fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}

fn events(error: event_manager::Error) -> Error {
    system("waiting for events")(io::Error::other(error.to_string()))
}

/// Threads that start their work together.
pub(super) struct Threads {
    /// No vCPU enters the guest until every thread has its seccomp filter.
    restricted: Arc<Barrier>,
}

impl Threads {
    /// Creates the group of `count` threads, including the calling one.
    pub(super) fn new(count: usize) -> Self {
        Self {
            restricted: Arc::new(Barrier::new(count)),
        }
    }

    /// Starts a thread, which restricts itself and waits for the others before it does `work`.
    pub(super) fn spawn(
        &self,
        kind: Thread,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, Error> {
        let restricted = Arc::clone(&self.restricted);
        let run = move || {
            if let Err(error) = kind.restrict() {
                std::process::exit(Ending::Failed(error.to_string()).report());
            }
            restricted.wait();
            work();
        };
        std::thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(system("starting a thread"))
    }

    /// Restricts the calling thread and waits for the others.
    pub(super) fn join(self, kind: Thread) -> Result<(), micabox_jail::Error> {
        kind.restrict()?;
        self.restricted.wait();
        Ok(())
    }
}

/// How the machine ended, set by the first thread that knows.
pub(super) struct End {
    ending: OnceLock<Ending>,
    event: EventFd,
}

impl End {
    pub(super) fn new() -> Result<Self, Error> {
        let event = EventFd::new(libc::EFD_NONBLOCK).map_err(system("making an event"))?;
        Ok(Self {
            ending: OnceLock::new(),
            event,
        })
    }

    pub(super) fn set(&self, ending: Ending) {
        let _ = self.ending.set(ending);
        let _ = self.event.write(1);
    }
}

/// Interval between looks at files that processes serve.
const LOOK: Duration = Duration::from_secs(1);

/// Ends the machine once a file that a process serves can't be read any more. A processor that uses such a page does not
/// always say so: while its interrupts are on, KVM has another thread read the page, which fails, and runs the guest again,
/// without end (asynchronous page faults).
pub(super) fn watch_served(end: &End) {
    while end.ending.get().is_none() {
        if let Some(problem) = truncation::served_problem() {
            return end.set(Ending::Failed(problem));
        }
        std::thread::sleep(LOOK);
    }
}

/// Wakes the thread that waits for events.
pub(super) struct Waker(pub(super) Arc<End>);

impl MutEventSubscriber for Waker {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        if let Err(error) = ops.add(Events::new(&self.0.event, EventSet::IN)) {
            self.0
                .set(Ending::Failed(format!("waiting for the end: {error}")));
        }
    }

    fn process(&mut self, _events: Events, _ops: &mut EventOps<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what is written to its event.
    struct Listener {
        event: EventFd,
        heard: u64,
    }

    impl MutEventSubscriber for Listener {
        fn init(&mut self, ops: &mut EventOps<'_>) {
            ops.add(Events::new(&self.event, EventSet::IN)).unwrap();
        }

        fn process(&mut self, _events: Events, _ops: &mut EventOps<'_>) {
            self.heard += self.event.read().unwrap();
        }
    }

    #[test]
    fn events_before_the_end_are_handled() {
        let event = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let words = event.try_clone().unwrap();
        let listener = Arc::new(Mutex::new(Listener { event, heard: 0 }));
        let mut events = Loop::new().unwrap();
        events.add(Arc::clone(&listener) as Arc<Mutex<Subscriber>>);
        let end = End::new().unwrap();
        words.write(1).unwrap();
        end.set(Ending::PoweredOff);
        assert!(matches!(events.run(&end), Ok(Ending::PoweredOff)));
        assert_eq!(listener.lock().unwrap().heard, 1);
    }
}
