//! Tests a zygote: what its processes are, and what they don't have of the program that it belongs to.
//!
//! A zygote is started by a process with one thread, so this program has its own `main`.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use libtest_mimic::{Arguments, Failed, Trial, run};
use micabox_jail::{Forked, Kind, fork, run_if_worker, start_zygote};
use micabox_testing::PATIENCE;
use rustix::event::{PollFd, PollFlags, poll};

const KINDS: [Kind; 2] = [Kind::new("look", look), Kind::new("tell", tell)];

/// A variable that processes keep, and one that they don't.
const KEPT: &str = "PATH";
const SECRET: &str = "CARGO_MANIFEST_DIR";

/// Writes the process's command line and what its descriptors lead to, and ends with its connection.
fn look(descriptor: RawFd) -> i32 {
    assert_eq!(descriptor, 0);
    let connection = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut connection = UnixStream::from(connection);
    let line = fs::read("/proc/self/cmdline").unwrap();
    let mut said = String::from_utf8_lossy(&line)
        .trim_end_matches('\0')
        .to_owned();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let to = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        said.push_str(&format!("\n{}", to.display()));
    }
    // It can wait for children of its own.
    let child = std::process::Command::new("true").status().unwrap();
    said.push_str(&format!("\n{child}\0"));
    connection.write_all(said.as_bytes()).unwrap();
    let _ = connection.read(&mut [0]);
    0
}

/// Writes the process's environment: what the system has of it, and what it finds itself; and its umask.
fn tell(_: RawFd) -> i32 {
    let connection = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut connection = UnixStream::from(connection);
    let memory = fs::read("/proc/self/environ").unwrap();
    let found = std::env::vars_os().map(|(name, _)| name);
    let found: Vec<_> = found.collect();
    let has_bytes = memory.iter().any(|byte| *byte != 0);
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    let said = format!("{has_bytes} {found:?} {:o}\0", umask.bits());
    connection.write_all(said.as_bytes()).unwrap();
    0
}

fn main() {
    run_if_worker(&KINDS);
    assert!(std::env::var_os(SECRET).is_some() && std::env::var_os(KEPT).is_some());
    rustix::process::umask(rustix::fs::Mode::RWXO);
    let secret = tempfile::NamedTempFile::new().unwrap();
    start_zygote(&KINDS, &[KEPT]).unwrap();
    let path = secret.path().to_owned();
    let trials = vec![
        Trial::test("a_fork_has_its_connection_and_nothing_else", move || {
            let (said, connection, forked) = started("mica-look")?;
            let mut lines = said.lines();
            if lines.next() != Some("mica-look") || lines.next_back() != Some("exit status: 0") {
                return Err(said.into());
            }
            let is_ours = |line: &str| line.starts_with("socket:") || line == "/dev/null";
            // The directory that it reads.
            let is_own = |line: &str| line.starts_with("/proc/");
            let is_clean = lines.clone().all(|line| is_ours(line) || is_own(line));
            if !is_clean || said.contains(&*path.to_string_lossy()) {
                return Err(said.into());
            }
            drop(connection);
            wait_for(&forked.handle)
        }),
        Trial::test("a_fork_has_an_environment_and_a_umask_of_its_own", || {
            let (said, ..) = of_kind("tell", "mica-tell")?;
            if said != format!("false [\"{KEPT}\"] 22") {
                return Err(said.into());
            }
            Ok(())
        }),
        Trial::test("forks_for_several_threads_are_not_mixed_up", || {
            let look_often = |name: &str| {
                for _ in 0..20 {
                    let (said, connection, forked) = started(name).unwrap();
                    assert_eq!(said.lines().next(), Some(name));
                    drop(connection);
                    wait_for(&forked.handle).unwrap();
                }
            };
            std::thread::scope(|scope| {
                for name in ["mica-a", "mica-b", "mica-c"] {
                    scope.spawn(move || look_often(name));
                }
            });
            Ok(())
        }),
        Trial::test(
            "a_program_with_threads_keeps_the_zygote_that_it_has",
            || {
                start_zygote(&[], &[])?;
                started("mica-look").map(drop)
            },
        ),
    ];
    run(&Arguments::from_args(), trials).exit();
}

fn started(name: &str) -> Result<(String, UnixStream, Forked), Failed> {
    of_kind("look", name)
}

fn of_kind(kind: &str, name: &str) -> Result<(String, UnixStream, Forked), Failed> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let forked = fork(kind, name, &OwnedFd::from(theirs)).ok_or("there is no zygote")?;
    ours.set_read_timeout(Some(PATIENCE))?;
    let mut said = Vec::new();
    while said.last() != Some(&0) {
        let mut part = [0; 1024];
        match ours.read(&mut part)? {
            0 => return Err("it has ended".into()),
            length => said.extend(part.get(..length).unwrap_or_default()),
        }
    }
    said.pop();
    Ok((String::from_utf8(said)?, ours, forked))
}

fn wait_for(handle: &OwnedFd) -> Result<(), Failed> {
    let limit = PATIENCE.try_into()?;
    let mut ended = [PollFd::new(handle, PollFlags::IN)];
    match poll(&mut ended, Some(&limit))? {
        1 => Ok(()),
        _ => Err("it did not end".into()),
    }
}
