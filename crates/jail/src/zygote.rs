//! A zygote: a process of this program that is forked early, and forks others on request.
//!
//! To execute the program costs a dynamic linker, relocations and page faults, which is more than all else
//! that a small process does; a fork of a process that has done that and nothing since costs a tenth. A
//! program with threads can't fork itself and continue in the child, where locks may stay held. The zygote
//! has one thread, and nothing of what the program did after it was forked: a process of it knows no more
//! than one that was executed.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use micabox_ground::lock;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use crate::children::adopt_orphans;
use crate::environment;
use crate::start::confine::close_range;
use crate::title::Title;
use crate::worker::Kind;

/// This program's zygote, if there is one.
static ZYGOTE: Mutex<Option<Zygote>> = Mutex::new(None);

/// A zygote, as its program sees it.
struct Zygote {
    pid: Option<Pid>,
    connection: OwnedFd,
}

/// The answer if there is no process; with a descriptor, as every answer.
const FAILED: [u8; 1] = [0];

/// Most bytes of a request: the name of a kind, a zero byte, and the process's name in lists.
const MAX_REQUEST: usize = 256;

/// A process that a zygote has forked. Its end leaves no zombie.
#[derive(Debug)]
pub struct Forked {
    /// Its process ID.
    pub id: u32,
    /// Readable when it has ended.
    pub handle: OwnedFd,
}

/// Forks a zygote for processes of these kinds, unless this process has threads. It ends with this process. Of the
/// environment it has the variables with the names in `kept`.
///
/// # Errors
/// The system's.
pub fn start_zygote(kinds: &[Kind], kept: &[&str]) -> io::Result<()> {
    if !has_one_thread()? {
        return Ok(());
    }
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // SAFETY: this process has one thread, so that no lock is held in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => serve(theirs, kinds, kept),
        pid => {
            *lock(&ZYGOTE) = Some(Zygote {
                pid: Pid::from_raw(pid),
                connection: ours,
            });
            Ok(())
        }
    }
}

/// Ends the zygote, if there is one, and waits for its end. What it has forked goes on.
pub fn end_zygote() {
    let zygote = lock(&ZYGOTE).take();
    if let Some(Zygote { pid, connection }) = zygote {
        drop(connection);
        let _ = rustix::io::retry_on_intr(|| waitpid(pid, WaitOptions::empty()));
    }
}

/// Has the zygote fork a process of this kind, with `stdin` as descriptor 0, which `name` names in lists of
/// processes. Its other streams are `/dev/null`. None if there is no zygote, or if the fork fails.
pub fn fork(kind: &str, name: &str, stdin: &OwnedFd) -> Option<Forked> {
    let mut zygote = lock(&ZYGOTE);
    let answer = ask(&zygote.as_ref()?.connection, kind, name, stdin);
    if answer.is_err() {
        // Killed, for one: its next answer would be to this request.
        *zygote = None;
    }
    answer.ok().flatten()
}

/// Returns whether the calling process has one thread.
pub(crate) fn has_one_thread() -> io::Result<bool> {
    // Two links for the directory, and one for each thread.
    Ok(rustix::fs::stat("/proc/self/task")?.st_nlink == 3)
}

/// Returns none if the zygote could not fork.
fn ask(zygote: &OwnedFd, kind: &str, name: &str, stdin: &OwnedFd) -> io::Result<Option<Forked>> {
    let request = [kind.as_bytes(), name.as_bytes()].join(&0);
    if request.len() > MAX_REQUEST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    send(zygote, &request, stdin)?;
    let mut id = [0; 4];
    let (length, handle) = receive(zygote, &mut id)?;
    match handle {
        Some(_) if length == FAILED.len() => Ok(None),
        Some(handle) if length == id.len() => Ok(Some(Forked {
            id: u32::from_le_bytes(id),
            handle,
        })),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Runs the zygote: forks what it is asked for, until the program's end of the connection is closed.
fn serve(connection: OwnedFd, kinds: &[Kind], kept: &[&str]) -> ! {
    let title = Title::find();
    let begin = || -> io::Result<()> {
        // Signals of a terminal are for the program.
        let _ = rustix::process::setsid();
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        drop(null);
        let connection = connection.as_raw_fd().unsigned_abs();
        // SAFETY: nothing in this process uses another descriptor any more. Those of the program would stay
        // open for as long as a process of this one lives.
        unsafe {
            let _ = close_range(3, connection.saturating_sub(1), 0);
            let _ = close_range(connection.saturating_add(1), libc::c_uint::MAX, 0);
            // Its children leave no zombies.
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            environment::forget(kept);
        }
        // Nor do theirs, when they are killed.
        adopt_orphans()
    };
    if begin().is_ok() {
        title.show("mica-zygote");
        while let Ok(()) = answer(&connection, kinds, &title) {}
    }
    // SAFETY: ends the process without running exit handlers, which are the program's.
    unsafe { libc::_exit(0) }
}

/// Answers one request.
fn answer(connection: &OwnedFd, kinds: &[Kind], title: &Title) -> io::Result<()> {
    let mut request = [0; MAX_REQUEST];
    let (length, stdin) = receive(connection, &mut request)?;
    let stdin = stdin.ok_or(io::ErrorKind::UnexpectedEof)?;
    let request = request.get(..length).unwrap_or_default();
    let mut words = request.split(|byte| *byte == 0);
    let mut word = || std::str::from_utf8(words.next().unwrap_or_default()).unwrap_or_default();
    let (name, shown) = (word(), word());
    let kind = kinds.iter().find(|kind| kind.name() == name);
    let kind = kind.ok_or(io::ErrorKind::NotFound)?;
    // SAFETY: this process has one thread, so that no lock is held in the child.
    match unsafe { libc::fork() } {
        // Too many processes, for one: the next one may start.
        -1 => send(connection, &FAILED, &stdin),
        0 => {
            // SAFETY: a setting of this process, which waits for children of its own; and the descriptor,
            // which nothing uses any more in this one.
            unsafe {
                libc::signal(libc::SIGCHLD, libc::SIG_DFL);
                libc::close(connection.as_raw_fd());
            }
            if rustix::stdio::dup2_stdin(&stdin).is_err() {
                std::process::exit(1);
            }
            drop(stdin);
            title.show(shown);
            kind.become_it(0)
        }
        pid => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => {
                    let id = pid.as_raw_nonzero().get().to_le_bytes();
                    send(connection, &id, &handle)
                }
                Err(errno) => {
                    // Too many descriptors are open. Another process may be executed for its connection.
                    if errno != Errno::SRCH {
                        let _ = kill_process(pid, Signal::KILL);
                    }
                    send(connection, &FAILED, &stdin)
                }
            }
        }
    }
}

/// Sends a message, which always has one descriptor.
fn send(socket: &OwnedFd, bytes: &[u8], descriptor: &OwnedFd) -> io::Result<()> {
    micabox_socket::send(socket, bytes, &[descriptor.as_fd()])?;
    Ok(())
}

fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let received = micabox_socket::receive(socket, bytes, 1)?;
    Ok((received.bytes, received.descriptors.into_iter().next()))
}
