//! The options with which other languages make a sandbox: those of `mica run`, by their long names.
//!
//! The lists of the SDKs are written from this one: `UPDATE_OPTIONS=1 cargo test -p micabox-spec` does. A test compares its
//! names with the flags of `mica run`.

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// The long name of its flag.
    pub name: &'static str,
    /// Its values.
    pub kind: Kind,
    /// What it says, with its unit and its default. A name in braces is another option's, or `true` or `false` in the words of
    /// the language.
    pub help: &'static str,
}

/// What an option's values are.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Text.
    Text,
    /// A whole number.
    Count,
    /// A number that may have a fraction, or text.
    Number,
    /// Yes or no.
    Flag,
    /// Texts.
    List,
    /// Texts by name.
    Map,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// All options, in the order of the lists.
pub const OPTIONS: &[Opt] = &[
    Opt {
        name: "name",
        kind: Kind::Text,
        help: "Name of the sandbox. Default: two random words.",
    },
    Opt {
        name: "memory",
        kind: Kind::Text,
        help: "Memory of the machine, in bytes or with `k`, `m`, `g` or `t`: `512m`, `2g`. Default: `1g`.",
    },
    Opt {
        name: "cpus",
        kind: Kind::Number,
        help: "Processors of the machine; a fraction limits its processor time. Default: up to 4 with KVM, 1 when emulated.",
    },
    Opt {
        name: "env",
        kind: Kind::Map,
        help: "Variables of all commands, by name. Default: the image's.",
    },
    Opt {
        name: "env-file",
        kind: Kind::List,
        help: "Files on this machine with variables, one a line. Default: none.",
    },
    Opt {
        name: "label",
        kind: Kind::Map,
        help: "Labels, by name, for `Sandbox.list` and `mica ps --filter`. Default: none.",
    },
    Opt {
        name: "label-file",
        kind: Kind::List,
        help: "Files on this machine with labels, one a line. Default: none.",
    },
    Opt {
        name: "workdir",
        kind: Kind::Text,
        help: "Working directory of commands, absolute, made if missing. Default: the image's, or `/`.",
    },
    Opt {
        name: "user",
        kind: Kind::Text,
        help: "User of commands, by name or ID, with `:GROUP` if wanted. Default: the image's, or root.",
    },
    Opt {
        name: "group-add",
        kind: Kind::List,
        help: "Further groups of commands, by name or ID. Default: those of the user in the image.",
    },
    Opt {
        name: "hostname",
        kind: Kind::Text,
        help: "Host name inside. Default: the sandbox's ID.",
    },
    Opt {
        name: "rm",
        kind: Kind::Flag,
        help: "Whether the sandbox is forgotten when it ends; {false} keeps its record and disk. Default: {true}.",
    },
    Opt {
        name: "upper",
        kind: Kind::Text,
        help: "Where changes go: `tmpfs`, `disk`, `disk:20g` or `folder:DIR`. Default: `tmpfs`, gone with the sandbox.",
    },
    Opt {
        name: "root-disk",
        kind: Kind::Text,
        help: "A file with an ext4 or EROFS filesystem in place of an image; with `:rw` changes go into it. Default: none.",
    },
    Opt {
        name: "from",
        kind: Kind::Text,
        help: "The name of a snapshot in place of an image. Default: none.",
    },
    Opt {
        name: "volume",
        kind: Kind::List,
        help: "Folders and volumes: `HOST:PATH`, `NAME:PATH` for a volume; `:ro` or `:cached` may follow. Default: none.",
    },
    Opt {
        name: "mount",
        kind: Kind::List,
        help: "Mounts as `docker run --mount` has them: `type=image,source=tools,target=/opt`. Default: none.",
    },
    Opt {
        name: "tmpfs",
        kind: Kind::List,
        help: "Filesystems in memory: `PATH` or `PATH:size=64m,mode=1777`. Default: none.",
    },
    Opt {
        name: "read-only",
        kind: Kind::Flag,
        help: "Whether the root is read-only. Default: {false}.",
    },
    Opt {
        name: "remove",
        kind: Kind::List,
        help: "Paths that are removed from the root before the start. Default: none.",
    },
    Opt {
        name: "mkdir",
        kind: Kind::List,
        help: "Directories that are made in the root before the start. Default: none.",
    },
    Opt {
        name: "patch",
        kind: Kind::List,
        help: "Files of this machine that are copied into the root before the start: `FILE:PATH`. Default: none.",
    },
    Opt {
        name: "patch-tar",
        kind: Kind::List,
        help: "Uncompressed archives that are unpacked at the root before the start. Default: none.",
    },
    Opt {
        name: "symlink",
        kind: Kind::List,
        help: "Symbolic links that are made in the root before the start: `TARGET:PATH`. Default: none.",
    },
    Opt {
        name: "trim",
        kind: Kind::List,
        help: "What the root leaves out: paths, or the words `docs`, `man`, `locales` and `caches`. Default: nothing.",
    },
    Opt {
        name: "net",
        kind: Kind::OneOf(&["user", "none"]),
        help: "The network: `user` reaches what this machine reaches, but not the machine itself. Default: `user`.",
    },
    Opt {
        name: "net-allow",
        kind: Kind::List,
        help: "The only addresses and names that can be reached: `10.0.0.0/8`, `*.example.com:443`. Default: all.",
    },
    Opt {
        name: "net-deny",
        kind: Kind::List,
        help: "Addresses and names that can't be reached, even if they are allowed. Default: none.",
    },
    Opt {
        name: "net-rate",
        kind: Kind::Text,
        help: "Limit of the network's traffic, in bytes a second: `10m`, `in=10m,out=1m`. Default: no limit.",
    },
    Opt {
        name: "dns",
        kind: Kind::List,
        help: "Addresses of resolvers: `IP` or `IP:PORT`. Default: this machine's.",
    },
    Opt {
        name: "publish",
        kind: Kind::List,
        help: "Ports of this machine that lead in: `HOST:GUEST`, `IP:HOST:GUEST`, `GUEST/udp`. Default: none.",
    },
    Opt {
        name: "publish-all",
        kind: Kind::Flag,
        help: "Whether all ports are published that the image or {expose} names. Default: {false}.",
    },
    Opt {
        name: "expose",
        kind: Kind::List,
        help: "Ports for {publish-all}: `80`, `53/udp`. Default: none.",
    },
    Opt {
        name: "vsock",
        kind: Kind::Text,
        help: "Path of a Unix socket for the sandbox's AF_VSOCK, as Firecracker has it; needs KVM. Default: none.",
    },
    Opt {
        name: "idle-timeout",
        kind: Kind::Text,
        help: "Time after which a sandbox without commands and clients is stopped: `90s`, `10m`, `2h`. Default: no limit.",
    },
    Opt {
        name: "max-life",
        kind: Kind::Text,
        help: "Time after which it is stopped, whatever runs: `90s`, `10m`, `2h`. Default: no limit.",
    },
    Opt {
        name: "ulimit",
        kind: Kind::List,
        help: "Limits of each process: `NAME=SOFT:HARD`, as in `nofile=1024:4096`; -1 is no limit. Default: `nofile=1024:524288`.",
    },
    Opt {
        name: "cap-add",
        kind: Kind::List,
        help: "Capabilities beside the usual ones, or that {cap-drop} with `ALL` leaves. Default: none.",
    },
    Opt {
        name: "cap-drop",
        kind: Kind::List,
        help: "Capabilities that root and all programs lose. Default: none in a machine; Docker's with the backend `host`.",
    },
    Opt {
        name: "security-opt",
        kind: Kind::List,
        help: "`no-new-privileges`, so that no program gets more rights than its caller has. Default: none.",
    },
    Opt {
        name: "pids-limit",
        kind: Kind::Count,
        help: "The most processes and threads of all commands together; 0 or -1 is no limit. Default: no limit.",
    },
    Opt {
        name: "shm-size",
        kind: Kind::Text,
        help: "Size of `/dev/shm`, in bytes or with `k`, `m` or `g`. Default: `64m`.",
    },
    Opt {
        name: "disk-rate",
        kind: Kind::Text,
        help: "Limit of each disk, in bytes and requests a second: `50m`, `read=50m,write=20m,iops=1000`. Default: no limit.",
    },
    Opt {
        name: "require-limits",
        kind: Kind::Flag,
        help: "Whether it must not start without a control group that limits its process. Default: {false}.",
    },
    Opt {
        name: "nested-virtualization",
        kind: Kind::Flag,
        help: "Whether programs inside may use KVM. Default: {false}.",
    },
    Opt {
        name: "backend",
        kind: Kind::OneOf(&["auto", "kvm", "qemu", "host"]),
        help: "What runs it: our monitor, QEMU, or a container on this machine's kernel. Default: `auto`, never `host`.",
    },
    Opt {
        name: "transport",
        kind: Kind::OneOf(&["auto", "pmem", "blk"]),
        help: "How the image's bytes reach the machine: mapped memory or a disk. Default: `auto`, what boots faster.",
    },
    Opt {
        name: "root",
        kind: Kind::OneOf(&["merged", "stacked"]),
        help: "Whether the layers are one filesystem or one each. Default: `merged`.",
    },
    Opt {
        name: "pull",
        kind: Kind::OneOf(&["always", "missing", "never"]),
        help: "When the registry is asked. Default: `missing`, or what the settings say.",
    },
    Opt {
        name: "lazy",
        kind: Kind::Flag,
        help: "Whether it starts before all of its image is here. Default: {false}, or what the settings say.",
    },
    Opt {
        name: "platform",
        kind: Kind::Text,
        help: "Platform of the image: `linux/amd64`. Default: this machine's.",
    },
    Opt {
        name: "init",
        kind: Kind::Flag,
        help: "Whether process 1 is an init that reaps orphans. Default: {true}.",
    },
    Opt {
        name: "cold",
        kind: Kind::Flag,
        help: "Whether the machine boots although a warm template is there; needs KVM. Default: {false}.",
    },
    Opt {
        name: "stop-signal",
        kind: Kind::Text,
        help: "Signal that asks the sandbox's first command to end. Default: the image's, or `TERM`.",
    },
];
