//! `mica fork`

use std::ffi::OsString;

use micabox::Record;

use crate::failure::{EXIT_MICA, Failure};
use crate::output::print;
use crate::run::detached::{self, Started};
use crate::{Outcome, settings};

/// Make copies of a running sandbox, which go on where it is
///
/// A copy has the sandbox's memory, processes and disk as they are at one moment, and a
/// name, host name, machine ID, network and randomness of its own. It shares what it doesn't
/// change with the others, and stays behind as with `mica run -d`. The sandbox stands still
/// meanwhile. Its published ports stay its own. Prints the copies' IDs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,

    /// How many
    #[arg(short, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    number: u16,
}

/// Makes copies.
pub fn execute(args: &Args) -> Outcome {
    fork(args).map_err(|failure| failure.at_least(EXIT_MICA))
}

fn fork(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let record = sandboxes.get(&args.sandbox)?;
    // Only for as long as it takes.
    let name = format!("fork-{}-{}", record.short_id(), std::process::id());
    sandboxes.save_machine(&store, &record.id, &name, false)?;
    let outcome = start(&record, &name, args.number);
    sandboxes.remove_snapshot(&name)?;
    outcome
}

fn start(record: &Record, snapshot: &str, number: u16) -> Outcome {
    let mut arguments = ["run", "-d", "--from", snapshot]
        .map(OsString::from)
        .to_vec();
    if record.auto_remove {
        arguments.push("--rm".into());
    }
    for _ in 0..number {
        match detached::supervisor(arguments.clone())? {
            Started::Running(id) => print(&format!("{id}\n"))?,
            Started::Failed(code) => return Err(Failure::said(code)),
        }
    }
    Ok(0)
}
