//! A machine's own process.
//!
//! The program that wants a machine starts itself again as a worker. It does nothing
//! before it is in [`jail`] and behind a filter of system calls, where it reads the [`Handover`]
//! and a saved machine's state, and it opens nothing. Before the guest's first instruction every
//! thread gives up the system calls that it won't make.

mod begin;
mod controllers;
mod filters;
mod machine;
mod requests;
mod threads;

use std::fs::File;
use std::os::fd::RawFd;

use micabox_jail::{self as jail, Kind, enter_with};

use super::ending::Ending;
use super::handover::Handover;
pub(super) use controllers::Controllers;
pub use filters::Thread;
use machine::Machine;

/// The kind of worker that runs a machine.
pub const WORKER: Kind = Kind::new(NAME, |descriptor| work(descriptor).report());

/// What it is called on a command line.
pub(super) const NAME: &str = "machine";

fn work(descriptor: RawFd) -> Ending {
    // It can't be had later, and tells what of the guest's memory there is to save.
    let pages = match enter_with(|| File::open("/proc/self/pagemap").ok()) {
        Ok(pages) => pages,
        Err(error @ jail::Error::Namespaces { .. }) => {
            return Ending::Failed(format!("{error}, or use `--backend qemu`"));
        }
        Err(error) => return Ending::Failed(error.to_string()),
    };
    if let Err(error) = Thread::Builder.restrict() {
        return Ending::Failed(error.to_string());
    }
    let handover = match Handover::read(descriptor) {
        Ok(handover) => handover,
        Err(error) => return Ending::Failed(format!("reading what to run: {error}")),
    };
    match Machine::build(handover, pages) {
        Ok(machine) => machine.run(),
        Err(error) => error.into(),
    }
}
