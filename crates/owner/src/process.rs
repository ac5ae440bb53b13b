//! Identifies processes by PID, start time and boot, since PIDs are reused.

use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process: its PID, and when it started, since PIDs are reused. Records of it outlive the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The PID.
    pub pid: u32,
    /// When it started: clock ticks since the host's boot, field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
    /// The host's boot: the first 48 bits of `/proc/sys/kernel/random/boot_id`. 0 in records of older
    /// versions, and if the kernel has no boot ID: any boot.
    #[serde(default)]
    pub boot: u64,
}

impl ProcessId {
    /// Returns the running process with this PID.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self {
            pid,
            start_time: start_time(pid)?,
            boot: boot(),
        })
    }

    /// Returns the calling process.
    pub fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Kills the process if it still runs. Another process with the same PID is never hit: a pidfd
    /// pins the PID before the start time is checked.
    pub fn kill(self) {
        if let Some(handle) = self.open() {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }

    /// Kills the process if it still runs, and waits until it is gone and has closed its files;
    /// false if that takes longer than `patience`.
    pub fn end(self, patience: Duration) -> bool {
        let Some(handle) = self.open() else {
            return true;
        };
        let _ = pidfd_send_signal(&handle, Signal::KILL);
        let patience = Timespec::try_from(patience).ok();
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, patience.as_ref())).is_ok_and(|count| count > 0)
    }

    /// Returns whether the process is gone or a zombie: none of its threads runs any more.
    pub fn has_ended(self) -> bool {
        self.open().is_none() || matches!(state(self.pid), Some('Z' | 'X') | None)
    }

    /// Returns whether a signal has stopped the process (`SIGSTOP`, Ctrl-Z).
    pub fn is_stopped(self) -> bool {
        self.open().is_some() && matches!(state(self.pid), Some('T' | 't'))
    }

    fn open(self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid.cast_signed())?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let is_same = start_time(self.pid) == Some(self.start_time);
        (is_same && (self.boot == 0 || self.boot == boot())).then_some(handle)
    }
}

/// Returns the number of the host's boot, 0 if the kernel has no boot ID.
fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(12)
            .collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0)
    })
}

/// Returns the processor time of a running process and its descendants in clock ticks, those that have ended and were
/// waited for among them. The machine may run in a descendant.
pub fn processor_time(pid: u32) -> Option<u64> {
    let own = times(&stat(pid)?)?;
    let children = children(pid).into_iter().filter_map(processor_time);
    Some(own + children.sum::<u64>())
}

/// Parses fields 14 to 17 of a stat line: the process's time, and that of children that it has waited for.
fn times(stat: &str) -> Option<u64> {
    let times = fields(stat)?.skip(11).take(4);
    times.map(|time| time.parse::<u64>().ok()).sum()
}

/// Returns the bytes of anonymous memory of a process and its descendants. The
/// machine may run in a descendant.
pub fn private_memory(pid: u32) -> Option<u64> {
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let children = children(pid).into_iter().filter_map(private_memory);
    Some(resident.saturating_sub(shared) * PAGE + children.sum::<u64>())
}

/// Memory and disk use of a process and its descendants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resources {
    /// Bytes of resident memory that are not of files.
    pub own: u64,
    /// Bytes of resident memory that are of files, which other processes may share.
    pub shared: u64,
    /// Bytes read from and written to disks; none if the kernel does not count them.
    pub disk: Option<(u64, u64)>,
}

/// Returns what a process and its descendants use. The machine may run in a descendant.
pub fn resources(pid: u32) -> Resources {
    let read = |file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let (status, io) = (read("status"), read("io"));
    let number = |text: &str, name: &str| -> Option<u64> {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_ascii_whitespace().next()?.parse().ok()
    };
    let bytes = |name| number(&status, name).unwrap_or(0) * 1024;
    let own = Resources {
        own: bytes("RssAnon") + bytes("RssShmem"),
        shared: bytes("RssFile"),
        disk: number(&io, "read_bytes").zip(number(&io, "write_bytes")),
    };
    let children = children(pid).into_iter().map(resources);
    children.fold(own, |sum, child| Resources {
        own: sum.own + child.own,
        shared: sum.shared + child.shared,
        disk: match (sum.disk, child.disk) {
            (Some(a), Some(b)) => Some((a.0 + b.0, a.1 + b.1)),
            (a, b) => a.or(b),
        },
    })
}

/// Returns whether a thread of a process, or of a descendant, waits for the host's disk.
pub fn waits_for_disk(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let mut threads = threads.flatten().flatten();
    threads.any(|thread| {
        let stat = std::fs::read(thread.path().join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        fields(&stat).and_then(|mut fields| fields.next()) == Some("D")
    }) || children(pid).into_iter().any(waits_for_disk)
}

/// Returns a process's children, whichever of its threads started them.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let lists = threads.flatten().flatten().map(|thread| {
        let children = std::fs::read_to_string(thread.path().join("children"));
        children.unwrap_or_default()
    });
    let children = lists.flat_map(|list| {
        let children = list.split_ascii_whitespace();
        let children = children.filter_map(|child| child.parse().ok());
        children.collect::<Vec<u32>>()
    });
    children.collect()
}

fn stat(pid: u32) -> Option<String> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    Some(String::from_utf8_lossy(&stat).into_owned())
}

fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&stat(pid)?)
}

fn state(pid: u32) -> Option<char> {
    fields(&stat(pid)?)?.next()?.chars().next()
}

/// Parses field 22 of a stat line.
fn parse_start_time(stat: &str) -> Option<u64> {
    fields(stat)?.nth(19)?.parse().ok()
}

/// Returns the fields from the third on. The second one is the program's name in parentheses, which
/// may itself have parentheses and spaces.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_name_with_parentheses_does_not_shift_the_stat_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        assert_eq!(parse_start_time(stat), Some(12345));
        assert_eq!(parse_start_time("7 (a) S 1"), None);
        assert_eq!(parse_start_time(""), None);
    }

    #[test]
    fn the_time_of_children_that_have_ended_counts() {
        let stat = "7 (a) S 1 7 7 0 -1 4194560 1 0 0 0 1 20 300 4000 20 0 1 0 12345 0 0";
        assert_eq!(times(stat), Some(4321));
        assert_eq!(times("7 (a) S 1"), Some(0));
    }

    #[test]
    fn a_recycled_process_id_is_not_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let right = ProcessId::of(child.id()).unwrap();
        assert_ne!(right.boot, 0);
        let others = [
            ProcessId {
                start_time: right.start_time + 1,
                ..right
            },
            ProcessId {
                boot: right.boot + 1,
                ..right
            },
        ];
        for wrong in others {
            wrong.kill();
            assert!(wrong.has_ended());
            assert!(child.try_wait().unwrap().is_none());
        }
        right.kill();
        assert!(!child.wait().unwrap().success());
        assert_eq!(ProcessId::of(child.id()), None);
    }

    #[test]
    fn a_process_that_has_ended_holds_no_files() {
        let (mut ours, theirs) = std::io::pipe().unwrap();
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdout(theirs)
            .spawn()
            .unwrap();
        let process = ProcessId::of(child.id()).unwrap();
        assert!(process.end(micabox_testing::PATIENCE));
        // The child has not been reaped yet.
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
        assert!(process.end(Duration::ZERO));
        child.wait().unwrap();
        assert!(process.end(Duration::ZERO));
    }
}
