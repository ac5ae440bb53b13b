//! `mica fork`

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use micabox::Record;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{EXIT_MICA, Failure};
use crate::output::{print, print_json};
use crate::run::detached::{Started, Supervisor};
use crate::{Outcome, settings};

/// Make copies of a running sandbox, which go on where it is (KVM only)
///
/// A copy has the sandbox's memory, processes and disk as they are at one moment, and a
/// name, host name, machine ID, network and randomness of its own. It shares what it doesn't
/// change with the others, and stays behind as with `mica run -d`. The sandbox stands still
/// meanwhile. Its published ports stay its own. Prints the copies' IDs, for `mica logs`,
/// `mica stop` and all that takes a sandbox.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,

    /// How many
    #[arg(short, long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    number: u16,

    /// Name of the copy, if it is one; otherwise each gets one
    #[arg(long, conflicts_with = "number")]
    name: Option<String>,

    /// Make none unless control groups limit the copies' processes
    #[arg(long)]
    require_limits: bool,

    /// IDs and names, for scripts, once all are there
    #[arg(long)]
    json: bool,
}

/// A copy that runs.
#[derive(Serialize)]
struct Copy {
    id: String,
    name: String,
}

/// Makes copies.
pub fn execute(args: &Args) -> Outcome {
    fork(args).map_err(|failure| failure.at_least(EXIT_MICA))
}

fn fork(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let record = sandboxes.get(&args.sandbox)?;
    // What the copies are made from goes even if somebody gives them up.
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .map_err(|error| Failure::of(&error).context("setting up signals"))?;
    }
    let moment = sandboxes.pass_machine(&store, &record.id)?;
    start(args, &record, &moment.snapshot().name, &signal)
}

/// Starts copies, as many at a time as there are processors; those that run stay.
fn start(args: &Args, record: &Record, snapshot: &str, signal: &AtomicUsize) -> Outcome {
    let mut arguments = ["run", "-d", "--from", snapshot]
        .map(OsString::from)
        .to_vec();
    if record.auto_remove {
        arguments.push("--rm".into());
    }
    if args.require_limits {
        arguments.push("--require-limits".into());
    }
    if let Some(name) = &args.name {
        arguments.extend(["--name".into(), name.into()]);
    }
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = None;
    let mut starting = VecDeque::new();
    let mut copies = Vec::new();
    let mut left = args.number;
    loop {
        let given_up = signal.load(Ordering::Acquire);
        if given_up != 0 {
            failed = Some(128 + given_up as u8);
        }
        if left > 0 && failed.is_none() && starting.len() < at_once {
            left -= 1;
            starting.push_back(Supervisor::start(arguments.clone())?);
            continue;
        }
        match starting.pop_front().map(Supervisor::wait) {
            None => break,
            Some(started) => match started? {
                Started::Running { id, name } if args.json => copies.push(Copy { id, name }),
                Started::Running { id, .. } => print(&format!("{id}\n"))?,
                Started::Failed(code) => failed = failed.or(Some(code)),
            },
        }
    }
    if args.json {
        print_json(&copies)?;
    }
    match failed {
        None => Ok(0),
        Some(code) => Err(Failure::said(code)),
    }
}
