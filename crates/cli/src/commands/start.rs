//! `mica start`

use micabox::SandboxRef;

use super::named::Named;
use crate::run::restart;
use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::settings;

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

    #[command(flatten)]
    named: Named,
}

/// Starts sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let start = |sandbox: &SandboxRef, attach| {
        restart::start(sandbox, attach, args.interactive, args.require_limits)
    };
    if !args.attach && !args.interactive {
        return args.named.each(|sandbox| match start(sandbox, false)? {
            0 => Ok(()),
            code => Err(Failure::printed(code)),
        });
    }
    let [name] = args.named.sandboxes.as_slice() else {
        return Err(Failure::new(
            "only one sandbox can be attached to at a time",
        ));
    };
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let attached = sandboxes.get(name).map_err(Failure::from);
    let attached = attached.and_then(|sandbox| start(&sandbox, true));
    attached.map_err(|failure| failure.at_least(EXIT_MICA))
}
