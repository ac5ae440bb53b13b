//! Machines that continue before their memory is here. `scripts/test-kvm` runs this.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_testing::{Answers, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::artifact::Remote;
use crate::support::{Home, wait_until};

/// A registry with a snapshot of a machine that has a file of random bytes in memory, and a proxy in front of it.
struct Fixture {
    remote: Remote,
    proxy: Proxy,
    /// The snapshot's name there.
    name: String,
    /// What `md5sum` says of the file.
    sum: String,
}

/// Prints the sum of the file in memory.
const SUM: &str = "md5sum < /dev/shm/data";

impl Fixture {
    fn new() -> Self {
        let remote = Remote::new();
        let proxy = Proxy::start(remote.registry.host());
        let script = format!(
            "head -c 33554432 /dev/urandom > /dev/shm/data; {SUM}; while :; do sleep 1; done"
        );
        let run = ["run", "--name", "it", "--backend", "kvm", "--net", "none"];
        let what = ["-m", "160m", "box", "sh", "-c", &script];
        let mut running = remote.origin.start(&[&run[..], &what].concat());
        let sum = running.line();
        let create = ["snapshot", "create", "--memory", "it", "monday"];
        remote.origin.output(&create).ok();
        running.signal(9);
        running.wait();
        remote.push("monday", "work:1");
        Self {
            name: format!("{}/work:1", proxy.address()),
            remote,
            proxy,
            sum,
        }
    }

    fn home(&self) -> &Home {
        &self.remote.home
    }

    /// Runs a copy of the machine that is lazy.
    fn run(&self, from: &str, script: &str) -> crate::support::Finished {
        let run = ["run", "--rm", "-q", "--lazy", "--backend", "kvm"];
        let what = ["--from", from, "sh", "-c", script];
        self.home().output(&[&run[..], &what].concat())
    }

    /// Returns how much is here, and how much there is, of the memory; null if that is whole.
    fn part(&self) -> Value {
        let listed = self.home().output(&["snapshot", "ls", "--json"]).json();
        listed[0]["memory_part"].clone()
    }

    fn memory(&self) -> PathBuf {
        self.home().store().join("sandboxes/snapshot-work-1/memory")
    }

    fn wait_until_whole(&self) {
        wait_until("the memory is whole", || self.memory().exists());
        wait_until("its server ends", || {
            self.home().processes("mica-memory").is_empty() && self.home().held_images().is_empty()
        });
        let origin = self.remote.origin.store();
        let origin = fs::read(origin.join("sandboxes/snapshot-monday/memory")).unwrap();
        assert!(fs::read(self.memory()).unwrap() == origin);
        assert_eq!(self.part(), Value::Null);
    }

    fn kill_server(&self) {
        let servers = self.home().processes("mica-memory");
        assert_eq!(servers.len(), 1, "{servers:?}");
        let server = Pid::from_raw(servers[0].cast_signed()).unwrap();
        kill_process(server, Signal::KILL).unwrap();
        wait_until("the server is gone", || {
            self.home().processes("mica-memory").is_empty()
        });
    }

    fn events(&self) -> String {
        let events = ["events", "--since", "1h", "--until", "0s"];
        self.home().output(&events).ok()
    }
}

/// A small filesystem for a store, which keeps no room for what is fetched in the background.
struct Small(PathBuf);

impl Small {
    fn new(store: &Path, free: u64) -> Self {
        fs::create_dir(store).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=256m,mode=700", "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(store).status();
        assert!(mounted.unwrap().success());
        let small = Self(store.to_owned());
        let mut filler = File::create(small.filler()).unwrap();
        while filler.write_all(&[1; 1 << 16]).is_ok() {}
        let length = filler.metadata().unwrap().len();
        filler.set_len(length - free).unwrap();
        small
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_command_runs_before_most_of_its_machines_memory_is_here_and_then_that_becomes_whole() {
    let fixture = Fixture::new();
    // Nothing comes in the background, so what has come was needed.
    let small = Small::new(&fixture.home().store(), 48 << 20);
    assert_eq!(fixture.run(&fixture.name, "echo it runs").ok(), "it runs\n");
    let passed = fixture.proxy.passed();
    let part = fixture.part();
    let (here, all) = (
        part["here"].as_u64().unwrap(),
        part["all"].as_u64().unwrap(),
    );
    assert!(all > 40 << 20, "{part}");
    assert!(
        passed * 2 < all && here * 2 < all,
        "{passed} bytes came: {part}"
    );
    let listed = fixture.home().output(&["snapshot", "ls"]).ok();
    assert!(listed.contains(" here)"), "{listed}");
    wait_until("its server ends", || {
        fixture.home().processes("mica-memory").is_empty()
    });

    // By its own name, from what is here, and with room for the rest.
    fs::remove_file(small.filler()).unwrap();
    assert_eq!(fixture.run("work-1", SUM).ok().trim_end(), fixture.sum);
    fixture.wait_until_whole();
    fixture.proxy.set(Answers::Refuse);
    assert_eq!(fixture.run("work-1", SUM).ok().trim_end(), fixture.sum);
    // What the first start read, and in which order, is pushed beside it, and comes with the next pull.
    fixture.proxy.set(Answers::Pass);
    let push = ["push", "--start-order", "work-1"];
    let name = fixture.home().output(&push).ok();
    assert!(name.trim_end().ends_with(".order"), "{name}");
    let order = fixture.memory().with_extension("order");
    let before = fs::read(&order).unwrap();
    fixture.home().output(&["snapshot", "rm", "work-1"]).ok();
    assert_eq!(fixture.home().sandboxes(), Vec::<PathBuf>::new());
    let pull = ["pull", "-q", "--lazy", &fixture.name];
    fixture.home().output(&pull).ok();
    assert_eq!(fs::read(&order).unwrap(), before);
    assert_eq!(fixture.run("work-1", SUM).ok().trim_end(), fixture.sum);
    fixture.wait_until_whole();
}

#[test]
fn a_machine_whose_memory_can_not_be_had_ends_with_a_reason_and_others_go_on_from_what_is_here() {
    let fixture = Fixture::new();
    let home = fixture.home();
    home.output(&["pull", "-q", "--lazy", &fixture.name]).ok();
    assert!(!fixture.memory().exists());
    fixture.proxy.set(Answers::Refuse);
    let refused = fixture.run("work-1", SUM);
    assert_ne!(refused.code(), 0);
    assert!(!refused.stdout().contains(&fixture.sum));
    let said = refused.stderr();
    assert!(
        said.contains("the snapshot's memory can't be read"),
        "{said}"
    );
    let noted = || {
        let events = fixture.events();
        let mut lines = events.lines();
        lines.any(|line| line.contains(" read_error ") && line.contains("snapshot=work-1"))
    };
    wait_until("the reason is noted", noted);

    // A machine, and a copy of it that shares its memory, while the registry lets nothing more through.
    fixture.proxy.set(Answers::Pass);
    let run = ["run", "--name", "it", "--lazy", "--backend", "kvm"];
    let what = [
        "--from",
        "work-1",
        "sh",
        "-c",
        "echo up; while :; do sleep 1; done",
    ];
    let mut running = home.start(&[&run[..], &what].concat());
    assert_eq!(running.line(), "up");
    home.output(&["fork", "it", "--name", "copy"]).ok();
    for name in ["copy", "it"] {
        let sum = home.output(&["exec", name, "sh", "-c", SUM]).ok();
        assert_eq!(sum.trim_end(), fixture.sum, "{name}");
    }
    // What is saved of it has all of the memory.
    let create = ["snapshot", "create", "--memory", "it", "tuesday"];
    home.output(&create).ok();
    home.output(&["rm", "-f", "copy"]).ok();
    running.signal(9);
    running.wait();
    home.output(&["rm", "-f", "it"]);
    assert_eq!(fixture.run("tuesday", SUM).ok().trim_end(), fixture.sum);
    home.output(&["snapshot", "rm", "tuesday"]).ok();
    fixture.wait_until_whole();

    // Without its server no machine goes on, and the next start has another one.
    home.output(&["snapshot", "rm", "work-1"]).ok();
    home.output(&["pull", "-q", "--lazy", &fixture.name]).ok();
    let mut running = home.start(&[&run[..], &what].concat());
    assert_eq!(running.line(), "up");
    fixture.proxy.set(Answers::Hold);
    fixture.kill_server();
    let exec = home.output(&["exec", "it", "sh", "-c", SUM]);
    let is_whole = exec.code() == 0;
    assert!(!is_whole || exec.stdout().trim_end() == fixture.sum);
    if !is_whole {
        running.wait();
    }
    fixture.proxy.set(Answers::Pass);
    home.output(&["rm", "-f", "it"]);
    assert_eq!(fixture.run("work-1", SUM).ok().trim_end(), fixture.sum);
    // A push brings the rest first.
    let to = fixture.remote.name("other:1");
    home.output(&["push", "-q", "work-1", &to]).ok();
    fixture.wait_until_whole();
}
