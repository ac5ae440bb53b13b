//! `mica start`: a sandbox that was kept, once more.

use std::ffi::OsString;

use micabox::{Base, Builder, Cancel, Error, Record, Sandboxes};
use micabox_image::Store;

use super::detached::{self, Started};
use super::{Terms, supervise, terminal};
use crate::Outcome;
use crate::failure::Failure;

/// Starts a sandbox behind our back; fails with the exit code that it failed with.
pub fn behind(name: &str, require_limits: bool) -> Result<(), Failure> {
    let flag = require_limits.then_some("--require-limits");
    let arguments = ["start"].into_iter().chain(flag).chain(["--", name]);
    let arguments: Vec<_> = arguments.map(OsString::from).collect();
    match detached::Supervisor::start(arguments)?.wait()? {
        Started::Running { .. } => Ok(()),
        Started::Failed(code) => Err(Failure::said(code)),
    }
}

/// Fails for a sandbox that runs: it is started by one at most.
pub fn may_start(record: &Record) -> Result<(), Failure> {
    if record.status.is_live() && !record.is_orphaned() {
        return Err(running(&record.name));
    }
    Ok(())
}

fn running(name: &str) -> Failure {
    let hint = format!("`mica logs -f {name}` shows what it writes, `mica stop {name}` ends it");
    Failure::from(Error::Running(name.to_owned())).hint(hint)
}

/// Runs a kept sandbox's command again and stays until it ends; its exit code.
pub fn attended(
    store: &Store,
    sandboxes: &Sandboxes,
    name: &str,
    interactive: bool,
    detached: bool,
    require_limits: bool,
) -> Outcome {
    let record = sandboxes.get(name)?;
    may_start(&record)?;
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
    let mut builder = Builder::again(store, base, &record)?.cancel(cancel);
    if require_limits {
        builder = builder.require_limits(true);
    }
    let sandbox = builder.create();
    if let Err(Error::Running(name)) = &sandbox {
        // Somebody else was faster.
        return Err(running(name));
    }
    supervise::supervise(sandbox, Some(&command), &terms, signals)
}
