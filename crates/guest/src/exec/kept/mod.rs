//! Processes that perform operations on files which are soon over, and are kept for the next ones.
//!
//! To fork, to enter the sandbox and to become a user takes many times as long as to look at a file. So the
//! process that has done it waits for the next operation of the same user and the same limits, for a second,
//! and a few of them at most. It is a process of the sandbox as those of other operations are, which any program
//! there may kill or stop. Before each operation it finds out whether a new process would be another one; then
//! a new one is made.
//!
//! The agent holds both ends of the socket to it. So it can take a request back that was not taken: of a
//! process that has died, or is stopped. A request that was taken may have begun, and is not made again. A process
//! waits by poll(2), which leaves the request in the socket: recv(2) may give it to a process that the kernel is about
//! to kill or stop. Nor does poll wake it whenever the agent reads.

mod child;
mod report;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use micabox_wire::{Confinement, Exec, ExitStatus, MAX_DATA, Message, OutputStream, ToHost};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::channel::Channel;
use super::files;
use super::spawn::Process;
use crate::sandbox::child::{fork, kill, kill_group};
use crate::sandbox::{PidNamespace, Sandbox};
use child::Setup;
use report::Report;

/// How long a process is kept without an operation.
const IDLE: Duration = Duration::from_secs(1);

/// How long a kept process may take to take a request, before another process gets it.
const TAKING: Duration = Duration::from_millis(100);

/// How requests are sent: there is room for the only one, and a process that is gone is an error.
const AT_ONCE: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// Most messages of a process that are handled in a turn. A hostile one may send without end.
const MESSAGES: u32 = 4;

/// Most processes.
const MOST: usize = 4;

/// Most bytes of a request: several paths.
const REQUEST: usize = 32 << 10;

/// The agent's side of the processes.
#[derive(Debug, Default)]
pub struct Kept {
    /// By numbers that are not used twice.
    children: BTreeMap<u32, Child>,
    last: u32,
    /// Those that were killed, and must be waited for.
    retired: Vec<Process>,
}

/// A process.
#[derive(Debug)]
struct Child {
    process: Process,
    ours: OwnedFd,
    theirs: OwnedFd,
    user: String,
    confinement: Confinement,
    /// Its PID in the sandbox; 0 until it is known.
    pid: i32,
    task: Option<Task>,
    /// Since when it has its task, or none.
    since: Instant,
}

/// The operation that a process has.
#[derive(Debug)]
struct Task {
    id: u32,
    spec: Box<Exec>,
    /// Its process may have left the request where it was.
    is_waiting: bool,
    /// A signal was sent to its process: what that has not begun, another one does not begin either.
    is_signaled: bool,
    is_started: bool,
}

/// An operation that another process must perform.
#[derive(Debug)]
pub enum Reassigned {
    /// A new one, which is kept.
    Fresh(u32, Box<Exec>),
    /// One of its own.
    Ordinary(u32, Box<Exec>),
}

impl Kept {
    /// Gives an operation to a process. The error is that it must have one of its own.
    pub fn start(&mut self, id: u32, spec: Box<Exec>, sandbox: &Sandbox) -> Result<(), Box<Exec>> {
        let Some(request) = request(&spec, sandbox) else {
            return Err(spec);
        };
        let mut children = self.children.iter_mut();
        let Some((&number, child)) = children.find(|(_, child)| child.suits(&spec)) else {
            return self.start_fresh(id, spec, sandbox);
        };
        if send(&child.ours, request, AT_ONCE).is_err() {
            self.retire(number);
            return self.start_fresh(id, spec, sandbox);
        }
        child.since = Instant::now();
        child.task = Some(Task::new(id, spec, true));
        Ok(())
    }

    /// Gives an operation to a new process, as [`Kept::start`].
    pub fn start_fresh(
        &mut self,
        id: u32,
        spec: Box<Exec>,
        sandbox: &Sandbox,
    ) -> Result<(), Box<Exec>> {
        if !self.make_room() {
            return Err(spec);
        }
        // What fails here fails again for a process of its own, whose error is reported.
        match Child::fork(id, spec, sandbox) {
            Ok(child) => {
                self.last = self.last.wrapping_add(1);
                self.children.insert(self.last, child);
                Ok(())
            }
            Err(spec) => Err(spec),
        }
    }

    /// Returns whether there may be another process; ends the one that has waited longest.
    fn make_room(&mut self) -> bool {
        if self.children.len() < MOST {
            return true;
        }
        let idle = self.children.iter().filter(|(_, child)| child.is_idle());
        let longest = idle.min_by_key(|(_, child)| child.since);
        let Some(number) = longest.map(|(&number, _)| number) else {
            return false;
        };
        self.retire(number);
        true
    }

    /// Kills a process.
    fn retire(&mut self, number: u32) {
        if let Some(child) = self.children.remove(&number) {
            kill(child.process.pid, libc::SIGKILL);
            self.retired.push(child.process);
        }
    }

    /// Kills those that wait: the machine is about to be copied, or something else changes.
    pub fn retire_idle(&mut self) {
        let idle = self.children.iter().filter(|(_, child)| child.is_idle());
        let idle: Vec<u32> = idle.map(|(&number, _)| number).collect();
        for number in idle {
            self.retire(number);
        }
    }

    /// Lets all go on without the agent: they end after their operation.
    pub fn forget(&mut self) {
        self.retire_idle();
        let children = std::mem::take(&mut self.children);
        self.retired
            .extend(children.into_values().map(|child| child.process));
    }

    /// Returns the processes that are about to end, and must be waited for.
    pub fn take_retired(&mut self) -> Vec<Process> {
        std::mem::take(&mut self.retired)
    }

    /// Returns what is to be waited for, with the number of its process.
    pub fn sources(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.children.iter().flat_map(|(&number, child)| {
            let fds = [child.ours.as_fd(), child.process.handle.as_fd()];
            fds.map(|fd| (number, fd))
        })
    }

    /// Returns when [`Kept::look_at_time`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.children.values().filter_map(Child::deadline).min()
    }

    /// Returns the PIDs in the sandbox.
    pub fn pids(&self) -> Vec<i32> {
        self.children.values().map(|child| child.pid).collect()
    }

    /// Returns whether a process has this operation.
    pub fn has(&self, id: u32) -> bool {
        let mut tasks = self.children.values().flat_map(|child| &child.task);
        tasks.any(|task| task.id == id)
    }

    /// Sends the process of an operation a signal, or its group.
    pub fn signal(&mut self, id: u32, signal: i32, group: bool) {
        for child in self.children.values_mut() {
            let Some(task) = child.task.as_mut().filter(|task| task.id == id) else {
                continue;
            };
            // It was meant for the operation, whatever process has it.
            task.is_waiting = false;
            task.is_signaled = true;
            if !(group && kill_group(child.process.pid, signal)) {
                kill(child.process.pid, signal);
            }
        }
    }

    /// Ends processes that have waited for long enough, and returns operations that were not taken in time.
    pub fn look_at_time(&mut self, now: Instant) -> Vec<Reassigned> {
        let mut left = Vec::new();
        let due = |child: &Child| child.deadline().is_some_and(|deadline| deadline <= now);
        let due = self.children.iter().filter(|(_, child)| due(child));
        let due: Vec<u32> = due.map(|(&number, _)| number).collect();
        for number in due {
            let Some(child) = self.children.get_mut(&number) else {
                continue;
            };
            match child.task.take() {
                None => self.retire(number),
                Some(task) if child.take_back() => {
                    self.retire(number);
                    left.push(Reassigned::Fresh(task.id, task.spec));
                }
                Some(task) => {
                    child.task = Some(Task {
                        is_waiting: false,
                        ..task
                    });
                }
            }
        }
        left
    }

    /// Handles the messages or the end of a process.
    pub fn look(
        &mut self,
        number: u32,
        buffer: &mut [u8; MAX_DATA],
        channel: &mut Channel,
    ) -> Option<Reassigned> {
        let child = self.children.get_mut(&number)?;
        // First: its messages come before its end.
        let status = child.process.wait();
        let outcome = child.receive(buffer, channel);
        let Some(status) = status else {
            return match outcome {
                Outcome::Nothing => None,
                Outcome::Reassigned(reassigned) => Some(reassigned),
                Outcome::Last(reassigned) => {
                    child.fail(ExitStatus::Signaled(libc::SIGKILL), channel);
                    self.retire(number);
                    reassigned
                }
            };
        };
        let mut child = self.children.remove(&number)?;
        if let Outcome::Reassigned(reassigned) | Outcome::Last(Some(reassigned)) = outcome {
            return Some(reassigned);
        }
        if child.task.as_ref().is_some_and(|task| task.is_waiting) && child.take_back() {
            let task = child.task.take()?;
            return Some(Reassigned::Fresh(task.id, task.spec));
        }
        child.fail(status, channel);
        None
    }
}

/// What follows from the messages of a process.
enum Outcome {
    Nothing,
    /// Its operation is for another one.
    Reassigned(Reassigned),
    /// The process is of no use any more.
    Last(Option<Reassigned>),
}

impl Child {
    /// Makes a process.
    fn fork(id: u32, spec: Box<Exec>, sandbox: &Sandbox) -> Result<Self, Box<Exec>> {
        match Self::made(&spec, sandbox) {
            Ok((process, ours, theirs)) => Ok(Self {
                process,
                ours,
                theirs,
                user: spec.user.clone(),
                confinement: spec.confinement.clone(),
                pid: 0,
                task: Some(Task::new(id, spec, false)),
                since: Instant::now(),
            }),
            Err(_) => Err(spec),
        }
    }

    fn made(spec: &Exec, sandbox: &Sandbox) -> rustix::io::Result<(Process, OwnedFd, OwnedFd)> {
        let request = request(spec, sandbox).ok_or(Errno::INVAL)?;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        match fork()? {
            None => child::run(&Setup {
                spec,
                place: &sandbox.place,
                null,
                socket: theirs,
            }),
            Some(pid) => {
                let process = Process::new(pid)?;
                // Not before: what fails until here has not begun, and is performed by another process.
                if let Err(errno) = send(&ours, request, AT_ONCE) {
                    kill(process.pid, libc::SIGKILL);
                    process.reap();
                    return Err(errno);
                }
                Ok((process, ours, theirs))
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.task.is_none()
    }

    fn suits(&self, spec: &Exec) -> bool {
        self.is_idle() && self.user == spec.user && self.confinement == spec.confinement
    }

    fn deadline(&self) -> Option<Instant> {
        let time = match &self.task {
            None => IDLE,
            Some(task) if task.is_waiting => TAKING,
            Some(_) => return None,
        };
        self.since.checked_add(time)
    }

    /// Takes the request back; false if the process has taken it, or has shut the socket down, and may have.
    fn take_back(&self) -> bool {
        let mut one = [0; 1];
        loop {
            match recv(&self.theirs, &mut one[..], RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                // A request is never empty.
                taken => return matches!(taken, Ok((_, 1..))),
            }
        }
    }

    /// Handles its messages, but not more than a few.
    fn receive(&mut self, buffer: &mut [u8; MAX_DATA], channel: &mut Channel) -> Outcome {
        for _ in 0..MESSAGES {
            let report = match recv(&self.ours, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, count)) => Report::from_frame(buffer.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Outcome::Nothing,
                Err(_) => return Outcome::Last(None),
            };
            let Ok(report) = report else {
                return Outcome::Last(None);
            };
            if let (Report::Pid(pid @ 1..), 0) = (&report, self.pid) {
                self.pid = *pid;
                continue;
            }
            let Some(mut task) = self.task.take() else {
                return Outcome::Last(None);
            };
            let id = task.id;
            match report {
                Report::Started if !task.is_started => {
                    task.start(self.pid, channel);
                    self.task = Some(task);
                    continue;
                }
                Report::Over(stdout, stderr) => {
                    task.over(self.pid, stdout, stderr, channel);
                }
                Report::Failed(failure) if !task.is_started => {
                    channel.send(&ToHost::StartFailed { id, failure });
                }
                Report::Unfit(failure) if !task.is_started => {
                    channel.send(&ToHost::StartFailed { id, failure });
                    return Outcome::Last(None);
                }
                Report::Stale if !task.is_started && !task.is_signaled => {
                    return Outcome::Last(Some(Reassigned::Ordinary(id, task.spec)));
                }
                Report::TooLong if !task.is_started && !task.is_signaled => {
                    self.since = Instant::now();
                    return Outcome::Reassigned(Reassigned::Ordinary(id, task.spec));
                }
                // Not what the agent's own process reports.
                _ => {
                    self.task = Some(task);
                    return Outcome::Last(None);
                }
            }
            self.since = Instant::now();
        }
        Outcome::Nothing
    }

    /// Ends its operation, if it has one, as that of a process that has ended.
    fn fail(&mut self, status: ExitStatus, channel: &mut Channel) {
        if let Some(mut task) = self.task.take() {
            task.start(self.pid, channel);
            let status = match status {
                // Without the reply that would have reported it.
                ExitStatus::Exited(_) => ExitStatus::Exited(1),
                signaled @ ExitStatus::Signaled(_) => signaled,
            };
            let id = task.id;
            channel.send(&ToHost::Exited { id, status });
        }
    }
}

impl Task {
    fn new(id: u32, spec: Box<Exec>, is_waiting: bool) -> Self {
        Self {
            id,
            spec,
            is_waiting,
            is_signaled: false,
            is_started: false,
        }
    }

    /// Notifies the host of the start.
    fn start(&mut self, pid: i32, channel: &mut Channel) {
        self.is_waiting = false;
        if !self.is_started {
            self.is_started = true;
            channel.send(&ToHost::Started {
                id: self.id,
                pid: pid.unsigned_abs(),
                stdin_window: 0,
            });
        }
    }

    /// Notifies the host of replies and the end.
    fn over(&mut self, pid: i32, replies: Vec<u8>, failed: Option<Vec<u8>>, channel: &mut Channel) {
        self.start(pid, channel);
        let id = self.id;
        let code = i32::from(failed.is_some());
        let outputs = [
            (OutputStream::Stdout, replies),
            (OutputStream::Stderr, failed.unwrap_or_default()),
        ];
        for (stream, data) in outputs {
            if !data.is_empty() {
                channel.send_output(id, stream, &data);
            }
        }
        let status = ExitStatus::Exited(code);
        channel.send(&ToHost::Exited { id, status });
    }
}

/// Returns the request of an operation that a kept process may perform.
fn request<'a>(spec: &'a Exec, sandbox: &Sandbox) -> Option<&'a [u8]> {
    let is_plain = !spec.stdin
        && spec.tty.is_none()
        // A limit of time counts that of all operations of a process.
        && spec.confinement.ulimits.is_empty()
        && spec.output_window as usize >= MAX_DATA
        && !matches!(sandbox.pids, PidNamespace::Pending);
    let request = is_plain.then(|| files::short(spec))?;
    request.filter(|request| request.len() <= REQUEST)
}
