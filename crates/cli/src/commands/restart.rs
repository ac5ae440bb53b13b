//! `mica restart`

use micabox::Record;

use super::named::{Grace, Named};

use crate::run::restart;
use micabox_program::failure::{Failure, Outcome};

/// Stop sandboxes that have disks, and start them again
///
/// One that does not run is started. The sandbox then runs detached, as with `mica start`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    grace: Grace,

    /// Fail unless control groups limit the machines' processes
    #[arg(long)]
    require_limits: bool,

    #[command(flatten)]
    named: Named,
}

/// Restarts sandboxes.
pub fn execute(args: &Args) -> Outcome {
    args.named.each(|sandbox| {
        check(sandbox.record())?;
        args.grace.stop(sandbox)?;
        match restart::start(&sandbox.reload()?, false, false, args.require_limits)? {
            0 => Ok(()),
            code => Err(Failure::printed(code)),
        }
    })
}

/// Fails for a sandbox that could be stopped but not started again.
fn check(record: &Record) -> Result<(), Failure> {
    if !record.status.is_live() {
        return Ok(());
    }
    if record.auto_remove {
        let message = format!("sandbox {} is removed when it stops", record.name);
        return Err(Failure::new(message).hint("run it without --rm"));
    }
    if !record.spec.upper.is_kept() || record.spec.command.is_none() {
        return Err(record.not_kept().into());
    }
    Ok(())
}
