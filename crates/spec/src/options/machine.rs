//! What a machine is made of: the options of `mica run` that `mica pool` has too.

use std::str::FromStr;

use micabox_oci::{Platform, Trim, TrimError};
use micabox_wire::Init;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::late::{Late, in_time};
use super::row::{Heading, Kind, Opt, Row, Whose};
use super::taken::{Taken, nothing};
use crate::words::{Cpus, Memory, OrDefault, OrNone, WordError};
use crate::{BackendChoice, Network, Root, Spec, Transport};

/// What a machine is made of, except its image. Those of `mica pool` too.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, rename_all = "kebab-case")]
pub struct MachineOptions {
    /// Memory of the machine, changed files included unless on a disk [512m, 2g; default:
    /// 1g]
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "SIZE"))]
    pub memory: Option<OrDefault<Memory>>,

    /// Docker's limit of memory and swap together, of which a machine has none
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "SIZE", allow_negative_numbers = true, hide = true)
    )]
    pub memory_swap: Option<Swap>,

    /// Processors of the machine; for a fraction its process's time is limited, where a control group
    /// can be had; at most 64, 16 when emulated [0.5, 2; default: up to 4 under KVM, 1 when emulated]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NUMBER"))]
    pub cpus: Option<OrDefault<Cpus>>,

    /// Network: all that this machine can reach, except its own and link-local addresses; or none
    #[cfg_attr(
        feature = "clap",
        arg(
            long,
            value_name = "KIND",
            value_enum,
            default_value_t,
            alias = "network"
        )
    )]
    pub net: Net,

    /// When to contact the registry
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHEN"))]
    pub pull: Option<Pull>,

    /// Start before all of the image is here, or of the memory of the snapshot `--from`: what is missing is fetched when
    /// it is read, and the rest meanwhile. For images that `mica push --erofs` or `mica convert` put into their registry
    /// [default: the settings', or false]
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
    ))]
    pub lazy: Option<bool>,

    /// Platform of the image [default: this machine's]
    #[cfg_attr(feature = "clap", arg(long, value_name = "OS/ARCH"))]
    pub platform: Option<OrNone<Platform>>,

    /// Run an init as process 1, which reaps orphans; `--init=false` makes the command itself
    /// process 1
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = Self::default().init,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    ))]
    pub init: bool,

    /// How the image's bytes reach the machine: mapped memory or a disk
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "KIND", value_enum, default_value_t)
    )]
    pub transport: Transport,

    /// Root filesystem: the layers as one, or stacked
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "KIND", value_enum, default_value_t)
    )]
    pub root: Root,

    /// Have the guest check each block of the image that it reads (dm-verity): what the host's disk, or a program beside
    /// mica, has changed of it since it was pulled is an error of reading. The image is a disk then (`--transport blk`)
    /// and all of it is here first; the first such start makes its hash tree
    #[cfg_attr(feature = "clap", arg(long))]
    pub verity: bool,

    /// Leave out of the root what the program doesn't need: paths with `*` for any part of a name, all
    /// below included, or words for several; `/PATH/**` for the files below and not the directories;
    /// `!PATH` for what stays. Nothing is copied, and an image that is committed has it again
    /// [docs, locales, man, caches, /opt/*/tests, !/usr/share/locale/de]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = trim))]
    #[serde(deserialize_with = "trims")]
    pub trim: Vec<Trim>,

    /// What runs the machine: our own monitor on KVM, QEMU, or no machine but this one's kernel; there,
    /// without root, owners are kept up to 65,535 by subordinate IDs (/etc/subuid, newuidmap), and are all
    /// root without them
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "NAME", value_enum, default_value_t)
    )]
    pub backend: BackendChoice,

    /// Print nothing but errors: no progress, and no lines about a kernel that is shared or limits that can't
    /// be had
    #[cfg_attr(feature = "clap", arg(short, long))]
    pub quiet: bool,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            memory: None,
            memory_swap: None,
            cpus: None,
            net: Net::default(),
            pull: None,
            lazy: None,
            platform: None,
            init: true,
            transport: Transport::default(),
            root: Root::default(),
            verity: false,
            trim: Vec::new(),
            backend: BackendChoice::default(),
            quiet: false,
        }
    }
}

impl MachineOptions {
    /// Applies them.
    pub fn apply(&self, spec: &mut Spec) {
        let Self {
            memory: _,
            memory_swap: _, // there is none
            cpus: _,
            net,
            pull: _, // about the image, as the three below
            lazy: _,
            platform: _,
            trim: _,
            init,
            transport,
            root,
            verity,
            backend,
            quiet: _, // about what is printed
        } = self;
        if let Some(memory) = self.memory() {
            spec.machine.memory_mib = memory;
        }
        if let Some(Cpus { whole, quota }) = self.cpus() {
            spec.machine.cpus = Some(whole);
            spec.machine.cpu_quota = quota.or(spec.machine.cpu_quota);
        }
        if *net == Net::None {
            spec.network = Network::None;
        }
        if !init {
            spec.init = Init::FirstExec;
        }
        // A machine that continues where it was has its own.
        if *transport != Transport::default() {
            spec.transport = *transport;
        }
        if *root != Root::default() {
            spec.root = *root;
        }
        if *verity {
            spec.verity = true;
        }
        spec.backend = *backend;
    }

    /// Returns what the root is to be without.
    ///
    /// # Errors
    /// If it can't be without all of that.
    pub fn trim(&self) -> Result<Trim, TrimError> {
        let mut all = self.trim.iter().cloned();
        all.try_fold(Trim::default(), Trim::and)
    }

    /// Returns whether a sandbox shares this machine's kernel.
    #[must_use]
    pub fn shares_kernel(&self) -> bool {
        self.backend == BackendChoice::Host
    }

    /// Returns the memory in MiB, if it is not the default.
    #[must_use]
    pub fn memory(&self) -> Option<u32> {
        self.memory
            .and_then(|OrDefault(memory)| memory)
            .map(|Memory(mib)| mib)
    }

    /// Returns the MiB of memory and swap together, if they are limited.
    #[must_use]
    pub fn memory_and_swap(&self) -> Option<u32> {
        self.memory_swap.and_then(|Swap(both)| both)
    }

    /// Returns the processors, if they are not the default.
    #[must_use]
    pub fn cpus(&self) -> Option<Cpus> {
        self.cpus.and_then(|OrDefault(cpus)| cpus)
    }
}

/// A value of `--memory-swap`: MiB of memory and swap together; None for as much as there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Swap(Option<u32>);

impl FromStr for Swap {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        match text {
            "-1" | "0" => Ok(Self(None)),
            size => size.parse().map(|Memory(both)| Self(Some(both))),
        }
    }
}

impl TryFrom<String> for Swap {
    type Error = WordError;

    fn try_from(text: String) -> Result<Self, WordError> {
        text.parse()
    }
}

/// `--pull`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// Every time.
    Always,
    /// If the image is not here.
    Missing,
    /// Not at all.
    Never,
}

/// `--net`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Net {
    /// Through this machine's own sockets.
    // Docker's names of what it has without the flag.
    #[cfg_attr(feature = "clap", value(aliases = ["bridge", "default", ""]))]
    #[serde(alias = "bridge", alias = "default", alias = "")]
    #[default]
    User,
    /// Nothing but the sandbox's loopback interface.
    None,
}

/// Parses a word or pattern of `--trim`.
fn trim(text: &str) -> Result<Trim, TrimError> {
    Trim::new([text])
}

/// Reads lists of these words with commas between.
fn trims<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Trim>, D::Error> {
    let lists = Vec::<String>::deserialize(from)?;
    let words = lists.iter().flat_map(|list| list.split(','));
    words
        .map(|word| trim(word).map_err(Error::custom))
        .collect()
}

/// Their rows.
pub(super) const OPTIONS: &[Row<MachineOptions>] = &[
    Row {
        option: Opt {
            name: "memory",
            kind: Kind::Text,
            help: "Memory of the machine, in bytes or with `k`, `m`, `g` or `t`: `512m`, `2g`. Default: `1g`.",
            listed: Some(20),
            below: Some((Heading::Limits, 10)),
            whose: Whose::Machine,
        },
        late: |machine| Late::flag(machine.memory().is_some(), "--memory"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "memory-swap",
            kind: Kind::Text,
            help: "",
            listed: None,
            below: None,
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "cpus",
            kind: Kind::Number,
            help: "Processors of the machine; a fraction limits its processor time. Default: up to 4 with KVM, 1 when emulated.",
            listed: Some(30),
            below: Some((Heading::Limits, 20)),
            whose: Whose::Machine,
        },
        late: |machine| Late::flag(machine.cpus().is_some(), "--cpus"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "net",
            kind: Kind::OneOf(&["user", "none"]),
            help: "The network: `user` reaches what this machine reaches, but not it and link-local addresses. Default: `user`.",
            listed: Some(260),
            below: Some((Heading::Network, 10)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "pull",
            kind: Kind::OneOf(&["always", "missing", "never"]),
            help: "When the registry is asked. Default: `missing`, or what the settings say.",
            listed: Some(490),
            below: Some((Heading::Sandbox, 100)),
            whose: Whose::Image,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "lazy",
            kind: Kind::Flag,
            help: "Whether it starts before all of its image, or of its snapshot's memory, is here. Default: {false}, or what the settings say.",
            listed: Some(500),
            below: Some((Heading::Sandbox, 110)),
            whose: Whose::Image,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "platform",
            kind: Kind::Text,
            help: "Platform of the image: `linux/amd64`. Default: this machine's.",
            listed: Some(510),
            below: Some((Heading::Sandbox, 120)),
            whose: Whose::Image,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "init",
            kind: Kind::Flag,
            help: "Whether process 1 is an init that reaps orphans. Default: {true}.",
            listed: Some(520),
            below: Some((Heading::Command, 160)),
            whose: Whose::Machine,
        },
        late: |machine| Late::flag(!machine.init, "--init=false"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "transport",
            kind: Kind::OneOf(&["auto", "pmem", "blk"]),
            help: "How the image's bytes reach the machine: mapped memory or a disk. Default: `auto`, what boots faster.",
            listed: Some(470),
            below: Some((Heading::Machine, 20)),
            whose: Whose::Machine,
        },
        late: |machine| Late::flag(machine.transport != Transport::Auto, "--transport"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "root",
            kind: Kind::OneOf(&["merged", "stacked"]),
            help: "Whether the layers are one filesystem or one each. Default: `merged`.",
            listed: Some(480),
            below: Some((Heading::Machine, 30)),
            whose: Whose::Machine,
        },
        late: |machine| Late::flag(machine.root != Root::Merged, "--root"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "verity",
            kind: Kind::Flag,
            help: "Whether the guest checks each block of the image that it reads; over a disk alone. Default: {false}.",
            listed: Some(485),
            below: Some((Heading::Machine, 35)),
            whose: Whose::Machine,
        },
        late: |machine| Late::flag(machine.verity, "--verity"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "trim",
            kind: Kind::List,
            help: "What the root leaves out: paths, with `*`, not `!PATH`; or `docs`, `man`, `locales`, `caches`. Default: nothing.",
            listed: Some(250),
            below: Some((Heading::Files, 130)),
            whose: Whose::Image,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "backend",
            kind: Kind::OneOf(&["auto", "kvm", "qemu", "host"]),
            help: "What runs it: our monitor, QEMU, or a container on this machine's kernel. Default: `auto`, never `host`.",
            listed: Some(460),
            below: Some((Heading::Machine, 10)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |machine| Taken::kernel(machine.backend == BackendChoice::Host),
    },
    Row {
        option: Opt {
            name: "quiet",
            kind: Kind::Flag,
            help: "",
            listed: None,
            below: Some((Heading::Sandbox, 130)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
];
