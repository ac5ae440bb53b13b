//! `mica pause` and `mica unpause`

use super::named::{Named, refused};
use micabox_program::failure::Outcome;

/// Stop the processors of running sandboxes
///
/// Commands stay as they are until `mica unpause`, and none can be started. `mica stop` works, and
/// resumes the sandbox for it; so does everything that copies a sandbox.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    named: Named,
}

/// Let paused sandboxes continue
#[derive(Debug, clap::Args)]
pub struct UnpauseArgs {
    #[command(flatten)]
    named: Named,
}

/// Pauses sandboxes.
pub fn pause(args: &PauseArgs) -> Outcome {
    args.named
        .each(|sandbox| sandbox.pause().map_err(|error| refused(sandbox, error)))
}

/// Resumes sandboxes.
pub fn unpause(args: &UnpauseArgs) -> Outcome {
    args.named
        .each(|sandbox| sandbox.unpause().map_err(|error| refused(sandbox, error)))
}
