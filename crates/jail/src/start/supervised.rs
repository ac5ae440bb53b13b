//! A child process, and the thread that starts it, drains it and waits for it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use super::child::{Child, Spawned};

/// How long a process may take to end by itself. Ending is up to the kernel, but a worker that was taken over
/// may stay.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// A child process with its thread. Dropping it ends the process, and waits until all that it had is dropped.
#[derive(Debug)]
pub struct Supervised {
    id: u32,
    handle: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A child process, as its thread sees it.
#[derive(Debug)]
pub struct Running<K> {
    child: Child,
    handle: Arc<OwnedFd>,
    kept: K,
}

impl Supervised {
    /// Starts a child with `spawn`, in a thread with this name, which then calls `attend` with the child and the
    /// read end of its stderr: all of that must be read, so that the child never waits, and the child be waited for
    /// ([`Running::wait`]).
    ///
    /// `given` are the descriptors that the child inherits: this process's copies are closed once it has them, so
    /// that their other ends see its end. `kept` is the child's for as long as it lives, such as its control group.
    ///
    /// # Errors
    /// Those of `spawn`, and if there can't be another thread. `given` and `kept` are dropped by then.
    pub fn start<K: Send + 'static>(
        name: impl Into<String>,
        given: impl Send + 'static,
        kept: K,
        spawn: impl FnOnce(&K) -> io::Result<Spawned> + Send + 'static,
        attend: impl FnOnce(Running<K>, File) + Send + 'static,
    ) -> io::Result<Self> {
        let (started, start) = sync_channel(1);
        // The kernel kills the child when the thread that forked it ends, so that thread must live
        // as long as the child, even if the caller's thread ends.
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let spawned = spawn(&kept);
                drop(given);
                match spawned {
                    Ok(spawned) => {
                        let handle = Arc::new(spawned.handle);
                        let _ = started.send(Ok((spawned.child.id(), Arc::clone(&handle))));
                        let child = spawned.child;
                        let running = Running {
                            child,
                            handle,
                            kept,
                        };
                        attend(running, spawned.stderr);
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            })?;
        match start.recv() {
            Ok(Ok((id, handle))) => Ok(Self {
                id,
                handle,
                thread: Some(thread),
            }),
            Ok(Err(error)) => {
                let _ = thread.join();
                Err(error)
            }
            Err(_) => Err(io::Error::other("its thread died")),
        }
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Refers to the process even after its number is reused.
    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Waits for the process, which is about to end, and its thread.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Leaves the process, which is about to end, to its thread.
    pub(crate) fn into_thread(mut self) -> Option<JoinHandle<()>> {
        self.thread.take()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            end(&self.handle);
            let _ = thread.join();
        }
    }
}

impl<K> Running<K> {
    /// Ends the process unless it ends soon by itself.
    pub(crate) fn expect_end(&self) {
        if !ends_soon(&self.handle) {
            self.end();
        }
    }

    /// Ends the process, which must still be waited for.
    pub(crate) fn end(&self) {
        end(&self.handle);
    }

    /// Waits for the process to end. What was kept for it is dropped by then.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn wait(self) -> io::Result<ExitStatus> {
        let status = self.child.wait();
        drop(self.kept);
        status
    }
}

/// Ends a process that is not waited for yet. Its keeper is asked first: killed, it would leave the jailed process to
/// another parent.
fn end(handle: &OwnedFd) {
    // Fails only if the process has already ended.
    let _ = pidfd_send_signal(handle, Signal::TERM);
    if !ends_soon(handle) {
        // One without namespaces has no keeper, and may ignore the request.
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

fn ends_soon(handle: &OwnedFd) -> bool {
    let mut gone = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut gone, Some(&PATIENCE)) == Ok(1)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::Path;
    use std::sync::mpsc::{Sender, channel};

    use super::super::child::Program;
    use super::super::confine::Confinement;
    use super::*;

    /// Says when it is dropped.
    struct Kept(Sender<&'static str>);

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }

    fn shell(script: &str) -> impl FnOnce(&Kept) -> io::Result<Spawned> + Send + use<> {
        let arguments = vec!["-c".into(), script.into()];
        let program = Program::new(Path::new("/bin/sh"), None, arguments).unwrap();
        let confinement = Confinement {
            keep: Vec::new(),
            address_space: 1 << 30,
            file_size: 0,
            descriptors: 64,
            processor_seconds: None,
            capabilities: &[],
        };
        move |_| Child::spawn(&program, &confinement, None)
    }

    #[test]
    fn what_a_child_has_is_dropped_with_it_and_before_its_end_is_told() {
        let (say, said) = channel();
        let (mut reader, given) = std::io::pipe().unwrap();
        let end = say.clone();
        let attend = move |running: Running<Kept>, mut stderr: File| {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            assert_eq!(text, "why\n");
            assert_eq!(running.wait().unwrap().code(), Some(3));
            end.send("ended").unwrap();
        };
        let spawn = shell("echo why >&2; exit 3");
        let child = Supervised::start("test", given, Kept(say), spawn, attend).unwrap();
        // The child has not inherited it, and this process's copy is closed.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        child.wait();
        assert_eq!(said.iter().collect::<Vec<_>>(), ["dropped", "ended"]);
    }

    #[test]
    fn a_child_that_is_dropped_is_gone() {
        let (say, said) = channel();
        let attend = |running: Running<Kept>, _| drop(running.wait());
        let spawn = shell("exec sleep 1000");
        let child = Supervised::start("test", (), Kept(say), spawn, attend).unwrap();
        assert!(said.try_recv().is_err());
        drop(child);
        assert_eq!(said.try_recv(), Ok("dropped"));
    }

    #[test]
    fn a_child_that_can_not_start_leaves_nothing() {
        let (say, said) = channel();
        let spawn = |_: &Kept| Err(io::ErrorKind::NotFound.into());
        let attend = |_: Running<Kept>, _: File| unreachable!();
        let error = Supervised::start("test", (), Kept(say), spawn, attend).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(said.iter().collect::<Vec<_>>(), ["dropped"]);
    }
}
