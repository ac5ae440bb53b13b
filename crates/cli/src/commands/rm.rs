//! `mica rm`

use std::time::Duration;

use micabox::Error;

use super::named::Named;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::settings;

/// Remove sandboxes that have ended
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kill running ones first, and don't fail for those that are not there
    #[arg(short, long)]
    force: bool,

    /// Accepted as with Docker: volumes without a name always go with their sandbox
    #[arg(short, long, hide = true)]
    volumes: bool,

    #[command(flatten)]
    named: Named,
}

/// Removes records of sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let mut named = args.named.clone();
    if args.force {
        let sandboxes = settings::sandboxes(&settings::store()?)?;
        named.sandboxes.retain(|name| match sandboxes.get(name) {
            Err(error @ Error::NoSuchSandbox(_)) => {
                Failure::from(error).print();
                false
            }
            _ => true,
        });
    }
    named.each(|sandbox| {
        // What could not be saved is not wanted any more.
        let stopped = if args.force {
            sandbox.stop(Duration::ZERO).map(drop)
        } else {
            Ok(())
        };
        match sandbox.remove() {
            // A sandbox with `auto_remove` is removed already.
            Err(Error::NoSuchSandbox(_)) if args.force => Ok(()),
            Err(Error::Running(_)) if stopped.is_err() => Ok(stopped?),
            Err(error @ Error::Running(_)) => {
                let hint = "stop it first with `mica stop`, or use `mica rm -f`";
                Err(Failure::from(error).hint(hint))
            }
            result => Ok(result.map(drop)?),
        }
    })
}
