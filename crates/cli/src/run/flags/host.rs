//! What the flags of a sandbox take from this machine: for callers that are not trusted with all of it.

use std::os::unix::ffi::OsStrExt;

use micabox::{BindSource, Mount, MountSource, Upper};

use super::machine::Backend;
use super::mount::MountFlag;
use super::sandbox::SandboxArgs;

impl SandboxArgs {
    /// Returns the first option with which the sandbox has a file, a folder or a variable of this machine,
    /// and what that is.
    pub fn of_this_machine(&self) -> Option<(&'static str, String)> {
        let mounts = [("volume", &self.volume), ("mount", &self.mount)];
        let mut mounts = mounts
            .into_iter()
            .filter_map(|(option, flags)| Some((option, flags.iter().find_map(bound)?)));
        let folder = match &self.upper {
            Some(Upper::Folder { path }) => Some(path.clone()),
            _ => None,
        };
        let files = [
            ("env-file", self.env_file.first()),
            ("label-file", self.label_file.first()),
            ("patch-tar", self.patch_tar.first()),
            ("vsock", self.vsock.as_ref()),
        ];
        let mut files = files
            .into_iter()
            .filter_map(|(option, path)| Some((option, path?.display().to_string())));
        let patch = self.patch.first().map(|(from, _)| from);
        // Without a value it takes this process's.
        let variable = self.env.iter().find(|env| !env.as_bytes().contains(&b'='));
        mounts
            .next()
            .or_else(|| Some(("upper", folder?)))
            .or_else(|| Some(("root-disk", self.root_disk()?.0.display().to_string())))
            .or_else(|| files.next())
            .or_else(|| Some(("patch", patch?.display().to_string())))
            .or_else(|| Some(("env", variable?.display().to_string())))
    }

    /// Returns whether the sandbox is no machine, but shares this one's kernel.
    pub fn is_on_this_kernel(&self) -> bool {
        self.machine.backend == Backend::Host
    }
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
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sandbox: SandboxArgs,
    }

    fn found(flags: &[&str]) -> Option<(&'static str, String)> {
        let words = std::iter::once("run").chain(flags.iter().copied());
        Cli::try_parse_from(words)
            .unwrap()
            .sandbox
            .of_this_machine()
    }

    /// Options that take nothing from this machine, whatever their values are.
    const OTHERS: [&str; 45] = [
        "backend",
        "cap-add",
        "cap-drop",
        "cold",
        "cpus",
        "disk-rate",
        "dns",
        "expose",
        "from",
        "group-add",
        "hostname",
        "idle-timeout",
        "init",
        "label",
        "max-life",
        "memory",
        "memory-swap",
        "mkdir",
        "name",
        "nested-virtualization",
        "net",
        "net-allow",
        "net-deny",
        "net-rate",
        "pids-limit",
        "platform",
        "publish",
        "publish-all",
        "pull",
        "quiet",
        "read-only",
        "remove",
        "require-limits",
        "rm",
        "root",
        "security-opt",
        "shm-size",
        "stop-signal",
        "symlink",
        "tmpfs",
        "transport",
        "trim",
        "ulimit",
        "user",
        "workdir",
    ];

    #[test]
    fn options_that_take_something_from_this_machine_are_known() {
        let taking = [
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
        ];
        for (option, value, what) in taking {
            let flag = format!("--{option}={value}");
            assert_eq!(
                found(&["--env=A=b", &flag]),
                Some((option, what.to_owned()))
            );
        }
        for flag in [
            "--volume=name:/x:ro",
            "--mount=type=volume,source=name,target=/x",
            "--mount=type=image,source=box,target=/x",
            "--mount=type=tmpfs,target=/x",
            "--upper=disk:1g",
            "--env=A=",
        ] {
            assert_eq!(found(&[flag]), None, "{flag}");
        }
        // A new option is in one of the lists.
        let taking = taking.iter().map(|(option, ..)| *option);
        let listed: BTreeSet<_> = OTHERS.into_iter().chain(taking).collect();
        let command = Cli::command();
        let all = command.get_arguments().filter_map(clap::Arg::get_long);
        let all: BTreeSet<_> = all.filter(|name| *name != "help").collect();
        assert_eq!(all, listed);
    }
}
