//! A sandbox's name, its labels and its end.

use std::path::PathBuf;

use serde::Deserialize;

use super::late::{Late, in_time};
use super::path;
use super::row::{Heading, Kind, Opt, Row, Whose};
use super::taken::{Taken, nothing};
use crate::words::{Hostname, OrNone, Period, Signal};
use crate::{Expiry, Spec};

/// What a sandbox is called, and when it ends.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, rename_all = "kebab-case")]
pub struct LifeOptions {
    /// Forget the sandbox when it ends; otherwise `mica ps -a` remembers it
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true",
        hide_possible_values = true,
        value_parser = forgets,
        overrides_with = "rm",
        action = clap::ArgAction::Set
    ))]
    pub rm: bool,

    /// Name of the sandbox
    #[cfg_attr(feature = "clap", arg(long))]
    pub name: Option<String>,

    /// Label of the sandbox, for `mica ps --filter`
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "NAME[=VALUE]"))]
    pub label: Vec<String>,

    /// Read labels from a file, one a line
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    #[serde(deserialize_with = "path::some")]
    pub label_file: Vec<PathBuf>,

    /// Host name inside [default: the sandbox's ID]
    #[cfg_attr(feature = "clap", arg(long))]
    pub hostname: Option<OrNone<Hostname>>,

    /// Stop the sandbox when nothing has run in it and no client has been connected to it for this
    /// time; 0 for never
    #[cfg_attr(feature = "clap", arg(long, value_name = "DURATION"))]
    pub idle_timeout: Option<Period>,

    /// Stop the sandbox after this time; 0 for never
    #[cfg_attr(feature = "clap", arg(long, value_name = "DURATION"))]
    pub max_life: Option<Period>,

    /// Signal that asks the command to end [default: the image's, or TERM]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIGNAL"))]
    pub stop_signal: Option<OrNone<Signal>>,

    /// Boot the machine instead of starting from a warm template (KVM only)
    #[cfg_attr(feature = "clap", arg(long))]
    pub cold: bool,
}

impl LifeOptions {
    /// Applies them.
    pub(super) fn apply(&self, spec: &mut Spec) {
        let Self {
            rm,
            name: _,       // one in a store has it
            label: _,      // after those of files
            label_file: _, // read by the caller
            hostname,
            idle_timeout: _, // as `expiry` has it
            max_life: _,
            stop_signal,
            cold,
        } = self;
        spec.auto_remove = *rm;
        if let Some(OrNone(Some(Hostname(hostname)))) = hostname {
            spec.hostname = Some(hostname.clone());
        }
        if let Some(OrNone(Some(Signal(signal)))) = stop_signal {
            spec.stop_signal = Some(*signal);
        }
        spec.expiry = spec.expiry.changed(&self.expiry());
        spec.cold |= cold;
    }

    /// Returns when the sandbox ends by itself.
    #[must_use]
    pub fn expiry(&self) -> Expiry {
        Expiry {
            idle_timeout: self.idle_timeout.map(|Period(time)| time),
            max_life: self.max_life.map(|Period(time)| time),
        }
    }
}

/// Parses the value of `--rm`, as Docker does.
#[cfg(feature = "clap")]
fn forgets(text: &str) -> Result<bool, String> {
    match crate::words::boolean(text) {
        Some(value) => Ok(value),
        None if text.starts_with('/') => Err(format!("use `--remove {text}`")),
        None => Err("expected true or false; `--remove PATH` removes a path".into()),
    }
}

/// Their rows.
pub(super) const OPTIONS: &[Row<LifeOptions>] = &[
    Row {
        option: Opt {
            name: "rm",
            kind: Kind::Flag,
            help: "Whether the sandbox is forgotten when it ends; {false} keeps its record and disk. Default: {true}.",
            listed: Some(120),
            below: Some((Heading::Sandbox, 50)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "name",
            kind: Kind::Text,
            help: "Name of the sandbox. Default: two random words.",
            listed: Some(10),
            below: Some((Heading::Sandbox, 10)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "label",
            kind: Kind::Map,
            help: "Labels, by name, for `Sandbox.list` and `mica ps --filter`. Default: none.",
            listed: Some(60),
            below: Some((Heading::Sandbox, 20)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "label-file",
            kind: Kind::List,
            help: "Files on this machine with labels, one a line. Default: none.",
            listed: Some(70),
            below: Some((Heading::Sandbox, 30)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: |life| Taken::first(&life.label_file),
    },
    Row {
        option: Opt {
            name: "hostname",
            kind: Kind::Text,
            help: "Host name inside. Default: the sandbox's ID.",
            listed: Some(110),
            below: Some((Heading::Sandbox, 60)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "idle-timeout",
            kind: Kind::Text,
            help: "Time after which a sandbox without commands and clients is stopped: `90s`, `10m`, `2h`. Default: no limit.",
            listed: Some(350),
            below: Some((Heading::Sandbox, 70)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "max-life",
            kind: Kind::Text,
            help: "Time after which it is stopped, whatever runs: `90s`, `10m`, `2h`. Default: no limit.",
            listed: Some(360),
            below: Some((Heading::Sandbox, 80)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "stop-signal",
            kind: Kind::Text,
            help: "Signal that asks the sandbox's first command to end. Default: the image's, or `TERM`.",
            listed: Some(540),
            below: Some((Heading::Command, 100)),
            whose: Whose::Sandbox,
        },
        late: in_time,
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "cold",
            kind: Kind::Flag,
            help: "Whether the machine boots although a warm template is there; needs KVM. Default: {false}.",
            listed: Some(530),
            below: Some((Heading::Machine, 40)),
            whose: Whose::Machine,
        },
        late: |life| Late::flag(life.cold, "--cold"),
        takes: nothing,
    },
];
