//! The log that `--log` and `MICABOX_LOG` request: what mica does, step by step.
//!
//! mica writes it to stderr. So does the owner of a sandbox that ends with mica; the owner of one
//! that is detached writes to the file `owner.log` in the sandbox's directory. Without a filter
//! there is no subscriber, and an event costs a comparison.

use std::io::{self, Write};
use std::sync::OnceLock;

use micabox::builder::Kind;
use micabox::{Builder, OwnerLog};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;
use crate::output::write_stderr;

/// The flag of all commands.
#[derive(Debug, Default, clap::Args)]
pub struct Flag {
    /// Log what mica does on stderr [info, debug, micabox=debug; default: $MICABOX_LOG]
    ///
    /// The part of a detached sandbox is in the file owner.log in its directory.
    #[arg(long = "log", global = true, value_name = "FILTER")]
    filter: Option<String>,
}

/// The environment variable with the filter, if `--log` is not given.
const VARIABLE: &str = "MICABOX_LOG";

/// The filter, if there is one.
static FILTER: OnceLock<String> = OnceLock::new();

/// Logs from now on what passes the filter of the flag or else of the environment, if there is one.
pub fn start(flag: Flag) -> Result<(), Failure> {
    let Some(filter) = flag.filter.or_else(|| std::env::var(VARIABLE).ok()) else {
        return Ok(());
    };
    if filter.is_empty() {
        return Ok(());
    }
    subscribe(&filter)?;
    let _ = FILTER.set(filter);
    Ok(())
}

/// In the owner of a sandbox: logs what passes `filter`, which its creator has checked.
pub fn start_in_owner(filter: &str) {
    let _ = subscribe(filter);
}

/// Has the owner of the sandbox log what passes the filter, if there is one.
pub fn in_owner<K: Kind>(builder: Builder<K>, is_detached: bool) -> Builder<K> {
    let to = if is_detached {
        OwnerLog::File
    } else {
        OwnerLog::Stderr
    };
    match FILTER.get() {
        Some(filter) => builder.owner_log(filter, to),
        None => builder,
    }
}

/// Beginning of the names of mica's parts, as the log shows them.
const OWN: &str = "micabox";

/// Parses a filter. Words that no part of mica has are refused: they would let nothing pass.
fn parse(filter: &str) -> Result<Targets, Failure> {
    let wrong = |failure: Failure| {
        failure
            .context(&format!("the filter `{filter}` of the log"))
            .hint("such as `info`, `debug`, or `micabox_net=debug` for one part")
    };
    let targets: Targets = filter.parse().map_err(|error| wrong(Failure::of(&error)))?;
    match targets.iter().find(|(target, _)| !target.starts_with(OWN)) {
        Some((target, _)) => Err(wrong(Failure::new(format!(
            "`{target}` is neither a level nor a part of mica"
        )))),
        None => Ok(targets),
    }
}

fn subscribe(filter: &str) -> Result<(), Failure> {
    let targets = parse(filter)?;
    tracing_subscriber::registry()
        .with(targets)
        .with(layer().with_ansi(false).with_writer(|| Stderr))
        .try_init()
        .map_err(|error| Failure::of(&error).context("starting the log"))
}

/// stderr for mica's own text: what is foreign in it does not reach a terminal as it is.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_stderr(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
