//! `mica fork`

use std::sync::atomic::{AtomicU16, Ordering};

use micabox::{Cancel, DEFAULT_GRACE, EphemeralSnapshot};
use serde::Serialize;

use crate::failure::{EXIT_MICA, Failure};
use crate::output::print_json;
use crate::run::{AttachOptions, Detached, Signals, detach, shell_words};
use crate::{Outcome, log, settings};

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
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let sandbox = sandboxes.get(&args.sandbox)?;
    let cancel = Cancel::default();
    let signals = Signals::catch(cancel.clone())?;
    // The ephemeral snapshot is removed even if the copies are cancelled.
    let moment = sandbox.ephemeral_snapshot()?;
    let made = Copies {
        moment: &moment,
        auto_remove: sandbox.record().auto_remove,
        args,
        cancel,
        signals,
        left: AtomicU16::new(args.number),
    };
    made.start()
}

/// The copies to make.
struct Copies<'a> {
    moment: &'a EphemeralSnapshot,
    auto_remove: bool,
    args: &'a Args,
    cancel: Cancel,
    signals: Signals,
    left: AtomicU16,
}

impl Copies<'_> {
    /// Starts the copies, as many at a time as there are processors; those that run stay.
    fn start(&self) -> Outcome {
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        let results = std::thread::scope(|scope| {
            let threads = at_once.min(self.args.number.into());
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.some())).collect();
            threads
                .into_iter()
                .map(|thread| thread.join())
                .collect::<Vec<_>>()
        });
        let mut copies = Vec::new();
        let mut failed = None;
        for result in results {
            let (made, outcome) =
                result.unwrap_or_else(|_| (Vec::new(), Err(Failure::printed(EXIT_MICA))));
            copies.extend(made);
            match outcome {
                Ok(0) => {}
                Ok(code) => failed = failed.or(Some(Failure::printed(code))),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        if self.args.json {
            print_json(&copies)?;
        }
        failed.map_or(Ok(0), Err)
    }

    /// Starts copies one after the other while any are left to start.
    fn some(&self) -> (Vec<Copy>, Outcome) {
        let mut copies = Vec::new();
        let take = |left: u16| left.checked_sub(1);
        while self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
            .is_ok()
        {
            match self.one() {
                Ok(Ok(detached)) if self.args.json => copies.push(Copy {
                    id: detached.id,
                    name: detached.name,
                }),
                Ok(Ok(detached)) => {
                    if let Err(failure) = detached.print() {
                        return (copies, Err(failure));
                    }
                }
                Ok(Err(code)) => return (copies, Ok(code)),
                Err(failure) => return (copies, Err(failure)),
            }
        }
        (copies, Ok(0))
    }

    fn one(&self) -> Result<Result<Detached, u8>, Failure> {
        let mut builder = self.moment.restore()?.cancel(self.cancel.clone());
        let machine = self.moment.snapshot().memory.as_ref();
        let idle = machine.is_some_and(|machine| !machine.has_first_command());
        if !idle {
            builder = builder.reattach();
        }
        let mut builder = log::in_owner(builder, true);
        if let Some(machine) = machine.filter(|_| !idle) {
            builder = builder.description(shell_words(&machine.spec.command.argv));
        }
        if !self.auto_remove {
            builder = builder.keep_record();
        }
        if self.args.require_limits {
            builder = builder.require_limits(true);
        }
        if let Some(name) = &self.args.name {
            builder = builder.name(name);
        }
        let options = AttachOptions {
            detached: true,
            idle,
            has_stdin: true,
            stop_timeout: DEFAULT_GRACE.as_secs(),
            ..AttachOptions::default()
        };
        detach(builder.create(), None, &options, &self.signals)
    }
}
