//! A machine's own process.
//!
//! The program that wants a machine starts itself again as a worker. It does nothing
//! before it is in [`jail`], where it reads the [`Handover`], and it opens nothing. Before
//! the guest's first instruction every thread gives up the system calls that it won't make.

mod begin;
mod controllers;
mod machine;
mod requests;
mod threads;

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ending::Ending;
use super::handover::Handover;
use crate::jail;
pub(super) use controllers::Controllers;
use machine::Machine;

/// The argument that makes a program a worker; the number of a descriptor follows.
pub(super) const ARGUMENT: &str = "--micabox-worker";

/// Names a program that calls [`run_if_worker`], in place of this one.
const VARIABLE: &str = "MICABOX_WORKER";

/// The program of ours that does.
const PROGRAM: &str = "mica";

/// Why there is none, for a user.
pub(super) const NO_PROGRAM: &str = "machines run in processes of the program mica, which is \
     neither beside this program nor on PATH (install it, or name it in MICABOX_WORKER)";

/// Whether this program can be a worker.
static CAPABLE: AtomicBool = AtomicBool::new(false);

/// Becomes a machine's worker if this process was started as one, and then does not come
/// back. A program whose machines shall run in processes of itself calls it first of all.
pub fn run_if_worker() {
    CAPABLE.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != ARGUMENT) {
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("internal error, please report it: {panic}");
        // All of the process, whichever thread it is.
        std::process::exit(1);
    }));
    let descriptor = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok());
    let ending = match descriptor {
        Some(descriptor) => work(descriptor),
        None => Ending::Failed(format!("{ARGUMENT} is for Micabox's own use")),
    };
    std::process::exit(ending.report());
}

fn work(descriptor: RawFd) -> Ending {
    // It can't be had later, and tells what of the guest's memory there is to save.
    let pages = match jail::enter_with(|| File::open("/proc/self/pagemap").ok()) {
        Ok(pages) => pages,
        Err(error) => return Ending::Failed(error.to_string()),
    };
    let handover = match Handover::read(descriptor) {
        Ok(handover) => handover,
        Err(error) => return Ending::Failed(format!("reading what to run: {error}")),
    };
    match Machine::build(handover, pages) {
        Ok(machine) => machine.run(),
        Err(error) => error.into(),
    }
}

/// The program that workers are.
pub(super) fn program() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(named.into());
    }
    if CAPABLE.load(Ordering::Relaxed) {
        // The file that this process runs, even if another one has its name by now.
        return Ok("/proc/self/exe".into());
    }
    let beside = std::env::current_exe()?.with_file_name(PROGRAM);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    std::iter::once(beside)
        .chain(directories.map(|directory| directory.join(PROGRAM)))
        .find(|file| file.is_file())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}
