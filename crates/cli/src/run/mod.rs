//! `mica run`: runs a command from an image in its own virtual machine.

mod environment;
mod flags;
pub mod restart;
mod streams;
mod supervise;
mod terminal;

pub use flags::Args;
pub use supervise::{Detached, Signals, detach};

use std::ffi::OsString;
use std::time::Duration;

use micabox::plan::{Root, Transport};
use micabox::{Base, Builder, Cancel, Command, Overrides, RootDisk};
use micabox_image::store::Image;
use micabox_image::{Reference, Store};
use micabox_transfer::{PullOptions, PullPolicy, pull_blocking};

use crate::failure::{EXIT_MICA, Failure};
use crate::{Outcome, bars, output, settings};

/// The command on a root disk, which has no configuration with one.
const SHELL: &str = "/bin/sh";

/// How mica attends to a running command.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// Whether the command has a terminal.
    pub tty: bool,
    /// Whether mica's stdin is passed on to the command.
    pub interactive: bool,
    /// Whether the command's stdin is open, with mica's input or empty.
    pub has_stdin: bool,
    /// Whether the sandbox is detached.
    pub detached: bool,
    /// Time after which the command is stopped.
    pub timeout: Option<Duration>,
    /// Seconds between the stop signal and SIGKILL.
    pub stop_timeout: u64,
    /// The format in which timings are printed, if they are.
    pub timing: Option<flags::Timing>,
}

/// Runs the command. Returns its exit code.
pub fn execute(args: Args) -> Outcome {
    if !args.require_limits {
        warn_of_no_limits();
    }
    // A failure before the command runs must not look like the command's own exit code.
    run(args).map_err(|failure| failure.at_least(EXIT_MICA))
}

/// Warns a user at a terminal that no control group will limit the machine. Scripts have
/// `--require-limits`.
fn warn_of_no_limits() {
    if output::stderr_is_terminal()
        && let Err(why) = micabox_vmm::control_groups()
    {
        output::write_stderr(&format!(
            "mica: no control group limits the machine's memory, processor time and tasks: {why} \
             (`mica doctor`)\n"
        ));
    }
}

fn run(args: Args) -> Outcome {
    args.check()?;
    let settings = settings::settings()?;
    let store = settings::store()?;
    let overrides = overrides(&args)?;
    let options = AttachOptions {
        tty: args.tty,
        interactive: args.interactive && !args.detach,
        has_stdin: args.interactive,
        detached: args.detach,
        timeout: args.timeout,
        stop_timeout: args.stop_timeout,
        timing: args.timing,
    };
    let tty = terminal::wanted(&options)?;
    let snapshot = match &args.from {
        Some(name) => Some(settings::sandboxes(&store)?.snapshot(name)?),
        None => None,
    };
    let base = match (&snapshot, args.root_disk()) {
        (Some(snapshot), None) => Base::of_snapshot(&store, snapshot)?,
        (Some(snapshot), Some((path, false))) => Base::of_snapshot_on(snapshot, &path)?,
        (Some(_), Some((_, true))) => {
            return Err(Failure::new(
                "a snapshot has its changes on a disk of its own, not in its root disk",
            )
            .hint("leave :rw away"));
        }
        (None, Some((path, in_place))) => Base::Disk(RootDisk::open(&path, in_place)?),
        (None, None) => Base::Image(Box::new(image(&store, &args, PullOptions::new(settings))?)),
    };

    let machine = snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.memory.as_ref());
    if machine.is_some() {
        args.check_fit_for_memory()?;
    }
    // Without a COMMAND, the first command of a restored machine is reattached.
    let reattached = machine.filter(|_| args.command().is_empty() && args.entrypoint.is_none());
    let command = match reattached {
        Some(_) => None,
        None => {
            let mut config = base.config();
            if base.disk().is_some() {
                config.set_cmd(Some(vec![SHELL.to_owned()]));
            }
            let mut command = Command::from_image(&config, &overrides)?;
            command.tty = tty;
            command.stdin = args.interactive;
            Some(command)
        }
    };

    let cancel = Cancel::default();
    let signals = supervise::Signals::catch(cancel.clone())?;
    let mut builder = builder(&store, base, &args)
        .patches(args.patches()?)
        .cancel(cancel);
    if let Some(command) = &command {
        builder = builder
            .description(shell_words(&command.argv))
            .command(command);
    }
    if let Some(snapshot) = &snapshot {
        builder = builder.from_snapshot(snapshot);
    }
    if machine.is_none() || args.has_network_flags() {
        builder = builder.network(args.network()?);
    }
    if let Some(machine) = reattached {
        builder = builder
            .description(shell_words(&machine.spec.command.argv))
            .reattach();
    }
    let (sandbox, command) = (builder.create(), command.as_ref());
    if !args.detach {
        return supervise::supervise(sandbox, command, &options, signals);
    }
    match detach(sandbox, command, &options, &signals)? {
        Ok(detached) => detached.print().map(|()| 0),
        Err(code) => Ok(code),
    }
}

/// Returns the flags' overrides of the image's configuration.
fn overrides(args: &Args) -> Result<Overrides, Failure> {
    Ok(Overrides {
        entrypoint: args.entrypoint.clone(),
        args: args.command().to_vec(),
        env: environment::changes(&args.env_file, &args.env)?,
        user: args.user.clone(),
        workdir: args.workdir.clone(),
    })
}

/// Finds the image, and pulls it if necessary and allowed.
fn image(store: &Store, args: &Args, mut options: PullOptions) -> Result<Image, Failure> {
    let name = args.image()?;
    if let Some(policy) = args.pull {
        options.policy = policy.into();
    }
    options.platform = args.platform.clone();
    if options.policy != PullPolicy::Always && options.platform.is_none() {
        match store.image(name) {
            Ok(image) => return Ok(image),
            // Pulling an image again repairs one that lost a layer.
            Err(error) if options.policy == PullPolicy::Never => return Err(error.into()),
            Err(_) => {}
        }
    }
    let reference: Reference = name
        .parse()
        .map_err(|error| Failure::of(&error).context("reading the image's name"))?;
    let progress = bars::watch(&reference.familiar());
    Ok(pull_blocking(store, &reference, &options, progress)?)
}

/// Makes a builder with the flags' settings of the machine.
fn builder<'a>(store: &'a Store, base: Base, args: &Args) -> Builder<'a> {
    let mut builder = Builder::on(store, base)
        .transport(Transport::from(args.transport))
        .root(Root::from(args.root))
        .backend_choice(args.backend.into());
    if let Some(upper) = args.upper {
        builder = builder.upper(upper);
    }
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if let Some(path) = &args.vsock {
        // Absolute, as `mica start` may be called from elsewhere.
        builder = builder.vsock(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    }
    if args.require_limits {
        builder = builder.require_limits(true);
    }
    if args.nested_virtualization {
        builder = builder.nested_virtualization(true);
    }
    if let Some(hostname) = &args.hostname {
        builder = builder.hostname(hostname);
    }
    if let Some(memory) = args.memory {
        builder = builder.memory_mib(memory);
    }
    if let Some(cpus) = args.cpus {
        builder = builder.cpus(cpus);
    }
    if let Some(signal) = args.stop_signal {
        builder = builder.stop_signal(signal);
    }
    if args.cold {
        builder = builder.cold();
    }
    if !args.init {
        builder = builder.first_command_is_init();
    }
    if !args.is_forgotten() {
        builder = builder.keep_record();
    }
    builder
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
    fn words_are_quoted_when_they_need_it() {
        let argv = ["sh", "-c", "echo \"a b\"\n", "", "x=1"].map(OsString::from);
        assert_eq!(shell_words(&argv), "sh -c 'echo \"a b\"\\n' '' x=1");
    }
}
