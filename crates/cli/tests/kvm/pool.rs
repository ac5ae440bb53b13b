//! Machines that are kept ready for sandboxes. `scripts/test-kvm` runs these.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use micabox_testing::children;

use crate::support::{Home, PATIENCE, Running, exists, wait_until};

const KILL: i32 = 9;
const TERM: i32 = 15;

/// The flags of the machines, for `mica run` and `mica pool`.
const MACHINE: [&str; 5] = ["--backend", "kvm", "--cpus", "1", "--net=none"];

fn pool(home: &Home, size: &str, machine: &[&str]) -> Running {
    let arguments = [&["pool", "-n", size], machine, &["box"]].concat();
    let mut pool = home.start(&arguments);
    assert_eq!(pool.line(), "ready");
    // Users see it.
    let metrics = home.output(&["metrics"]).ok();
    let line = format!("mica_pool_size{{image=\"docker.io/library/box:latest\"}} {size}\n");
    assert!(metrics.contains(&line), "{metrics}");
    pool
}

/// Waits until the pool has `count` processes.
fn owners(pool: &Running, count: usize) -> BTreeSet<u32> {
    wait_until("the pool is full", || children(pool.pid()).len() == count);
    children(pool.pid()).into_iter().collect()
}

/// Waits until the processes are gone.
fn wait_for_end<'a>(processes: impl IntoIterator<Item = &'a u32>) {
    for pid in processes {
        wait_until("an owner has ended", || !exists(pid.to_string()));
    }
}

fn owner_of(home: &Home, name: &str) -> u32 {
    let record = fs::read(home.directory_of(name).join("state.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    record["owner"]["pid"].as_u64().unwrap().try_into().unwrap()
}

fn run(home: &Home, machine: &[&str], name: &str, command: &[&str]) -> u32 {
    let flags = ["run", "-d", "--rm", "--name", name];
    let arguments = [&flags[..], machine, &["box"], command].concat();
    home.output(&arguments).ok();
    owner_of(home, name)
}

#[test]
fn a_sandbox_gets_a_ready_machine_and_outlives_the_pool() {
    let home = Home::new();
    let first = pool(&home, "1", &MACHINE);
    let ready = owners(&first, 1);
    // Nothing is listed, and no second pool for the same machines starts.
    assert_eq!(home.output(&["ps", "-aq"]).ok(), "");
    let second = home.output(&[&["pool"], &MACHINE[..], &["box"]].concat());
    assert_eq!(second.code(), 125);
    assert!(
        second.stderr().contains("a pool for this configuration"),
        "{}",
        second.stderr()
    );

    let script = "hostname; cat /etc/machine-id; sleep 1000";
    let owner = run(&home, &MACHINE, "given", &["sh", "-c", script]);
    assert!(ready.contains(&owner), "{owner} of {ready:?}");
    let id = home.directory_of("given");
    let id = id.file_name().unwrap().to_str().unwrap();
    let said = format!("{}\n{id}\n", &id[..12]);
    wait_until("the command has spoken", || {
        home.output(&["logs", "given"]).ok() == said
    });
    // Another machine is in its place, and the exit code passes through.
    let ready = owners(&first, 2);
    let command = ["box", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let attached = home.output(&[&["run", "--rm"], &MACHINE[..], &command].concat());
    assert_eq!(
        (
            attached.code(),
            attached.stdout().as_str(),
            attached.stderr().as_str()
        ),
        (7, "out\n", "err\n")
    );
    // Machines with more memory, a disk or required limits are started for themselves.
    let others = [
        &["-m", "600m"][..],
        &["--upper", "disk:64m"],
        &["--require-limits"],
    ];
    for (number, flags) in others.into_iter().enumerate() {
        let flags = [&MACHINE, flags].concat();
        let name = format!("other{number}");
        let owner = run(&home, &flags, &name, &["sleep", "1000"]);
        assert!(!children(first.pid()).contains(&owner));
        home.output(&["stop", "-t", "0", &name]).ok();
        home.output(&["rm", &name]);
    }

    let ready: Vec<u32> = ready.into_iter().filter(|pid| *pid != owner).collect();
    first.signal(TERM);
    assert_eq!(first.wait(), 0);
    wait_for_end(&ready);
    assert_eq!(home.output(&["ps", "-q"]).ok().lines().count(), 1);
    assert_eq!(fs::read_dir(home.store().join("pools")).unwrap().count(), 0);
    home.output(&["stop", "-t", "0", "given"]).ok();
    wait_for_end(&[owner]);
    home.assert_nothing_left();
}

#[test]
fn a_killed_pool_leaves_no_machine_and_no_obstacle() {
    let home = Home::new();
    let first = pool(&home, "2", &MACHINE);
    let ready = owners(&first, 2);
    first.signal(KILL);
    first.wait();
    wait_for_end(&ready);
    // Its socket is left, which is no obstacle for a sandbox or for the next pool.
    assert_eq!(fs::read_dir(home.store().join("pools")).unwrap().count(), 2);
    let command = ["box", "echo", "said"];
    let arguments = [&["run", "--rm"], &MACHINE[..], &command].concat();
    assert_eq!(home.output(&arguments).ok(), "said\n");
    let second = pool(&home, "1", &MACHINE);
    let ready = owners(&second, 1);
    // A machine that ends is replaced.
    let owner = *ready.first().unwrap();
    children(owner).into_iter().for_each(kill);
    wait_for_end(&ready);
    let ready = owners(&second, 1);
    assert!(!ready.contains(&owner));
    // The creator of a sandbox is killed: it ends, though its owner is the pool's child.
    let command = ["box", "sh", "-c", "echo said; sleep 1000"];
    let mut attached = home.start(&[&["run", "--rm"], &MACHINE[..], &command].concat());
    assert_eq!(attached.line(), "said");
    attached.signal(KILL);
    attached.wait();
    wait_for_end(&ready);
    second.signal(TERM);
    assert_eq!(second.wait(), 0);
    home.assert_nothing_left();
}

#[test]
fn a_ready_machine_gets_the_sandboxs_own_network() {
    const MACHINE: [&str; 4] = ["--backend", "kvm", "--cpus", "1"];
    let home = Home::new();
    let ready = pool(&home, "1", &MACHINE);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let published = format!("{port}:80");
    let flags = [&MACHINE[..], &["-p", &published]].concat();
    let owner = owners(&ready, 1);
    let serve = "while :; do echo served | nc -l -p 80; done";
    let given = run(&home, &flags, "server", &["sh", "-c", serve]);
    assert!(owner.contains(&given));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    wait_until("the port answers", || {
        let Ok(mut stream) = TcpStream::connect(address) else {
            return false;
        };
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.write_all(b"\n");
        let mut text = String::new();
        stream.read_to_string(&mut text).is_ok() && text == "served\n"
    });
    // The port is taken: the next one fails, and does not keep the machine that it was given.
    owners(&ready, 2);
    let refused = home.output(&[&["run", "--rm"], &flags[..], &["box", "true"]].concat());
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr().contains("publish"), "{}", refused.stderr());
    home.output(&["stop", "-t", "0", "server"]).ok();
    ready.signal(TERM);
    assert_eq!(ready.wait(), 0);
    home.assert_nothing_left();
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
