//! From the flags of `mica run` to a sandbox that is ready to be started.

use std::sync::Arc;

use micabox::builder::{Boots, FromMemory, New};
use micabox::{
    Base, Builder, Cancel, Command, Error, Overrides, Restore, RootDisk, Sandbox, SandboxRef,
    Snapshot, TtySize,
};
use micabox_image::Store;
use micabox_image::progress::Progress;
use micabox_image::store::Image;

use super::{Args, environment, labels, shell_words};
use crate::failure::Failure;
use crate::{log, settings};

/// The description of a sandbox without a command.
const IDLE: &str = "(idle)";

/// The command on a root disk, which has no configuration with one.
const SHELL: &str = "/bin/sh";

/// A sandbox that is ready to be started.
pub struct Prepared {
    /// Its command; none if the command of a restored machine is to be reattached.
    pub command: Option<Command>,
    /// Starts it.
    pub create: Box<dyn FnOnce() -> Result<Sandbox, Error>>,
    /// Makes it without a start, if that is what it is prepared for and possible.
    pub create_stopped: Option<Box<dyn FnOnce() -> Result<SandboxRef, Error>>>,
}

/// What a sandbox is prepared from.
pub struct Preparation<'a> {
    /// The flags.
    pub args: &'a Args,
    /// The size of the command's terminal, if it has one.
    pub tty: Option<TtySize>,
    /// Whether the sandbox is not to be started.
    pub is_stopped: bool,
    /// Cancels the start.
    pub cancel: Cancel,
    /// What is told of pulls, in place of the user's terminal.
    pub progress: Option<Arc<dyn Progress>>,
}

impl Preparation<'_> {
    /// Finds what the sandbox is made from, pulls it if necessary, and takes the settings from the
    /// flags.
    pub fn prepare(&self) -> Result<Prepared, Failure> {
        let args = self.args;
        let store = settings::store()?;
        let overrides = Overrides {
            entrypoint: args.entrypoint.clone(),
            args: args.command().to_vec(),
            env: environment::changes(&args.env_file, &args.env)?,
            user: args.user.clone(),
            workdir: args.workdir.clone(),
            confinement: args.confinement(),
        };
        let Some(name) = &args.from else {
            let base = match args.root_disk() {
                Some((path, in_place)) => Base::Disk(RootDisk::open(&path, in_place)?),
                None => Base::Image(Box::new(self.image(&store, args.image()?)?)),
            };
            let mut builder = Builder::on(&store, base).trim(&args.machine.trim()?)?;
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
            Some((path, false)) => Restore::on_root_disk(&store, &snapshot, &path)?,
            Some((_, true)) => {
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
        let args = self.args;
        let command = self.command(builder.base(), overrides)?;
        let mut builder = self.with_flags(args.machine.apply(builder))?;
        if let Some(processes) = args.pids_limit.filter(|limit| *limit != u64::MAX) {
            builder = builder.pids_limit(processes);
        }
        let builder = builder
            .nested_virtualization(args.nested_virtualization)
            .patches(args.patches()?)
            .network(args.network()?)
            .description(if args.idle {
                IDLE.to_owned()
            } else {
                shell_words(&command.argv)
            })
            .command(&command);
        let stopped = self.is_stopped.then(|| builder.clone());
        Ok(Prepared {
            command: Some(command),
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
        let args = self.args;
        args.check_fit_for_memory(&snapshot.name)?;
        let is_reattached = args.command().is_empty() && args.entrypoint.is_none();
        let command = if is_reattached {
            None
        } else {
            Some(self.command(builder.base(), overrides)?)
        };
        let mut builder = self.with_flags(builder)?;
        if args.has_network_flags() {
            builder = builder.network(args.network()?);
        }
        builder = match (&command, &snapshot.memory) {
            (Some(command), _) => builder
                .description(shell_words(&command.argv))
                .command(command),
            (None, Some(machine)) => builder
                .description(shell_words(&machine.spec.command.argv))
                .reattach(),
            (None, None) => builder.reattach(),
        };
        Ok(Prepared {
            command,
            create: Box::new(|| builder.create()),
            create_stopped: None,
        })
    }

    /// Takes the settings that every new sandbox has.
    fn with_flags<K: New>(&self, builder: Builder<K>) -> Result<Builder<K>, Failure> {
        let args = self.args;
        let mut builder = builder
            .backend_choice(args.machine.backend.into())
            .require_limits(args.require_limits)
            .expiry(args.expiry())
            .cancel(self.cancel.clone());
        builder = log::in_owner(builder, args.detach);
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
        if let Some(signal) = args.stop_signal {
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
        if let Some(size) = args.shm_size {
            builder = builder.shm_size(size);
        }
        Ok(builder)
    }

    fn image(&self, store: &Store, name: &str) -> Result<Image, Failure> {
        let machine = &self.args.machine;
        machine.image(store, name, self.progress.as_ref())
    }

    /// Makes the command of the image's configuration and the flags; one without a program for an
    /// idle sandbox.
    fn command(&self, base: &Base, overrides: &Overrides) -> Result<Command, Failure> {
        let mut config = base.config();
        if self.args.idle {
            return Ok(Command::in_image(&config, overrides)?);
        }
        if base.disk().is_some() {
            config.set_cmd(Some(vec![SHELL.to_owned()]));
        }
        let mut command = Command::from_image(&config, overrides)?;
        command.tty = self.tty;
        command.stdin = self.args.interactive;
        Ok(command)
    }
}
