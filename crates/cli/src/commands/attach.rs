//! `mica attach`

use micabox::{Cancel, Error};

use super::named::refused;
use crate::run::attend::{Attention, attend};
use crate::run::{DETACH_KEYS, Keys, Signals, farewell, our_streams};
use micabox_program::failure::{EXIT_MICA, Outcome};
use micabox_program::settings;

/// Attach to the command of a running sandbox
///
/// Prints the command's output from now on, and passes stdin on to a command that was started with
/// -i. The command continues when mica ends; with a terminal, the detach keys end mica. A reader
/// that stops reading stops the command. Exits with the command's exit code.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Keys that end mica, if the command has a terminal
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    detach_keys: Keys,

    /// Do not pass stdin on
    #[arg(long)]
    no_stdin: bool,

    /// Pass signals on to the command; otherwise they end mica
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    sig_proxy: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
}

/// Attaches to a sandbox.
pub fn execute(args: &Args) -> Outcome {
    attach(args).map_err(|failure| failure.at_least(EXIT_MICA))
}

fn attach(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let sandbox = sandboxes.get(&args.sandbox)?;
    let signals = Signals::catch(Cancel::default())?;
    let process = sandbox.attach(our_streams(!args.no_stdin));
    let process = process.map_err(|error| {
        let is_idle =
            matches!(&error, Error::Refused { message, .. } if message.contains("no command"));
        let failure = refused(&sandbox, error);
        if is_idle {
            let name = &sandbox.record().name;
            failure.hint(format!("`mica exec -it {name} sh` runs one"))
        } else {
            failure
        }
    })?;
    let attention = Attention {
        interactive: !args.no_stdin,
        proxies_signals: args.sig_proxy,
        keys: args.detach_keys.clone(),
        farewell: farewell(&sandbox.record().name),
    };
    attend(process, &attention, &signals)
}
