//! What an owner is given: a machine, its guest's start, and what keeps the sandbox's record.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use micabox_vmm::Machine;
use micabox_wire::{Boot, Confinement, Identity, Setup};

use crate::protocol::{Failure, Limit, Stream};

/// A machine that has just been started, and what its owner needs.
pub struct Launch {
    /// The machine.
    pub machine: Arc<dyn Machine>,
    /// How its guest starts.
    pub start: Start,
    /// How long the guest may take to start, and later to answer that a command runs.
    pub timeout: Duration,
    /// Runs the sandbox's network until it is dropped. Dropped after the machine, which would
    /// otherwise see its link go down.
    pub network: Option<Box<dyn Network>>,
    /// The file of the disk that the guest must flush before it ends, if there is one.
    pub disk: Option<PathBuf>,
    /// Whether the machine holds nothing that another sandbox may ask for: no disk, no port of the
    /// host, no socket's path. The sandbox is then over when the command with its lifetime has
    /// ended, and its machine is cleaned up afterwards.
    pub holds_nothing: bool,
    /// Called once with the machine, when the command with the sandbox's lifetime has ended.
    pub learn: Option<Learn>,
    /// The signal that asks the first command to end.
    pub stop_signal: i32,
    /// What limits the sandbox's commands, unless their clients want something else.
    pub confinement: Confinement,
    /// The description for clients that save the machine, or why it can't be saved.
    pub saves: Result<serde_json::Value, String>,
    /// The directory of the sandbox's state, for the socket.
    pub directory: PathBuf,
    /// The creator's connection. The sandbox ends with it, unless it is detached.
    pub creator: UnixStream,
    /// Keeps the sandbox's record and log.
    pub registrar: Box<dyn Registrar>,
}

/// What stays the same of a sandbox.
#[derive(Debug)]
pub(super) struct Sandbox {
    /// As those of [`Launch`].
    pub(super) disk: Option<PathBuf>,
    pub(super) holds_nothing: bool,
    pub(super) stop_signal: i32,
    pub(super) confinement: Confinement,
    pub(super) directory: PathBuf,
}

/// Is called with a machine that is about to end, to keep something of it for later machines.
/// Must return quickly.
pub type Learn = Box<dyn FnOnce(&dyn Machine) + Send>;

/// How a guest starts.
pub enum Start {
    /// The kernel boots, and the agent sets up the root.
    Boot(Box<Boot>),
    /// The machine is a copy of a saved one.
    Restore {
        /// The copy's own identity.
        identity: Box<Identity>,
        /// The agent's number for the command to reattach as the copy's first one.
        main: Option<u32>,
        /// What the copy has in addition to what the original has.
        setup: Setup,
    },
}

/// A sandbox's network, which runs until it is dropped.
pub trait Network: Send {
    /// Returns the bytes of frames that the guest has received, and those that it has sent.
    fn traffic(&self) -> (u64, u64);

    /// Limits the traffic to and from the guest from now on, in bytes of frames a second.
    fn limit(&self, incoming: Option<u64>, outgoing: Option<u64>);
}

/// Keeps a sandbox's record and log.
pub trait Registrar: Send {
    /// Marks the sandbox as running. Called after the socket is bound: clients that see Running may
    /// connect at once.
    ///
    /// # Errors
    /// Those of the record's file; the start fails.
    fn running(&mut self) -> io::Result<()>;

    /// Marks the sandbox as one that continues without its creator.
    ///
    /// # Errors
    /// Those of the record's file; the creator's request fails.
    fn detached(&mut self) -> io::Result<()>;

    /// Gives the sandbox another name.
    ///
    /// # Errors
    /// Those of the record's file, and if another sandbox has the name; the client's request fails.
    fn rename(&mut self, name: &str) -> io::Result<()>;

    /// Marks the sandbox as paused, or as running again.
    ///
    /// # Errors
    /// Those of the record's file.
    fn paused(&mut self, is_paused: bool) -> io::Result<()>;

    /// Records when the sandbox ends by itself, for later starts; milliseconds, 0 for never.
    ///
    /// # Errors
    /// Those of the record's file.
    fn expires(&mut self, idle_timeout: u64, max_life: u64) -> io::Result<()>;

    /// Records what the sandbox may use, for later starts.
    ///
    /// # Errors
    /// Those of the record's file.
    fn limited(&mut self, limit: Limit) -> io::Result<()>;

    /// Notes what a client did with the sandbox, for readers of its events.
    fn event(&mut self, action: &str, attributes: &[(&str, String)]);

    /// Appends a command's output to the log. A full disk must not end the command.
    fn log(&mut self, stream: Stream, bytes: &[u8]);

    /// Marks the sandbox as ended.
    fn ended(&mut self, outcome: &Outcome<'_>);
}

/// How a sandbox ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The exit code of the command with the sandbox's lifetime, if there was one.
    pub code: Option<u8>,
    /// What went wrong, if anything.
    pub failure: Option<&'a Failure>,
    /// Whether it ended because its creator died.
    pub is_abandoned: bool,
    /// Whether a machine that could not be killed still uses the sandbox's disk.
    pub disk_is_in_use: bool,
}
