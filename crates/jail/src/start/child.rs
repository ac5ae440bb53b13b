//! A child process that is in its control group from its first instruction on.
//!
//! `std::process::Command` can't do that, and moving a running process makes the kernel wait for
//! all of the host's processors (an RCU grace period), which takes longer than the rest of a
//! machine's start.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::ptr;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use super::cgroup::Cgroup;
use super::confine::{Confinement, check, close_range};
use crate::environment;
use crate::title::Title;
use crate::worker::Kind;
use crate::zygote::has_one_thread;

/// `clone3` supports control groups since Linux 5.7 (`linux/sched.h`, as `CloneArguments`).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args`, 64 bits each.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Exit code of a child that could not execute the program; the parent gets the reason on a pipe.
const NO_PROGRAM: libc::c_int = 127;

/// A program to execute.
#[derive(Debug)]
pub struct Program {
    path: CString,
    /// Ends with a null pointer; the others point into `_words`.
    arguments: Vec<*const libc::c_char>,
    _words: Vec<CString>,
}

// SAFETY: the pointers are to strings that the value owns and never changes.
unsafe impl Send for Program {}

impl Program {
    /// The program at `path`, with `name` as its `argv[0]` in place of the path. Its environment is
    /// empty: the caller's may hold passwords.
    ///
    /// # Errors
    /// If a string contains a zero byte.
    pub fn new(path: &Path, name: Option<&str>, arguments: Vec<OsString>) -> io::Result<Self> {
        let word = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
        let name = name.map_or(path.as_os_str(), OsStr::new);
        let mut words = vec![word(name)?];
        for argument in &arguments {
            words.push(word(argument)?);
        }
        let pointers = words.iter().map(|word| word.as_ptr());
        Ok(Self {
            path: word(path.as_os_str())?,
            arguments: pointers.chain([ptr::null()]).collect(),
            _words: words,
        })
    }
}

/// A process that has executed its program.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
}

/// Handles of a new child.
#[derive(Debug)]
pub struct Spawned {
    /// The child, to wait for.
    pub child: Child,
    /// Refers to the process even after its number is reused.
    pub handle: OwnedFd,
    /// The read end of the child's stderr.
    pub stderr: File,
}

impl Child {
    /// Starts `program` in `cgroup`, with `/dev/null` as stdin and stdout, in a process group of
    /// its own: the user's Ctrl-C goes to the parent, which ends the child in order.
    ///
    /// The kernel kills it when the calling thread ends.
    ///
    /// # Errors
    /// If the program can't be executed.
    pub fn spawn(
        program: &Program,
        confinement: &Confinement,
        cgroup: Option<&Cgroup>,
    ) -> io::Result<Spawned> {
        Self::start(confinement, cgroup, || execute(program))
    }

    /// As [`Child::spawn`], but a worker of this kind that goes on in a fork of this process, whose memory it
    /// has as of now. Lists of processes show it as `name`. None if the process has other threads: then no
    /// fork of it can go on.
    ///
    /// # Errors
    /// Those of the fork and the confinement.
    pub fn fork(
        kind: Kind,
        descriptor: RawFd,
        name: &str,
        confinement: &Confinement,
        cgroup: Option<&Cgroup>,
    ) -> io::Result<Option<Spawned>> {
        if !has_one_thread()? {
            return Ok(None);
        }
        let title = Title::find();
        let work = || -> io::Error {
            close_others(&confinement.keep);
            title.show(name);
            // SAFETY: a fork has one thread, and this one has no reference to a variable.
            unsafe { environment::forget(&[]) };
            kind.become_it(descriptor)
        };
        Self::start(confinement, cgroup, work).map(Some)
    }

    /// Starts a child that is confined and then calls `work`, which returns only with an error. Its copy of
    /// the descriptor of failures must be closed by then.
    fn start(
        confinement: &Confinement,
        cgroup: Option<&Cgroup>,
        work: impl FnOnce() -> io::Error,
    ) -> io::Result<Spawned> {
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let (stderr, stderr_child) = pipe_with(PipeFlags::CLOEXEC)?;
        let (failure, failure_child) = pipe_with(PipeFlags::CLOEXEC)?;
        let streams = [&nothing, &nothing, &stderr_child].map(|fd| fd.as_raw_fd());
        let parent = std::process::id().cast_signed();
        let Some(pid) = fork(cgroup)? else {
            let error = match prepare(confinement, parent, streams) {
                Ok(()) => work(),
                Err(error) => error,
            };
            let code = error.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes();
            // SAFETY: writes bytes that live, then ends the child.
            unsafe {
                libc::write(failure_child.as_raw_fd(), code.as_ptr().cast(), code.len());
                libc::_exit(NO_PROGRAM)
            }
        };
        drop(failure_child);
        let child = Self { pid };
        let mut code = [0; 4];
        // The pipe closes without data when the child has begun.
        let spawned = match File::from(failure).read(&mut code) {
            Ok(4) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code))),
            Ok(_) => pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from),
            Err(error) => Err(error),
        };
        match spawned {
            Ok(handle) => Ok(Spawned {
                child,
                handle,
                stderr: stderr.into(),
            }),
            Err(error) => {
                let _ = kill_process(pid, Signal::KILL);
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for the process to end. Can be called once.
    ///
    /// # Errors
    /// If it was waited for before.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
                Ok(None) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Forks, into `cgroup` if possible. Returns None in the child, which may only make system calls.
fn fork(cgroup: Option<&Cgroup>) -> io::Result<Option<Pid>> {
    if let Some(cgroup) = cgroup {
        let mut arguments = CloneArguments {
            flags: CLONE_INTO_CGROUP,
            exit_signal: libc::SIGCHLD as u64,
            cgroup: cgroup.handle.as_raw_fd() as u64,
            ..CloneArguments::default()
        };
        let size = size_of::<CloneArguments>();
        // SAFETY: a structure that lives, and its size. The child shares no memory, so it continues
        // on a copy of this stack, as after fork.
        match unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size) } {
            // The kernel is too old, or a seccomp filter refuses the call.
            -1 => {}
            pid => return Ok(Pid::from_raw(pid as libc::pid_t)),
        }
    }
    // SAFETY: the child only makes system calls.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            if let Some(cgroup) = cgroup {
                // If this fails, the child runs without a group.
                let _ = cgroup.join();
            }
            Ok(None)
        }
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Prepares the child for what it will run.
fn prepare(confinement: &Confinement, parent: libc::pid_t, streams: [RawFd; 3]) -> io::Result<()> {
    // SAFETY: numbers, and a signal set that lives.
    unsafe {
        for (stream, number) in streams.into_iter().zip(0..) {
            check(libc::dup2(stream, number))?;
        }
        check(libc::setpgid(0, 0))?;
        // Signal settings as a shell leaves them for a program.
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        check(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const none,
            ptr::null_mut(),
        ))?;
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        // A program that ignores it, as a caller of ours may, can't wait for a child.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
    confinement.enter(parent)
}

/// Closes all descriptors but 0, 1, 2 and these, as executing a program would.
fn close_others(keep: &[RawFd]) {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut first = 3;
    for kept in keep.iter().map(|descriptor| descriptor.unsigned_abs()) {
        if kept > first {
            // SAFETY: nothing in this process, a fork, uses them any more.
            let _ = unsafe { close_range(first, kept - 1, 0) };
        }
        first = first.max(kept.saturating_add(1));
    }
    // SAFETY: as above.
    let _ = unsafe { close_range(first, libc::c_uint::MAX, 0) };
}

/// Executes the program in the child; returns the error if that fails.
fn execute(program: &Program) -> io::Error {
    let (path, arguments) = (program.path.as_ptr(), program.arguments.as_ptr());
    let environment = [ptr::null()];
    // SAFETY: strings, and lists of strings with a null pointer at their ends, that live.
    unsafe { libc::execve(path, arguments, environment.as_ptr()) };
    io::Error::last_os_error()
}
