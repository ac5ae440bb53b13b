//! What processes use, and their machines' exits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{MEMORY_MIB, Result, trace};

/// A process and all below it.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            at += 1;
            continue;
        };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            found.extend(
                children
                    .split(' ')
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        at += 1;
    }
    found
}

/// Whether the process is a sandbox's owner.
pub fn is_owner(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.starts_with(b"mica-owner\0")
}

/// Seconds of CPU that the processes had so far, what they ran of their guests included.
pub fn cpu(pids: &[u32]) -> f64 {
    pids.iter().map(|pid| cpu_of(*pid)).sum()
}

fn cpu_of(pid: u32) -> f64 {
    /// `CPUCLOCK_SCHED`, of a whole process.
    const SCHEDULED: i32 = 2;
    let clock = (!(pid.cast_signed()) << 3) | SCHEDULED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a timespec that lives.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => time.tv_sec as f64 + time.tv_nsec as f64 / 1e9,
        _ => 0.0,
    }
}

/// Seconds of CPU that this process's children had which have ended.
pub fn ended() -> std::io::Result<f64> {
    // SAFETY: plain data, valid when zero, which the call writes to.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        match libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) {
            0 => usage,
            _ => return Err(std::io::Error::last_os_error()),
        }
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// The time now, as in [`trace`].
pub fn now() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a timespec that lives.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs a command: seconds until its first output, and until its end.
pub fn watch(command: &mut Command) -> Result<(f64, f64)> {
    let begun = now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = [0; 4];
    child
        .stdout
        .as_mut()
        .ok_or("no stdout")?
        .read_exact(&mut said)?;
    let output = now() - begun;
    let status = child.wait()?;
    let exit = now() - begun;
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok((output, exit))
}

/// The machines that there are in the kernel.
pub fn machines() -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(trace::counters()?)? {
        let path = entry?.path();
        if path.is_dir() {
            found.insert(path);
        }
    }
    Ok(found)
}

/// KVM's counters of the machines that weren't there `before`: those that aren't 0. They are
/// not found by their processes, whose numbers are others inside a container.
pub fn counters(before: &BTreeSet<PathBuf>) -> Result<Value> {
    let mut found = BTreeMap::<String, u64>::new();
    for machine in machines()?.difference(before) {
        for counter in fs::read_dir(machine)? {
            let counter = counter?;
            let Ok(text) = fs::read_to_string(counter.path()) else {
                continue; // a directory: of a processor
            };
            if let (Ok(name), Ok(value)) = (
                counter.file_name().into_string(),
                text.trim().parse::<u64>(),
            ) && value != 0
            {
                *found.entry(name).or_default() += value;
            }
        }
    }
    Ok(json!(found))
}

/// Bytes of memory in one kind of mapping.
#[derive(Default)]
struct Bytes {
    resident: u64,
    proportional: u64,
    private: u64,
}

impl Bytes {
    fn value(&self) -> Value {
        json!({"rss": self.resident, "pss": self.proportional, "private": self.private})
    }
}

/// The processes' memory, in bytes: the guest's RAM, the image's files, and all else.
pub fn memory(pids: &[u32]) -> Value {
    let (mut ram, mut image, mut own) = <(Bytes, Bytes, Bytes)>::default();
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
        // A mapping's first line, and where what follows belongs.
        let mut kind = 2;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let Some(name) = name.strip_suffix(':') else {
                let range = name.split_once('-').and_then(|(start, end)| {
                    let parse = |word| u64::from_str_radix(word, 16).ok();
                    parse(end)?.checked_sub(parse(start)?)
                });
                kind = match line {
                    _ if line.ends_with(".erofs") => 1,
                    // What a copy has in place of its base's pages is in smaller mappings.
                    _ if line.contains("/memory") => 0,
                    _ if range >= Some(u64::from(MEMORY_MIB) << 20) => 0,
                    _ => 2,
                };
                continue;
            };
            let value: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            let bytes = [&mut ram, &mut image, &mut own].into_iter().nth(kind);
            let Some(bytes) = bytes else { continue };
            match name {
                "Rss" => bytes.resident += value << 10,
                "Pss" => bytes.proportional += value << 10,
                "Private_Clean" | "Private_Dirty" => bytes.private += value << 10,
                _ => {}
            }
        }
    }
    json!({"ram": ram.value(), "image": image.value(), "own": own.value()})
}

/// Runs a command so many times to its end, after once that is not counted.
pub fn repeat(who: &str, rounds: usize, make: impl Fn() -> Command) -> Result<Vec<Value>> {
    let mut lines = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        let mut command = make();
        let begun = now();
        let status = command.stdin(Stdio::null()).status()?;
        let seconds = now() - begun;
        if !status.success() {
            return Err(format!("{command:?}: {status}").into());
        }
        if let Some(round) = round.checked_sub(1) {
            lines.push(json!({"who": who, "what": "exit", "round": round, "seconds": seconds}));
        }
    }
    Ok(lines)
}
