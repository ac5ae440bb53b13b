//! A process to start: its program, what it inherits, and what limits it.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use micabox_jail::{Claim, Kind, Quota};
use micabox_spec::Machine;

use crate::Error;
use crate::backend::Exit;

/// A process that a backend starts.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    /// The name that `ps` shows in place of the program's path.
    pub(crate) name: Option<String>,
    pub(crate) arguments: Vec<OsString>,
    /// The kind of worker that the program becomes with these arguments, and its description's descriptor, if
    /// a fork of this process may take the program's place.
    pub(crate) forked: Option<(Kind, RawFd)>,
    /// Descriptors that the process inherits under the same numbers, except for the channels.
    pub(crate) files: Vec<SharedDescriptor>,
    /// Maximum bytes of address space.
    pub(crate) address_space: u64,
    /// Maximum length in bytes of a file that the process writes to; 0 if it writes none.
    pub(crate) file_size: u64,
    /// Maximum number of descriptors.
    pub(crate) descriptors: u64,
    /// The capabilities that root keeps.
    pub(crate) capabilities: &'static [libc::c_ulong],
    /// Bytes of the machine's RAM; 0 if the process takes no requests to save it.
    pub(crate) saves: u64,
    /// The memory that the machine is restored with, or its base.
    pub(crate) base: Option<Arc<File>>,
    /// Whether the process's end of the channel for requests is QEMU's monitor.
    pub(crate) monitored: bool,
    /// Converts an exit code other than 0.
    pub(crate) failure: fn(code: i32, message: String) -> Exit,
    /// Limits of the process's control group, where one is available.
    pub(crate) quota: Quota,
    /// Thousandths of a processor that it may use where nothing limits its time.
    pub(crate) whole_time: u64,
    /// Whether it is a container: the machine is paused by freezing all processes of its control group, which alone
    /// counts and limits what they have.
    pub(crate) is_container: bool,
    /// The machine's size and limits.
    pub(crate) machine: Machine,
    /// The user that the process becomes.
    pub(crate) claim: Option<Claim>,
    /// A value to drop when the process is gone.
    pub(crate) attached: Option<Box<dyn Attached>>,
}

/// An open descriptor of any kind.
pub(crate) trait Descriptor: AsFd + std::fmt::Debug + Send + Sync {}

impl<T: AsFd + std::fmt::Debug + Send + Sync> Descriptor for T {}

/// A descriptor that stays open until a process has inherited it.
pub(crate) type SharedDescriptor = Arc<dyn Descriptor>;

/// A part of a machine outside of its process.
pub(crate) trait Attached: std::fmt::Debug + Send + Sync {}

impl<T: std::fmt::Debug + Send + Sync> Attached for T {}

/// The byte streams between a machine's process and its owner.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(super) agent: (UnixStream, UnixStream),
    pub(super) console: (UnixStream, UnixStream),
    pub(super) control: (UnixStream, UnixStream),
}

/// The child's ends of its channels, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    /// A stream socket for the agent's port.
    pub(crate) agent: RawFd,
    /// A stream socket for the serial console.
    pub(crate) console: RawFd,
    /// A stream socket for requests ([`super::control`]).
    pub(crate) control: RawFd,
}

impl Channels {
    pub(crate) fn new() -> Result<Self, Error> {
        let system = |what| move |source| Error::System { what, source };
        Ok(Self {
            agent: UnixStream::pair().map_err(system("making the agent's channel"))?,
            console: UnixStream::pair().map_err(system("making the console's channel"))?,
            control: UnixStream::pair().map_err(system("making a channel for requests"))?,
        })
    }

    pub(crate) fn descriptors(&self) -> Descriptors {
        Descriptors {
            agent: self.agent.1.as_raw_fd(),
            console: self.console.1.as_raw_fd(),
            control: self.control.1.as_raw_fd(),
        }
    }
}
