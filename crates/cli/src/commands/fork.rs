//! `mica fork`

use micabox::builder::FromMemory;
use micabox::{Builder, Cancel, DEFAULT_GRACE};

use crate::run::{AttachOptions, Signals, detach};
use micabox_creation::copies;
use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::output::print_json;
use micabox_program::{log, settings};

/// Make copies of a running sandbox, which continue where it is (KVM only)
///
/// A copy has the sandbox's memory, processes and disk of one moment, and a name, host name,
/// machine ID, network and randomness of its own. It shares all unchanged memory with the others,
/// and runs detached, as with `mica run -d`. The sandbox is paused meanwhile. Its published ports
/// stay its own. Prints the copies' IDs, for `mica logs`, `mica stop` and all other commands.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,

    /// Number of copies
    #[arg(short, long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    number: u16,

    /// Name of a single copy; otherwise names are generated
    #[arg(long, conflicts_with = "number")]
    name: Option<String>,

    /// Fail unless control groups limit the copies' processes
    #[arg(long)]
    require_limits: bool,

    /// Print IDs and names as JSON, once all copies run
    #[arg(long)]
    json: bool,
}

/// Makes copies.
pub fn execute(args: &Args) -> Outcome {
    fork(args).map_err(|failure| failure.at_least(EXIT_MICA))
}

fn fork(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let sandbox = sandboxes.get(&args.sandbox)?;
    let cancel = Cancel::default();
    let signals = Signals::catch(cancel.clone())?;
    // The ephemeral snapshot is removed even if the copies are cancelled.
    let moment = sandbox.ephemeral_snapshot()?;
    let machine = moment.snapshot().memory.as_ref();
    let options = AttachOptions {
        detached: true,
        idle: machine.is_some_and(|machine| !machine.has_first_command()),
        has_stdin: true,
        stop_timeout: DEFAULT_GRACE.as_secs(),
        ..AttachOptions::default()
    };
    let auto_remove = sandbox.record().auto_remove;
    let set_up = |builder: Builder<FromMemory>, _| {
        let mut builder = log::in_owner(builder.cancel(cancel.clone()), true);
        if !auto_remove {
            builder = builder.keep_record();
        }
        if args.require_limits {
            builder = builder.require_limits(true);
        }
        match &args.name {
            Some(name) => builder.name(name),
            None => builder,
        }
    };
    // Those that run stay, whatever becomes of the others.
    let (copies, failure) = copies::make(&moment, args.number, set_up, |sandbox| {
        let detached = detach(sandbox, None, &options, &signals)?.map_err(Failure::printed)?;
        if !args.json {
            detached.print()?;
        }
        Ok(detached)
    });
    if args.json {
        print_json(&copies)?;
    }
    failure.map_or(Ok(0), Err)
}
