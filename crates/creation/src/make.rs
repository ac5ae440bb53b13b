//! Makes sandboxes for a client.

use std::sync::Arc;

use micabox::builder::FromMemory;
use micabox::{Builder, Cancel, Sandbox, Sandboxes};
use micabox_image::progress::Progress;

use super::check::check;
use super::copies;
use super::prepare::{Begin, Preparation};
use super::wanted::Wanted;
use crate::pulls::Pulls;
use micabox_program::failure::Failure;
use micabox_program::log;

/// Creates a sandbox without a first command. A restored one keeps the commands it was saved with. Pulls are
/// reported to `progress`.
pub fn create(
    wanted: &Wanted,
    cancel: Cancel,
    progress: Arc<dyn Progress>,
) -> Result<Sandbox, Failure> {
    let pulls = Pulls {
        progress: Some(&progress),
        bound: None,
    };
    create_with(wanted, cancel, pulls)
}

/// Makes a sandbox as [`create`] does, with images that come in a way of their own.
pub fn create_with(wanted: &Wanted, cancel: Cancel, pulls: Pulls<'_>) -> Result<Sandbox, Failure> {
    check(&wanted.options)?;
    let prepared = Preparation {
        options: &wanted.options,
        image: wanted.image.as_deref(),
        first: None,
        is_detached: false,
        is_stopped: false,
        cancel,
        pulls,
    }
    .prepare()?;
    let sandbox = (prepared.create)()?;
    if matches!(prepared.begin, Begin::Reattach) {
        copies::reattach(&sandbox)?;
    }
    Ok(sandbox)
}

/// Makes copies of a running sandbox; all, or none.
pub fn fork(all: &Sandboxes, name: &str, count: u16) -> Result<Vec<Sandbox>, Failure> {
    fork_with(all, name, count, |builder, _| builder)
}

/// Makes copies as [`fork`] does. `complete` is given each copy's builder and number, from 0 on.
pub fn fork_with(
    all: &Sandboxes,
    name: &str,
    count: u16,
    complete: impl Fn(Builder<FromMemory>, u16) -> Builder<FromMemory> + Sync,
) -> Result<Vec<Sandbox>, Failure> {
    let moment = all.get(name)?.ephemeral_snapshot()?;
    let machine = moment.snapshot().memory.as_ref();
    let has_command = machine.is_some_and(|machine| machine.has_first_command());
    let (made, failure) = copies::make(
        &moment,
        count,
        |copy, number| complete(log::in_owner(copy, false), number),
        |sandbox| {
            let sandbox = sandbox?;
            if has_command {
                copies::reattach(&sandbox)?;
            }
            Ok(sandbox)
        },
    );
    failure.map_or(Ok(made), Err)
}
