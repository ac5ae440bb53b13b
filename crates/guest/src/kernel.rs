//! Whose kernel the sandbox runs on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{LazyLock, Mutex};

use micabox_ground::lock;
use rustix::io::{FdFlags, fcntl_setfd};

/// The first argument of an agent that is the first process of a container. The number of the channel's
/// descriptor follows, and `SERIAL=NUMBER` for each disk, which is a mount already.
const ARGUMENT: &str = "--on-host";

/// Whose kernel the sandbox runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The machine's, which the sandbox is alone on.
    Own,
    /// The host's, which others depend on: the agent is root of a user namespace, and commands are
    /// confined.
    Hosts,
}

/// Returns whether root is the only user and the only group: in a user namespace of a user without
/// subordinate IDs. Asked first by the agent itself, which sees `/proc`.
pub fn has_one_user() -> bool {
    static HAS_ONE: LazyLock<bool> = LazyLock::new(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().nth(2) == Some("1")
    });
    *HAS_ONE
}

/// What a container's agent inherits.
#[derive(Debug)]
pub struct Inherited {
    /// The channel to the host.
    pub channel: OwnedFd,
    /// Detached mounts by the serial numbers of their disks.
    pub disks: Disks,
}

/// Disks that are mounts already.
#[derive(Debug, Default)]
pub struct Disks(Mutex<BTreeMap<String, OwnedFd>>);

impl Disks {
    /// Takes a disk's mount; None if there is no such disk, or it was taken before.
    pub fn take(&self, serial: &str) -> Option<OwnedFd> {
        let mut disks = lock(&self.0);
        disks.remove(serial)
    }
}

impl Inherited {
    /// Returns what this process inherits, by its arguments without its name; None in a machine.
    ///
    /// # Errors
    /// If the arguments name something else than open descriptors.
    pub fn by(arguments: impl Iterator<Item = OsString>) -> Result<Option<Self>, String> {
        let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
        if arguments.next().is_none_or(|first| first != ARGUMENT) {
            return Ok(None);
        }
        let channel = take(&arguments.next().unwrap_or_default())?;
        let disks = arguments.map(|argument| {
            let (serial, number) = argument.split_once('=').ok_or("a disk without a mount")?;
            Ok((serial.to_owned(), take(number)?))
        });
        let disks = disks.collect::<Result<_, String>>()?;
        Ok(Some(Self {
            channel,
            disks: Disks(Mutex::new(disks)),
        }))
    }
}

/// Takes ownership of an inherited descriptor, which no command inherits.
fn take(number: &str) -> Result<OwnedFd, String> {
    let parsed: RawFd = number
        .parse()
        .map_err(|_| format!("descriptor `{number}`"))?;
    // SAFETY: fcntl(2) touches no memory.
    if parsed < 3 || unsafe { libc::fcntl(parsed, libc::F_GETFD) } == -1 {
        return Err(format!("descriptor {number} is not open"));
    }
    // SAFETY: it is open, and the host names each descriptor once.
    let taken = unsafe { OwnedFd::from_raw_fd(parsed) };
    fcntl_setfd(&taken, FdFlags::CLOEXEC)
        .map_err(|errno| format!("descriptor {number}: {errno}"))?;
    Ok(taken)
}
