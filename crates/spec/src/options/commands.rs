//! What all commands of a sandbox have: variables, a directory, a user.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::Deserialize;

use super::late::Late;
use super::path;
use super::row::{Heading, Kind, Opt, Row, Whose};
use super::taken::{Taken, nothing, shown};
use crate::words;

/// What all commands of a sandbox have.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, rename_all = "kebab-case")]
pub struct CommandOptions {
    /// Set a variable, or take its value from here [NAME=VALUE or NAME]
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "VARIABLE"))]
    #[serde(deserialize_with = "words::all")]
    pub env: Vec<OsString>,

    /// Read variables from a file, one a line
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    #[serde(deserialize_with = "path::some")]
    pub env_file: Vec<PathBuf>,

    /// Working directory, made if missing
    #[cfg_attr(feature = "clap", arg(short, long, value_name = "DIRECTORY"))]
    #[serde(deserialize_with = "words::optional")]
    pub workdir: Option<OsString>,

    /// User, resolved in the image [name or uid, optionally :group or :gid]
    #[cfg_attr(feature = "clap", arg(short, long))]
    pub user: Option<String>,
}

impl CommandOptions {
    /// Returns the variable of this machine's that is taken first: one without a value.
    fn taken_variable(&self) -> Taken {
        let mut variables = self.env.iter();
        let taken = variables.find(|env| !env.as_bytes().contains(&b'='));
        Taken::path(taken.map(|env| shown(env.as_ref())))
    }
}

/// Their rows.
pub(super) const OPTIONS: &[Row<CommandOptions>] = &[
    Row {
        option: Opt {
            name: "env",
            kind: Kind::Map,
            help: "Variables of all commands, by name. Default: the image's.",
            listed: Some(40),
            below: Some((Heading::Command, 120)),
            whose: Whose::Commands,
        },
        late: |commands| Late::flag(!commands.env.is_empty(), "--env"),
        takes: |commands| commands.taken_variable(),
    },
    Row {
        option: Opt {
            name: "env-file",
            kind: Kind::List,
            help: "Files on this machine with variables, one a line. Default: none.",
            listed: Some(50),
            below: Some((Heading::Command, 130)),
            whose: Whose::Commands,
        },
        late: |commands| Late::flag(!commands.env_file.is_empty(), "--env-file"),
        takes: |commands| Taken::first(&commands.env_file),
    },
    Row {
        option: Opt {
            name: "workdir",
            kind: Kind::Text,
            help: "Working directory of commands, absolute, made if missing. Default: the image's, or `/`.",
            listed: Some(80),
            below: Some((Heading::Command, 140)),
            whose: Whose::Commands,
        },
        late: |commands| Late::flag(commands.workdir.is_some(), "--workdir"),
        takes: nothing,
    },
    Row {
        option: Opt {
            name: "user",
            kind: Kind::Text,
            help: "User of commands, by name or ID, with `:GROUP` if wanted. Default: the image's, or root.",
            listed: Some(90),
            below: Some((Heading::Command, 150)),
            whose: Whose::Commands,
        },
        late: |commands| Late::flag(commands.user.is_some(), "--user"),
        takes: nothing,
    },
];
