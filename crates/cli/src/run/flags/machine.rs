//! The flags that say what a machine is made of: those of `mica run` and `mica pool`.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "their documentation is text for --help"
)]

use std::sync::Arc;

use clap::ValueEnum;
use micabox::builder::Boots;
use micabox::words::{Cpus, Memory};
use micabox::{BackendChoice, Builder, Cancel, Root, Transport, Trim, TrimError};
use micabox_image::progress::{Progress, Silent};
use micabox_image::store::{self, Image};
use micabox_image::{Platform, Reference, Store};
use micabox_transfer::{PullOptions, PullPolicy, pull_blocking};
use micabox_vmm::Acceleration;

use super::{OrDefault, OrNone, empty_or, word, zero_or};
use crate::commands::store::pack;
use crate::failure::Failure;
use crate::{bars, output, settings};

/// What a machine is made of, except its image.
#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// Memory of the machine, changed files included unless on a disk [512m, 2g; default:
    /// 1g]
    #[arg(short, long, value_name = "SIZE", value_parser = zero_or::<Memory>())]
    memory: Option<OrDefault<Memory>>,

    /// Docker's limit of memory and swap together, of which a machine has none
    #[arg(long, value_name = "SIZE", value_parser = swap, allow_negative_numbers = true, hide = true)]
    memory_swap: Option<Swap>,

    /// Processors of the machine; for a fraction its process's time is limited, where a control group
    /// can be had; at most 64, 16 when emulated [0.5, 2; default: up to 4 under KVM, 1 when emulated]
    #[arg(long, value_name = "NUMBER", value_parser = zero_or::<Cpus>())]
    cpus: Option<OrDefault<Cpus>>,

    /// Network: all that this machine can reach, except its own and link-local addresses; or none
    #[arg(long, value_name = "KIND", default_value = "user", alias = "network")]
    pub net: Net,

    /// When to contact the registry
    #[arg(long, value_name = "WHEN")]
    pub pull: Option<Pull>,

    /// Start before all of the image is here: what is missing is fetched when it is read, and the rest meanwhile. For
    /// images that `mica push --erofs` or `mica convert` put into their registry [default: the settings', or false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
    )]
    pub lazy: Option<bool>,

    /// Platform of the image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH", value_parser = empty_or::<Platform>())]
    pub platform: Option<OrNone<Platform>>,

    /// Run an init as process 1, which reaps orphans; `--init=false` makes the command itself
    /// process 1
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub init: bool,

    /// How the image's bytes reach the machine: mapped memory or a disk
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub transport: Transport,

    /// Root filesystem: the layers as one, or stacked
    #[arg(long, value_name = "KIND", default_value = "merged")]
    pub root: Root,

    /// Leave out of the root what the program doesn't need: paths with `*` for any part of a name, all
    /// below included, or words for several; `/PATH/**` for the files below and not the directories;
    /// `!PATH` for what stays. Nothing is copied, and an image that is committed has it again
    /// [docs, locales, man, caches, /opt/*/tests, !/usr/share/locale/de]
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = trim)]
    pub trim: Vec<Trim>,

    /// What runs the machine: our own monitor on KVM, QEMU, or no machine but this one's kernel; there,
    /// without root, owners are kept up to 65,535 by subordinate IDs (/etc/subuid, newuidmap), and are all
    /// root without them
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: BackendChoice,

    /// Print nothing but errors: no progress, and no lines about a kernel that is shared or limits that can't
    /// be had
    #[arg(short, long)]
    pub quiet: bool,
}

/// How images that are not here come.
#[derive(Clone, Copy, Default)]
pub struct Pulls<'a> {
    /// What is told of them, in place of the user's terminal.
    pub told: Option<&'a Arc<dyn Progress>>,
    /// Says whether an image may be asked for, where the one who names it is not the user. Then no other host is
    /// asked either, whatever the image's manifest says.
    pub bound: Option<&'a dyn Bound>,
}

/// A bound to the registries that are asked for images.
pub trait Bound {
    /// Fails if this image's registry is not to be asked.
    fn may_pull(
        &self,
        image: &Reference,
        settings: &micabox_transfer::Settings,
    ) -> Result<(), Failure>;
}

impl MachineArgs {
    /// Finds an image, and pulls it if necessary and allowed. `cancel` ends that.
    pub fn image(
        &self,
        store: &Store,
        name: &str,
        pulls: Pulls<'_>,
        cancel: &Cancel,
    ) -> Result<Image, Failure> {
        let mut options = PullOptions::new(settings::settings()?);
        if let Some(policy) = self.pull {
            options.policy = policy.into();
        }
        if let Some(lazy) = self.lazy {
            options.lazy = lazy;
        }
        options.platform = self.platform.clone().flatten();
        options.cancellation = cancel.pulls();
        let mut unusable = None;
        if options.policy != PullPolicy::Always && options.platform.is_none() {
            match store.image(name) {
                Ok(image) if options.lazy || options.policy == PullPolicy::Never => {
                    return Ok(image);
                }
                Ok(image) if !image.is_lazy() => return Ok(image),
                // The rest of it is fetched.
                Ok(_) => {}
                // Pulling an image again repairs one that lost a layer.
                Err(error) if options.policy == PullPolicy::Never => return Err(error.into()),
                Err(error @ store::Error::Unusable { .. }) => unusable = Some(error),
                Err(_) => {}
            }
        }
        let reference: Reference = name
            .parse()
            .map_err(|error| Failure::of(&error).context("reading the image's name"))?;
        if let Some(bound) = pulls.bound.filter(|_| options.policy != PullPolicy::Never) {
            bound.may_pull(&reference, &options.settings)?;
            options.layers_from_elsewhere = false;
        }
        let progress = match pulls.told {
            Some(told) => Arc::clone(told),
            None if self.quiet => Arc::new(Silent) as _,
            None => bars::watch(&reference.familiar()),
        };
        let image = pull_blocking(store, &reference, &options, progress);
        let image = image.map_err(|error| match unusable {
            None => Failure::from(error),
            Some(why) => Failure::from(error).hint(format!("it is in the store, but {why}")),
        })?;
        if pulls.bound.is_none() {
            pack::after_pull(&options.settings);
        }
        Ok(image)
    }

    /// Returns what the root is to be without.
    pub fn trim(&self) -> Result<Trim, Failure> {
        let mut all = self.trim.iter().cloned();
        all.try_fold(Trim::default(), Trim::and)
            .map_err(|error| Failure::of(&error))
    }

    /// Gets ready to start processes of a sandbox that shares this machine's kernel, if it will. Must be
    /// called while there is one thread.
    pub fn get_ready(&self) {
        if self.shares_kernel() {
            micabox::fork_processes();
        }
    }

    /// Returns whether a sandbox shares this machine's kernel.
    pub fn shares_kernel(&self) -> bool {
        self.backend == BackendChoice::Host
    }

    /// Says that a sandbox shares this machine's kernel, if it does.
    pub fn say_what_is_shared(&self) {
        if self.shares_kernel() && !self.quiet {
            let owners = match micabox_vmm::host::has_one_user() {
                Some(why) => format!("; all its files belong to root inside, since {why}"),
                None => String::new(),
            };
            let unlimited = match micabox_vmm::control_groups() {
                Ok((_, controllers)) if controllers.contains(&"memory") => String::new(),
                Ok(_) => "; no control group limits its memory, files included".to_owned(),
                Err(why) => {
                    format!("; no control group limits its memory, files included ({why})")
                }
            };
            output::write_stderr(&format!(
                "mica: this sandbox is no machine: it shares this machine's kernel (--backend host){owners}{unlimited}\n",
            ));
        }
    }

    /// Says that a flag about real processors changes nothing, if the machine will be emulated.
    pub fn say_if_emulated(&self, flag: &str) {
        let Ok(backend) = micabox_vmm::expect(self.backend) else {
            return;
        };
        if let Acceleration::Emulated { why } = backend.acceleration() {
            output::write_stderr(&format!(
                "mica: {flag} changes nothing: the machine is emulated ({why})\n"
            ));
        }
    }

    /// Returns the memory in MiB, if it is not the default.
    pub fn memory(&self) -> Option<u32> {
        self.memory.flatten().map(|Memory(mib)| mib)
    }

    /// Returns the processors, if they are not the default.
    pub fn cpus(&self) -> Option<Cpus> {
        self.cpus.flatten()
    }

    /// Fails if there is to be swap, or if memory is to be limited on this machine's own kernel, and can't be.
    pub fn check_memory(&self) -> Result<(), Failure> {
        let both = self.memory_swap.and_then(|Swap(both)| both);
        if both.is_some_and(|both| self.memory() != Some(both)) {
            return Err(Failure::new(
                "`--memory-swap` is not supported: a machine has no swap of its own; `-m` is all its memory",
            )
            .hint("omit it, or give it the value of -m"));
        }
        if !self.shares_kernel() || self.memory().is_none() {
            return Ok(());
        }
        match micabox_vmm::control_groups() {
            Ok(_) => Ok(()),
            Err(why) => Err(Failure::new(format!(
                "the host backend limits memory by a control group, and can't have one: {why}"
            ))
            .hint("omit -m, or run it where control groups are delegated (systemd-run --user --scope)")),
        }
    }

    /// Takes the settings of the machine, except its network.
    pub fn apply<K: Boots>(&self, builder: Builder<K>) -> Builder<K> {
        let mut builder = builder
            .backend_choice(self.backend)
            .transport(self.transport)
            .root(self.root);
        if let Some(memory) = self.memory() {
            builder = builder.memory_mib(memory);
        }
        if let Some(cpus) = self.cpus() {
            builder = builder.cpus(cpus.whole);
            if let Some(quota) = cpus.quota {
                builder = builder.cpu_quota(quota);
            }
        }
        if !self.init {
            builder = builder.first_command_is_init();
        }
        builder
    }
}

/// A value of `--memory-swap`: MiB of memory and swap together; None for as much as there is.
#[derive(Clone, Copy, Debug)]
struct Swap(Option<u32>);

fn swap(text: &str) -> Result<Swap, String> {
    match text {
        "-1" | "0" => Ok(Swap(None)),
        size => {
            let Memory(both) = word(size)?;
            Ok(Swap(Some(both)))
        }
    }
}

/// `--pull`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Pull {
    /// Every time.
    Always,
    /// If the image is not here.
    Missing,
    /// Not at all.
    Never,
}

/// `--net`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Net {
    /// Through this machine's own sockets.
    // Docker's names of what it has without the flag.
    #[value(aliases = ["bridge", "default", ""])]
    User,
    /// Nothing but the sandbox's loopback interface.
    None,
}

impl From<Pull> for PullPolicy {
    fn from(pull: Pull) -> Self {
        match pull {
            Pull::Always => Self::Always,
            Pull::Missing => Self::Missing,
            Pull::Never => Self::Never,
        }
    }
}

/// Parses a word or pattern of `--trim`.
fn trim(text: &str) -> Result<Trim, TrimError> {
    Trim::new([text])
}
