//! From the flags of `mica run` to a sandbox that is ready to be started.

use std::ffi::{OsStr, OsString};

use micabox::builder::{Boots, FromMemory, New};
use micabox::words::{Hostname, Processes, Signal, Size};
use micabox::{
    Base, Builder, Cancel, Command, Error, Overrides, Restore, RootDisk, Sandbox, SandboxRef,
    Snapshot, Trim, TtySize,
};
use micabox_image::Store;
use micabox_image::store::Image;

use super::{Pulls, SandboxArgs, environment, labels, shell_words};
use crate::failure::Failure;
use crate::{copies, log, output, settings};

/// The description of a sandbox without a command.
const IDLE: &str = "(idle)";

/// The command on a root disk, which has no configuration with one.
const SHELL: &str = "/bin/sh";

/// A sandbox that is ready to be started.
pub struct Prepared {
    /// What runs in it first.
    pub begin: Begin,
    /// Starts it.
    pub create: Box<dyn FnOnce() -> Result<Sandbox, Error>>,
    /// Makes it without a start, if that is what it is prepared for and possible.
    pub create_stopped: Option<Box<dyn FnOnce() -> Result<SandboxRef, Error>>>,
}

/// What runs in a sandbox first.
#[derive(Debug)]
pub enum Begin {
    /// Nothing.
    Idle,
    /// This command.
    Command(Command),
    /// The first command of the machine that it is a copy of, which is to be reattached.
    Reattach,
}

/// What a sandbox is prepared from.
pub struct Preparation<'a> {
    /// What it is made of.
    pub sandbox: &'a SandboxArgs,
    /// The image's name, if it is made from one.
    pub image: Option<&'a str>,
    /// What it is to run first; in a copy of a machine nothing but what runs there. None for nothing.
    pub first: Option<First<'a>>,
    /// Whether it continues without mica.
    pub is_detached: bool,
    /// Whether it is not to be started.
    pub is_stopped: bool,
    /// Cancels the start, and pulls before it.
    pub cancel: Cancel,
    /// How images that are not here come.
    pub pulls: Pulls<'a>,
}

/// A sandbox's first command, beside what its image says.
#[derive(Clone, Copy, Debug)]
pub struct First<'a> {
    /// In place of the image's entrypoint; empty for none.
    pub entrypoint: Option<&'a OsStr>,
    /// In place of the image's command, if there are any.
    pub argv: &'a [OsString],
    /// The size of its terminal, if it has one.
    pub tty: Option<TtySize>,
    /// Whether it has a stdin.
    pub stdin: bool,
}

impl Preparation<'_> {
    /// Finds what the sandbox is made from, pulls it if necessary, and takes the settings from the
    /// flags.
    pub fn prepare(&self) -> Result<Prepared, Failure> {
        let args = self.sandbox;
        if args.nested_virtualization && !args.machine.quiet {
            args.machine.say_if_emulated("--nested-virtualization");
        }
        let store = settings::store()?;
        let overrides = Overrides {
            entrypoint: self
                .first
                .and_then(|first| first.entrypoint)
                .map(Into::into),
            args: self
                .first
                .map(|first| first.argv.to_vec())
                .unwrap_or_default(),
            env: environment::changes(&args.env_file, &args.env)?,
            user: args.user.clone(),
            workdir: args.workdir.clone(),
            confinement: args.confinement(),
        };
        let Some(name) = &args.from else {
            let base = match (args.root_disk(), self.image) {
                (Some((path, in_place, partition)), _) => {
                    Base::Disk(RootDisk::open_partition(&path, in_place, partition)?)
                }
                (None, Some(name)) => Base::Image(Box::new(self.image(&store, name)?)),
                (None, None) => return Err(Failure::new("no image")),
            };
            let trim = args.machine.trim()?;
            let mut builder = Builder::on(&store, base).trim(&trim)?;
            if !args.machine.quiet && hides_nothing(&store, builder.base(), &trim) {
                output::write_stderr(
                    "mica: --trim leaves nothing out: no file of the image is below its paths\n",
                );
            }
            if let Some(upper) = &args.upper {
                builder = builder.upper(upper.clone());
            }
            if args.cold {
                builder = builder.cold();
            }
            return self.boot(builder, &overrides);
        };
        let snapshot = settings::sandboxes(&store)?.snapshot(name)?;
        let restore = match args.root_disk() {
            None => Restore::new(&store, &snapshot)?,
            Some((path, false, _)) => Restore::on_root_disk(&store, &snapshot, &path)?,
            Some((_, true, _)) => {
                return Err(Failure::new(
                    "a snapshot has its changes on a disk of its own, not in its root disk",
                )
                .hint("omit :rw"));
            }
        };
        match restore {
            Restore::Disk(builder) => self.boot(builder, &overrides),
            Restore::Memory(builder) => self.resume(builder, &snapshot, &overrides),
        }
    }

    /// Prepares a sandbox whose machine boots.
    fn boot<K: Boots + Clone + 'static>(
        &self,
        builder: Builder<K>,
        overrides: &Overrides,
    ) -> Result<Prepared, Failure> {
        let args = self.sandbox;
        let (command, begin, description) = match self.first {
            Some(first) => {
                let command = first.command(builder.base(), overrides)?;
                let description = shell_words(&command.argv);
                (command.clone(), Begin::Command(command), description)
            }
            None => {
                let command = Command::in_image(&builder.base().config(), overrides)?;
                (command, Begin::Idle, IDLE.to_owned())
            }
        };
        let network = args.network(&exposed(builder.base()))?;
        let mut builder = self.with_flags(args.machine.apply(builder))?;
        if let Some(Processes(processes)) = args.pids_limit.filter(|limit| limit.0 != u64::MAX) {
            builder = builder.pids_limit(processes);
        }
        let builder = builder
            .nested_virtualization(args.nested_virtualization)
            .patches(args.patches()?)
            .network(network)
            .description(description)
            .command(&command);
        let stopped = self.is_stopped.then(|| builder.clone());
        Ok(Prepared {
            begin,
            create: Box::new(|| builder.create()),
            create_stopped: stopped.map(|builder| Box::new(|| builder.create_stopped()) as _),
        })
    }

    /// Prepares a sandbox that continues where a snapshot's machine was. Without a COMMAND, the
    /// machine's first command is reattached.
    fn resume(
        &self,
        builder: Builder<FromMemory>,
        snapshot: &Snapshot,
        overrides: &Overrides,
    ) -> Result<Prepared, Failure> {
        let args = self.sandbox;
        args.check_fit_for_memory(&snapshot.name)?;
        let machine = snapshot.memory.as_ref();
        let named = self.first.filter(First::is_named);
        let begin = match named {
            Some(first) => Begin::Command(first.command(builder.base(), overrides)?),
            None => {
                args.check_fit_for_commands(&snapshot.name)?;
                match machine.filter(|machine| machine.has_first_command()) {
                    // A COMMAND that is missing is an error of the start.
                    None if self.first.is_none() => Begin::Idle,
                    _ => Begin::Reattach,
                }
            }
        };
        let mut builder = self.with_flags(builder)?;
        if args.has_network_flags() {
            let network = args.network(&exposed(builder.base()))?;
            builder = builder.network(network);
        }
        builder = match &begin {
            Begin::Idle => builder.description(IDLE),
            Begin::Command(command) => builder
                .description(shell_words(&command.argv))
                .command(command),
            Begin::Reattach => copies::reattached(builder, machine),
        };
        Ok(Prepared {
            begin,
            create: Box::new(|| builder.create()),
            create_stopped: None,
        })
    }

    /// Takes the settings that every new sandbox has.
    fn with_flags<K: New>(&self, builder: Builder<K>) -> Result<Builder<K>, Failure> {
        let args = self.sandbox;
        let mut builder = builder
            .backend_choice(args.machine.backend)
            .expiry(args.expiry())
            .cancel(self.cancel.clone());
        builder = log::in_owner(builder, self.is_detached);
        // A copy of a machine that must have limits must have them, too.
        if args.require_limits {
            builder = builder.require_limits(true);
        }
        if let Some(name) = args.name.as_deref().filter(|name| !name.is_empty()) {
            builder = builder.name(name);
        }
        if let Some(path) = &args.vsock {
            // Absolute, as `mica start` may be called from elsewhere.
            builder = builder.vsock(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        }
        if let Some(Some(Hostname(hostname))) = &args.hostname {
            builder = builder.hostname(hostname);
        }
        if let Some(Some(Signal(signal))) = args.stop_signal {
            builder = builder.stop_signal(signal);
        }
        for (name, value) in labels::of(&args.label_file, &args.label)? {
            builder = builder.label(name, value);
        }
        if !args.is_forgotten() {
            builder = builder.keep_record();
        }
        let image = |name: &str| self.image(&settings::store()?, name);
        for mount in args.mounts(image)? {
            builder = builder.mount(mount);
        }
        if args.read_only {
            builder = builder.read_only();
        }
        if let Some(rate) = args.disk_rate {
            builder = builder.disk_rate(rate);
        }
        if let Some(Size(size)) = args.shm_size.flatten() {
            builder = builder.shm_size(size);
        }
        Ok(builder)
    }

    fn image(&self, store: &Store, name: &str) -> Result<Image, Failure> {
        let machine = &self.sandbox.machine;
        machine.image(store, name, self.pulls, &self.cancel)
    }
}

/// Whether no file of the image is left out by patterns that are to leave something out.
fn hides_nothing(store: &Store, base: &Base, trim: &Trim) -> bool {
    let Base::Image(image) = base else {
        return false;
    };
    // What can't be read is no reason for a notice.
    let views = store.views(&image.manifest_digest).unwrap_or_default();
    let mut views = views.iter().filter(|view| view.trim == *trim);
    views.next().is_some_and(|view| view.hidden.files == 0)
}

/// Returns the ports that an image names.
fn exposed(base: &Base) -> Vec<String> {
    base.config().exposed_ports().clone().unwrap_or_default()
}

impl First<'_> {
    /// Returns whether the caller has named a program, and not only left it to the image.
    fn is_named(&self) -> bool {
        self.entrypoint.is_some() || !self.argv.is_empty()
    }

    /// Makes the command of the image's configuration and the flags.
    fn command(&self, base: &Base, overrides: &Overrides) -> Result<Command, Failure> {
        let mut config = base.config();
        if base.disk().is_some() {
            config.set_cmd(Some(vec![SHELL.to_owned()]));
        }
        let mut command = Command::from_image(&config, overrides)?;
        command.tty = self.tty;
        command.stdin = self.stdin;
        Ok(command)
    }
}
