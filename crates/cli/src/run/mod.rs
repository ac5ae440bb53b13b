//! `mica run`: runs a command from an image in its own virtual machine.

pub mod attend;
pub mod environment;
mod flags;
mod id_file;
mod keys;
mod labels;
mod prepare;
mod refused;
pub mod restart;
mod signals;
mod streams;
mod supervise;
pub mod terminal;

pub use flags::{
    Args, Bound, MachineArgs, Net, OrDefault, OrNone, Pulls, SandboxArgs, Taken, boolean, empty_or,
    parse, zero_or,
};
pub use id_file::IdFile;
pub use keys::{DEFAULT as DETACH_KEYS, Keys};
pub use refused::refusal;
pub use signals::Signals;
pub use supervise::{detach, farewell, our_streams, start_failure};

use std::ffi::OsString;
use std::time::Duration;

use micabox::Cancel;
use micabox::words::Period;

use crate::failure::EXIT_MICA;
use crate::{Outcome, output};
pub use prepare::{Begin, First, Preparation};

/// Exit code of a command that is not there.
const NOT_FOUND: u8 = 127;

/// How mica attends to a running command.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// Whether the command has a terminal.
    pub tty: bool,
    /// Whether mica's stdin is passed on to the command.
    pub interactive: bool,
    /// Whether the command's stdin is open, with mica's input or empty.
    pub has_stdin: bool,
    /// Whether the command's stdout and stderr go nowhere.
    pub silent: [bool; 2],
    /// Whether the command continues when mica ends: signals are for mica, and output that nothing reads is dropped.
    pub continues: bool,
    /// Whether the sandbox is detached.
    pub detached: bool,
    /// Whether a detached sandbox runs no command.
    pub idle: bool,
    /// Time after which the command is stopped.
    pub timeout: Option<Duration>,
    /// Seconds between the stop signal and SIGKILL.
    pub stop_timeout: u64,
    /// The keys that leave the command running.
    pub detach_keys: Keys,
    /// The format in which timings are printed, if they are.
    pub timing: Option<flags::Timing>,
}

/// Runs the command. Returns its exit code.
pub fn execute(args: Args) -> Outcome {
    args.sandbox.machine.get_ready();
    if !args.sandbox.require_limits && !args.sandbox.machine.quiet {
        warn_of_no_limits(&args);
    }
    let is_from_snapshot = args.sandbox.from.is_some();
    // A failure before the command runs must not look like the command's own exit code.
    run(args).map_err(|failure| match failure.code {
        NOT_FOUND if is_from_snapshot => {
            failure.hint("`--from` takes no IMAGE: all that follows is the command")
        }
        _ => failure.at_least(EXIT_MICA),
    })
}

/// Warns a user at a terminal that no control group will limit the machine, and everyone who asked
/// for a share of a processor. Scripts have `--require-limits`.
fn warn_of_no_limits(args: &Args) {
    let cpus = args.sandbox.machine.cpus();
    let has_quota = cpus.is_some_and(|cpus| cpus.quota.is_some());
    let why = || match micabox_vmm::control_groups() {
        Ok((_, controllers)) if controllers.contains(&"cpu") => None,
        Ok(_) => Some("there is no cpu controller".to_owned()),
        Err(why) => Some(why),
    };
    if has_quota && let Some(why) = why() {
        output::write_stderr(&format!(
            "mica: no control group limits the machine's processor time, so --cpus counts as a whole \
             number: {why} (`mica doctor`)\n"
        ));
    } else if output::stderr_is_terminal()
        // What shares this machine's kernel says it in any case.
        && !args.sandbox.machine.shares_kernel()
        && let Err(why) = micabox_vmm::control_groups()
    {
        output::write_stderr(&format!(
            "mica: no control group limits the machine's memory, processor time and tasks: {why} \
             (`mica doctor`)\n"
        ));
    }
}

fn run(args: Args) -> Outcome {
    args.check_for_run()?;
    let flags = &args.command;
    let options = AttachOptions {
        tty: flags.tty,
        interactive: flags.interactive && !flags.detach,
        has_stdin: flags.interactive,
        silent: flags.silent(),
        continues: !flags.sig_proxy,
        detached: flags.detach,
        idle: flags.idle,
        timeout: flags.timeout.map(|Period(time)| time),
        stop_timeout: flags.stop_timeout(),
        detach_keys: flags.detach_keys.clone(),
        timing: flags.timing,
    };
    let id_file = IdFile::wanted(flags.cidfile.as_deref())?;
    let cancel = Cancel::default();
    let prepared = Preparation {
        sandbox: &args.sandbox,
        image: args.image()?,
        first: args.first(terminal::wanted(&options)?),
        is_detached: flags.detach,
        is_stopped: false,
        cancel: cancel.clone(),
        pulls: Pulls::default(),
    }
    .prepare()?;
    args.sandbox.machine.say_what_is_shared();
    let signals = Signals::catch(cancel)?;
    let sandbox = (prepared.create)();
    if let (Some(file), Ok(sandbox)) = (id_file, &sandbox) {
        file.write(&sandbox.record().id)?;
    }
    let command = match &prepared.begin {
        Begin::Command(command) => Some(command),
        Begin::Idle | Begin::Reattach => None,
    };
    if !flags.detach {
        return if options.continues {
            supervise::follow(sandbox, command, &options, &signals)
        } else {
            supervise::supervise(sandbox, command, &options, signals)
        };
    }
    match detach(sandbox, command, &options, &signals)? {
        Ok(detached) => detached.print().map(|()| 0),
        Err(code) => Ok(code),
    }
}

/// Quotes a command as a user could type it.
pub fn shell_words(argv: &[OsString]) -> String {
    let quote = |word: &OsString| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            // No control characters in lists.
            format!("'{}'", word.replace('\'', "'\\''").escape_debug())
                .replace("\\'", "'")
                .replace("\\\"", "\"")
        }
    };
    argv.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words_are_quoted_when_they_need_it() {
        let argv = ["sh", "-c", "echo \"a b\"\n", "", "x=1"].map(OsString::from);
        assert_eq!(shell_words(&argv), "sh -c 'echo \"a b\"\\n' '' x=1");
    }
}
