//! `mica kill`

use micabox::Error;
use micabox::words::Signal;

use super::named::{Named, refused};
use micabox_program::failure::Outcome;

/// Send a signal to the commands of running sandboxes
///
/// A sandbox ends when its command does. `mica stop` ends it however its command behaves.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The signal's name or number
    #[arg(short, long, default_value = "KILL")]
    signal: Signal,

    #[command(flatten)]
    named: Named,
}

/// Sends signals.
pub fn execute(args: &Args) -> Outcome {
    args.named.each(|sandbox| {
        sandbox.signal(args.signal.0).map_err(|error| {
            let is_refused = matches!(error, Error::Refused { .. });
            let failure = refused(sandbox, error);
            if is_refused {
                let name = &sandbox.record().name;
                failure.hint(format!("`mica stop {name}` ends it"))
            } else {
                failure
            }
        })
    })
}
