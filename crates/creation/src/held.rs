//! The sandboxes of a client, which end with it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use micabox::{ErrorKind, Event, Sandbox};
use micabox_ground::lock;
use rustix::event::{PollFd, PollFlags, poll};

use micabox_program::failure::Failure;

/// Each has a thread that waits for its end, for a detachment, and for the end of the client.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<Mutex<HashMap<String, Holder>>>);

#[derive(Debug)]
struct Holder {
    thread: JoinHandle<()>,
    /// One byte asks for a detachment; the end, for that of the sandbox.
    wishes: UnixStream,
    /// Whether it was detached.
    answers: Receiver<Result<(), Failure>>,
}

impl Held {
    /// Holds a sandbox until it ends, is detached, or the client is gone.
    pub fn add(&self, sandbox: Sandbox) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::of(&error).context("keeping a sandbox");
        let id = sandbox.record().id.clone();
        let (wishes, theirs) = UnixStream::pair().map_err(failed)?;
        let (answer, answers) = channel();
        let (held, name) = (self.clone(), id.clone());
        let mut all = self.lock();
        let work = move || {
            attend(sandbox, theirs, &answer);
            held.lock().remove(&name);
        };
        let thread = std::thread::Builder::new().spawn(work).map_err(failed)?;
        let holder = Holder {
            thread,
            wishes,
            answers,
        };
        all.insert(id, holder);
        Ok(())
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether a sandbox ends with the client.
    pub fn has(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    /// Lets a sandbox continue without the client.
    pub fn detach(&self, id: &str) -> Result<(), Failure> {
        let unknown = || {
            Failure::of_kind(
                ErrorKind::NotFound,
                format!("no sandbox {id} of this client"),
            )
        };
        let holder = self.lock().remove(id).ok_or_else(unknown)?;
        let _ = (&holder.wishes).write_all(&[1]);
        holder.answers.recv().unwrap_or_else(|_| Err(unknown()))
    }

    /// Ends all.
    pub fn end(&self) {
        let all: Vec<_> = self.lock().drain().collect();
        let threads = all.into_iter().map(|(_, holder)| holder.thread);
        // With the other end of each socket.
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Holder>> {
        lock(&self.0)
    }
}

/// Keeps a sandbox until it has ended, is detached, or the client is gone.
fn attend(sandbox: Sandbox, mut wishes: UnixStream, answer: &Sender<Result<(), Failure>>) {
    loop {
        match sandbox.event(Some(Instant::now())) {
            // Dropped, it waits for its owner, which is a child of this process.
            Ok(Some(Event::Ended(_))) | Err(_) => return,
            Ok(Some(Event::Stalled(_))) => continue,
            Ok(None) => {}
        }
        let mut ready = [
            PollFd::new(&sandbox, PollFlags::IN),
            PollFd::new(&wishes, PollFlags::IN),
        ];
        let _ = poll(&mut ready, None);
        let [_, wish] = &ready;
        if !wish.revents().is_empty() {
            if matches!(wishes.read(&mut [0]), Ok(1)) {
                let _ = answer.send(sandbox.detach().map_err(Failure::from));
            }
            return;
        }
    }
}
