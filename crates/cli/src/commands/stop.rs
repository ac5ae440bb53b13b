//! `mica stop`

use super::named::{Grace, Named};
use micabox_program::failure::Outcome;

/// Stop running sandboxes
///
/// Sends the command the image's stop signal, kills it after a while, and waits until the
/// sandbox is gone. A guest that does not end within two more seconds is killed, unless it makes
/// progress, such as writing to its disk.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    grace: Grace,

    #[command(flatten)]
    named: Named,
}

/// Stops sandboxes.
pub fn execute(args: &Args) -> Outcome {
    args.named.each(|sandbox| args.grace.stop(sandbox))
}
