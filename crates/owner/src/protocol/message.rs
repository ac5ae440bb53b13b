//! The messages of both directions.

use std::path::PathBuf;

use micabox_wire::{Confinement, ExitStatus, Phase, TtySize, Ulimit};
use serde::{Deserialize, Serialize};

use super::{Failure, Text};

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OwnerRequest"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// Start a command. Replies: [`Reply::Started`], and [`Reply::Exited`] when it has ended. The
    /// number stands for the command until then.
    Exec(Box<Exec>),
    /// In a copy of a sandbox: reattach the original's first command, as if it had just been
    /// started. Only where its streams go and how it ends is taken from `Exec`.
    Reattach(Box<Exec>),
    /// Attach to a command of any client: a copy of its outputs from now on, and its stdin if that
    /// is open and idle. Replies: [`Reply::Attached`], and [`Reply::Exited`] when it has ended. The
    /// number stands for the command until then, for signals, sizes and credit; the command
    /// continues when the connection ends.
    Attach(Attach),
    /// Request for a [`Reply::Command`] for each command that runs and has an [`Exec::note`], whatever
    /// client has started it, and [`Reply::Listed`].
    Commands,
    /// Send the command's process group a signal: its number on Linux x86-64, 1 to 64. The command
    /// with the sandbox's lifetime is sent it alone.
    Signal {
        /// The number.
        signal: i32,
    },
    /// Send the first command, of any client, a signal. Reply: [`Reply::Signaled`].
    SignalFirst {
        /// The number, as for [`Request::Signal`].
        signal: i32,
    },
    /// The command's terminal has another size.
    Resize(TtySize),
    /// Grant: the client has consumed so many bytes of an output, and as many more may be sent.
    Credit {
        /// The output.
        stream: Stream,
        /// Bytes.
        bytes: u32,
    },
    /// Leave the command running: no more messages about it are sent, its stdin is closed and its
    /// output dropped.
    Release,
    /// Leave the command running as [`Request::Release`] does, but with its stdin open. The output
    /// of the command with the sandbox's lifetime goes to the sandbox's log from now on.
    Leave,
    /// From the creator: the sandbox continues without it. Reply: [`Reply::Detached`].
    Detach,
    /// End the sandbox: the stop signal for its first command, SIGKILL after so many milliseconds,
    /// and a shutdown of the guest. Reply: [`Reply::Stopped`] when the sandbox is over.
    Stop {
        /// Milliseconds between stop signal and SIGKILL.
        grace: u64,
    },
    /// Shut the sandbox down after its commands have ended, without a limit on the time that its
    /// files need to be written. Reply as for [`Request::Stop`].
    End,
    /// Kill the sandbox, which is like a power cut. Reply as for [`Request::Stop`].
    Kill,
    /// End the sandbox, as with [`Request::Stop`], when it has had no command and no client for
    /// `idle_timeout`, or when it is `max_life` old. Milliseconds; 0 stands for never. What is
    /// missing stays as it is. Reply: [`Reply::Expires`].
    Expire {
        /// Milliseconds without commands and clients.
        #[serde(default)]
        idle_timeout: Option<u64>,
        /// Milliseconds since the sandbox was ready for commands.
        #[serde(default)]
        max_life: Option<u64>,
    },
    /// End the sandbox, as [`Request::Expire`] does, in so long from now: its `max_life` becomes its age and
    /// that. The owner counts both itself, so no step of the wall clock changes them. Reply:
    /// [`Reply::Expires`].
    EndIn {
        /// Milliseconds from now.
        millis: u64,
    },
    /// Stop the machine's processors until [`Request::Unpause`]. Reply: [`Reply::Paused`].
    Pause,
    /// Let them run again. Reply: [`Reply::Unpaused`].
    Unpause,
    /// Limit what the sandbox may use, at once and for later starts. Reply: [`Reply::Limited`].
    Limit {
        /// What, and how much of it.
        limit: Limit,
    },
    /// Request for [`Reply::Stats`].
    Stats,
    /// Let this connection be no use of the sandbox while it has no command: the idle timeout runs.
    /// Reply: [`Reply::Uncounted`].
    Uncount,
    /// Give the sandbox another name. Reply: [`Reply::Renamed`].
    Rename {
        /// The name.
        name: String,
    },
    /// Request for [`Reply::Ended`] when the sandbox is over.
    Wait,
    /// Freeze the machine until [`Request::Thaw`]. Reply: [`Reply::Frozen`]. The client repeats
    /// [`Request::Hold`] before [`HOLD_TIMEOUT`](super::HOLD_TIMEOUT) has passed; otherwise the machine is thawed.
    Freeze {
        /// Save the machine as well. The request comes with two empty files as descriptors: one for
        /// the state, one for the memory.
        #[serde(default)]
        memory: bool,
        /// Of the memory, write only the pages that differ from its base, if it has one:
        /// [`Reply::Frozen`] then comes with the base.
        #[serde(default)]
        delta: bool,
    },
    /// The machine must stay frozen.
    Hold,
    /// Thaw the machine. Reply: [`Reply::Thawed`] if it was frozen until now, an error otherwise.
    Thaw,
    /// Request for [`Reply::Info`].
    Info,
}

/// A command, where its streams go, and how it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Exec {
    /// Program and arguments. A program without a slash is looked for in PATH.
    pub argv: Vec<Text>,
    /// A program that takes the place of `argv`'s first if there is no such file; empty for none.
    #[serde(skip_serializing_if = "Text::is_empty")]
    pub fallback: Text,
    /// The environment, names and values. PATH, HOSTNAME, HOME and, on a terminal, TERM are
    /// added if they are missing.
    pub env: Vec<(Text, Text)>,
    /// Working directory, absolute. Empty means `/`.
    pub workdir: Text,
    /// Whether the working directory is made if it is missing; otherwise the command does not start then.
    pub make_workdir: bool,
    /// `name`, `uid`, `name:group` and so on, looked up in the sandbox. Empty means root.
    pub user: String,
    /// What limits it otherwise than the sandbox's commands.
    pub confinement: ConfinementChange,
    /// A terminal of this size in place of pipes.
    pub tty: Option<TtySize>,
    /// Where stdin comes from.
    pub stdin: Place,
    /// Where stdout, or the terminal's output, goes.
    pub stdout: Place,
    /// Where stderr goes.
    pub stderr: Place,
    /// Bytes of stdout, and separately of stderr, that may be sent before the client grants more:
    /// for streams in frames. At most 1 MiB; 0 stands for 256 KiB.
    pub window: u32,
    /// The sandbox ends with this command, and its exit code is the sandbox's. The first such command
    /// is what copies of the machine reattach.
    pub lifetime: bool,
    /// Milliseconds after which the command gets the stop signal; 0 stands for none.
    pub timeout: u64,
    /// Milliseconds between stop signal and SIGKILL after `timeout`.
    pub grace: u64,
    /// Milliseconds that the guest may be silent about the running command while it is the guest's
    /// turn: while output can be taken, and stdin has ended or fills the guest's window. Then the
    /// command is killed and fails with [`Kind::Silent`](super::Kind::Silent); 0 stands for no limit.
    pub answer_timeout: u64,
    /// The command continues when the connection ends.
    pub detach: bool,
    /// [`Reply::Exited`] comes with [`Info`].
    pub measure: bool,
    /// The command gets SIGPIPE when nothing reads an output's descriptor any more. Without this,
    /// the output is dropped.
    pub sigpipe: bool,
    /// Output in frames that the client has granted no bytes for waits until it has, also after SIGKILL, and the end
    /// with it. Without this, that output is dropped. The client leaves a command whose output it does not take.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub output_outlives_kill: bool,
    /// The client's description of the command, for later clients ([`Request::Commands`]); at most
    /// [`MAX_NOTE`](super::MAX_NOTE) bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A command to attach to, and where its streams go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Attach {
    /// Its process ID in the guest, as [`Reply::Started`] has it; none for the first command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// [`Place::Null`], [`Place::Descriptor`] or [`Place::Frames`], as the outputs.
    pub stdin: Place,
    /// A copy of stdout, or of the terminal's output.
    pub stdout: Place,
    /// A copy of stderr.
    pub stderr: Place,
    /// As [`Exec::window`], for the copies.
    pub window: u32,
}

/// What limits a command otherwise than the sandbox's commands. What is missing is as the sandbox has it, so
/// a command has no more rights than the sandbox was made with unless its client asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ConfinementChange {
    /// In place of [`Confinement::capabilities`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<u64>,
    /// In place of [`Confinement::ulimits`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ulimits: Option<Vec<Ulimit>>,
    /// In place of [`Confinement::groups`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
}

impl ConfinementChange {
    /// Returns what limits the command in a sandbox whose commands have `confinement`.
    pub fn of(&self, confinement: &Confinement) -> Confinement {
        let Self {
            capabilities,
            ulimits,
            groups,
        } = self.clone();
        Confinement {
            capabilities: capabilities.or(confinement.capabilities),
            ulimits: ulimits.unwrap_or_else(|| confinement.ulimits.clone()),
            groups: groups.unwrap_or_else(|| confinement.groups.clone()),
            no_new_privileges: confinement.no_new_privileges,
        }
    }
}

/// What a running sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Time of the machine's process, in thousandths of a processor, at least 10; none for all of the
    /// machine's processors.
    Processors(Option<u32>),
    /// Processes and threads of all commands together, at least 1. It counts in a sandbox that was
    /// started with such a limit.
    Processes(u64),
    /// Bytes of frames a second; none for no limit.
    Network {
        /// To the guest.
        incoming: Option<u64>,
        /// From the guest.
        outgoing: Option<u64>,
    },
    /// Traffic of each disk in a second; none for no limit.
    Disk {
        /// Bytes that are read.
        read: Option<u64>,
        /// Bytes that are written.
        write: Option<u64>,
        /// Requests of any kind.
        operations: Option<u64>,
    },
}

/// Where a stream comes from or goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// `/dev/null`.
    #[default]
    Null,
    /// Frames on this connection.
    Frames,
    /// A descriptor that comes with the request, in the order stdin, stdout, stderr.
    Descriptor,
    /// Open and always empty; for stdin only.
    Idle,
    /// The sandbox's log; for outputs only.
    Log,
}

/// One of a command's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Descriptor 1, or the terminal.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// A message from the owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OwnerReply"))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reply {
    /// To the creator, without a request: the sandbox is ready for commands.
    Up(Up),
    /// The command runs.
    Started {
        /// Its process ID inside the sandbox.
        pid: u32,
        /// Bytes of stdin that may be sent before more are granted; 0 if it has no stdin.
        window: u32,
    },
    /// The client is attached to a command.
    Attached {
        /// Its process ID inside the sandbox.
        pid: u32,
        /// Whether it has a terminal.
        tty: bool,
        /// Whether the client has its stdin. Not if it has none, or if another client has it.
        #[serde(default)]
        stdin: bool,
        /// Bytes of stdin that may be sent before more are granted, if it comes in frames.
        #[serde(default)]
        window: u32,
    },
    /// A command that runs, in a list.
    Command {
        /// Its process ID inside the sandbox.
        pid: u32,
        /// Whether it has a terminal.
        tty: bool,
        /// As [`Exec::note`].
        note: String,
    },
    /// The list of commands is complete.
    Listed,
    /// Grant: so many more bytes of stdin may be sent.
    Credit {
        /// Bytes.
        bytes: u32,
    },
    /// Nothing reads the command's stdin any more. Bytes that are still sent are dropped.
    StdinClosed,
    /// The command has ended, and all its output has been sent or written. The last message about
    /// it.
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// Whether it ended because its time was over, without SIGKILL.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        timed_out: bool,
        /// Why its output could not be written to the client's descriptors, if it was not for want of a
        /// reader.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unwritten: Option<String>,
        /// Measurements, if requested.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        info: Option<Info>,
    },
    /// The sandbox continues without its creator; or the client is no longer attached to a command,
    /// because nothing reads the copy of its output.
    Detached,
    /// The first command was sent the signal.
    Signaled,
    /// The sandbox is paused.
    Paused,
    /// The sandbox runs again.
    Unpaused,
    /// The limit is in force.
    Limited,
    /// What the sandbox uses.
    Stats(Stats),
    /// The connection counts only while it has a command.
    Uncounted,
    /// The sandbox has the name.
    Renamed,
    /// When the sandbox ends by itself, in milliseconds as in [`Request::Expire`].
    Expires {
        /// After so long without commands and clients.
        idle_timeout: u64,
        /// At this age.
        max_life: u64,
        /// So long from now, if it is to end at an age.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left: Option<u64>,
    },
    /// The sandbox is over.
    Stopped {
        /// Why its machine was killed, if the guest did not shut down; nothing that the sandbox
        /// keeps was lost.
        killed: Option<String>,
    },
    /// The machine is frozen.
    Frozen {
        /// For a saved machine: the agent's number for the first command, if there was one.
        main: Option<u32>,
        /// The creator's description of a saved machine.
        #[serde(default)]
        note: serde_json::Value,
        /// The memory was written as a delta; a descriptor of its base comes with the message.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        base: bool,
    },
    /// The machine was frozen until now, and runs again.
    Thawed,
    /// Information about the sandbox.
    Info(Info),
    /// To the creator, without a request: whether the guest's writes wait because the host's disk
    /// is full.
    Stalled {
        /// Whether they wait.
        stalled: bool,
    },
    /// The sandbox is over. To the creator, without a request, as the last message.
    Ended {
        /// The exit code of the first command, if the sandbox's life was bound to one.
        code: Option<u8>,
        /// What went wrong at the end, if anything.
        failure: Option<Failure>,
    },
    /// The request failed.
    Failed(Failure),
}

/// A sandbox that is ready for commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Up {
    /// The directory of the sandbox's state, where its socket is.
    pub directory: PathBuf,
}

/// What a running sandbox uses of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stats {
    /// Microseconds of processor time since its start.
    pub processor_time: u64,
    /// Bytes of resident memory that are its machine's own: the guest's memory, as far as it was
    /// written, and that of the monitor. None if nothing counts it: a container's files in memory belong to its
    /// control group.
    pub own_memory: Option<u64>,
    /// Bytes of resident memory that are of files, which sandboxes share: the image's, and those of
    /// a template or snapshot that it has not written to. None if nothing counts it.
    pub shared_memory: Option<u64>,
    /// Whether anything keeps it from more memory than it was given.
    #[serde(default)]
    pub memory_limited: bool,
    /// Whether anything keeps it from more processors than it was given.
    #[serde(default)]
    pub processors_limited: bool,
    /// Bytes read from disks since its start; none if the host does not say.
    pub disk_read: Option<u64>,
    /// Bytes written to disks.
    pub disk_written: Option<u64>,
    /// Bytes of ethernet frames that it has received since its start; none without a network.
    pub network_received: Option<u64>,
    /// Bytes of ethernet frames that it has sent.
    pub network_sent: Option<u64>,
}

/// Information about a running sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Info {
    /// Whether the guest's writes wait because the host's disk is full.
    pub stalled: bool,
    /// Whether the sandbox is about to end.
    pub ending: bool,
    /// The signal that asks the first command to end.
    pub stop_signal: i32,
    /// Bytes of memory that the machine does not share.
    pub own_memory: Option<u64>,
    /// Microseconds from the machine's start to the agent's first message; None in a copy.
    pub hello: Option<u64>,
    /// Microseconds of that in the guest's kernel, by its own account.
    pub kernel: u64,
    /// Microseconds from the machine's start until the sandbox was ready.
    pub ready: u64,
    /// The agent's steps until then.
    pub phases: Vec<Phase>,
    /// Microseconds from then until the first command ran.
    pub exec: Option<u64>,
    /// Microseconds from then until its first output.
    pub first_output: Option<u64>,
}
