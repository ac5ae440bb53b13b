//! `mica start`

use crate::failure::{EXIT_MICA, Failure};
use crate::run::restart;
use crate::{Outcome, settings};

/// Start sandboxes again that have ended and kept their disks
///
/// Runs the sandbox's command again on the same files. Without -a the sandbox runs detached, as
/// with `mica run -d`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the command's output, wait for its end, and exit with its code
    #[arg(short, long)]
    attach: bool,

    /// Pass stdin on as well, if the sandbox was made with -i
    #[arg(short, long)]
    interactive: bool,

    /// Fail unless control groups limit the machines' processes
    #[arg(long)]
    require_limits: bool,

    /// Names or IDs
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
}

/// Starts sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let start = |name: &str, attach| {
        let sandbox = sandboxes.get(name)?;
        restart::start(&sandbox, attach, args.interactive, args.require_limits)
    };
    if !args.attach && !args.interactive {
        return super::for_each(&args.sandboxes, |name| match start(name, false)? {
            0 => Ok(name.to_owned()),
            code => Err(Failure::printed(code)),
        });
    }
    let [name] = args.sandboxes.as_slice() else {
        return Err(Failure::new(
            "only one sandbox can be attached to at a time",
        ));
    };
    start(name, true).map_err(|failure| failure.at_least(EXIT_MICA))
}
