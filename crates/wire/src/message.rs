//! The messages, both ways.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Set the sandbox up. The first message, sent once.
    Boot(Box<Boot>),
    /// Start a command. `id` is the host's choice; it names the command until
    /// [`ToHost::Exited`] or [`ToHost::StartFailed`] and may be used again then.
    Exec {
        /// Names the command from here on.
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
    /// Send a signal to the command's process; to it alone, not to its group.
    Signal {
        /// The command.
        id: u32,
        /// Number as Linux has it on the guest's architecture, 1 to 64.
        signal: i32,
    },
    /// The host's terminal has another size. Nothing happens without a tty.
    Resize {
        /// The command.
        id: u32,
        /// The new size.
        size: TtySize,
    },
    /// The host has handed on so many bytes of output: the guest may send as many
    /// more.
    Credit {
        /// The command.
        id: u32,
        /// Which of its outputs.
        stream: OutputStream,
        /// Bytes, added to what is left of the window.
        bytes: u32,
    },
    /// Kill every command, flush and unmount what outlives the machine, answer
    /// [`ToHost::ShutdownDone`] and end the machine.
    Shutdown,
    /// The machine is about to be copied: answer [`ToHost::Quiesced`], then say nothing
    /// and expect nothing but [`ToGuest::Thaw`] or [`ToGuest::Restore`]. So a copy begins
    /// between two messages, with nothing under way. Commands run on.
    Quiesce,
    /// The machine may have been copied and this is the original: serve again.
    Thaw {
        /// As [`Identity::wall_clock`]: it may have stood still for a while.
        wall_clock: (i64, u32),
        /// As [`Identity::entropy`]: whoever reads the copy must not know what this
        /// machine draws from here on.
        entropy: [u8; 32],
    },
    /// This is a copy, with a host of its own: become another machine and answer
    /// [`ToHost::Restored`].
    Restore(Box<Restore>),
}

/// What the guest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// The agent is up and waits for [`ToGuest::Boot`]. The first message.
    Hello(Hello),
    /// The sandbox is ready for commands.
    Booted(BootTimings),
    /// A step of the set-up failed. The machine ends after it.
    BootFailed(BootFailed),
    /// The command runs: `execve` has succeeded.
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
    /// The command wrote something; within the window the host gave for that
    /// stream, at most [`MAX_DATA`](crate::MAX_DATA).
    Output {
        /// The command.
        id: u32,
        /// Where it wrote; always [`OutputStream::Stdout`] on a terminal.
        stream: OutputStream,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// The command's process has ended and all that it wrote has been sent. The
    /// last message about this command.
    Exited {
        /// The command.
        id: u32,
        /// How it ended.
        status: ExitStatus,
    },
    /// So many bytes of stdin have reached the command: the host may send as many
    /// more.
    StdinCredit {
        /// The command.
        id: u32,
        /// Bytes, added to what is left of the window.
        bytes: u32,
    },
    /// Nobody will read the command's stdin any more. What is still sent is dropped.
    StdinClosed {
        /// The command.
        id: u32,
    },
    /// The commands are gone, and the machine ends now.
    ShutdownDone {
        /// None: everything is flushed and unmounted. Otherwise what failed, and
        /// writes may be lost.
        problem: Option<String>,
    },
    /// Everything is said until the host says [`ToGuest::Thaw`] or [`ToGuest::Restore`].
    Quiesced,
    /// The copy is a machine of its own and ready for commands.
    Restored,
}

/// What the machine looks like from inside.
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

/// Everything the guest needs to turn devices into a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The overlay's read-only layers, topmost first: one for a merged root, one
    /// an image layer (and fixup) for a stacked one. None if changes are made in place,
    /// otherwise never empty.
    pub lowers: Vec<Lower>,
    /// Where changes go.
    pub upper: Upper,
    /// Who is process 1 of the sandbox.
    pub init: Init,
    /// What no other machine has.
    pub identity: Identity,
}

/// What makes a machine this one, and no copy of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The host name; also written to `/etc/hostname` and `/etc/hosts`.
    pub hostname: String,
    /// Contents of `/etc/machine-id`, without its line feed: 32 hexadecimal digits.
    pub machine_id: String,
    /// Contents of `/etc/resolv.conf`.
    #[serde(with = "serde_bytes")]
    pub resolv_conf: Vec<u8>,
    /// The interface to configure; None: loopback is all there is.
    pub network: Option<Network>,
    /// The time of day: seconds since 1970-01-01 UTC, and nanoseconds below
    /// 1,000,000,000.
    pub wall_clock: (i64, u32),
    /// Fresh random bytes for the kernel's generator, so that nobody in the guest
    /// waits for entropy. Different for each machine, copies included.
    pub entropy: [u8; 32],
}

/// What a copy of a machine becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// In place of the original's. There is a network if and only if the original has
    /// one.
    pub identity: Identity,
    /// The original's command that the host goes on with, as if it had just started it:
    /// the guest says [`ToHost::Started`] again, or [`ToHost::StartFailed`] if it has ended.
    /// The others run on, their stdin at its end and their output dropped.
    pub reattach: Option<Reattach>,
}

/// A command of the original's that a copy's host goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// Names the command, for the original's host and from here on.
    pub id: u32,
    /// As [`Exec::output_window`].
    pub output_window: u32,
}

/// An ethernet interface and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its ethernet address, by which the guest recognises it.
    pub hardware_address: [u8; 6],
    /// Its IPv4 address.
    pub address: [u8; 4],
    /// Bits of the address that name the network, 0 to 32.
    pub prefix: u8,
    /// The way to everywhere else.
    pub gateway: [u8; 4],
}

/// Process 1 of the sandbox's PID namespace: it adopts orphans, and the kernel
/// kills everything else in the namespace when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Init {
    /// A process of ours that only reaps, as with `docker run --init`. Commands
    /// are ordinary processes, and the sandbox outlives each of them.
    Reaper,
    /// The first command, as with plain `docker run`: signals that it has no
    /// handler for do nothing, SIGKILL apart, and no command can be started after
    /// it has ended.
    FirstExec,
}

/// One filesystem to mount read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lower {
    /// What it is.
    pub format: Format,
    /// Where its superblock is.
    pub image: Extent,
    /// The devices of its device table, in the table's order. Empty when the
    /// image has none or when `image` holds them all in one flat address space.
    pub devices: Vec<Extent>,
}

/// What a layer's filesystem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// EROFS.
    Erofs,
    /// ext4, with nothing in its journal and no orphans; ext3 and ext2 are mounted as such.
    Ext4,
}

/// A device or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The device.
    pub device: Device,
    /// The piece of it: a partition with just these bounds, or else what dm-linear makes
    /// of it. None: all of it.
    pub range: Option<Range>,
}

/// A piece of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte; a multiple of 512 (of 4096 for DAX).
    pub offset: u64,
    /// Bytes; a multiple of 512 (of 4096 for DAX), not 0.
    pub length: u64,
}

/// How the guest recognises a device. Never by name or order: both are the
/// kernel's to choose.
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
}

/// The overlay's writable layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Upper {
    /// In the guest's memory, gone with it.
    Tmpfs {
        /// Most bytes it may hold; None: half of the guest's memory.
        size_bytes: Option<u64>,
        /// Serial number of a virtio block device with an ext4 filesystem, whose directory
        /// `root` is a read-only layer above all of the image's.
        patches: Option<String>,
    },
    /// In an ext4 filesystem, as it was left: the upper layer is its directory `root`,
    /// made with the attributes of the image's root where there is none yet.
    Disk {
        /// Serial number of the virtio block device that the filesystem is on.
        serial: String,
    },
    /// Nowhere else: there is no overlay, the root is an ext4 filesystem itself.
    InPlace {
        /// Serial number of the virtio block device that the filesystem is on.
        serial: String,
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
pub struct Phase {
    /// A word or two, the same in every boot: `devices`, `lower`, `overlay`.
    pub name: String,
    /// Microseconds.
    pub micros: u64,
}

/// The step of the set-up that failed. Shown to the user as one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootFailed {
    /// What was being done: `mount EROFS`.
    pub step: String,
    /// To what: `layer 3 of 7 (/dev/pmem3)`.
    pub target: String,
    /// The kernel's error number; 0 when the kernel was not asked.
    pub errno: i32,
    /// What is known beyond that, the kernel's own words included. May be empty
    /// or have several lines.
    pub detail: String,
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
    /// Program and arguments; never empty. A program without a slash is looked
    /// for in the PATH of `env`, Docker's default PATH if there is none.
    pub argv: Vec<Vec<u8>>,
    /// The environment, names and values. As with Docker, what is missing of these
    /// is added: PATH, HOSTNAME, HOME from the image's `/etc/passwd`, and TERM on a
    /// terminal.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory inside the image, made if missing; empty means `/`.
    pub cwd: Vec<u8>,
    /// `name`, `uid`, `name:group`, `uid:gid` and so on, looked up in the image's
    /// `/etc/passwd` and `/etc/group`; empty means root.
    pub user: String,
    /// A terminal of this size in place of pipes; stderr goes where stdout goes.
    pub tty: Option<TtySize>,
    /// Whether the host will send stdin. If not, stdin is `/dev/null` (or an idle
    /// terminal).
    pub stdin: bool,
    /// Bytes of stdout, and again of stderr, that the guest may send before it
    /// gets more credit.
    pub output_window: u32,
}

/// A terminal's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Characters a line.
    pub columns: u16,
}

/// Where a command's output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// File descriptor 1, or the terminal.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

/// How a command's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this code, 0 to 255.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
}

impl ExitStatus {
    /// The code that a shell and Docker report for it: 128 + the signal's number
    /// if a signal ended the process.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => signal.saturating_add(128),
        }
    }
}

/// Why a command could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailed {
    /// The kind, for an exit code and for programs.
    pub reason: StartFailure,
    /// For the user; names the program, user or directory concerned.
    pub message: String,
    /// The kernel's error number; 0 when the kernel was not asked.
    pub errno: i32,
}

/// The kinds of reasons for which a command can't be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartFailure {
    /// The program, or the interpreter or loader that it asks for, does not exist.
    NotFound,
    /// The program exists and can't be executed: a directory, no permission, not a
    /// format that the kernel knows.
    NotExecutable,
    /// The user or group is in neither `/etc/passwd` nor `/etc/group`, and is no
    /// number.
    NoSuchUser,
    /// The working directory can't be made or entered.
    BadWorkdir,
    /// Anything else: no memory, too many processes, a bad request.
    Other,
}

impl StartFailed {
    /// Docker's exit code for it: 127 for what does not exist, 126 for what may not
    /// be executed or entered, 125 for everything else.
    pub fn exit_code(&self) -> i32 {
        const EACCES: i32 = 13;
        match self.reason {
            StartFailure::NotFound => 127,
            StartFailure::NotExecutable => 126,
            StartFailure::BadWorkdir if self.errno == EACCES => 126,
            StartFailure::BadWorkdir | StartFailure::NoSuchUser | StartFailure::Other => 125,
        }
    }
}
