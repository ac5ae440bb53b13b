//! `mica start`: a sandbox that was kept, once more.

use std::ffi::OsString;

use micabox::{Base, Builder, Cancel, Error, Sandboxes};
use micabox_image::Store;

use super::detached::{self, Started};
use super::{Terms, supervise, terminal};
use crate::Outcome;
use crate::failure::Failure;

/// Starts a sandbox behind our back; fails with the exit code that it failed with.
pub fn behind(name: &str) -> Result<(), Failure> {
    let arguments = ["start", "--", name].map(OsString::from);
    match detached::Supervisor::start(arguments)?.wait()? {
        Started::Running { .. } => Ok(()),
        Started::Failed(code) => Err(Failure::said(code)),
    }
}

/// Runs a kept sandbox's command again and stays until it ends; its exit code.
pub fn attended(
    store: &Store,
    sandboxes: &Sandboxes,
    name: &str,
    interactive: bool,
    detached: bool,
) -> Outcome {
    let record = sandboxes.get(name)?;
    if record.status.is_live() {
        let hint = format!(
            "`mica logs -f {0}` shows what it writes, `mica stop {0}` ends it",
            record.name
        );
        return Err(Failure::from(Error::Running(record.name)).hint(hint));
    }
    let Some(spec) = &record.spec else {
        return Err(Error::NotKept(record.name).into());
    };
    let mut command = spec.command.clone();
    let terms = Terms {
        tty: command.tty.is_some(),
        interactive: interactive && command.stdin,
        detached,
        timeout: None,
        stop_timeout: micabox::DEFAULT_GRACE.as_secs(),
        timing: None,
    };
    command.tty = terminal::wanted(&terms)?;

    let base = Base::of(store, &record)?;
    let cancel = Cancel::default();
    let signals = supervise::Signals::catch(cancel.clone())?;
    let sandbox = Builder::again(store, base, &record)?
        .cancel(cancel)
        .create();
    supervise::supervise(sandbox, Some(&command), &terms, signals)
}
