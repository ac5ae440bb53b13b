//! `mica rm`

use std::time::Duration;

use micabox::Error;

use crate::failure::Failure;
use crate::{Outcome, settings};

/// Remove sandboxes that have ended
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kill running ones first
    #[arg(short, long)]
    force: bool,

    /// Names or IDs
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
}

/// Removes records of sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    super::for_each(&args.sandboxes, |name| {
        let sandbox = sandboxes.get(name)?;
        if args.force {
            sandbox.stop(Duration::ZERO)?;
        }
        match sandbox.remove() {
            // A sandbox with `auto_remove` is removed already.
            Err(Error::NoSuchSandbox(_)) if args.force => {}
            Err(error @ Error::Running(_)) => {
                let hint = "stop it first with `mica stop`, or use `mica rm -f`";
                return Err(Failure::from(error).hint(hint));
            }
            result => drop(result?),
        }
        Ok(name.to_owned())
    })
}
