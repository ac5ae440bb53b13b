//! The messages of both directions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Confinement, Setup};

/// A message from the host to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Set the sandbox up. The first message, sent once.
    Boot(Box<Boot>),
    /// Start a command. The host chooses the `id`, which names the command until [`ToHost::Exited`]
    /// or [`ToHost::StartFailed`] and may be reused then.
    Exec {
        /// Names the command in later messages.
        id: u32,
        /// What to run and how.
        spec: Box<Exec>,
    },
    /// Bytes for the command's stdin; at most [`MAX_DATA`](crate::MAX_DATA), within
    /// the window that [`ToHost::Started`] opened.
    Stdin {
        /// The command.
        id: u32,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// No more stdin: the command reads end-of-file after what was sent. On a
    /// terminal this is the end-of-file character, as typing Ctrl-D is.
    CloseStdin {
        /// The command.
        id: u32,
    },
    /// Send a signal to the command's process alone.
    Signal {
        /// The command.
        id: u32,
        /// The signal's number on the guest's architecture, 1 to 64.
        signal: i32,
    },
    /// The host's terminal has another size. Ignored without a tty.
    Resize {
        /// The command.
        id: u32,
        /// The new size.
        size: TtySize,
    },
    /// The host has passed on some of the output: the guest may send that many bytes more.
    Credit {
        /// The command.
        id: u32,
        /// Which of its outputs.
        stream: OutputStream,
        /// Number of bytes, added to what is left of the window.
        bytes: u32,
    },
    /// Kill every command, flush and unmount the filesystems that outlive the machine, reply with
    /// [`ToHost::ShutdownDone`] and end the machine.
    Shutdown,
    /// The machine is about to be copied: reply with [`ToHost::Quiesced`], then send nothing and
    /// expect only [`ToGuest::Thaw`] or [`ToGuest::Restore`]. So a copy begins between two
    /// messages, with nothing in flight. Commands continue to run.
    Quiesce,
    /// The machine may have been copied and this is the original: resume service.
    Thaw {
        /// As [`Identity::wall_clock`]: the machine may have been paused for a while.
        wall_clock: (i64, u32),
        /// As [`Identity::entropy`]: a reader of the copy must not be able to predict this
        /// machine's random numbers.
        entropy: [u8; 32],
    },
    /// This is a copy, with its own host: take on a new identity and reply with
    /// [`ToHost::Restored`].
    Restore(Box<Restore>),
    /// Limit the number of processes and threads of all commands together, in place of
    /// [`Setup::max_processes`](crate::Setup::max_processes). Ignored without that.
    LimitProcesses {
        /// Their number, at least 1.
        most: u64,
    },
    /// Send a signal to the command's process group: its process, and all that this has started and
    /// that are in no group of their own.
    SignalGroup {
        /// The command.
        id: u32,
        /// The signal's number on the guest's architecture, 1 to 64.
        signal: i32,
    },
}

/// A message from the guest to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// The agent is up and waits for [`ToGuest::Boot`]. The first message.
    Hello(Hello),
    /// The sandbox is ready for commands.
    Booted(BootTimings),
    /// A step of the set-up failed. The machine ends after this message.
    BootFailed(BootFailed),
    /// The command is running: `execve` has succeeded.
    Started {
        /// The command.
        id: u32,
        /// Its process ID as processes inside the sandbox see it.
        pid: u32,
        /// Bytes of stdin that the host may send before it gets more credit;
        /// 0 when the command has no stdin.
        stdin_window: u32,
    },
    /// The command could not be started.
    StartFailed {
        /// The command.
        id: u32,
        /// Why.
        failure: StartFailed,
    },
    /// Output of the command: at most [`MAX_DATA`](crate::MAX_DATA) bytes, within the window that
    /// the host granted for the stream.
    Output {
        /// The command.
        id: u32,
        /// Which output; always [`OutputStream::Stdout`] on a terminal.
        stream: OutputStream,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// The command's process has ended and all its output has been sent. The last message about
    /// this command.
    Exited {
        /// The command.
        id: u32,
        /// How it ended.
        status: ExitStatus,
    },
    /// Some of the stdin has reached the command: the host may send that many bytes more.
    StdinCredit {
        /// The command.
        id: u32,
        /// Number of bytes, added to what is left of the window.
        bytes: u32,
    },
    /// The command's stdin has no reader any more. Further stdin is dropped.
    StdinClosed {
        /// The command.
        id: u32,
    },
    /// All commands have ended, and the machine ends now.
    ShutdownDone {
        /// None if everything is flushed and unmounted. Otherwise what failed; writes may be lost.
        problem: Option<String>,
    },
    /// The guest sends nothing more until [`ToGuest::Thaw`] or [`ToGuest::Restore`].
    Quiesced,
    /// The copy has its new identity and is ready for commands.
    Restored,
}

/// The machine's properties as the guest sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Microseconds from the kernel's start to the agent's first instruction.
    pub init_uptime_us: u64,
    /// RAM that the kernel manages, bytes.
    pub memory_bytes: u64,
    /// Processors online.
    pub cpus: u32,
}

/// All that the guest needs to set the sandbox up from its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The overlay's read-only layers, topmost first: one for a merged root; for a stacked root,
    /// one for each image layer (and fixup). Empty only if changes are made in place.
    pub lowers: Vec<Lower>,
    /// Where changes are written.
    pub upper: Upper,
    /// Process 1 of the sandbox.
    pub init: Init,
    /// The machine's unique properties.
    pub identity: Identity,
    /// What the sandbox has beyond its root.
    pub setup: Setup,
}

/// The properties that distinguish a machine from its copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The host name; also written to `/etc/hostname` and `/etc/hosts`.
    pub hostname: String,
    /// Contents of `/etc/machine-id`, without its line feed: 32 hexadecimal digits.
    pub machine_id: String,
    /// Contents of `/etc/resolv.conf`.
    #[serde(with = "serde_bytes")]
    pub resolv_conf: Vec<u8>,
    /// The interface to configure; None for loopback only.
    pub network: Option<Network>,
    /// The time of day: seconds since 1970-01-01 UTC, and nanoseconds below
    /// 1,000,000,000.
    pub wall_clock: (i64, u32),
    /// Fresh random bytes for the kernel's generator, so that programs in the guest don't wait for
    /// entropy. Different for each machine, copies included.
    pub entropy: [u8; 32],
}

/// The new identity of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// Replaces the original's. It has a network if and only if the original's has one.
    pub identity: Identity,
    /// The original's command to reattach, as if the copy's host had just started it: the guest
    /// sends [`ToHost::Started`] again, or [`ToHost::StartFailed`] if the command has ended. Other
    /// commands continue with end-of-file on stdin, and their output is dropped.
    pub reattach: Option<Reattach>,
    /// What the sandbox gets in addition to what the original has.
    pub setup: Setup,
}

/// A command of the original that the copy's host reattaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// The command's id, both in the original and from here on.
    pub id: u32,
    /// As [`Exec::output_window`].
    pub output_window: u32,
}

/// An ethernet interface and its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The interface's ethernet address, by which the guest identifies the interface.
    pub hardware_address: [u8; 6],
    /// The interface's IPv4 address.
    pub address: [u8; 4],
    /// The network prefix's length in bits, 0 to 32.
    pub prefix: u8,
    /// The default route.
    pub gateway: [u8; 4],
}

/// Process 1 of the sandbox's PID namespace: it adopts orphans, and when it ends, the kernel kills
/// every other process in the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Init {
    /// A process of the agent's that only reaps, as with `docker run --init`. Commands are ordinary
    /// processes, and the sandbox outlives each of them.
    #[default]
    Reaper,
    /// The first command, as with plain `docker run`: signals other than SIGKILL that it has no
    /// handler for are ignored, and no command can be started after it has ended.
    FirstExec,
}

/// One filesystem to mount read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lower {
    /// The filesystem's format.
    pub format: Format,
    /// The device that begins with its superblock.
    pub image: Extent,
    /// The devices of its device table, in the table's order. Empty when the
    /// image has none or when `image` holds them all in one flat address space.
    pub devices: Vec<Extent>,
}

/// The format of a layer's filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// EROFS.
    Erofs,
    /// ext4, with an empty journal and no orphans; ext3 and ext2 are mounted as ext4.
    Ext4,
}

/// A device or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The device.
    pub device: Device,
    /// The part: a partition with exactly these bounds, or else a dm-linear mapping of it. None for
    /// the whole device.
    pub range: Option<Range>,
}

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte; a multiple of 512 (of 4096 for DAX).
    pub offset: u64,
    /// Number of bytes; a multiple of 512 (of 4096 for DAX), not 0.
    pub length: u64,
}

/// How the guest identifies a device. Never by name or order: the kernel chooses both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// The persistent-memory device that begins with the EROFS or ext4 filesystem of this
    /// UUID, or a GPT with this GUID (in the order of the bytes on the device).
    Pmem {
        /// The UUID.
        uuid: [u8; 16],
    },
    /// The virtio block device of this serial number, at most 20 bytes.
    Disk {
        /// The serial number.
        serial: String,
    },
    /// A virtio block device of which the guest checks each block that it reads (dm-verity). One that is not as its tree
    /// says is an error of that read.
    Verity {
        /// The disk's serial number.
        serial: String,
        /// The serial number of the disk with the tree: version 1, SHA-256, blocks of 4 KiB for both, no salt, behind a
        /// superblock of one block.
        tree: String,
        /// Number of blocks of 4 KiB that the tree is over, from the disk's first.
        blocks: u64,
        /// The tree's root digest.
        root: [u8; 32],
    },
}

/// The overlay's writable layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Upper {
    /// In the guest's memory; lost when the machine ends.
    Tmpfs {
        /// Maximum number of bytes; None for half of the guest's memory.
        size_bytes: Option<u64>,
        /// Serial number of a virtio block device with an ext4 filesystem, whose directory
        /// `root` is a read-only layer above all of the image's.
        patches: Option<String>,
    },
    /// In an existing ext4 filesystem. The upper layer is its directory `root`, which is created
    /// with the attributes of the image's root if there is none yet.
    Disk {
        /// Serial number of the virtio block device that the filesystem is on.
        serial: String,
    },
    /// No overlay: the root is itself an ext4 filesystem.
    InPlace {
        /// Serial number of the virtio block device that the filesystem is on.
        serial: String,
    },
    /// In a folder of the host, which has nothing but the overlay's directories `upper` and `work`.
    /// Both are created if there are none yet; `upper` with the attributes of the image's root.
    Share {
        /// The tag of the virtio-fs device.
        tag: String,
    },
}

/// How long the set-up took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootTimings {
    /// The phases in the order they ran.
    pub phases: Vec<Phase>,
}

/// One phase of the set-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "BootPhase"))]
pub struct Phase {
    /// A word or two, the same in every boot: `devices`, `lower`, `overlay`.
    pub name: String,
    /// Microseconds.
    pub micros: u64,
}

/// The step of the set-up that failed. Shown to the user as one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BootFailed {
    /// The operation: `mount EROFS`.
    pub step: String,
    /// Its target: `layer 3 of 7 (/dev/pmem3)`.
    pub target: String,
    /// The kernel's error number; 0 if the error is not the kernel's.
    pub errno: i32,
    /// Further details, including the kernel's own messages. May be empty or have several lines.
    pub detail: String,
    /// The part of the sandbox that the step is about.
    pub part: BootPart,
}

/// A part of a sandbox that its set-up may fail on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BootPart {
    /// A filesystem of the root, below its changes: the image's, or that of a root disk.
    Root,
    /// Anything else.
    Other,
}

impl fmt::Display for BootFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.target)?;
        if self.errno != 0 {
            let error = std::io::Error::from_raw_os_error(self.errno);
            write!(f, ": {error}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// A command to run in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Program and arguments; never empty. A program without a slash is searched for in the PATH of
    /// `env`, or in Docker's default PATH if `env` has none.
    pub argv: Vec<Vec<u8>>,
    /// A program that takes the place of `argv`'s first if there is no such file; empty for none.
    pub fallback: Vec<u8>,
    /// The environment, names and values. As with Docker, these are added if missing: PATH,
    /// HOSTNAME, HOME from the image's `/etc/passwd`, and TERM on a terminal.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory inside the image; empty means `/`.
    pub cwd: Vec<u8>,
    /// Whether the working directory is created if it is missing. Otherwise the command does not start:
    /// [`StartFailure::BadWorkdir`].
    pub make_cwd: bool,
    /// `name`, `uid`, `name:group`, `uid:gid` and so on, looked up in the image's
    /// `/etc/passwd` and `/etc/group`; empty means root.
    pub user: String,
    /// A terminal of this size in place of pipes; stderr then goes to the same terminal as stdout.
    pub tty: Option<TtySize>,
    /// Whether the host will send stdin. If not, stdin is `/dev/null` (or an idle
    /// terminal).
    pub stdin: bool,
    /// Bytes of stdout, and also of stderr, that the guest may send before it gets more credit.
    pub output_window: u32,
    /// What limits it.
    pub confinement: Confinement,
}

/// A terminal's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub columns: u16,
}

/// The stream that output was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// File descriptor 1, or the terminal.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

/// How a command's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this code, 0 to 255.
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
}

impl ExitStatus {
    /// Returns the exit code that a shell and Docker report: 128 + the signal's number if a signal
    /// ended the process.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => signal.saturating_add(128),
        }
    }
}

/// Why a command could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartFailed {
    /// The kind, for exit codes and for programs.
    pub reason: StartFailure,
    /// A message for the user; it names the program, user or directory concerned.
    pub message: String,
    /// The kernel's error number; 0 if the error is not the kernel's.
    pub errno: i32,
}

/// The kinds of reasons for which a command can't be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StartFailure {
    /// The program, or its interpreter or loader, does not exist.
    NotFound,
    /// The program exists but can't be executed: it is a directory, lacks permission, or has a
    /// format unknown to the kernel.
    NotExecutable,
    /// The user or group is not a number, and not in `/etc/passwd` or `/etc/group`.
    NoSuchUser,
    /// The working directory can't be created or entered.
    BadWorkdir,
    /// An operation on files ([`files`](crate::files)) could not begin; the error number and the
    /// message say why.
    File,
    /// Another reason: no memory, too many processes, an invalid request.
    Other,
}

impl StartFailed {
    /// Returns Docker's exit code: 127 if something does not exist, 126 if it may not be executed
    /// or entered, 125 for everything else.
    pub fn exit_code(&self) -> i32 {
        const EACCES: i32 = 13;
        match self.reason {
            StartFailure::NotFound => 127,
            StartFailure::NotExecutable => 126,
            StartFailure::BadWorkdir if self.errno == EACCES => 126,
            StartFailure::BadWorkdir
            | StartFailure::NoSuchUser
            | StartFailure::File
            | StartFailure::Other => 125,
        }
    }
}
