//! The sandbox's PID namespace and its process 1.

use std::ffi::CStr;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use micabox_wire::{BootFailed, Init};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::thread::UnshareFlags;

use crate::kernel::Kernel;
use crate::sandbox::{PidNamespace, Place, child, proc};
use crate::step::{Step, failed};

/// Creates the namespace that all further children of the agent are born into, and its process 1 if
/// that is the reaper.
pub fn start(init: Init, place: &Place) -> Result<PidNamespace, BootFailed> {
    // SAFETY: this changes nothing for the agent itself, only for its children.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWPID) }
        .step("make the PID namespace", "of the sandbox")?;
    match init {
        Init::FirstExec => Ok(PidNamespace::Pending),
        Init::Reaper => start_reaper(place).map(PidNamespace::Started),
    }
}

fn start_reaper(place: &Place) -> Result<OwnedFd, BootFailed> {
    let step = "start the reaper";
    let (report, report_in) = pipe_with(PipeFlags::CLOEXEC).step(step, "pipe")?;
    let Some(pid) = child::fork().step(step, "fork")? else {
        let message = match become_reaper(place, report_in.as_fd()) {
            Ok(never) => match never {},
            Err(message) => message,
        };
        let _ = rustix::io::write(&report_in, message.as_bytes());
        child::exit(1)
    };
    drop(report_in);
    let mut message = String::new();
    fs::File::from(report)
        .read_to_string(&mut message)
        .step(step, "pipe")?;
    if !message.is_empty() {
        return Err(failed(step, "process 1", 0, &message));
    }
    pidfd_open(pid, PidfdFlags::empty()).step(step, "process 1")
}

/// Turns this process into the reaper. It need not wait for its children: if a process ignores
/// SIGCHLD, the kernel reaps its children, adopted ones included. The kernel also blocks all
/// signals from the sandbox to a process 1 without handlers.
fn become_reaper(
    place: &Place,
    report: BorrowedFd<'_>,
) -> Result<std::convert::Infallible, String> {
    let name: &CStr = c"mica-init";
    child::reset_signals();
    let kernel = place.kernel();
    let mounting = |error| format!("mount /proc: {error}");
    let proc = proc::mount().map_err(mounting)?;
    child::enter(place).map_err(|errno| format!("enter the sandbox: {errno}"))?;
    proc::attach_masked(&proc, kernel).map_err(mounting)?;
    drop(proc);
    if kernel == Kernel::Own {
        // The reaper's own memory is a few pages; killing it would kill every process in the namespace.
        fs::write("/proc/self/oom_score_adj", "-1000")
            .map_err(|error| format!("/proc/self/oom_score_adj: {error}"))?;
    }
    let _ = rustix::thread::set_name(name);
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())
        .map_err(|errno| format!("/dev/null: {errno}"))?;
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null))
        .and_then(|()| child::close_others(vec![report.as_raw_fd()]))
        .map_err(|errno| format!("close descriptors: {errno}"))?;
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    // SAFETY: the descriptor is open, and nothing uses it after this.
    unsafe { libc::close(report.as_raw_fd()) };
    loop {
        // SAFETY: pause(2) touches no memory.
        unsafe { libc::pause() };
    }
}
