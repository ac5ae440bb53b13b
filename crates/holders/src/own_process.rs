//! Processes of this program that outlive what started them: owners of sandboxes, holders of images, servers
//! of mounted trees. Each is in a session of its own, and its stdin is a connection to the process that
//! started it, which sends a job first.

use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use micabox_ground::lock;
use micabox_jail::Forked;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::de::DeserializeOwned;

use crate::message::receive;

/// A process that was started, as its creator sees it.
#[derive(Debug)]
pub enum OwnProcess {
    /// This program, executed once more.
    Executed(process::Child),
    /// Forked by the zygote.
    Forked(Forked),
}

/// The variables that these processes have of their creator's environment ([`Environment::Programs`]): where programs are,
/// and the files that say how registries are reached, since an owner may have to start a server of layers again. All else
/// may be a password.
pub const KEPT: [&str; 9] = [
    "PATH",
    "MICABOX_QEMU",
    "MICABOX_WORKER",
    "HOME",
    "MICABOX_CONFIG",
    "XDG_CONFIG_HOME",
    "DOCKER_CONFIG",
    "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR",
];

/// What such a process has of its creator's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// [`KEPT`].
    Programs,
    /// All of it: the process asks registries as its creator does, with its settings, proxies and credential helpers.
    All,
}

/// How long a process that ends may take at the end of a program: the kernel may still take a machine apart.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// To look without waiting.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Processes that end now, or have ended.
static ENDING: Mutex<Vec<Ending>> = Mutex::new(Vec::new());

/// A process that ends now.
enum Ending {
    /// A thread waits for it, which leaves no zombie.
    Executed(OwnedFd, JoinHandle<()>),
    Forked(OwnedFd),
    /// It goes on if a byte comes when it is asked on its line.
    UnlessUsed(OwnProcess, UnixStream),
}

/// Waits for the processes that this one has started and that are about to end: owners of sandboxes that are over, and
/// workers that have replied. A program that ends earlier leaves them to the first process of this machine or
/// container, which may be a program that waits for no orphans: then each stays as a zombie. For the end of a program.
pub fn wait_for_processes() {
    let (holders, owners): (Vec<_>, Vec<_>) = std::mem::take(&mut *ending())
        .into_iter()
        .partition(|ending| matches!(ending, Ending::UnlessUsed(..)));
    // Owners use what the others hold, and those what was held before them.
    let holders = holders.into_iter().rev();
    owners
        .into_iter()
        .chain(holders)
        .for_each(|ending| _ = ending.wait());
    micabox_jail::wait_for_ended_workers();
    micabox_jail::end_zygote();
}

fn ending() -> MutexGuard<'static, Vec<Ending>> {
    lock(&ENDING)
}

impl Ending {
    fn is_over(&mut self) -> bool {
        match self {
            Self::Executed(_, thread) => thread.is_finished(),
            Self::Forked(handle) => has_ended(handle, Some(&NOW)),
            Self::UnlessUsed(process, _) => process.has_ended(),
        }
    }

    /// Waits for it, unless others use it: then it is returned.
    fn wait(self) -> Option<Pid> {
        match self {
            Self::Executed(handle, thread) => {
                if has_ended(&handle, Some(&PATIENCE)) {
                    let _ = thread.join();
                }
            }
            Self::Forked(handle) => _ = has_ended(&handle, Some(&PATIENCE)),
            Self::UnlessUsed(mut process, mut line) => {
                let limit = Duration::from_secs(PATIENCE.tv_sec.cast_unsigned());
                let asked = line
                    .set_read_timeout(Some(limit))
                    .and_then(|()| line.shutdown(Shutdown::Write));
                let ends = asked.and_then(|()| line.read(&mut [0]));
                if !ends.is_ok_and(|bytes| bytes == 0) && !process.has_ended() {
                    return i32::try_from(process.id()).ok().and_then(Pid::from_raw);
                }
                process.wait_for(&PATIENCE);
            }
        }
        None
    }
}

/// Starts a process of a kind, which lists of processes show as `name`; returns it and the connection to it.
/// Its log goes to `log`, if anywhere.
pub fn start(
    kind: &str,
    name: &str,
    log: Option<Stdio>,
    environment: Environment,
) -> io::Result<(UnixStream, OwnProcess)> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    if log.is_none()
        && environment == Environment::Programs
        && let Some(forked) = micabox_jail::fork(kind, name, &theirs)
    {
        return Ok((ours, OwnProcess::Forked(forked)));
    }
    // Ours is the only end that is left open here, so that the process's death is seen.
    let kept = std::env::vars_os().filter(|(name, _)| {
        environment == Environment::All || KEPT.iter().any(|kept| *name == **kept)
    });
    let child = Command::new(micabox_jail::program(kind)?)
        .arg0(name)
        .env_clear()
        .envs(kept)
        .args(micabox_jail::plain_arguments(kind, 0))
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(log.unwrap_or_else(Stdio::null))
        .spawn()?;
    Ok((ours, OwnProcess::Executed(child)))
}

/// Begins as such a process, which gets its workers' orphans. Returns the connection, the job, and the descriptors that came with it.
pub fn begin<J: DeserializeOwned>() -> io::Result<(UnixStream, J, Vec<OwnedFd>)> {
    // A terminal's signals are for the programs on it.
    let _ = rustix::process::setsid();
    micabox_jail::adopt_orphans()?;
    let connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?;
    let (job, files) = receive::<J>(&connection)?;
    Ok((connection, job, files))
}

/// Ends as such a process: with all of its children, and those that they leave, but for holders that others use.
pub fn end() {
    let holders = std::mem::take(&mut *ending()).into_iter();
    let holders = holders.filter(|ending| matches!(ending, Ending::UnlessUsed(..)));
    let used: Vec<Pid> = holders.filter_map(Ending::wait).collect();
    micabox_jail::end_children_but(&used);
}

impl OwnProcess {
    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        match self {
            Self::Executed(child) => child.id(),
            Self::Forked(forked) => forked.id,
        }
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        match self {
            Self::Executed(child) => _ = child.wait(),
            Self::Forked(forked) => _ = has_ended(&forked.handle, None),
        }
    }

    /// Waits for its end, for at most `limit`.
    fn wait_for(&mut self, limit: &Timespec) {
        match self {
            Self::Executed(child) => {
                let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
                if handle.is_ok_and(|handle| has_ended(&handle, Some(limit))) {
                    _ = child.wait();
                }
            }
            Self::Forked(forked) => _ = has_ended(&forked.handle, Some(limit)),
        }
    }

    /// Leaves it to a thread that waits for it: it ends now, and [`wait_for_processes`] waits for that.
    pub fn ends(self) {
        let mut all = ending();
        all.retain_mut(|ending| !ending.is_over());
        match self {
            Self::Executed(child) => {
                let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
                let thread = wait_in_thread(child);
                let ending = handle.ok().zip(thread);
                all.extend(ending.map(|(handle, thread)| Ending::Executed(handle, thread)));
            }
            Self::Forked(forked) => all.push(Ending::Forked(forked.handle)),
        }
    }

    /// As [`OwnProcess::ends`], unless it answers on its line that others use it.
    pub fn ends_unless_used(self, line: UnixStream) {
        let mut all = ending();
        all.retain_mut(|ending| !ending.is_over());
        all.push(Ending::UnlessUsed(self, line));
    }

    /// Leaves it alone: it outlives what it was started for, and maybe this process. Where it does not, it leaves no
    /// zombie.
    pub fn goes_on(self) {
        if let Self::Executed(child) = self {
            drop(wait_in_thread(child));
        }
    }

    fn has_ended(&mut self) -> bool {
        match self {
            Self::Executed(child) => matches!(child.try_wait(), Ok(Some(_))),
            Self::Forked(forked) => has_ended(&forked.handle, Some(&NOW)),
        }
    }

    /// Returns whether it needs no wait any more: otherwise it stays a zombie after its end.
    pub fn is_reaped(&mut self) -> bool {
        match self {
            Self::Executed(_) => self.has_ended(),
            // It is another process's child.
            Self::Forked(_) => true,
        }
    }
}

/// Without a thread it stays a zombie until this process ends.
fn wait_in_thread(mut child: process::Child) -> Option<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("owner-end".into());
    let wait = move || _ = child.wait();
    thread.spawn(wait).ok()
}

/// Waits until a process has ended, for at most `limit`. Returns whether it has.
fn has_ended(handle: &OwnedFd, limit: Option<&Timespec>) -> bool {
    let mut ended = [PollFd::new(handle, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut ended, limit)) == Ok(1)
}
