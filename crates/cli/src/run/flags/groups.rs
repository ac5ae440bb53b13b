//! The groups of flags in `mica run --help`.

use clap::Arg;

/// Headings and the flags below them, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Command",
        &[
            "interactive",
            "tty",
            "detach",
            "attach",
            "sig-proxy",
            "detach-keys",
            "idle",
            "timeout",
            "stop-timeout",
            "stop-signal",
            "entrypoint",
            "env",
            "env-file",
            "workdir",
            "user",
            "init",
        ],
    ),
    (
        "Sandbox",
        &[
            "name",
            "label",
            "label-file",
            "cidfile",
            "rm",
            "hostname",
            "idle-timeout",
            "max-life",
            "from",
            "pull",
            "lazy",
            "platform",
            "quiet",
            "timing",
        ],
    ),
    (
        "Files",
        &[
            "volume",
            "mount",
            "tmpfs",
            "shm-size",
            "read-only",
            "upper",
            "root-disk",
            "remove",
            "mkdir",
            "patch",
            "patch-tar",
            "symlink",
            "trim",
        ],
    ),
    (
        "Network",
        &[
            "net",
            "publish",
            "publish-all",
            "expose",
            "net-allow",
            "net-deny",
            "dns",
            "net-rate",
            "vsock",
        ],
    ),
    (
        "Limits and rights",
        &[
            "memory",
            "cpus",
            "pids-limit",
            "ulimit",
            "disk-rate",
            "require-limits",
            "cap-add",
            "cap-drop",
            "security-opt",
            "group-add",
        ],
    ),
    (
        "Machine",
        &[
            "backend",
            "transport",
            "root",
            "cold",
            "nested-virtualization",
        ],
    ),
];

/// Puts a flag below its heading.
pub fn grouped(flag: Arg) -> Arg {
    let Some(name) = flag.get_long().map(str::to_owned) else {
        return flag;
    };
    let mut groups = GROUPS.into_iter().enumerate();
    let place = groups.find_map(|(group, (heading, flags))| {
        let place = flags.iter().position(|known| *known == name)?;
        Some((heading, group * 100 + place))
    });
    match place {
        Some((heading, order)) => flag.help_heading(heading).display_order(order),
        None => flag,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: super::super::Args,
    }

    #[test]
    fn every_flag_has_a_group() {
        let command = Cli::command();
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let name = flag.get_long().filter(|name| *name != "help");
            assert!(
                name.is_none() || flag.get_help_heading().is_some(),
                "{name:?}"
            );
        }
        for (_, flags) in super::GROUPS {
            for name in flags {
                let mut all = command.get_arguments();
                assert!(all.any(|flag| flag.get_long() == Some(name)), "{name}");
            }
        }
    }
}
