//! The flags of `mica run`, with Docker's meanings.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "their documentation is text for --help"
)]

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use micabox::{
    BackendChoice, DEFAULT_DISK_SIZE, Error, Network, Patch, Publish, Rule, Upper, UserNetwork,
};
use micabox_image::Platform;
use micabox_transfer::PullPolicy;

use crate::failure::Failure;
use crate::host_memory::HostMemory;

/// Run a command from an image in a virtual machine of its own
///
/// Pulls the image if it isn't here. Without a COMMAND, runs what the image says.
/// Everything after IMAGE belongs to the command.
///
/// The sandbox ends with its command, or with mica: Ctrl-C sends the command SIGINT, a
/// second one, SIGTERM or SIGHUP stop the sandbox as `mica stop` does, a third one kills
/// it, and so does a reader that closes the pipe on the other end of the output.
///
/// Exit codes: the command's own, 128 + n if signal n ended it; 124 after --timeout (137
/// if it had to be killed, as coreutils' timeout has it); 125 if mica failed, 126 if the
/// command could not be executed, 127 if it was not found.
#[derive(Debug, clap::Args)]
#[command(override_usage = "mica run [OPTIONS] IMAGE [COMMAND] [ARG...]")]
pub struct Args {
    /// Keep stdin open and pass it on
    #[arg(short, long)]
    pub interactive: bool,

    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,

    /// Forget the sandbox when it ends; otherwise `mica ps -a` remembers it. With =PATH,
    /// remove PATH from the image's files before the start
    #[arg(
        long,
        value_name = "PATH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    rm: Vec<OsString>,

    /// Make a directory before the start
    #[arg(long, value_name = "PATH")]
    mkdir: Vec<OsString>,

    /// Unpack an uncompressed archive at the root before the start
    #[arg(long, value_name = "FILE")]
    patch_tar: Vec<PathBuf>,

    /// Copy a file of the host to that path before the start
    #[arg(long, value_name = "FILE:PATH", value_parser = pair)]
    patch: Vec<(OsString, OsString)>,

    /// Make a symbolic link before the start
    #[arg(long, value_name = "TARGET:PATH", value_parser = pair)]
    symlink: Vec<(OsString, OsString)>,

    /// Docker's volumes, which do not exist yet: accepted for a clear error.
    #[arg(short, long, hide = true, value_name = "VOLUME")]
    volume: Vec<OsString>,

    #[arg(long, hide = true, value_name = "MOUNT")]
    mount: Vec<OsString>,

    /// Leave the sandbox running and print its ID
    ///
    /// `mica logs` shows the command's output.
    #[arg(short, long, conflicts_with = "timing")]
    pub detach: bool,

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

    /// Where changes go: memory, gone with the sandbox, or a disk of that size [8g], kept
    /// until `mica rm` [default: tmpfs]
    #[arg(long, value_name = "tmpfs|disk[:SIZE]", value_parser = upper)]
    pub upper: Option<Upper>,

    /// Start from a copy of a snapshot's disk, on its image, without an IMAGE. A snapshot with
    /// memory continues where it was: without a COMMAND with the one that runs in it, and with
    /// the network that it had unless flags change that
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["upper", "pull", "platform"])]
    pub from: Option<String>,

    /// Start from the ext4 or EROFS filesystem in a file, without an IMAGE; the default COMMAND
    /// is /bin/sh. The file is not changed; with :rw, changes go into it. With --from, the root
    /// disk of an imported snapshot
    #[arg(
        long,
        value_name = "FILE[:rw]",
        conflicts_with_all = ["pull", "platform", "root"]
    )]
    pub root_disk: Option<OsString>,

    /// Memory of the machine, changed files included unless on a disk [512m, 2g; default:
    /// 1g]
    #[arg(short, long, value_name = "SIZE", value_parser = memory)]
    pub memory: Option<u32>,

    /// Processors of the machine; a fraction counts as a whole one [default: up to 4
    /// under KVM, 1 when emulated]
    #[arg(long, value_name = "NUMBER", value_parser = cpus)]
    pub cpus: Option<u8>,

    /// Network: all that this machine can reach, except its own and link-local addresses; or none
    #[arg(long, value_name = "KIND", default_value = "user", alias = "network")]
    pub net: Net,

    /// Publish a port of the sandbox on this machine [[IP:]HOST:GUEST[/udp]; IP is
    /// 127.0.0.1 unless given, 0.0.0.0 is every address]
    #[arg(short, long, value_name = "PORTS")]
    pub publish: Vec<Publish>,

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
    #[arg(long, value_name = "IP[:PORT]", value_parser = resolver)]
    pub dns: Vec<SocketAddr>,

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
    /// whether one can be had)
    #[arg(long)]
    pub require_limits: bool,

    /// Stop the command after this time [30, 90s, 5m, 2h]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// Program in place of the image's entrypoint; '' for none
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<OsString>,

    /// Host name inside [default: the sandbox's ID]
    #[arg(long, value_parser = hostname)]
    pub hostname: Option<String>,

    /// When to contact the registry
    #[arg(long, value_name = "WHEN")]
    pub pull: Option<Pull>,

    /// Platform of the image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    pub platform: Option<Platform>,

    /// Run an init as process 1, which reaps orphans; `--init=false` makes the command itself
    /// process 1
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub init: bool,

    /// Signal that asks the command to end [default: the image's, or TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub stop_signal: Option<i32>,

    /// Seconds between that signal and the end
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    pub stop_timeout: u64,

    /// How the image's bytes reach the machine: mapped memory or a disk
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub transport: Transport,

    /// Root filesystem: the layers as one, or stacked
    #[arg(long, value_name = "KIND", default_value = "merged")]
    pub root: Root,

    /// What runs the machine: our own monitor on KVM, or QEMU
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: Backend,

    /// Boot the machine instead of starting from a warm template (KVM only)
    #[arg(long)]
    pub cold: bool,

    /// Print afterwards how long each step to the first output took
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text"
    )]
    pub timing: Option<Timing>,

    /// The image, and what to run in it
    // One list, so that no flag is ours once the image is named.
    #[arg(
        required_unless_present_any = ["from", "root_disk"],
        trailing_var_arg = true,
        value_name = "IMAGE"
    )]
    image_and_command: Vec<OsString>,
}

/// `--pull`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Pull {
    /// Every time.
    Always,
    /// If the image is not here.
    Missing,
    /// Not at all.
    Never,
}

/// `--net`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Net {
    /// Through this machine's own sockets.
    User,
    /// Nothing but the sandbox's loopback interface.
    None,
}

/// `--transport`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Transport {
    /// Whichever boots faster.
    Auto,
    /// Persistent memory, mapped without a copy.
    Pmem,
    /// A block device.
    Blk,
}

/// `--root`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Root {
    /// One filesystem for all layers.
    Merged,
    /// One filesystem a layer.
    Stacked,
}

/// `--backend`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Backend {
    /// Ours where KVM works, QEMU elsewhere.
    Auto,
    /// Ours, on KVM.
    Kvm,
    /// QEMU, which emulates where KVM does not work.
    Qemu,
}

/// `--timing`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Timing {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl Args {
    /// Returns the image's name.
    pub fn image(&self) -> Result<&str, Failure> {
        let name = self.image_and_command.first();
        name.and_then(|name| name.to_str())
            .ok_or_else(|| Failure::new("the image's name is not UTF-8"))
    }

    /// Fails if the flags ask for something that does not exist.
    pub fn check(&self) -> Result<(), Failure> {
        if let Some(volume) = self.volume.iter().chain(&self.mount).next() {
            return Err(Failure::new(format!(
                "cannot mount `{}`: there are no volumes yet",
                volume.display()
            ))
            .hint(
                "`--patch FILE:PATH` puts a file into the sandbox, `--patch-tar FILE` a \
                         directory's archive; with `--upper disk`, `mica cp` gets files out",
            ));
        }
        let Some((wanted, host)) = self.memory.zip(HostMemory::now()) else {
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

    /// Returns the file of the root disk, and whether changes go into it.
    pub fn root_disk(&self) -> Option<(PathBuf, bool)> {
        let text = self.root_disk.as_deref()?.as_bytes();
        let (path, in_place) = match (text.strip_suffix(b":rw"), text.strip_suffix(b":ro")) {
            (Some(path), _) => (path, true),
            (None, Some(path)) => (path, false),
            (None, None) => (text, false),
        };
        Some((OsStr::from_bytes(path).into(), in_place))
    }

    /// Checks that no flag asks for what a restored machine can't be given any more.
    pub fn check_fit_for_memory(&self, snapshot: &str) -> Result<(), Failure> {
        let differs = |problem| Error::SnapshotDiffers {
            name: snapshot.to_owned(),
            problem,
        };
        let late = [
            (self.memory.is_some(), "--memory"),
            (self.cpus.is_some(), "--cpus"),
            (!self.init, "--init=false"),
            (self.cold, "--cold"),
        ];
        if let Some((_, flag)) = late.into_iter().find(|(is_given, _)| *is_given) {
            return Err(Failure::new(format!(
                "the snapshot has a machine's memory, so {flag} comes too late"
            ))
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

    /// Returns whether any flag is about the network.
    pub fn has_network_flags(&self) -> bool {
        let lists = self.net_allow.len() + self.net_deny.len();
        self.net == Net::None || lists + self.publish.len() + self.dns.len() > 0
    }

    /// Returns whether the sandbox is removed after its end (`--rm`).
    pub fn is_forgotten(&self) -> bool {
        self.rm.iter().any(|value| value == "true")
    }

    /// Returns the changes before the start: removals first, then directories, archives, files,
    /// links.
    pub fn patches(&self) -> Result<Vec<Patch>, Failure> {
        let mut patches = Vec::new();
        for path in &self.rm {
            match path.as_bytes() {
                b"true" | b"false" => {}
                path => patches.push(Patch::Remove(absolute("--rm", path)?)),
            }
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

    /// Returns the command and its arguments, if any are given.
    pub fn command(&self) -> &[OsString] {
        let image = usize::from(self.from.is_none() && self.root_disk.is_none());
        self.image_and_command.get(image..).unwrap_or_default()
    }
}

impl Args {
    /// Returns the network that the flags describe.
    pub fn network(&self) -> Result<Network, Failure> {
        let user = UserNetwork {
            allow: self.net_allow.clone(),
            deny: self.net_deny.clone(),
            publish: self.publish.clone(),
            resolvers: self.dns.clone(),
        };
        match self.net {
            Net::User => Ok(Network::User(user)),
            Net::None if user == UserNetwork::default() => Ok(Network::None),
            Net::None => Err(Failure::new(
                "--publish, --net-allow, --net-deny and --dns are about a network, and --net none \
                 is for a sandbox without one",
            )),
        }
    }
}

impl From<Pull> for PullPolicy {
    fn from(pull: Pull) -> Self {
        match pull {
            Pull::Always => Self::Always,
            Pull::Missing => Self::Missing,
            Pull::Never => Self::Never,
        }
    }
}

impl From<Backend> for BackendChoice {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Auto => Self::Auto,
            Backend::Kvm => Self::Kvm,
            Backend::Qemu => Self::Qemu,
        }
    }
}

impl From<Transport> for micabox::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Auto => Self::Auto,
            Transport::Pmem => Self::Pmem,
            Transport::Blk => Self::Blk,
        }
    }
}

impl From<Root> for micabox::Root {
    fn from(root: Root) -> Self {
        match root {
            Root::Merged => Self::Merged,
            Root::Stacked => Self::Stacked,
        }
    }
}

fn absolute(flag: &str, path: &[u8]) -> Result<Vec<u8>, Failure> {
    if path.starts_with(b"/") {
        Ok(path.to_vec())
    } else {
        let path = String::from_utf8_lossy(path);
        Err(Failure::new(format!(
            "{flag} {path}: the path is not absolute"
        )))
    }
}

/// Parses `FIRST:/PATH`: a path on the host or a link's target, and an absolute path in the
/// sandbox.
fn pair(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once(":/") {
        Some((first, path)) if !first.is_empty() => Ok((first.into(), format!("/{path}").into())),
        _ => Err("expected two names with a colon between, the second one absolute".into()),
    }
}

/// Parses a size of memory as Docker does, in MiB, rounded up: bytes, or with b, k, m, g or t.
fn memory(text: &str) -> Result<u32, String> {
    match mebibytes(text)? {
        mib @ 64.0..=4_194_304.0 => Ok(mib as u32),
        0.0..64.0 => Err("a machine needs at least 64m".into()),
        _ => Err("more than any machine has".into()),
    }
}

/// Parses `tmpfs`, `disk` or `disk:SIZE`.
fn upper(text: &str) -> Result<Upper, String> {
    let size = match text.split_once(':') {
        None if text == "tmpfs" => return Ok(Upper::Tmpfs),
        None if text == "disk" => DEFAULT_DISK_SIZE,
        Some(("disk", size)) => match mebibytes(size)? {
            mib @ 16.0..=16_777_216.0 => (mib as u64) << 20,
            0.0..16.0 => return Err("a disk needs at least 16m".into()),
            _ => return Err("a disk has at most 16t".into()),
        },
        _ => return Err("expected tmpfs, disk or disk:SIZE".into()),
    };
    Ok(Upper::Disk { size })
}

/// Parses a size as Docker does, rounded up to whole MiB.
fn mebibytes(text: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit_at = lower
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(unit_at);
    let shift = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("expected a number with b, k, m, g or t".into()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number")?;
    let half = f64::from(1_u32 << (shift / 2));
    let bytes = number * half * f64::from(1_u32 << (shift - shift / 2));
    Ok((bytes / f64::from(1 << 20)).ceil())
}

/// Parses a number of processors, 1 to 64; fractions are rounded up.
fn cpus(text: &str) -> Result<u8, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number")?;
    match number.ceil() {
        whole @ 1.0..=64.0 => Ok(whole as u8),
        _ => Err("expected 1 to 64".into()),
    }
}

/// Parses a duration as coreutils' `timeout` does: seconds, or with s, m, h or d. 0 means none.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.as_bytes().last() {
        Some(b's') => (text.strip_suffix('s'), 1.0),
        Some(b'm') => (text.strip_suffix('m'), 60.0),
        Some(b'h') => (text.strip_suffix('h'), 3600.0),
        Some(b'd') => (text.strip_suffix('d'), 86_400.0),
        _ => (Some(text), 1.0),
    };
    let number: f64 = number
        .and_then(|number| number.parse().ok())
        .ok_or("expected a number, with s, m, h or d")?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| "no such duration".into())
}

/// Parses the address of a resolver, with or without a port.
fn resolver(text: &str) -> Result<SocketAddr, String> {
    const PORT: u16 = 53;
    text.parse()
        .map(|address: IpAddr| (address, PORT).into())
        .or_else(|_| text.parse())
        .map_err(|_| "expected an address, as in 192.0.2.1 or 192.0.2.1:5353".into())
}

/// Parses a host name that Linux and resolvers accept: labels as in RFC 1123, and underscores.
fn hostname(text: &str) -> Result<String, String> {
    const MAX: usize = 64;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| {
        let is_edge = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
        let bytes = label.as_bytes();
        is_edge(bytes.first()) && is_edge(bytes.last()) && label.bytes().all(is_plain)
    };
    if text.len() <= MAX && text.split('.').all(is_label) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "expected up to {MAX} letters, digits, `-`, `_` and `.`, no part beginning or ending with `-`"
        ))
    }
}

fn signal(text: &str) -> Result<i32, String> {
    micabox::signal_number(text).ok_or_else(|| "no such signal".into())
}

#[cfg(test)]
mod tests;
