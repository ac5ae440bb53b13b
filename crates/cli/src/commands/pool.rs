//! `mica pool`

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use micabox::{Builder, Cancel};
use micabox_spec::options::MachineOptions;

use crate::run::Signals;
use micabox_creation::Pulls;
use micabox_creation::find_image;
use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::output::{print, write_stderr};
use micabox_program::settings;

/// Intervals of looks at the pool: until all machines are ready, and later.
const START: Duration = Duration::from_millis(20);
const WATCH: Duration = Duration::from_secs(1);

/// Keep machines of an image ready for `mica run` (KVM only)
///
/// `mica run` with the same IMAGE, --memory, --cpus, --net, --init, --transport, --root, --verity and --trim then
/// gets a machine that runs already, and another one starts in its place; it starts one of its own when
/// none is left. It also does for changes on a disk, patches, --vsock, --require-limits and --log.
///
/// Runs until Ctrl-C or SIGTERM. Prints `ready` when all machines are. A machine that is ready takes
/// some 6 MiB of memory. Sandboxes that have got one outlive the pool, but are in its control
/// group and have its limits and environment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of machines
    #[arg(
        short = 'n',
        long,
        value_name = "NUMBER",
        default_value = "2",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024)
    )]
    size: usize,

    #[command(flatten)]
    machine: MachineOptions,

    /// The image
    #[arg(value_name = "IMAGE")]
    image: String,
}

/// Keeps machines ready until a signal ends it.
pub fn execute(args: &Args) -> Outcome {
    pool(args).map_err(|failure| failure.at_least(EXIT_MICA))
}

fn pool(args: &Args) -> Outcome {
    let store = settings::store()?;
    let cancel = Cancel::default();
    let machine = &args.machine;
    let image = find_image(machine, &store, &args.image, Pulls::default(), &cancel)?;
    let signals = Signals::catch(cancel.clone())?;
    let trim = machine.trim().map_err(|error| Failure::of(&error))?;
    let builder = Builder::new(&store, &image).trim(&trim)?;
    let mut spec = builder.spec().clone();
    machine.apply(&mut spec);
    let builder = builder.with_spec(spec).cancel(cancel);
    let pool = builder.pool(args.size)?;
    signals.started();
    let mut is_ready = false;
    let mut failure = None;
    loop {
        if !is_ready && pool.ready() >= args.size {
            is_ready = true;
            print("ready\n")?;
        }
        let last = std::mem::replace(&mut failure, pool.failure());
        if let Some(why) = &failure
            && last != failure
        {
            if !is_ready {
                return Err(Failure::new(format!("a machine does not start: {why}")));
            }
            write_stderr(&format!(
                "mica: a machine does not start: {why}; trying again\n"
            ));
        }
        if signals.wait_for_end(if is_ready { WATCH } else { START }) {
            return Ok(0);
        }
    }
}
