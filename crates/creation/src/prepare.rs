//! From the options of a sandbox to one that is ready to be started.

use std::ffi::{OsStr, OsString};

use micabox::builder::{Boots, FromMemory, New};
use micabox::{
    Base, Builder, Cancel, Command, Error, Overrides, Restore, RootDisk, Sandbox, SandboxRef,
    Snapshot, Trim, TtySize,
};
use micabox_image::Store;
use micabox_image::store::Image;
use micabox_spec::options::{CommandOptions, SandboxOptions};

use super::copies;
use super::here::here;
use super::image::find_image;
use super::kernel::warn_if_emulated;
use super::late::{check_fit_for_commands, check_fit_for_memory};
use super::mounts::mounts;
use super::packed;
use super::patches::patches;
use super::shell_words::shell_words;
use super::snapshots::find_snapshot;
use crate::lazy::{self, Unread};
use crate::pulls::Pulls;
use crate::{environment, labels};
use micabox_program::failure::Failure;
use micabox_program::{log, output, settings};

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
    /// What reports at the end why a part of it could not be read, if not all of it is here.
    pub unread: Option<Unread>,
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
    pub options: &'a SandboxOptions,
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

/// A sandbox's first command, beside its image's configuration.
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
    /// options.
    pub fn prepare(&self) -> Result<Prepared, Failure> {
        let options = &here(self.options.clone())?;
        if options.limits.nested_virtualization && !options.machine.quiet {
            warn_if_emulated(&options.machine, "--nested-virtualization");
        }
        let store = settings::store()?;
        let overrides = self.overrides(options)?;
        let Some(name) = &options.files.from else {
            let mut unread = None;
            let base = match (options.files.root_disk(), self.image) {
                (Some((path, in_place, partition)), _) => {
                    Base::Disk(RootDisk::open_partition(&path, in_place, partition)?)
                }
                (None, Some(name)) => {
                    let image = self.image(&store, name)?;
                    unread = lazy::report(&options.machine, &image);
                    Base::Image(Box::new(image))
                }
                (None, None) => return Err(Failure::new("no image")),
            };
            let trim = options.machine.trim();
            let trim = trim.map_err(|error| Failure::of(&error))?;
            let builder = Builder::on(&store, base).trim(&trim)?;
            if !options.machine.quiet && hides_nothing(&store, builder.base(), &trim) {
                output::write_stderr(
                    "mica: --trim leaves nothing out: no file of the image is below its paths\n",
                );
            }
            let prepared = self.boot(options, builder, &overrides)?;
            return Ok(Prepared { unread, ..prepared });
        };
        let machine = &self.options.machine;
        let snapshot = find_snapshot(machine, &store, name, self.pulls, &self.cancel)?;
        let sandboxes = settings::sandboxes(&store)?;
        let snapshot = packed::whole(&sandboxes, snapshot, machine, self.pulls)?;
        let restore = match options.files.root_disk() {
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
            Restore::Disk(builder) => self.boot(options, builder, &overrides),
            Restore::Memory(builder) => {
                let name = snapshot.name.clone();
                let part = snapshot.memory_part();
                let unread = part.map(|_| Unread::of(&store, "snapshot", name));
                let prepared = self.resume(options, builder, &snapshot, &overrides)?;
                Ok(Prepared { unread, ..prepared })
            }
        }
    }

    /// Returns what commands have beside the image's configuration.
    fn overrides(&self, options: &SandboxOptions) -> Result<Overrides, Failure> {
        let CommandOptions {
            env,
            env_file,
            workdir,
            user,
        } = &options.commands;
        let entrypoint = self.first.and_then(|first| first.entrypoint);
        let args = self.first.map(|first| first.argv.to_vec());
        Ok(Overrides {
            entrypoint: entrypoint.map(Into::into),
            args: args.unwrap_or_default(),
            env: environment::changes(env_file, env)?,
            user: user.clone(),
            workdir: workdir.clone(),
            confinement: options.confinement(),
        })
    }

    /// Prepares a sandbox whose machine boots.
    fn boot<K: Boots + Clone + 'static>(
        &self,
        options: &SandboxOptions,
        builder: Builder<K>,
        overrides: &Overrides,
    ) -> Result<Prepared, Failure> {
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
        let builder = self
            .with_options(options, builder)?
            .patches(patches(&options.files)?)
            .description(description)
            .command(&command);
        let stopped = self.is_stopped.then(|| builder.clone());
        Ok(Prepared {
            begin,
            create: Box::new(|| builder.create()),
            create_stopped: stopped.map(|builder| Box::new(|| builder.create_stopped()) as _),
            unread: None,
        })
    }

    /// Prepares a sandbox that continues where a snapshot's machine was. Without a COMMAND, the
    /// machine's first command is reattached.
    fn resume(
        &self,
        options: &SandboxOptions,
        builder: Builder<FromMemory>,
        snapshot: &Snapshot,
        overrides: &Overrides,
    ) -> Result<Prepared, Failure> {
        check_fit_for_memory(options, &snapshot.name)?;
        let machine = snapshot.memory.as_ref();
        let named = self.first.filter(First::is_named);
        let begin = match named {
            Some(first) => Begin::Command(first.command(builder.base(), overrides)?),
            None => {
                check_fit_for_commands(options, &snapshot.name)?;
                match machine.filter(|machine| machine.has_first_command()) {
                    // A COMMAND that is missing is an error of the start.
                    None if self.first.is_none() => Begin::Idle,
                    _ => Begin::Reattach,
                }
            }
        };
        let builder = self.with_options(options, builder)?;
        let builder = match &begin {
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
            unread: None,
        })
    }

    /// Takes the settings, and what has to be looked for on this machine.
    fn with_options<K: New>(
        &self,
        options: &SandboxOptions,
        builder: Builder<K>,
    ) -> Result<Builder<K>, Failure> {
        let mut spec = builder.spec().clone();
        let exposed = builder.base().config().exposed_ports().clone();
        let applied = options.apply(&exposed.unwrap_or_default(), &mut spec);
        applied.map_err(|error| Failure::of(&error))?;
        for (name, value) in labels::of(&options.life.label_file, &options.life.label)? {
            spec.labels.insert(name, value);
        }
        let image = |name: &str| self.image(&settings::store()?, name);
        let mounts = mounts(&options.files, image)?;
        let sandboxes = settings::sandboxes(&settings::store()?)?;
        packed::unpack_volumes(&sandboxes, &mounts, &options.machine, self.pulls)?;
        spec.setup.mounts.extend(mounts);
        let builder = builder.with_spec(spec).cancel(self.cancel.clone());
        let builder = log::in_owner(builder, self.is_detached);
        Ok(match options.life.name.as_deref() {
            None | Some("") => builder,
            Some(name) => builder.name(name),
        })
    }

    fn image(&self, store: &Store, name: &str) -> Result<Image, Failure> {
        let machine = &self.options.machine;
        find_image(machine, store, name, self.pulls, &self.cancel)
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
