//! The flags that say what a sandbox is made of, whatever runs in it: those of `mica run`, and the options of
//! SDKs.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "their documentation is text for --help"
)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use micabox::words::{Capabilities, Hostname, Period, Processes, Resolver, Signal, Size, ulimit};
use micabox::{
    DiskRate, Error, ErrorKind, Expiry, Mount, NetRate, NetRules, Network, Patch, Root, Rule,
    Transport, Ulimit, Upper, UserNetwork,
};

use super::machine::{MachineArgs, Net};
use super::mount::{self, MountFlag};
use super::ports::{self, Ports};
use super::security::{SecurityOption, security_option};
use super::upper::upper;
use super::{OrDefault, OrNone, absolute, empty_or, forgets, pair, zero_or};
use crate::failure::Failure;
use crate::host_memory::HostMemory;

/// What a sandbox is made of, except its image and what runs in it.
#[derive(Debug, clap::Args)]
pub struct SandboxArgs {
    /// Forget the sandbox when it ends; otherwise `mica ps -a` remembers it
    #[arg(
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
    )]
    rm: bool,

    /// Remove a path from the image's files before the start
    #[arg(long, value_name = "PATH")]
    remove: Vec<OsString>,

    /// Make a directory before the start
    #[arg(long, value_name = "PATH")]
    mkdir: Vec<OsString>,

    /// Unpack an uncompressed archive at the root before the start
    #[arg(long, value_name = "FILE")]
    pub(super) patch_tar: Vec<PathBuf>,

    /// Copy a file of the host to that path before the start
    #[arg(long, value_name = "FILE:PATH", value_parser = pair)]
    pub(super) patch: Vec<(OsString, OsString)>,

    /// Make a symbolic link before the start
    #[arg(long, value_name = "TARGET:PATH", value_parser = pair)]
    symlink: Vec<(OsString, OsString)>,

    /// Mount a folder or file of this machine, or a volume: a name without a slash, or none for one that is
    /// removed with the sandbox. What is missing is made. What is made in a folder belongs to you. With
    /// `cached`, changes made outside may be seen a second late inside: faster for folders that other hosts
    /// change too (NFS)
    #[arg(short, long, value_name = "[HOST|NAME:]PATH[:ro][,cached]", value_parser = mount::volume)]
    pub(super) volume: Vec<MountFlag>,

    /// Mount a filesystem [type=bind,source=HOST,target=PATH[,readonly][,consistency=cached]
    /// [,bind-recursive=disabled], type=volume[,source=NAME],target=PATH[,readonly][,volume-nocopy=true],
    /// type=image,source=IMAGE,target=PATH[,image-subpath=PATH] or
    /// type=tmpfs,target=PATH[,tmpfs-size=SIZE][,tmpfs-mode=MODE][,readonly]]
    #[arg(long, value_name = "MOUNT", value_parser = mount::mount)]
    pub(super) mount: Vec<MountFlag>,

    /// Mount an empty filesystem in memory; options are those of Docker [size=64m,mode=1777,exec]
    #[arg(long, value_name = "PATH[:OPTIONS]", value_parser = mount::tmpfs)]
    pub(super) tmpfs: Vec<Mount>,

    /// Make the root read-only; /dev, /proc and mounts stay writable. Root inside can undo that,
    /// unless --cap-drop SYS_ADMIN takes the capability away
    #[arg(long)]
    pub read_only: bool,

    /// Limit a resource of each process [NAME=SOFT[:HARD], as in nofile=1024:4096; -1 is unlimited]
    #[arg(long, value_name = "LIMIT", value_parser = ulimit)]
    pub(super) ulimit: Vec<Ulimit>,

    /// Keep a capability that --cap-drop ALL takes away; root has all of them unless they are
    /// dropped [NET_ADMIN, CAP_NET_ADMIN, ALL]
    #[arg(long, value_name = "CAPABILITY")]
    pub(super) cap_add: Vec<Capabilities>,

    /// Take a capability away from root and every program
    #[arg(long, value_name = "CAPABILITY")]
    pub(super) cap_drop: Vec<Capabilities>,

    /// Keep programs from getting more rights than their callers have, as by set-user-ID bits; Docker's
    /// options for no profiles are taken as well, since there are none [no-new-privileges]
    #[arg(long, value_name = "OPTION", value_parser = security_option)]
    pub(super) security_opt: Vec<SecurityOption>,

    /// Run commands with this group as well [name or gid]
    #[arg(long, value_name = "GROUP")]
    pub(super) group_add: Vec<String>,

    /// Most processes and threads of all commands together; 0 or -1 for no limit
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub pids_limit: Option<Processes>,

    /// Size of /dev/shm [default: 64m]
    #[arg(long, value_name = "SIZE", value_parser = zero_or::<Size>())]
    pub shm_size: Option<OrDefault<Size>>,

    /// Stop the sandbox when nothing has run in it and no client has been connected to it for this
    /// time; 0 for never
    #[arg(long, value_name = "DURATION")]
    pub idle_timeout: Option<Period>,

    /// Stop the sandbox after this time; 0 for never
    #[arg(long, value_name = "DURATION")]
    pub max_life: Option<Period>,

    /// Set a variable, or take its value from here [NAME=VALUE or NAME]
    #[arg(short, long, value_name = "VARIABLE")]
    pub env: Vec<OsString>,

    /// Read variables from a file, one a line
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,

    /// Working directory, made if missing
    #[arg(short, long, value_name = "DIRECTORY")]
    pub workdir: Option<OsString>,

    /// User, resolved in the image [name or uid, optionally :group or :gid]
    #[arg(short, long)]
    pub user: Option<String>,

    /// Name of the sandbox
    #[arg(long)]
    pub name: Option<String>,

    /// Label of the sandbox, for `mica ps --filter`
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub label: Vec<String>,

    /// Read labels from a file, one a line
    #[arg(long, value_name = "FILE")]
    pub label_file: Vec<PathBuf>,

    /// Where changes go: memory, gone with the sandbox; a disk of that size [8g], kept until
    /// `mica rm`; or a folder of the host, kept after that too [default: tmpfs]
    #[arg(long, value_name = "tmpfs|disk[:SIZE]|folder:DIR", value_parser = upper)]
    pub upper: Option<Upper>,

    /// Start from a copy of a snapshot's disk, on its image, without an IMAGE. A snapshot with
    /// memory continues where it was: without a COMMAND with the one that runs in it, and with
    /// the network that it had unless flags change that
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["upper", "pull", "lazy", "platform", "trim"])]
    pub from: Option<String>,

    /// Start from the ext4 or EROFS filesystem in a file, without an IMAGE; the default COMMAND
    /// is /bin/sh. The file is not changed; with :rw, changes go into it. It may be a disk with
    /// partitions, of which partition=N is taken, or the only one that can be a root; and a qcow2
    /// or VMDK image. With --from, the root disk of an imported snapshot
    #[arg(
        long,
        value_name = "FILE[,partition=N][:rw]",
        conflicts_with_all = ["pull", "lazy", "platform", "root", "trim"]
    )]
    pub root_disk: Option<OsString>,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Publish ports of the sandbox on this machine, on any that is free unless HOST is given; both may
    /// be ranges [[[IP:][HOST]:]GUEST[/udp]; IP is 127.0.0.1 unless given, 0.0.0.0 is every address]
    #[arg(short, long, value_name = "PORTS", value_parser = ports::published)]
    pub(super) publish: Vec<Ports>,

    /// Publish all ports that the image or --expose names
    #[arg(short = 'P', long)]
    pub(super) publish_all: bool,

    /// Name ports for --publish-all; any port can be published without
    #[arg(long, value_name = "PORTS", value_parser = ports::exposed)]
    pub(super) expose: Vec<Ports>,

    /// Let the sandbox reach only this, and resolve only allowed names; may be repeated. This
    /// machine's own addresses, loopback and link-local ones are opened only by a block that
    /// covers nothing else; private networks (such as 10.0.0.0/8) by a block, but not by a name [10.0.0.0/8, 10.1.2.3:443, example.com:443, *.example.com]
    #[arg(long, value_name = "CIDR|DOMAIN[:PORT]")]
    pub net_allow: Vec<Rule>,

    /// Keep the sandbox from reaching this, even if it is allowed; may be repeated. A denied name
    /// is not resolved, and the addresses that it was last resolved to are closed. Only
    /// --net-allow stops a program that knows the addresses from elsewhere
    #[arg(long, value_name = "CIDR|DOMAIN[:PORT]")]
    pub net_deny: Vec<Rule>,

    /// Resolver for the sandbox's names in place of this machine's; may be repeated
    #[arg(long, value_name = "IP[:PORT]")]
    pub dns: Vec<Resolver>,

    /// Limit the traffic of each disk, in bytes a second, and the number of its requests; an image that
    /// is mapped as memory has no disk [50m; read=50m,write=20m,iops=1000]
    #[arg(long, value_name = "RATE")]
    pub disk_rate: Option<DiskRate>,

    /// Limit the network's traffic, in bytes a second [10m; in=10m,out=1m]
    #[arg(long, value_name = "RATE")]
    pub net_rate: Option<NetRate>,

    /// Connect sockets of sandbox and host (AF_VSOCK, backend kvm only): a client that connects to
    /// this Unix socket and sends `CONNECT PORT` reaches that port of the sandbox; the sandbox
    /// reaches the socket PATH_PORT as port PORT of address 2
    #[arg(long, value_name = "PATH")]
    pub vsock: Option<PathBuf>,

    /// Let the sandbox run virtual machines itself (KVM inside) and use performance counters; this
    /// exposes more of the host's kernel to a hostile guest
    #[arg(long)]
    pub nested_virtualization: bool,

    /// Do not start unless a control group limits the machine's process (`mica doctor` says
    /// whether one can be had); nor do copies of the machine
    #[arg(long)]
    pub require_limits: bool,

    /// Host name inside [default: the sandbox's ID]
    #[arg(long, value_parser = empty_or::<Hostname>())]
    pub hostname: Option<OrNone<Hostname>>,

    /// Signal that asks the command to end [default: the image's, or TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = empty_or::<Signal>())]
    pub stop_signal: Option<OrNone<Signal>>,

    /// Boot the machine instead of starting from a warm template (KVM only)
    #[arg(long)]
    pub cold: bool,

    /// What narrows the network that the flags describe. No flag: a server's clients ask for it
    #[arg(skip)]
    pub net_narrower: Option<NetRules>,
}

impl SandboxArgs {
    /// Fails if the flags ask for something that does not exist.
    pub fn check(&self) -> Result<(), Failure> {
        self.machine.check_memory()?;
        self.check_processes()?;
        self.check_security()?;
        let Some((wanted, host)) = self.machine.memory().zip(HostMemory::now()) else {
            return Ok(());
        };
        if u64::from(wanted) << 20 <= host.most {
            return Ok(());
        }
        Err(Failure::new(format!(
            "cannot give the machine {wanted} MiB of memory: this host has {} MiB, swap included",
            host.most >> 20
        ))
        .hint(format!(
            "{} MiB are available now: ask for less with -m",
            host.available >> 20
        )))
    }

    /// Fails if processes are to be counted on this machine's own kernel, and can't be.
    fn check_processes(&self) -> Result<(), Failure> {
        let is_limited = self.pids_limit.is_some_and(|limit| limit.0 != u64::MAX);
        if !is_limited || !self.machine.shares_kernel() {
            return Ok(());
        }
        let why = match micabox_jail::Place::find() {
            Ok(place) if place.controllers.contains(&"pids") => return Ok(()),
            Ok(_) => "there is no pids controller to hand down".to_owned(),
            Err(why) => why.to_string(),
        };
        Err(Failure::of_kind(
            ErrorKind::Unsupported,
            format!(
                "the host backend limits processes and threads by a control group, and can't have one: {why}"
            ),
        )
        .hint(
            "omit --pids-limit, or run it where control groups are delegated (systemd-run --user --scope)",
        ))
    }

    /// Returns whether the sandbox is made from an image, and not from a snapshot or a root disk.
    pub fn is_from_image(&self) -> bool {
        self.from.is_none() && self.root_disk.is_none()
    }

    /// Returns the file of the root disk, whether changes go into it, and its partition.
    pub fn root_disk(&self) -> Option<(PathBuf, bool, Option<u32>)> {
        let text = self.root_disk.as_deref()?.as_bytes();
        let (path, in_place) = match (text.strip_suffix(b":rw"), text.strip_suffix(b":ro")) {
            (Some(path), _) => (path, true),
            (None, Some(path)) => (path, false),
            (None, None) => (text, false),
        };
        let (path, partition) = with_partition(path);
        Some((OsStr::from_bytes(path).into(), in_place, partition))
    }

    /// Checks that no flag asks for what a restored machine can't be given any more.
    pub fn check_fit_for_memory(&self, snapshot: &str) -> Result<(), Failure> {
        let differs = |problem| Error::SnapshotDiffers {
            name: snapshot.to_owned(),
            problem,
        };
        let late = [
            (self.machine.memory().is_some(), "--memory"),
            (self.machine.cpus().is_some(), "--cpus"),
            (self.pids_limit.is_some(), "--pids-limit"),
            (!self.machine.init, "--init=false"),
            (
                !matches!(self.machine.transport, Transport::Auto),
                "--transport",
            ),
            (!matches!(self.machine.root, Root::Merged), "--root"),
            (self.cold, "--cold"),
        ];
        if let Some((_, flag)) = late.into_iter().find(|(is_given, _)| *is_given) {
            return Err(Failure::of_kind(
                ErrorKind::Unsupported,
                format!("the snapshot has a machine's memory, so {flag} comes too late"),
            )
            .hint(format!("leave {flag} out, or start from an image")));
        }
        if self.nested_virtualization {
            return Err(differs("does not virtualise (--nested-virtualization)").into());
        }
        if !self.patches()?.is_empty() {
            let problem = "has started already: it cannot be patched";
            return Err(differs(problem).into());
        }
        Ok(())
    }

    /// Checks that no flag is about the commands of a restored machine, which are what they were.
    pub fn check_fit_for_commands(&self, snapshot: &str) -> Result<(), Failure> {
        let late = [
            (!self.env.is_empty(), "--env"),
            (!self.env_file.is_empty(), "--env-file"),
            (self.workdir.is_some(), "--workdir"),
            (self.user.is_some(), "--user"),
            (!self.ulimit.is_empty(), "--ulimit"),
            (!self.group_add.is_empty(), "--group-add"),
            (!self.cap_add.is_empty(), "--cap-add"),
            (!self.cap_drop.is_empty(), "--cap-drop"),
        ];
        match late.into_iter().find(|(is_given, _)| *is_given) {
            None => Ok(()),
            Some((_, flag)) => Err(Failure::of_kind(
                ErrorKind::Unsupported,
                format!("the snapshot {snapshot} has a machine's memory, so {flag} comes too late"),
            )
            .hint("give it to each command")),
        }
    }

    /// Returns whether any flag is about the network.
    pub fn has_network_flags(&self) -> bool {
        let lists = self.net_allow.len() + self.net_deny.len();
        let flags = lists + self.publish.len() + self.dns.len();
        self.machine.net == Net::None
            || flags > 0
            || self.publish_all
            || self.net_rate.is_some()
            || self.net_narrower.is_some()
    }

    /// Returns whether the sandbox is removed after its end (`--rm`).
    pub fn is_forgotten(&self) -> bool {
        self.rm
    }

    /// Returns the changes before the start: removals first, then directories, archives, files,
    /// links.
    pub fn patches(&self) -> Result<Vec<Patch>, Failure> {
        let mut patches = Vec::new();
        for path in &self.remove {
            patches.push(Patch::Remove(absolute("--remove", path.as_bytes())?));
        }
        for path in &self.mkdir {
            patches.push(Patch::Directory(absolute("--mkdir", path.as_bytes())?));
        }
        patches.extend(self.patch_tar.iter().cloned().map(Patch::Archive));
        for (from, to) in &self.patch {
            patches.push(Patch::File {
                from: from.into(),
                to: to.as_bytes().to_vec(),
            });
        }
        for (target, path) in &self.symlink {
            patches.push(Patch::Symlink {
                target: target.as_bytes().to_vec(),
                path: path.as_bytes().to_vec(),
            });
        }
        Ok(patches)
    }

    /// Returns when the sandbox ends by itself.
    pub fn expiry(&self) -> Expiry {
        Expiry {
            idle_timeout: self.idle_timeout.map(|Period(time)| time),
            max_life: self.max_life.map(|Period(time)| time),
        }
    }

    /// Returns the network that the flags describe; `exposed` are the ports that the image names.
    pub fn network(&self, exposed: &[String]) -> Result<Network, Failure> {
        let user = UserNetwork {
            allow: self.net_allow.clone(),
            deny: self.net_deny.clone(),
            narrower: self.net_narrower.clone().unwrap_or_default(),
            publish: self.published(exposed)?,
            resolvers: self.dns.iter().map(|Resolver(address)| *address).collect(),
            rate: self.net_rate.unwrap_or_default(),
        };
        match self.machine.net {
            Net::User => Ok(Network::User(user)),
            Net::None if user == UserNetwork::default() => Ok(Network::None),
            Net::None => Err(Failure::new(
                "--publish, --net-allow, --net-deny, --net-rate and --dns are about a network, and \
                 --net none is for a sandbox without one",
            )),
        }
    }
}

/// Splits `FILE,partition=N`. A file whose name ends otherwise is one.
fn with_partition(text: &[u8]) -> (&[u8], Option<u32>) {
    const NAME: &[u8] = b",partition=";
    let at = text.windows(NAME.len()).rposition(|piece| piece == NAME);
    let split = at.and_then(|at| {
        let digits = text.get(at + NAME.len()..)?;
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some((text.get(..at)?, number))
    });
    split.map_or((text, None), |(path, number)| (path, Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_disk_may_name_its_partition() {
        for (text, path, number) in [
            ("disk", "disk", None),
            ("disk,partition=1", "disk", Some(1)),
            ("a,partition=2,partition=15", "a,partition=2", Some(15)),
            ("disk,partition=", "disk,partition=", None),
            ("disk,partition=one", "disk,partition=one", None),
        ] {
            let split = with_partition(text.as_bytes());
            assert_eq!(split, (path.as_bytes(), number), "{text}");
        }
    }
}
