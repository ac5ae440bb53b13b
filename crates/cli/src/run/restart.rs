//! `mica start`: starts a kept sandbox again.

use micabox::{Cancel, Error, Record, SandboxRef, Status};

use super::options::AttachOptions;
use super::signals::Signals;
use super::{supervise, terminal};
use micabox_program::failure::{Failure, Outcome};
use micabox_program::log;

/// Fails for a sandbox that runs.
pub fn may_start(record: &Record) -> Result<(), Failure> {
    if matches!(record.status, Status::Paused { .. }) && !record.is_orphaned() {
        return Err(Error::Paused.into());
    }
    if record.status.is_live() && !record.is_orphaned() {
        return Err(running(&record.name));
    }
    Ok(())
}

fn running(name: &str) -> Failure {
    let hint = format!("`mica logs -f {name}` shows what it writes, `mica stop {name}` ends it");
    Failure::from(Error::Running(name.to_owned())).hint(hint)
}

/// Runs a kept sandbox's command again. With `attach`, stays until it ends. Returns the exit code.
pub fn start(
    sandbox: &SandboxRef,
    attach: bool,
    interactive: bool,
    require_limits: bool,
) -> Outcome {
    let record = sandbox.record();
    may_start(record)?;
    let command = record.spec.command.as_ref();
    let Some(command) = command.filter(|_| record.can_restart()) else {
        return Err(record.not_kept().into());
    };
    let mut command = command.clone();
    let idle = command.argv.is_empty();
    if idle && attach {
        let message = format!("sandbox {} has no command to attach to", record.name);
        return Err(Failure::new(message));
    }
    let options = AttachOptions {
        tty: command.tty.is_some(),
        interactive: interactive && command.stdin,
        has_stdin: command.stdin,
        detached: !attach,
        idle,
        stop_timeout: micabox::DEFAULT_GRACE.as_secs(),
        ..AttachOptions::default()
    };
    command.tty = terminal::wanted(&options)?;

    let cancel = Cancel::default();
    let builder = sandbox.restart()?.cancel(cancel.clone());
    let mut builder = log::in_owner(builder, !attach);
    let signals = Signals::catch(cancel)?;
    if require_limits {
        builder = builder.require_limits(true);
    }
    let sandbox = builder.create();
    if let Err(Error::Running(name)) = &sandbox {
        // Another process was faster.
        return Err(running(name));
    }
    if attach {
        return supervise::supervise(sandbox, Some(&command), &options, signals);
    }
    match supervise::detach(sandbox, Some(&command), &options, &signals)? {
        Ok(_) => Ok(0),
        Err(code) => Ok(code),
    }
}
