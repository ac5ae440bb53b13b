//! `mica exec`

use std::ffi::OsString;
use std::path::PathBuf;

use micabox::words::Period;
use micabox::{Cancel, DEFAULT_GRACE, ErrorKind, ExecOptions, Overrides};

use crate::run::attend::{Attention, attend};
use crate::run::{AttachOptions, DETACH_KEYS, Keys, Signals, our_streams, start_failure, terminal};
use micabox_creation::environment;
use micabox_program::failure::{EXIT_MICA, Failure, Outcome};
use micabox_program::settings;

/// Run a command in a running sandbox
///
/// The command has the environment, user and working directory that the sandbox was made with,
/// unless flags change them. Signals that mica gets are passed on to it. It is killed when mica is,
/// except with -d.
///
/// Exit codes: the command's own, 128 + n if signal n ended it; 124 after --timeout (137 if it
/// had to be killed); 125 if mica failed, 126 if the command could not be executed, 127 if it was
/// not found.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mica exec [OPTIONS] SANDBOX COMMAND [ARG...]",
    args_override_self = true
)]
pub struct Args {
    /// Pass stdin on to the command
    #[arg(short, long)]
    interactive: bool,

    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,

    /// Leave the command running, without its output
    #[arg(short, long)]
    detach: bool,

    /// Keys that leave the command running, with -it
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    detach_keys: Keys,

    /// Set a variable, or take its value from here [NAME=VALUE or NAME]
    #[arg(short, long, value_name = "VARIABLE")]
    env: Vec<OsString>,

    /// Read variables from a file, one a line
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,

    /// Working directory, which must be there
    #[arg(short, long, value_name = "DIRECTORY")]
    workdir: Option<OsString>,

    /// User, resolved in the sandbox [name or uid, optionally :group or :gid]
    #[arg(short, long)]
    user: Option<String>,

    /// Docker's, of which a sandbox needs none
    #[arg(long, hide = true)]
    privileged: bool,

    /// Stop the command after this time [30, 90s, 5m, 2h]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<Period>,

    /// The sandbox's name or ID, and what to run in it
    // One list, so that no flag is ours once the sandbox is named.
    #[arg(required = true, trailing_var_arg = true, value_name = "SANDBOX")]
    sandbox_and_command: Vec<OsString>,
}

/// Runs a command.
pub fn execute(args: Args) -> Outcome {
    // A failure before the command runs must not look like the command's own exit code.
    exec(args).map_err(|failure| failure.at_least(EXIT_MICA))
}

fn exec(args: Args) -> Outcome {
    if args.privileged {
        return Err(Failure::new(
            "`--privileged` is not supported: a command has the sandbox's rights",
        )
        .hint("`-u 0` runs it as root; `mica run --cap-add` gives a sandbox more"));
    }
    let tty = terminal::wanted(&AttachOptions {
        tty: args.tty,
        interactive: args.interactive && !args.detach,
        ..AttachOptions::default()
    })?;
    let mut words = args.sandbox_and_command.into_iter();
    let name = words.next().unwrap_or_default();
    if words.len() == 0 {
        let name = name.to_string_lossy();
        return Err(
            Failure::of_kind(ErrorKind::Invalid, format!("no command to run in {name}"))
                .hint(format!("for a shell: `mica exec -it {name} sh`")),
        );
    }
    let overrides = Overrides {
        entrypoint: None,
        args: words.collect(),
        env: environment::changes(&args.env_file, &args.env)?,
        user: args.user,
        workdir: args.workdir,
        ..Overrides::default()
    };
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let sandbox = sandboxes.get(&name.to_string_lossy())?;
    let mut command = sandbox.command(&overrides)?;
    command.tty = tty;
    command.stdin = args.interactive && !args.detach;
    let streams = if args.detach {
        ExecOptions::default()
    } else {
        our_streams(args.interactive)
    };
    let options = ExecOptions {
        timeout: args
            .timeout
            .map(|Period(time)| time)
            .filter(|time| !time.is_zero()),
        grace: DEFAULT_GRACE,
        detach: args.detach,
        sigpipe: !args.detach,
        ..streams
    };
    let signals = Signals::catch(Cancel::default())?;
    let process = sandbox.exec_with(&command, options);
    let process = process.map_err(start_failure)?;
    if args.detach {
        return Ok(0);
    }
    let attention = Attention {
        interactive: args.interactive,
        proxies_signals: true,
        keys: args.detach_keys,
        farewell: "mica: detached; the command continues\n".to_owned(),
    };
    attend(process, &attention, &signals)
}
