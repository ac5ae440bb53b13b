//! Containers of `--backend host`, and what is left of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use super::{Finished, Home, Running, wait_until};

/// Flags of every sandbox here.
pub const HOST: [&str; 4] = ["run", "--backend", "host", "--quiet"];

/// Numbers of `/proc/self/uid_map` inside: the first user outside is the second one.
pub const USERS: &str = "awk '{print $2}' /proc/self/uid_map";

pub fn arguments<'a>(flags: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&HOST[..], flags, &["box"], command].concat()
}

pub fn run(home: &Home, flags: &[&str], command: &[&str]) -> Finished {
    home.output(&arguments(&[&["--rm"], flags].concat(), command))
}

pub fn sh(home: &Home, script: &str) -> Finished {
    run(home, &[], &["sh", "-c", script])
}

/// Starts a sandbox `it` that prints the first of its users, which is returned, and sleeps.
pub fn sleeping(home: &Home, flags: &[&str]) -> (Running, u32) {
    let script = format!("{USERS}; exec sleep 1000");
    let flags = [&["--name", "it"], flags].concat();
    let mut running = home.start(&arguments(&flags, &["sh", "-c", &script]));
    let first = running.line().trim().parse().unwrap();
    (running, first)
}

/// Returns the processes that run as a container's users.
pub fn processes_of(first: u32) -> Vec<String> {
    let users = first..first + 65536;
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ours = processes.filter_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        pid.parse::<u32>().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        // One that has ended, and that this machine's process 1 has not waited for, is gone.
        if status.contains("\nState:\tZ") {
            return None;
        }
        let line = status.lines().find(|line| line.starts_with("Uid:"))?;
        let user = line.split_whitespace().nth(1)?.parse().ok()?;
        users.contains(&user).then_some(pid)
    });
    ours.collect()
}

pub fn wait_until_gone(home: &Home, first: u32) {
    wait_until("the container is gone", || processes_of(first).is_empty());
    home.assert_nothing_left();
}

/// Fails unless the owner of the only sandbox was forked by the zygote of the program that made it.
pub fn assert_forked(home: &Home, program: u32) {
    let children = fs::read_to_string(format!("/proc/{program}/task/{program}/children"));
    let children = children.unwrap();
    let is_zygote = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).next() == Some(b"mica-zygote")
    };
    let zygote = children.split_whitespace().find(is_zygote);
    let status = fs::read_to_string(format!("/proc/{}/status", home.owner())).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    assert!(zygote.is_some(), "{children}");
    assert_eq!(parent.map(str::trim), zygote);
}

/// Sends a signal to the processes that hold images of this store. Returns how many there are.
pub fn signal_holders(home: &Home, signal: Signal) -> usize {
    let holders = home.processes("mica-lower");
    for pid in &holders {
        let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
    }
    holders.len()
}

/// Returns the same command, for which a file or directory is mounted at another place, which is made if it is missing.
pub fn with_mount(command: &Command, from: &Path, at: &str) -> Command {
    const MOUNT: &str = "mount --make-rprivate /; [ -e \"$1\" ] || mkdir -p \"$1\"; mount --bind \"$0\" \"$1\" && \
                         shift && exec \"$@\"";
    let mut inside = Command::new("unshare");
    inside
        .args(["--mount", "sh", "-c", MOUNT])
        .arg(from)
        .arg(at);
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}
