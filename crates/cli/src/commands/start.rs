//! `mica start`

use crate::failure::{EXIT_MICA, Failure};
use crate::run::{again, detached};
use crate::{Outcome, settings};

/// Start sandboxes again that have ended and kept their disks
///
/// Runs the sandbox's command again on the same files. Without -a the sandbox stays behind,
/// as with `mica run -d`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pass the command's output on and wait for its end; its exit code is ours
    #[arg(short, long)]
    attach: bool,

    /// Pass stdin on as well, if the sandbox was made with -i
    #[arg(short, long)]
    interactive: bool,

    /// Do not start them unless control groups limit their machines' processes
    #[arg(long)]
    require_limits: bool,

    /// Names or IDs
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
}

/// Starts sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let is_attached = args.attach || args.interactive;
    if !is_attached && !detached::is_supervisor() {
        return super::for_each(&args.sandboxes, |name| {
            // What is wrong with the name needs no other process to be told.
            let record = sandboxes.get(name)?;
            again::may_start(&record)?;
            again::behind(&record.id, args.require_limits)?;
            Ok(name.to_owned())
        });
    }
    let [name] = args.sandboxes.as_slice() else {
        return Err(Failure::new(
            "only one sandbox can be attached to at a time",
        ));
    };
    let limits = args.require_limits;
    again::attended(
        &store,
        &sandboxes,
        name,
        args.interactive,
        !is_attached,
        limits,
    )
    .map_err(|failure| failure.at_least(EXIT_MICA))
}
