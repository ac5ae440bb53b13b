//! A machine's process: starts, watches and ends it. The same for every backend.

mod control;
mod launch;
mod limits;
mod monitor;
mod stopped;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use micabox_ground::lock;
use micabox_jail::{Cgroup, Child, Confinement, GroupMemory, Program, Spawned, Supervised, Tail};
use micabox_spec::DiskRate;
use rustix::process::{Signal, pidfd_send_signal};

use crate::backend::{Exit, Machine, Memory};
use crate::console::panic_message;
use crate::{Error, Snapshot};
use control::Control;
pub(crate) use control::{Answer, Request, receive_rate};
pub(crate) use launch::{Channels, Descriptors, Launch, SharedDescriptor};
use limits::Limits;
use stopped::Stopped;

/// Bytes of console output to keep: enough for the kernel's last messages with a stack trace.
const CONSOLE_TAIL: usize = 16 << 10;

/// Bytes of QEMU's own messages to keep.
const STDERR_TAIL: usize = 4 << 10;

/// Messages on a worker's stderr when the host's disk is full and a write of the guest must wait,
/// and when there is room again.
pub(crate) const FULL: &str = "the host's disk is full: the guest's writes wait";
pub(crate) const ROOM: &str = "there is room on the host's disk again";

/// A process that runs a machine.
#[derive(Debug)]
pub(crate) struct Process {
    /// Dropped first: all else is there until the process is gone.
    supervised: Supervised,
    agent: UnixStream,
    console: Tail,
    stderr: Tail,
    control: Control,
    base: Option<Arc<File>>,
    /// Thousandths of a processor that it may use without a quota.
    whole_time: u64,
    limits: Limits,
    /// Whether the monitor reported that the host's disk is full, if there is a monitor.
    is_full: Arc<AtomicBool>,
    fate: Arc<Fate>,
}

/// The state that the process's thread sets.
#[derive(Debug, Default)]
struct Fate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    exit: Option<Exit>,
    killed: bool,
}

impl Fate {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Publishes how the process ended, which `exit` tells from whether it was killed.
    fn publish(&self, exit: impl FnOnce(bool) -> Exit) {
        let mut state = self.lock();
        state.exit = Some(exit(state.killed));
        self.changed.notify_all();
    }
}

impl Process {
    /// Starts the process with its ends of `channels`.
    pub(crate) fn start(launch: Launch, channels: Channels) -> Result<Self, Error> {
        let system = |what| move |source| Error::System { what, source };
        let descriptors = channels.descriptors();
        let (agent, agent_child) = channels.agent;
        let (console, console_child) = channels.console;
        let (control, control_child) = channels.control;
        let is_full = Arc::new(AtomicBool::new(false));
        if launch.monitored {
            let stream = control.try_clone().map_err(system("sharing a channel"))?;
            let is_full = Arc::clone(&is_full);
            std::thread::Builder::new()
                .name("monitor".into())
                .spawn(move || monitor::serve(&stream, &is_full))
                .map_err(system("starting a thread"))?;
        }
        let control = Control::new(control, launch.saves);
        let (cgroup, limits) = Limits::create(&launch)?;
        let files = launch.files;
        let confinement = Confinement {
            keep: files
                .iter()
                .map(|file| file.as_fd().as_raw_fd())
                .chain([descriptors.agent, descriptors.console])
                .chain((launch.saves > 0 || launch.monitored).then_some(descriptors.control))
                .collect(),
            address_space: launch.address_space,
            file_size: launch.file_size,
            descriptors: launch.descriptors,
            processor_seconds: None,
            capabilities: launch.capabilities,
        };
        let failed = |source| Error::Spawn {
            path: launch.program.clone(),
            source,
        };
        let program = Program::new(&launch.program, launch.name.as_deref(), launch.arguments)
            .map_err(failed)?;

        let fate = Arc::new(Fate::default());
        let console_tail = Tail::new(CONSOLE_TAIL);
        let stderr_tail = Tail::new(STDERR_TAIL);
        // Before there is a second thread. The only one lives as long as this process.
        let name = launch.name.as_deref().unwrap_or_default();
        let forked = launch.forked.map(|(kind, descriptor)| {
            Child::fork(kind, descriptor, name, &confinement, cgroup.as_ref())
        });
        let forked = forked.transpose().map_err(failed)?.flatten();
        let is_required = launch.machine.require_limits;
        let failure = launch.failure;
        let supervised = Supervised::start(
            "machine",
            (agent_child, console_child, control_child, files),
            (launch.attached, launch.claim, cgroup),
            move |(_, _, cgroup)| {
                let spawned = match forked {
                    Some(spawned) => spawned,
                    None => Child::spawn(&program, &confinement, cgroup.as_ref())?,
                };
                if is_required {
                    require_group(&spawned, cgroup.as_ref())?;
                }
                Ok(spawned)
            },
            {
                let fate = Arc::clone(&fate);
                let (tail, stderr_tail) = (console_tail.clone(), stderr_tail.clone());
                move |running, stderr| {
                    // Both end with the process.
                    Tail::drain(&[(&tail, console.as_fd()), (&stderr_tail, stderr.as_fd())]);
                    // What it had is dropped before its end is published, because the waiting
                    // thread may then end this process.
                    let status = running.wait();
                    fate.publish(|killed| {
                        let ended = Ended {
                            status,
                            console: tail.text(),
                            message: stderr_tail.text().trim().to_owned(),
                            killed,
                        };
                        ended.exit(failure)
                    });
                }
            },
        );
        Ok(Self {
            supervised: supervised.map_err(failed)?,
            agent,
            console: console_tail,
            stderr: stderr_tail,
            control,
            base: launch.base,
            whole_time: launch.whole_time,
            limits,
            is_full,
            fate,
        })
    }
}

/// Kills a process that is not in its control group, and waits for it.
fn require_group(spawned: &Spawned, cgroup: Option<&Cgroup>) -> io::Result<()> {
    let id = spawned.child.id();
    if cgroup.is_some_and(|group| group.has(id)) {
        return Ok(());
    }
    let _ = pidfd_send_signal(&spawned.handle, Signal::KILL);
    let _ = spawned.child.wait();
    Err(io::Error::other("it can't be put into its control group"))
}

/// How a process ended, and its last output.
struct Ended {
    status: io::Result<ExitStatus>,
    console: String,
    message: String,
    killed: bool,
}

impl Ended {
    fn exit(self, failure: fn(i32, String) -> Exit) -> Exit {
        let message = self.message;
        let Ok(status) = self.status else {
            return Exit::Failed { code: -1, message };
        };
        match (status.code(), status.signal()) {
            (Some(0), _) => match panic_message(&self.console) {
                Some(message) => Exit::Panicked { message },
                None => Exit::PoweredOff,
            },
            (Some(code), _) => failure(code, message),
            (None, signal) => Exit::Killed {
                signal: signal.unwrap_or_default(),
                by_us: self.killed,
                message,
            },
        }
    }
}

impl Machine for Process {
    fn agent(&self) -> io::Result<UnixStream> {
        self.agent.try_clone()
    }

    fn pid(&self) -> u32 {
        self.supervised.id()
    }

    fn save(&self, to: &Snapshot, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        self.control.save(to, meanwhile)
    }

    fn base(&self) -> Option<Arc<File>> {
        self.base.clone()
    }

    fn touched(&self, to: &File) -> Result<(), Error> {
        self.control.touched(to)
    }

    fn pause(&self, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        if self.control.is_served() {
            return self.control.pause(meanwhile);
        }
        let _one_at_a_time = self.control.lock();
        if let Some(freezer) = &self.limits.freezer {
            return stopped::freeze(freezer, meanwhile).map_err(Error::Pause);
        }
        let stopped = Stopped::new(self.supervised.handle(), self.pid())
            .map_err(|error| Error::Pause(error.to_string()))?;
        meanwhile();
        drop(stopped);
        Ok(())
    }

    fn limit_processors(&self, quota: Option<u32>) -> Result<(), Error> {
        let limit = self.limits.processor_time.as_ref().map_err(String::clone);
        let time = quota.map_or(self.whole_time, u64::from);
        limit
            .and_then(|limit| limit.set(time).map_err(|error| error.to_string()))
            .map_err(|why| Error::NoLimits { why })
    }

    fn limit_disks(&self, rate: &DiskRate) -> Result<(), Error> {
        self.control.limit_disks(rate)
    }

    fn memory(&self) -> Memory {
        match &self.limits.counted {
            None => Memory::OfProcesses,
            Some(counted) => match counted.as_ref().and_then(GroupMemory::read) {
                Some((own, shared)) => Memory::Counted { own, shared },
                None => Memory::Unknown,
            },
        }
    }

    fn has_memory_limit(&self) -> bool {
        self.limits.has_memory
    }

    fn has_processor_limit(&self) -> bool {
        self.limits.has_processors
    }

    fn is_stalled(&self) -> bool {
        let said = self.stderr.text();
        let mut lines = said.lines().rev();
        self.is_full.load(Ordering::Relaxed)
            || lines.find(|line| matches!(*line, FULL | ROOM)) == Some(FULL)
    }

    fn wait(&self, timeout: Duration) -> Option<Exit> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.fate.lock();
        while state.exit.is_none() {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            if left.is_zero() {
                return None;
            }
            state = lock::ignore_poison(self.fate.changed.wait_timeout(state, left)).0;
        }
        state.exit.clone()
    }

    fn kill(&self) {
        let mut state = self.fate.lock();
        if state.exit.is_none() {
            state.killed = true;
            // Fails only if the process has already ended.
            let _ = pidfd_send_signal(self.supervised.handle(), Signal::KILL);
        }
    }

    fn console_tail(&self) -> String {
        self.console.text()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use micabox_jail::{CAP_DAC_READ_SEARCH, Quota};
    use micabox_testing::{PATIENCE, wait_until};
    use std::ffi::OsString;
    use std::io::Read;
    use std::path::Path;

    fn launch(program: &str, arguments: Vec<OsString>) -> Launch {
        Launch {
            program: program.into(),
            name: None,
            arguments,
            forked: None,
            files: Vec::new(),
            address_space: 4 << 30,
            file_size: 0,
            descriptors: micabox_jail::MAX_FILES,
            is_container: false,
            capabilities: &[CAP_DAC_READ_SEARCH],
            saves: 0,
            base: None,
            monitored: false,
            failure: |code, message| Exit::Failed { code, message },
            quota: Quota {
                memory: 4 << 30,
                processor_time: 2000,
                tasks: 64,
            },
            whole_time: 2000,
            machine: micabox_spec::Machine::default(),
            claim: None,
            attached: None,
        }
    }

    /// Runs a script in place of a machine; `$agent` and `$console` are its channels.
    fn run(script: &str) -> Process {
        let channels = Channels::new().unwrap();
        let Descriptors { agent, console, .. } = channels.descriptors();
        let script = format!("agent={agent} console={console}; {script}");
        // Not sh: dash knows only descriptors of one digit.
        Process::start(
            launch("/bin/bash", vec!["-c".into(), script.into()]),
            channels,
        )
        .unwrap()
    }

    #[test]
    fn exits_of_a_machine_are_told_apart() {
        assert_eq!(run("exit 0").wait(PATIENCE), Some(Exit::PoweredOff));
        assert_eq!(
            run("echo no such device >&2; exit 1").wait(PATIENCE),
            Some(Exit::Failed {
                code: 1,
                message: "no such device".into()
            })
        );
        assert_eq!(
            run("kill -SEGV $$").wait(PATIENCE),
            Some(Exit::Killed {
                signal: libc::SIGSEGV,
                by_us: false,
                message: String::new()
            })
        );
        let panic = "echo Kernel panic - not syncing: Attempted to kill init >&$console";
        assert_eq!(
            run(panic).wait(PATIENCE),
            Some(Exit::Panicked {
                message: "Attempted to kill init".into()
            })
        );
    }

    #[test]
    fn a_killed_machine_is_gone_and_its_agent_stream_ends() {
        let process = run("exec sleep 1000");
        assert_eq!(process.wait(Duration::ZERO), None);
        let mut agent = process.agent().unwrap();
        process.kill();
        assert!(matches!(
            process.wait(PATIENCE),
            Some(Exit::Killed { by_us: true, .. })
        ));
        assert_eq!(agent.read(&mut [0]).unwrap(), 0);
        assert!(!Path::new(&format!("/proc/{}", process.pid())).exists());
    }

    #[test]
    fn the_console_may_be_endless() {
        let process = run("exec >&$console; while :; do echo flood; done");
        wait_until("its tail is full", || {
            process.console_tail().len() >= CONSOLE_TAIL - 8
        });
        assert!(process.console_tail().len() <= CONSOLE_TAIL);
    }

    #[test]
    fn a_child_process_has_its_channels_and_no_other_descriptor() {
        // A descriptor that is wrongly not close-on-exec.
        let (leak, _other) = UnixStream::pair().unwrap();
        rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
        let process = run("exec >&$agent; echo $agent $console; ls /proc/$$/fd; \
             grep -E 'NoNewPrivs|CapBnd' /proc/self/status; echo limit $(ulimit -f)");
        let mut agent = process.agent().unwrap();
        process.wait(PATIENCE).unwrap();
        let mut text = String::new();
        agent.read_to_string(&mut text).unwrap();
        let (channels, rest) = text.split_once('\n').unwrap();
        let mut expected: Vec<&str> = channels.split(' ').chain(["0", "1", "2"]).collect();
        let mut open: Vec<&str> = rest
            .lines()
            .take_while(|line| line.bytes().all(|byte| byte.is_ascii_digit()))
            // Bash keeps a descriptor of its own there.
            .filter(|fd| *fd != "255")
            .collect();
        expected.sort_unstable();
        open.sort_unstable();
        assert_eq!(open, expected);
        assert!(text.contains("NoNewPrivs:\t1"), "{text}");
        assert!(text.contains("limit 0\n"), "{text}");
        if rustix::process::geteuid().is_root() {
            assert!(text.contains("CapBnd:\t0000000000000004"), "{text}");
        }
    }

    /// Limits are available if [`micabox_jail::Place::find`] returns a place, which `mica doctor`
    /// shows.
    #[test]
    fn a_machine_with_required_limits_does_not_start_without_them() {
        let mut launch = launch("/bin/true", Vec::new());
        launch.machine.require_limits = true;
        let started = Process::start(launch, Channels::new().unwrap());
        let whole = micabox_jail::Place::find().is_ok_and(|place| place.controllers.len() == 3);
        match started {
            Ok(_) => assert!(whole),
            Err(Error::NoLimits { why }) => assert!(!whole && !why.is_empty(), "{why}"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = Process::start(
            launch("/proc/none/qemu", Vec::new()),
            Channels::new().unwrap(),
        );
        assert!(error.unwrap_err().to_string().contains("/proc/none/qemu"));
    }
}
