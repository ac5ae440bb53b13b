//! All commands but `run`, one in each file.

mod archives;
pub mod attach;
mod changed;
pub mod commit;
pub mod convert;
pub mod cp;
pub mod create;
pub mod diff;
pub mod doctor;
pub mod events;
pub mod exec;
pub mod ext4;
pub mod fork;
pub mod history;
pub mod images;
pub mod info;
mod inside;
pub mod inspect;
pub mod kill;
pub mod load;
pub mod login;
pub mod logout;
pub mod logs;
pub mod memfs;
pub mod metrics;
pub mod mount;
mod named;
mod notes;
pub mod pause;
pub mod pool;
pub mod port;
pub mod ps;
pub mod pull;
pub mod push;
pub mod rename;
pub mod restart;
pub mod rm;
pub mod rmi;
pub mod save;
pub mod snapshot;
pub mod start;
pub mod stats;
pub mod stop;
pub mod store;
pub mod tag;
pub mod top;
pub mod umount;
pub mod update;
pub mod version;
pub mod volume;
pub mod wait;

use micabox_program::failure::{Failure, Outcome, print_all};
use micabox_program::output;

/// Applies `action` to each name and prints the results; continues after a failure, as Docker does.
fn for_each(names: &[String], mut action: impl FnMut(&str) -> Result<String, Failure>) -> Outcome {
    let mut failures = Vec::new();
    for name in names {
        match action(name) {
            Ok(text) => output::print(&format!("{text}\n"))?,
            Err(failure) => failures.push(failure),
        }
    }
    print_all(&failures);
    Ok(u8::from(!failures.is_empty()))
}
