//! The worker's side of a call.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::RawFd;
use std::sync::OnceLock;

use micabox_socket::write_frame;
use rustix::process::Resource;

use super::{Call, Given};
use crate::seccomp::on_signal;
use crate::start::confine::limit;
use crate::walls::{Walls, enter_available};
use crate::{Filter, take};

/// Exit codes of a worker without a reply.
pub(super) const PANICKED: i32 = 101;
pub(super) const ABORTED: i32 = 128 + libc::SIGABRT;
pub(super) const OUT_OF_TIME: i32 = 128 + libc::SIGXCPU;
const FAILED: i32 = 1;

/// Threads of a worker.
const MAX_THREADS: u64 = 64;

/// The jail of this process.
static WALLS: OnceLock<Walls> = OnceLock::new();

pub(super) fn walls() -> Option<Walls> {
    WALLS.get().cloned()
}

/// Serves the call that `descriptor` describes; returns the exit code.
pub(crate) fn serve<C: Call>(descriptor: RawFd) -> i32 {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("internal error, please report it: {panic}");
        // Ends the process, whichever thread panics.
        std::process::exit(PANICKED);
    }));
    match enter(C::CALLS).and_then(|()| answer::<C>(descriptor)) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("{why}");
            FAILED
        }
    }
}

fn enter(more: &[libc::c_long]) -> Result<(), String> {
    report_fatal_signals().map_err(|error| format!("handling signals: {error}"))?;
    let walls = enter_available().map_err(|error| error.to_string())?;
    if walls.namespaces.is_ok() {
        // Without a namespace, the user's other processes would count too.
        limit(Resource::Nproc, MAX_THREADS, 0)
            .map_err(|error| format!("limiting threads: {error}"))?;
    }
    let _ = WALLS.set(walls);
    // The library looks for the clock's code once, with a call that the filter does not allow.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let filter = parser_filter(more.iter().copied());
    filter.restrict().map_err(|error| error.to_string())
}

fn answer<C: Call>(descriptor: RawFd) -> Result<(), String> {
    // SAFETY: the worker's owner names each of its descriptors once.
    #[allow(unsafe_code)]
    let own = |descriptor| unsafe { take(descriptor) };
    let request = || -> io::Result<_> {
        let mut text = Vec::new();
        File::from(own(descriptor)?).read_to_end(&mut text)?;
        let (given, rest) = postcard::take_from_bytes::<Given>(&text).map_err(io::Error::other)?;
        let request = postcard::from_bytes::<C>(rest).map_err(io::Error::other)?;
        let reply = File::from(own(given.reply)?);
        let files = given.files.into_iter().map(own);
        Ok((request, files.collect::<io::Result<_>>()?, reply))
    };
    let (request, files, mut reply) =
        request().map_err(|error| format!("reading the request: {error}"))?;
    let answer = request.run(files);
    let bytes = postcard::to_allocvec(&answer).map_err(|error| format!("replying: {error}"))?;
    write_frame(&mut reply, &bytes).map_err(|error| format!("replying: {error}"))
}

/// Makes the process's exit code show which signal ended it: process 1 of a namespace has no
/// default action for signals. A file that is too long becomes an error of the write.
#[allow(unsafe_code)]
fn report_fatal_signals() -> io::Result<()> {
    // SAFETY: numbers.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    on_signal(libc::SIGABRT, exit)?;
    on_signal(libc::SIGXCPU, exit)
}

#[allow(unsafe_code)]
extern "C" fn exit(signal: libc::c_int, _: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: ends the process immediately, as a signal handler may.
    unsafe { libc::_exit(128 + signal) };
}

/// Calls to read and write open files, manage memory, lock, query time, and exit.
const CALLS: [libc::c_long; 34] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_write,
];

/// Queries of an open file, and writes. A query by path would find nothing.
const MORE: [libc::c_long; 3] = [libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_writev];

/// Calls that libraries try first and replace where the kernel doesn't have them: copies through
/// pipes expose more of the kernel than they are worth.
const UNKNOWN: [libc::c_long; 2] = [libc::SYS_sendfile, libc::SYS_splice];

/// Returns the filter of a parser that may make these calls as well.
pub(crate) fn parser_filter(more: impl IntoIterator<Item = libc::c_long>) -> Filter {
    let descriptors = [libc::F_DUPFD_CLOEXEC, libc::F_SETFD].map(libc::c_int::cast_unsigned);
    Filter::allowing(CALLS.into_iter().chain(MORE).chain(more))
        .with_threads()
        .allow_if(libc::SYS_fcntl, 1, u32::MAX, &descriptors)
        // Lets the process abort itself.
        .allow_if(libc::SYS_tgkill, 0, u32::MAX, &[std::process::id()])
        .without(&UNKNOWN)
}
