//! `mica kill`

use super::named::Named;
use crate::Outcome;

/// Send a signal to the commands of running sandboxes
///
/// A sandbox ends when its command does. `mica stop` ends it however its command behaves.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The signal's name or number
    #[arg(short, long, default_value = "KILL", value_parser = signal)]
    signal: i32,

    #[command(flatten)]
    named: Named,
}

/// Sends signals.
pub fn execute(args: &Args) -> Outcome {
    args.named.each(|sandbox| Ok(sandbox.signal(args.signal)?))
}

fn signal(text: &str) -> Result<i32, String> {
    micabox::signal_number(text).ok_or_else(|| "no such signal".into())
}
