//! `mica run`: a command from an image in a machine of its own.

pub mod again;
pub mod detached;
mod environment;
mod flags;
mod streams;
mod supervise;
mod terminal;

pub use flags::Args;

use std::ffi::OsString;
use std::time::Duration;

use micabox::plan::{Root, Transport};
use micabox::{Base, Builder, Cancel, Command, Overrides, RootDisk, Snapshot, TtySize};
use micabox_image::config::PullPolicy;
use micabox_image::store::Image;
use micabox_image::{PullOptions, Reference, Store, pull_blocking};

use crate::failure::{EXIT_MICA, Failure};
use crate::{Outcome, bars, output, settings};
use detached::Started;

/// What is run on a root disk, which has no configuration to say it.
const SHELL: &str = "/bin/sh";

/// How a command is attended to while it runs.
#[derive(Clone, Debug)]
pub struct Terms {
    /// It has a terminal.
    tty: bool,
    /// Our stdin is its stdin.
    interactive: bool,
    /// Nobody sees it.
    detached: bool,
    /// It is stopped after so long.
    timeout: Option<Duration>,
    /// Seconds between its stop signal and its end.
    stop_timeout: u64,
    /// Where the time until its first output went is printed.
    timing: Option<flags::Timing>,
}

/// Runs the command; its exit code.
pub fn execute(args: Args) -> Outcome {
    // Whatever fails before the command runs must not look like the command's own code.
    let outcome = match args.detach && !detached::is_supervisor() {
        true => run_behind(),
        false => run(args),
    };
    outcome.map_err(|failure| failure.at_least(EXIT_MICA))
}

/// Has the same command line carried out behind our back.
fn run_behind() -> Outcome {
    match detached::Supervisor::start(std::env::args_os().skip(1))?.wait()? {
        Started::Running(id) => {
            output::print(&format!("{id}\n"))?;
            Ok(0)
        }
        Started::Failed(code) => Ok(code),
    }
}

fn run(args: Args) -> Outcome {
    let settings = settings::settings()?;
    let store = settings::store()?;
    let overrides = overrides(&args)?;
    let terms = Terms {
        tty: args.tty,
        interactive: args.interactive,
        detached: args.detach,
        timeout: args.timeout,
        stop_timeout: args.stop_timeout,
        timing: args.timing,
    };
    let tty = terminal::wanted(&terms)?;
    let snapshot = match &args.from {
        Some(name) => Some(settings::sandboxes(&store)?.snapshot(name)?),
        None => None,
    };
    let base = match (&snapshot, args.root_disk()) {
        (Some(snapshot), _) => Base::of_snapshot(&store, snapshot)?,
        (None, Some((path, in_place))) => Base::Disk(RootDisk::open(&path, in_place)?),
        (None, None) => Base::Image(Box::new(image(&store, &args, PullOptions::new(settings))?)),
    };

    if let Some(snapshot) = snapshot.as_ref().filter(|found| found.memory.is_some()) {
        return go_on(&store, base, snapshot, &args, &terms, &overrides, tty);
    }
    let mut config = base.config();
    if base.disk().is_some() {
        config.set_cmd(Some(vec![SHELL.to_owned()]));
    }
    let mut command = Command::from_image(&config, &overrides)?;
    command.tty = tty;
    command.stdin = args.interactive;

    let cancel = Cancel::default();
    let signals = supervise::Signals::catch(cancel.clone())?;
    let network = args.network()?;
    let mut builder = builder(&store, base, &args, &command)
        .network(network)
        .patches(args.patches()?)
        .cancel(cancel);
    if let Some(snapshot) = &snapshot {
        builder = builder.from_snapshot(snapshot);
    }
    let sandbox = builder.create();
    supervise::supervise(sandbox, Some(&command), &terms, signals)
}

/// Goes on from a machine's memory, with a command of its own or the one that runs in it.
fn go_on(
    store: &Store,
    base: Base,
    snapshot: &Snapshot,
    args: &Args,
    terms: &Terms,
    overrides: &Overrides,
    tty: Option<TtySize>,
) -> Outcome {
    if let Some(flag) = args.unfit_for_memory() {
        return Err(Failure::new(format!(
            "snapshot {} has a machine's memory, so {flag} comes too late",
            snapshot.name
        ))
        .hint(format!("leave {flag} out, or start from an image")));
    }
    let command = match args.command().is_empty() && args.entrypoint.is_none() {
        true => None,
        false => {
            let mut command = Command::from_image(&base.config(), overrides)?;
            command.tty = tty;
            command.stdin = args.interactive;
            Some(command)
        }
    };
    let cancel = Cancel::default();
    let signals = supervise::Signals::catch(cancel.clone())?;
    let mut builder = Builder::on(store, base)
        .from_snapshot(snapshot)
        .backend_choice(args.backend.into())
        .patches(args.patches()?)
        .cancel(cancel);
    builder = match &command {
        Some(command) => builder
            .description(shell_words(&command.argv))
            .command(command),
        None => {
            let original = snapshot.memory.as_ref();
            let argv = original.map(|machine| machine.spec.command.argv.clone());
            builder
                .description(shell_words(&argv.unwrap_or_default()))
                .adopt()
        }
    };
    if args.has_network_flags() {
        builder = builder.network(args.network()?);
    }
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if let Some(hostname) = &args.hostname {
        builder = builder.hostname(hostname);
    }
    if let Some(signal) = args.stop_signal {
        builder = builder.stop_signal(signal);
    }
    if !args.is_forgotten() {
        builder = builder.keep_record();
    }
    supervise::supervise(builder.create(), command.as_ref(), terms, signals)
}

/// What the flags want other than the image does.
fn overrides(args: &Args) -> Result<Overrides, Failure> {
    Ok(Overrides {
        entrypoint: args.entrypoint.clone(),
        args: args.command().to_vec(),
        env: environment::changes(&args.env_file, &args.env)?,
        user: args.user.clone(),
        workdir: args.workdir.clone(),
    })
}

/// The image, pulled if need be and allowed.
fn image(store: &Store, args: &Args, mut options: PullOptions) -> Result<Image, Failure> {
    let name = args.image()?;
    if let Some(policy) = args.pull {
        options.policy = policy.into();
    }
    options.platform = args.platform.clone();
    if options.policy != PullPolicy::Always && options.platform.is_none() {
        match store.image(name) {
            Ok(image) => return Ok(image),
            // An image that lost a layer is mended by pulling it again.
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

fn builder<'a>(store: &'a Store, base: Base, args: &Args, command: &Command) -> Builder<'a> {
    let mut builder = Builder::on(store, base)
        .description(shell_words(&command.argv))
        .transport(Transport::from(args.transport))
        .root(Root::from(args.root))
        .backend_choice(args.backend.into());
    builder = builder.command(command);
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

/// A command as a user could type it.
fn shell_words(argv: &[OsString]) -> String {
    let quote = |word: &OsString| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => word.into_owned(),
            // No control characters in lists.
            false => format!("'{}'", word.replace('\'', "'\\''").escape_debug())
                .replace("\\'", "'")
                .replace("\\\"", "\""),
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
