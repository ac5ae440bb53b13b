//! Runs this program as a worker.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Mutex;

use micabox_ground::lock;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::Claim;
use crate::call::{Call, PROBE, serve};
use crate::walls::identity::assign;

/// The argument that makes a program a worker. The kind of worker, the number of a descriptor and,
/// if root starts it, the number of the worker's user follow.
const ARGUMENT: &str = "--micabox-worker";

/// Environment variable that names a program that calls [`run_if_worker`], in place of this one.
const VARIABLE: &str = "MICABOX_WORKER";

/// Our program that has all kinds of workers.
const PROGRAM: &str = "mica";

/// The message for a user if no program was found.
pub const NO_PROGRAM: &str = "workers are processes of the program mica, which is \
     neither beside this program nor on PATH (install it, or name it in MICABOX_WORKER)";

/// The permissions that new files of a worker lack.
const UMASK: u32 = 0o022;

/// The kinds of workers that this program can be.
static CAPABLE: Mutex<Vec<&str>> = Mutex::new(Vec::new());

/// A kind of worker.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    name: &'static str,
    work: fn(RawFd) -> i32,
}

impl Kind {
    /// A worker that runs `work`, which gets the number of the descriptor that describes it, must
    /// enter the jail itself, and returns the exit code.
    pub const fn new(name: &'static str, work: fn(RawFd) -> i32) -> Self {
        Self { name, work }
    }

    /// A worker that answers one call.
    pub const fn parser<C: Call>() -> Self {
        Self::new(C::KIND, serve::<C>)
    }

    /// Its name on a command line.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Becomes a worker of this kind in a forked process, with the description at `descriptor`.
    pub(crate) fn become_it(self, descriptor: RawFd) -> ! {
        begin();
        std::process::exit((self.work)(descriptor))
    }
}

/// Becomes a worker of one of these kinds if this process was started as one; then it does not
/// return. Must be called first, while the process has one thread.
pub fn run_if_worker(kinds: &[Kind]) {
    let names = kinds.iter().chain([&PROBE]).map(|kind| kind.name);
    lock(&CAPABLE).extend(names);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != ARGUMENT) {
        return;
    }
    begin();
    let name = arguments.next();
    let mut known = kinds.iter().chain([&PROBE]);
    let kind = known.find(|kind| name.as_deref().is_some_and(|name| name == kind.name));
    let descriptor = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok());
    let user = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok());
    if let Some(user) = user {
        assign(user);
    }
    let (Some(kind), Some(descriptor)) = (kind, descriptor) else {
        eprintln!("{ARGUMENT} is for Micabox's own use");
        std::process::exit(1);
    };
    std::process::exit((kind.work)(descriptor));
}

/// Begins as a process of this program's own, whatever the caller's settings are.
fn begin() {
    // Trees of jails and containers have directories that other users enter.
    umask(Mode::from_raw_mode(UMASK));
    end_at_a_panic();
}

fn end_at_a_panic() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("internal error, please report it: {panic}");
        // Ends the process, whichever thread panics.
        std::process::exit(1);
    }));
}

/// Makes a test program with the standard harness its own worker:
/// `run_if_worker_before_main!(&[KIND, ...]);`, once, at the top of a file in `tests/`.
#[macro_export]
macro_rules! run_if_worker_before_main {
    ($kinds:expr) => {
        const _: () = {
            extern "C" fn run_if_worker() {
                $crate::run_if_worker($kinds);
            }
            // Runs before the harness, which reads the command line and starts threads.
            #[used]
            #[unsafe(link_section = ".init_array")]
            static BEFORE_MAIN: extern "C" fn() = run_if_worker;
        };
    };
}

/// Returns the command line of a worker that `description` describes and `claim` gives a user.
pub fn arguments(kind: &str, description: &OwnedFd, claim: Option<&Claim>) -> Vec<OsString> {
    let descriptor = description.as_raw_fd().to_string();
    let user = claim.map(|claim| claim.uid().to_string().into());
    let arguments = [ARGUMENT.into(), kind.into(), descriptor.into()];
    arguments.into_iter().chain(user).collect()
}

/// Returns the command line of a process of this kind that is not a jailed worker.
pub fn plain_arguments(kind: &str, descriptor: RawFd) -> [OsString; 3] {
    let descriptor = descriptor.to_string();
    [ARGUMENT.into(), kind.into(), descriptor.into()]
}

/// Returns the program that workers of a kind run.
///
/// # Errors
/// [`NO_PROGRAM`] if there is none.
pub fn program(kind: &str) -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(named.into());
    }
    let capable = lock(&CAPABLE);
    if capable.contains(&kind) {
        // The file that this process runs, even if its name has come to mean another file.
        return Ok("/proc/self/exe".into());
    }
    let beside = std::env::current_exe()?.with_file_name(PROGRAM);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    std::iter::once(beside)
        .chain(directories.map(|directory| directory.join(PROGRAM)))
        .find(|file| file.is_file())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, NO_PROGRAM))
}

/// Takes ownership of a descriptor that this worker inherited.
///
/// # Safety
/// The descriptor was inherited and is taken once: no other code in this process owns it.
///
/// # Errors
/// If it is not open.
pub unsafe fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a call with a number and no memory.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the caller guarantees the rest.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// As [`take`], for a descriptor that is inherited for certain: those that this process opened itself
/// are close-on-exec, and so is one that was taken.
///
/// # Errors
/// If it is not open, or was not inherited, or was taken before.
pub fn take_inherited(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a call with a number and no memory.
    match unsafe { libc::fcntl(descriptor, libc::F_GETFD) } {
        -1 => Err(io::Error::last_os_error()),
        flags if descriptor < 3 || flags & libc::FD_CLOEXEC != 0 => {
            Err(io::ErrorKind::InvalidInput.into())
        }
        // SAFETY: inherited, and not taken before.
        _ => unsafe { take(descriptor) },
    }
}
