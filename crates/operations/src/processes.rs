//! The processes in a running sandbox, as its agent lists them.

use std::time::Duration;

use micabox_owner::protocol::{Exec, Text};
use micabox_wire::PROCESSES;
use serde::Serialize;

/// Ticks a second.
const TICKS: f64 = 100.0;

/// A process in a sandbox, by the guest's own account.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GuestProcess {
    /// Its ID, as other processes in the sandbox see it.
    pub pid: u32,
    /// Its parent's ID; 0 for one that was started from outside.
    pub parent: u32,
    /// The effective user ID.
    pub uid: u32,
    /// The kernel's letter for its state: `R`, `S`, `D`, `Z`, `T` and others.
    pub state: char,
    /// The number of its terminal below `/dev/pts`, if it has one.
    pub terminal: Option<u32>,
    /// How much time processors have spent on it.
    pub time: Duration,
    /// How long ago it started.
    pub age: Duration,
    /// Bytes of memory that it has resident.
    pub resident: u64,
    /// Its arguments with blanks between, or its name in brackets if it has none. Long ones are cut,
    /// and control characters replaced.
    pub command: String,
}

/// Milliseconds that the guest may be silent while it makes the list.
const ANSWER_TIMEOUT: u64 = 60_000;

impl GuestProcess {
    /// Most bytes of a list. A guest's processes are bounded by its memory, but the guest may lie.
    pub const MAX_LIST: u64 = 16 << 20;

    /// Makes the request for a list, without streams.
    pub fn request() -> Exec {
        Exec {
            argv: vec![Text(PROCESSES.to_vec())],
            answer_timeout: ANSWER_TIMEOUT,
            ..Exec::default()
        }
    }

    /// Parses the list that the agent writes; None if it is malformed.
    pub fn parse_list(list: &[u8]) -> Option<Vec<Self>> {
        parse(&String::from_utf8_lossy(list))
    }
}

fn parse(list: &str) -> Option<Vec<GuestProcess>> {
    let mut lines = list.lines();
    let uptime: f64 = lines.next()?.strip_prefix("uptime ")?.parse().ok()?;
    lines.map(|line| process(line, uptime)).collect()
}

fn process(line: &str, uptime: f64) -> Option<GuestProcess> {
    let mut fields = line.splitn(9, ' ');
    let mut next = || fields.next();
    let pid = next()?.parse().ok()?;
    let parent = next()?.parse().ok()?;
    let uid = next()?.parse().ok()?;
    let state = next()?.chars().next()?;
    let terminal: u32 = next()?.parse().ok()?;
    let ticks: f64 = next()?.parse().ok()?;
    let started: f64 = next()?.parse().ok()?;
    let kib: u64 = next()?.parse().ok()?;
    // A clock that is read later may be behind.
    let seconds =
        |seconds: f64| Duration::try_from_secs_f64(if seconds < 0.0 { 0.0 } else { seconds }).ok();
    Some(GuestProcess {
        pid,
        parent,
        uid,
        state,
        terminal: pts(terminal),
        time: seconds(ticks / TICKS)?,
        age: seconds(uptime - started / TICKS)?,
        resident: kib.checked_mul(1024)?,
        command: next()?.to_owned(),
    })
}

/// Returns the number of a Unix98 terminal from the kernel's device number, whose majors are 136 to
/// 143.
fn pts(device: u32) -> Option<u32> {
    let (major, minor) = (
        (device >> 8) & 0xfff,
        (device & 0xff) | ((device >> 12) & 0xf_ff00),
    );
    (136..=143)
        .contains(&major)
        .then(|| ((major - 136) << 20) | minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_may_be_silent_for_as_long_as_in_every_language() {
        let table = include_str!("../../../sdk/cases.json");
        let table: serde_json::Value = serde_json::from_str(table).unwrap();
        let limits = ["processes", "files"].map(|what| table["limits"][what].as_u64());
        let files = u64::try_from(crate::FILE_ANSWER_TIMEOUT.as_millis()).unwrap();
        assert_eq!(limits, [Some(ANSWER_TIMEOUT), Some(files)]);
    }

    #[test]
    fn a_list_of_processes_is_parsed_and_nonsense_is_refused() {
        let list = "uptime 100.50\n1 0 0 S 0 7 9000 1024 /bin/sh -c x\n\
                    12 1 1000 R 34817 150 10000 4 [kworker]\n";
        let processes = parse(list).unwrap();
        assert_eq!(processes.len(), 2);
        let second = &processes[1];
        assert_eq!((second.pid, second.parent, second.uid), (12, 1, 1000));
        assert_eq!(second.terminal, Some(1));
        assert_eq!(second.time, Duration::from_millis(1500));
        assert_eq!(second.age, Duration::from_millis(500));
        assert_eq!(second.resident, 4096);
        assert_eq!(processes[0].command, "/bin/sh -c x");
        for nonsense in [
            "",
            "uptime\n",
            "uptime x\n",
            "uptime 1\n1 2\n",
            "uptime 1\n1 0 0 S 0 7 9000 18446744073709551615 x\n",
            "uptime 1\n-1 0 0 S 0 7 9000 1 x\n",
            "uptime nan\n1 0 0 S 0 nan 9000 1 x\n",
        ] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }
}
