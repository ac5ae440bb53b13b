//! `mica run`: runs a command from an image in its own virtual machine.

pub mod attend;
mod exit;
mod flags;
mod id_file;
mod keys;
mod options;
pub mod restart;
mod signals;
mod streams;
mod supervise;
pub mod terminal;

pub use exit::start_failure;
pub use flags::Args;
pub use id_file::IdFile;
pub use keys::{DEFAULT as DETACH_KEYS, Keys};
pub use options::AttachOptions;
pub use signals::Signals;
pub use supervise::{detach, farewell, our_streams};

use micabox::Cancel;
use micabox::words::Period;

use micabox_creation::Pulls;
use micabox_creation::{Begin, Preparation};
use micabox_program::failure::{EXIT_MICA, Outcome};
use micabox_program::output;

/// Exit code of a command that is not there.
const NOT_FOUND: u8 = 127;

/// Runs the command. Returns its exit code.
pub fn execute(args: Args) -> Outcome {
    micabox_creation::get_ready(&args.sandbox.machine);
    if !args.sandbox.limits.require_limits && !args.sandbox.machine.quiet {
        warn_of_no_limits(&args);
    }
    let is_from_snapshot = args.sandbox.files.from.is_some();
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
        options: &args.sandbox,
        image: args.image()?,
        first: args.first(terminal::wanted(&options)?),
        is_detached: flags.detach,
        is_stopped: false,
        cancel: cancel.clone(),
        pulls: Pulls::default(),
    }
    .prepare()?;
    micabox_creation::report_what_is_shared(&args.sandbox.machine);
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
        let ended = if options.continues {
            supervise::follow(sandbox, command, &options, &signals)
        } else {
            supervise::supervise(sandbox, command, &options, signals)
        };
        if let Some(unread) = prepared.unread {
            unread.report();
        }
        return ended;
    }
    match detach(sandbox, command, &options, &signals)? {
        Ok(detached) => detached.print().map(|()| 0),
        Err(code) => Ok(code),
    }
}
