//! What the options of a sandbox take from this machine: for callers that are not trusted with all of it.

use std::path::{Path, PathBuf};

use crate::network::Rule;

/// What an option takes from this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing: it is about the inside of the sandbox, and about what every sandbox has.
    Nothing,
    /// This file, folder or variable.
    Path(String),
    /// More of its kernel than a machine is shown.
    Kernel,
    /// What these rules open, which this machine's own addresses decide.
    Opened(Vec<Rule>),
    /// This address, which only this machine reaches or trusts.
    Network(String),
    /// This port.
    Port(String),
    /// That is not known.
    Unknown,
}

impl Taken {
    /// Returns that a path is taken, if there is one.
    pub(super) fn path(path: Option<String>) -> Self {
        path.map_or(Self::Nothing, Self::Path)
    }

    /// Returns that the first of some paths is taken, if there is one.
    pub(super) fn first(paths: &[PathBuf]) -> Self {
        Self::path(paths.first().map(|path| shown(path)))
    }

    /// Returns whether more of the kernel is taken.
    pub(super) fn kernel(is_taken: bool) -> Self {
        if is_taken {
            Self::Kernel
        } else {
            Self::Nothing
        }
    }
}

/// For what takes nothing.
pub(super) fn nothing<T>(_: &T) -> Taken {
    Taken::Nothing
}

/// Returns a path as text.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(all(test, feature = "clap"))]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::SandboxOptions;
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sandbox: SandboxOptions,
    }

    fn taken(option: &str, value: &str) -> Taken {
        let flag = format!("--{option}={value}");
        let parsed = Cli::try_parse_from(["run", "--env=A=b", &flag]).unwrap();
        parsed.sandbox.taken_by(option)
    }

    #[test]
    fn options_that_take_something_from_this_machine_are_known() {
        for (option, value, what) in [
            ("volume", "/h:/x", "/h"),
            ("mount", "type=bind,source=/h,target=/x", "/h"),
            ("upper", "folder:/h", "/h"),
            ("root-disk", "/h:rw", "/h"),
            ("env-file", "h", "h"),
            ("label-file", "h", "h"),
            ("patch-tar", "h", "h"),
            ("vsock", "h", "h"),
            ("patch", "h:/x", "h"),
            ("env", "H", "H"),
        ] {
            assert_eq!(taken(option, value), Taken::Path(what.to_owned()));
        }
        for (option, value) in [
            ("volume", "name:/x:ro"),
            ("mount", "type=volume,source=name,target=/x"),
            ("mount", "type=image,source=box,target=/x"),
            ("mount", "type=tmpfs,target=/x"),
            ("upper", "disk:1g"),
            ("env", "A="),
            ("backend", "qemu"),
        ] {
            assert_eq!(taken(option, value), Taken::Nothing, "{option} {value}");
        }
        assert_eq!(taken("backend", "host"), Taken::Kernel);
        let resolver = Taken::Network("192.0.2.1:53".to_owned());
        assert_eq!(taken("dns", "192.0.2.1"), resolver);
        let allowed = Taken::Opened(vec!["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(taken("net-allow", "127.0.0.1:80"), allowed);
        let port = Taken::Port("0.0.0.0:0:80/tcp".to_owned());
        assert_eq!(taken("publish", "0.0.0.0:0:80"), port);
    }

    #[test]
    fn rules_that_open_nothing_narrow() {
        let words = ["run", "--net-allow=10.0.0.1", "--net-deny=10.0.0.2"];
        let mut network = Cli::try_parse_from(words).unwrap().sandbox.network;
        let allowed = network.net_allow.clone();
        network.open_nothing();
        assert!(network.net_allow.is_empty() && network.net_deny.len() == 1);
        assert_eq!(network.net_narrower.unwrap().allow, allowed);
    }

    #[test]
    fn every_option_is_sorted_by_what_it_takes_from_this_machine() {
        let none = Cli::try_parse_from(["run"]).unwrap().sandbox;
        let command = Cli::command();
        for name in command.get_arguments().filter_map(clap::Arg::get_long) {
            let is_known = none.taken_by(name) != Taken::Unknown;
            assert!(is_known || name == "help", "{name}");
        }
        assert_eq!(none.taken_by("no-such"), Taken::Unknown);
    }
}
