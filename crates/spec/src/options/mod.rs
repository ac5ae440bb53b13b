//! The options that declare what a sandbox is made of: the flags of `mica run` about it, and what programs in other languages
//! give. Each stands in one file: its field, with its type and its text for `--help`; its row, with all else that is known of
//! it; and what it does to a [`Spec`].
//!
//! The lists of the SDKs are written from the rows: `UPDATE_OPTIONS=1 cargo test -p micabox-spec` does.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "the documentation of fields is text for --help"
)]

mod commands;
mod confinement;
mod document;
mod error;
pub mod exclusions;
mod files;
mod given;
mod late;
mod life;
mod limits;
mod list;
mod machine;
mod network;
mod path;
mod place;
mod ports;
mod row;
#[cfg(feature = "schema")]
mod schema;
mod taken;

pub use commands::CommandOptions;
pub use error::OptionError;
pub use files::{FileOptions, Pair};
pub use given::{Given, long_name};
pub use late::Late;
pub use life::LifeOptions;
pub use limits::LimitOptions;
pub use list::{all, find, listed};
pub use machine::{MachineOptions, Net, Pull};
pub use network::NetworkOptions;
pub use place::{MountOption, UpperOption, VolumeOption};
pub use row::{Heading, Kind, Opt, Whose};
pub use taken::Taken;

use crate::{Network, Spec, UserNetwork};
use row::Row;

/// What a sandbox is made of, except its image and what runs in it. What is given in JSON is read into it as flags are.
// The help of `mica run` has its headings in the order in which flags have them.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct SandboxOptions {
    /// What it is made from, and its files.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub files: FileOptions,
    /// Its machine.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub machine: MachineOptions,
    /// What it is called, and when it ends.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub life: LifeOptions,
    /// What limits it.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub limits: LimitOptions,
    /// What it reaches, and what reaches it.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub network: NetworkOptions,
    /// What all its commands have.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub commands: CommandOptions,
}

impl SandboxOptions {
    /// Reads what is given.
    ///
    /// # Errors
    /// If the value of an option has no meaning.
    pub fn read(given: &mut Given) -> Result<Self, OptionError> {
        Ok(Self {
            files: given.read()?,
            machine: given.read()?,
            life: given.read()?,
            limits: given.read()?,
            network: given.read()?,
            commands: given.read()?,
        })
    }

    /// Sets the settings that options are given for; all others stay as they are. `exposed` are the ports that the image
    /// names. What is to be looked for on this machine, such as images, volumes, and files with variables, is left to
    /// the caller.
    ///
    /// # Errors
    /// If options about the network contradict each other, or a port of the image is none.
    pub fn apply(&self, exposed: &[String], spec: &mut Spec) -> Result<(), OptionError> {
        let Self {
            life,
            files,
            machine,
            limits,
            network,
            commands: _, // with the image's configuration, by the caller
        } = self;
        life.apply(spec);
        files.apply(spec);
        machine.apply(spec);
        limits.apply(spec);
        network.apply(spec);
        if self.has_network_options() {
            spec.network = self.network(exposed)?;
        }
        Ok(())
    }

    /// Returns whether the sandbox is made from an image, and not from a snapshot or a root disk.
    #[must_use]
    pub fn is_from_image(&self) -> bool {
        self.files.from.is_none() && self.files.root_disk.is_none()
    }

    /// Returns whether any option is about the network.
    #[must_use]
    pub fn has_network_options(&self) -> bool {
        let network = &self.network;
        let lists = network.net_allow.len() + network.net_deny.len();
        let given = lists + network.publish.len() + network.dns.len();
        self.machine.net == Net::None
            || given > 0
            || network.publish_all
            || network.net_rate.is_some()
            || network.net_narrower.is_some()
    }

    /// Returns the network that the options describe; `exposed` are the ports that the image names.
    ///
    /// # Errors
    /// If there is to be none, and an option is about it; otherwise, if a port of the image is none.
    pub fn network(&self, exposed: &[String]) -> Result<Network, OptionError> {
        if self.machine.net == Net::User {
            return Ok(Network::User(self.network.user(exposed)?));
        }
        // Refused or not, it is so for every image: a server checks its options before it knows of any.
        if !self.network.publish_all && self.network.user(&[])? == UserNetwork::default() {
            return Ok(Network::None);
        }
        Err(OptionError::Unfit(
            "--publish, --publish-all, --net-allow, --net-deny, --net-rate and --dns are about a network, \
             and --net none is for a sandbox without one"
                .to_owned(),
        ))
    }

    /// Takes the network, and all options about it.
    pub fn take_network(&mut self) {
        self.machine.net = Net::None;
        self.network = NetworkOptions {
            vsock: self.network.vsock.take(),
            ..NetworkOptions::default()
        };
    }

    /// Returns what an option takes from this machine, by its long name; of one that there is not, that is unknown.
    #[must_use]
    pub fn taken_by(&self, option: &str) -> Taken {
        fn of<T>(rows: &[Row<T>], part: &T, name: &str) -> Option<Taken> {
            let row = rows.iter().find(|row| row.option.name == name);
            row.map(|row| (row.takes)(part))
        }
        let Self {
            life,
            files,
            machine,
            limits,
            network,
            commands,
        } = self;
        of(life::OPTIONS, life, option)
            .or_else(|| of(files::OPTIONS, files, option))
            .or_else(|| of(machine::OPTIONS, machine, option))
            .or_else(|| of(limits::OPTIONS, limits, option))
            .or_else(|| of(network::OPTIONS, network, option))
            .or_else(|| of(commands::OPTIONS, commands, option))
            .unwrap_or(Taken::Unknown)
    }

    /// Returns why something that is given comes too late for a machine, or for the commands in it, that continues where it
    /// was: those that `whose` selects.
    #[must_use]
    pub fn late(&self, whose: Whose) -> Option<Late> {
        fn of<T>(rows: &[Row<T>], part: &T, is_asked: impl Fn(&Opt) -> bool) -> Option<Late> {
            let mut rows = rows.iter().filter(|row| is_asked(&row.option));
            rows.find_map(|row| (row.late)(part))
        }
        let of_whose = |option: &Opt| option.whose == whose;
        let Self {
            life,
            files,
            machine,
            limits,
            network,
            commands,
        } = self;
        of(machine::OPTIONS, machine, of_whose)
            .or_else(|| of(limits::OPTIONS, limits, of_whose))
            .or_else(|| of(life::OPTIONS, life, of_whose))
            .or_else(|| of(commands::OPTIONS, commands, of_whose))
            .or_else(|| of(files::OPTIONS, files, of_whose))
            .or_else(|| of(network::OPTIONS, network, of_whose))
    }
}

#[cfg(all(test, feature = "clap"))]
mod tests;
