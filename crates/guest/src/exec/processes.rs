//! Lists the sandbox's processes, for hosts whose users have no ps(1) in the image.

use std::fs;
use std::io::{self, Write};

/// Bytes of a process's arguments that are listed.
const MAX_ARGUMENTS: usize = 512;

/// Bytes of a page, in KiB.
const PAGE: u64 = 4;

/// Writes the list ([`micabox_wire::PROCESSES`]) without the agent's own processes.
pub fn write(own: &[i32], to: &mut impl Write) -> io::Result<()> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    let seconds = uptime.split(' ').next().unwrap_or_default();
    let mut list = format!("uptime {seconds}\n").into_bytes();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if own.contains(&pid) {
            continue;
        }
        // One that has ended meanwhile is left out.
        if let Some(line) = line(pid) {
            list.extend_from_slice(&line);
        }
    }
    to.write_all(&list)
}

/// Returns a process's line.
fn line(pid: i32) -> Option<Vec<u8>> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
    let stat = Stat::parse(&read("stat")?)?;
    let status = read("status")?;
    let status = String::from_utf8_lossy(&status);
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uid = uid.split_ascii_whitespace().nth(1)?;
    let Stat {
        state,
        parent,
        terminal,
        ticks,
        started,
        resident,
        ..
    } = &stat;
    let head = format!("{pid} {parent} {uid} {state} {terminal} {ticks} {started} {resident} ");
    let mut line = head.into_bytes();
    line.extend(arguments(read("cmdline").unwrap_or_default(), &stat.name));
    line.push(b'\n');
    Some(line)
}

/// Formats arguments for one line; without any, the process's name in brackets as ps(1) does.
fn arguments(mut bytes: Vec<u8>, name: &[u8]) -> Vec<u8> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    if bytes.is_empty() {
        bytes = [b"[", name, b"]"].concat();
    }
    bytes.truncate(MAX_ARGUMENTS);
    for byte in &mut bytes {
        match *byte {
            0 => *byte = b' ',
            0x01..=0x1f | 0x7f => *byte = b'?',
            _ => {}
        }
    }
    bytes
}

/// The part of `/proc/PID/stat` that is listed.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: Vec<u8>,
    state: char,
    parent: i32,
    terminal: i32,
    ticks: u64,
    started: u64,
    /// KiB.
    resident: u64,
}

impl Stat {
    fn parse(stat: &[u8]) -> Option<Self> {
        // A name may have brackets and blanks.
        let begin = stat.iter().position(|byte| *byte == b'(')?;
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let name = stat.get(begin + 1..end)?.to_vec();
        let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            name,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            terminal: fields.get(4)?.parse().ok()?,
            ticks: number(11)?.saturating_add(number(12)?),
            started: number(19)?,
            resident: number(21)?.saturating_mul(PAGE),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed_as_it_is() {
        let own = std::process::id().cast_signed();
        let mut list = Vec::new();
        write(&[], &mut list).unwrap();
        let list = String::from_utf8_lossy(&list);
        let mut lines = list.lines();
        assert!(lines.next().unwrap().starts_with("uptime "));
        let ours = lines.find(|line| line.starts_with(&format!("{own} ")));
        let fields: Vec<_> = ours.unwrap().splitn(9, ' ').collect();
        let parent = std::os::unix::process::parent_id().to_string();
        assert_eq!(fields[1], parent);
        assert_eq!(fields[2], rustix::process::geteuid().as_raw().to_string());
        let program = std::env::args().next().unwrap();
        assert!(fields[8].starts_with(&program), "{fields:?}");
        let mut list = Vec::new();
        write(&[own], &mut list).unwrap();
        assert!(!String::from_utf8_lossy(&list).contains(&format!("\n{own} ")));
    }

    #[test]
    fn odd_names_and_arguments_stay_on_their_line() {
        let stat = b"7 (a) b (c) S 1 7 7 34816 9 0 0 0 0 0 3 4 0 0 20 0 1 0 55 0 10 0";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!(stat.name, b"a) b (c");
        let numbers = (stat.parent, stat.terminal, stat.ticks, stat.started);
        assert_eq!(numbers, (1, 34816, 7, 55));
        assert_eq!(stat.resident, 40);
        assert_eq!(arguments(b"a\0b\n\0".to_vec(), b"x"), b"a b?");
        assert_eq!(arguments(Vec::new(), b"x"), b"[x]");
        assert_eq!(arguments(vec![b'x'; 5000], b"x").len(), MAX_ARGUMENTS);
        assert_eq!(Stat::parse(b"7 (a) S"), None);
        assert_eq!(Stat::parse(b"nonsense"), None);
    }
}
