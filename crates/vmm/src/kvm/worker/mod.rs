//! The worker: a machine's own process.
//!
//! The program that starts a machine executes itself again as a worker. The worker opens nothing,
//! and first enters the [`jail`] and installs a seccomp filter. Then it reads the [`WorkerSpec`] and
//! a saved machine's state. Before the guest's first instruction every thread gives up the system
//! calls that it won't make.

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
use super::worker_spec::WorkerSpec;
pub(super) use controllers::Controllers;
pub use filters::Thread;
use machine::Machine;

/// The kind of worker that runs a machine.
pub const WORKER: Kind = Kind::new(NAME, |descriptor| work(descriptor).report());

/// The worker's name on a command line.
pub(super) const NAME: &str = "machine";

fn work(descriptor: RawFd) -> Ending {
    // The page map can't be opened later. It shows which pages of the guest's memory must be saved.
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
    let worker_spec = match WorkerSpec::read(descriptor) {
        Ok(worker_spec) => worker_spec,
        Err(error) => return Ending::Failed(format!("reading what to run: {error}")),
    };
    match Machine::build(worker_spec, pages) {
        Ok(machine) => machine.run(),
        Err(error) => error.into(),
    }
}
