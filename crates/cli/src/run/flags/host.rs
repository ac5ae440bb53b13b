//! What the options of a sandbox take from this machine: for callers that are not trusted with all of it.

use std::os::unix::ffi::OsStrExt;

use micabox::{BackendChoice, opens_what_is_closed};
use micabox::{BindSource, Mount, MountSource, Upper};

use super::mount::MountFlag;
use super::ports::Ports;
use super::sandbox::SandboxArgs;

/// What an option takes from this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing: it is about the inside of the sandbox, and about what every sandbox has.
    Nothing,
    /// This file, folder or variable.
    Path(String),
    /// More of its kernel than a machine is shown.
    Kernel,
    /// This address, which only this machine reaches or trusts.
    Network(String),
    /// This port.
    Port(String),
    /// That is not known.
    Unknown,
}

impl SandboxArgs {
    /// Returns what an option takes, by its long name. An option that is not here takes what is unknown, so that a
    /// new one is refused until it is sorted.
    pub fn taken_by(&self, option: &str) -> Taken {
        let path = |path: Option<String>| path.map_or(Taken::Nothing, Taken::Path);
        let first = |paths: &[std::path::PathBuf]| path(paths.first().map(|path| shown(path)));
        let kernel = |takes: bool| if takes { Taken::Kernel } else { Taken::Nothing };
        match option {
            "cap-add" | "cap-drop" | "cold" | "cpus" | "disk-rate" | "expose" | "from"
            | "group-add" | "hostname" | "idle-timeout" | "init" | "label" | "lazy"
            | "max-life" | "memory" | "memory-swap" | "mkdir" | "name" | "net" | "net-deny"
            | "net-rate" | "pids-limit" | "platform" | "pull" | "quiet" | "read-only"
            | "remove" | "require-limits" | "rm" | "root" | "security-opt" | "shm-size"
            | "stop-signal" | "symlink" | "tmpfs" | "transport" | "trim" | "ulimit" | "user"
            | "workdir" => Taken::Nothing,
            "volume" => path(self.volume.iter().find_map(bound)),
            "mount" => path(self.mount.iter().find_map(bound)),
            "upper" => match &self.upper {
                Some(Upper::Folder { path }) => Taken::Path(path.clone()),
                _ => Taken::Nothing,
            },
            "root-disk" => path(self.root_disk().map(|(path, ..)| shown(&path))),
            "env-file" => first(&self.env_file),
            "label-file" => first(&self.label_file),
            "patch-tar" => first(&self.patch_tar),
            "patch" => path(self.patch.first().map(|(from, _)| shown(from.as_ref()))),
            "vsock" => path(self.vsock.as_deref().map(shown)),
            // Without a value it takes this process's.
            "env" => {
                let mut variables = self.env.iter();
                path(
                    variables
                        .find(|env| !env.as_bytes().contains(&b'='))
                        .map(|env| shown(env.as_ref())),
                )
            }
            "backend" => kernel(self.machine.backend == BackendChoice::Host),
            "nested-virtualization" => kernel(self.nested_virtualization),
            "net-allow" => {
                let opening = self
                    .net_allow
                    .iter()
                    .find(|rule| opens_what_is_closed(rule));
                opening.map_or(Taken::Nothing, |rule| Taken::Network(rule.to_string()))
            }
            // This machine asks it, wherever it is.
            "dns" => self.dns.first().map_or(Taken::Nothing, |resolver| {
                Taken::Network(resolver.0.to_string())
            }),
            "publish" => self
                .publish
                .iter()
                .find_map(Ports::first)
                .map_or(Taken::Nothing, |port| Taken::Port(port.to_string())),
            "publish-all" if self.publish_all => Taken::Port("all that are exposed".to_owned()),
            "publish-all" => Taken::Nothing,
            _ => Taken::Unknown,
        }
    }

    /// Has the rules for the network narrow what is open, and open nothing: also an address that becomes this machine's
    /// later stays closed.
    pub fn open_nothing(&mut self) {
        let narrower = self.net_narrower.get_or_insert_default();
        narrower.allow.append(&mut self.net_allow);
    }
}

fn shown(path: &std::path::Path) -> String {
    path.display().to_string()
}

/// Returns the path of this machine that is mounted, if it is one.
fn bound(flag: &MountFlag) -> Option<String> {
    match flag {
        MountFlag::Mount(Mount {
            source: MountSource::Bind(BindSource { source, .. }),
            ..
        }) => Some(source.clone()),
        MountFlag::Mount(_) | MountFlag::Image { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sandbox: SandboxArgs,
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
            ("net-allow", "*.example.com"),
            ("net-allow", "0.0.0.0/0"),
        ] {
            assert_eq!(taken(option, value), Taken::Nothing, "{option} {value}");
        }
        assert_eq!(taken("backend", "host"), Taken::Kernel);
        for (option, value, what) in [
            ("net-allow", "127.0.0.1:80", "127.0.0.1/32:80"),
            ("net-allow", "169.254.0.0/16", "169.254.0.0/16"),
            ("dns", "192.0.2.1", "192.0.2.1:53"),
        ] {
            assert_eq!(taken(option, value), Taken::Network(what.to_owned()));
        }
        let port = Taken::Port("0.0.0.0:0:80/tcp".to_owned());
        assert_eq!(taken("publish", "0.0.0.0:0:80"), port);
    }

    #[test]
    fn rules_that_open_nothing_narrow() {
        let words = ["run", "--net-allow=10.0.0.1", "--net-deny=10.0.0.2"];
        let mut sandbox = Cli::try_parse_from(words).unwrap().sandbox;
        let allowed = sandbox.net_allow.clone();
        sandbox.open_nothing();
        assert!(sandbox.net_allow.is_empty() && sandbox.net_deny.len() == 1);
        assert_eq!(sandbox.net_narrower.unwrap().allow, allowed);
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
