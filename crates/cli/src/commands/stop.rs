//! `mica stop`

use std::time::Duration;

use crate::output::write_stderr;
use crate::{Outcome, settings};

/// Stop running sandboxes
///
/// Sends the command the image's stop signal, kills it after a while, and waits until the
/// sandbox is gone. A guest that does not end within two more seconds is killed, unless it makes
/// progress, such as writing to its disk.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds between the stop signal and the end
    #[arg(short, long, value_name = "SECONDS", default_value = "10")]
    time: u64,

    /// Names or IDs
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
}

/// Stops sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    super::for_each(&args.sandboxes, |name| {
        let stopped = sandboxes.get(name)?.stop(Duration::from_secs(args.time))?;
        if let Some(why) = stopped.killed {
            write_stderr(&format!("mica: sandbox {name}: {why}\n"));
        }
        Ok(name.to_owned())
    })
}
