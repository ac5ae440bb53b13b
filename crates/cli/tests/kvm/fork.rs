//! Sandboxes restored from another one's memory. `scripts/test-kvm` runs these.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{Finished, Home, Running, wait_until};

const INT: i32 = 2;
const KILL: i32 = 9;
const TERM: i32 = 15;
const COPIES: usize = 8;

/// Counts, one number in each line, and keeps the number in a file that is never seen empty.
const COUNTS: &str =
    "n=0; while :; do n=$((n+1)); echo $n; echo $n > /next; mv /next /n; sleep 0.1; done";

/// Starts a sandbox called `base` that counts.
fn base(home: &Home, flags: &[&str]) -> Running {
    let start = [
        "run",
        "--rm",
        "--cold",
        "--backend",
        "kvm",
        "--name",
        "base",
    ];
    let arguments = [&start[..], flags, &["box", "sh", "-c", COUNTS]].concat();
    let mut running = home.start(&arguments);
    assert_eq!(running.line(), "1");
    running
}

fn number(running: &mut Running) -> u32 {
    let line = running.line();
    line.parse().unwrap_or_else(|_| panic!("{line:?}"))
}

fn stop(running: Running) {
    running.signal(TERM);
    running.wait();
}

/// Checks a failure of mica's own: the exit code, and the problem in one line.
#[track_caller]
fn refused(finished: &Finished, words: &str) {
    let text = finished.stderr();
    assert_eq!(
        (finished.code(), finished.stdout().as_str()),
        (125, ""),
        "{text}"
    );
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains(words), "{text}");
    assert!(text.lines().count() <= 2, "{text}");
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

#[test]
fn eight_copies_have_a_past_and_nothing_else_in_common() {
    let home = Home::new();
    let mut original = base(&home, &[]);
    let saved = ["snapshot", "create", "--memory", "base", "past"];
    assert_eq!(home.output(&saved).ok(), "past\n");
    let shown = home.output(&["snapshot", "ls", "--json"]).json();
    assert_eq!(shown[0]["memory"]["memory_mib"], 1024);

    // All copies at the same time.
    let script = "echo ready; cat /proc/sys/kernel/random/uuid; \
                  head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '; cat /etc/machine-id; \
                  hostname; cat /etc/hostname; cat /sys/class/net/e*/address; ls /mine-* \
                  2>/dev/null | wc -l; echo > /mine-$(hostname); date +%s; cat /n; \
                  kill -0 1 && echo alive; dmesg | grep -c 'virtual machine fork'; sleep 1000";
    let mut copies: Vec<(u64, Running)> = (0..COPIES)
        .map(|_| {
            let before = now();
            let arguments = ["run", "--rm", "--from", "past", "sh", "-c", script];
            let mut running = home.start(&arguments);
            assert_eq!(running.line(), "ready");
            (before, running)
        })
        .collect();
    let mut seen = BTreeSet::new();
    let mut numbers = Vec::new();
    for (before, copy) in &mut copies {
        let [uuid, random, machine, name, file, address] = [(); 6].map(|()| copy.line());
        assert_eq!((name.len(), &name), (12, &file));
        assert!(machine.starts_with(&name), "{machine} {name}");
        for unique in [uuid, random, machine, name, address] {
            assert!(unique.len() >= 12, "{unique:?}");
            assert!(seen.insert(unique.clone()), "{unique} twice");
        }
        assert_eq!(copy.line(), "0", "a file of another copy");
        let time: u64 = copy.line().parse().unwrap();
        let between = *before - 60..=now() + 60;
        assert!(between.contains(&time), "{time} in {between:?}");
        numbers.push(number(copy));
        assert_eq!(copy.line(), "alive");
        // The kernel itself has detected the new generation ID.
        assert_eq!(copy.line(), "1");
    }
    // The original's command runs in each copy.
    assert!(numbers.iter().all(|number| *number >= 1), "{numbers:?}");
    assert!(number(&mut original) > 1);
    copies.into_iter().for_each(|(_, copy)| stop(copy));
    stop(original);
    home.output(&["snapshot", "rm", "past"]).ok();
    home.assert_nothing_left();
}

#[test]
fn the_originals_command_continues_in_a_copy() {
    let home = Home::new();
    let mut original = base(&home, &["--net", "none"]);
    let before = number(&mut original);
    home.output(&["snapshot", "create", "--memory", "base", "past"])
        .ok();
    for _ in 0..2 {
        let mut copy = home.start(&["run", "--rm", "--from", "past"]);
        let first = number(&mut copy);
        assert!(first > before, "{first} after {before}");
        assert_eq!(number(&mut copy), first + 1);
        stop(copy);
    }
    // The same in a copy of a copy.
    let mut copy = home.start(&["run", "--rm", "--name", "second", "--from", "past"]);
    number(&mut copy);
    home.output(&["snapshot", "create", "--memory", "second", "again"])
        .ok();
    let mut third = home.start(&["run", "--rm", "--from", "again"]);
    assert!(number(&mut third) > before);
    stop(third);
    stop(copy);
    assert!(number(&mut original) > before);
    stop(original);
}

#[test]
fn forks_stay_behind_with_disks_of_their_own() {
    let home = Home::new();
    let original = base(&home, &["--upper", "disk:64m"]);
    let forked = home.output(&["fork", "base", "-n", "2"]);
    let ids: Vec<String> = forked.ok().lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), 2);
    let running = || {
        let listed = home.output(&["ps"]).ok();
        listed.matches("box:latest").count()
    };
    assert_eq!(running(), 3);
    assert_eq!(snapshots(&home), 0);
    // A single copy gets the given name, unless that is taken.
    let twin = home.output(&["fork", "base", "--name", "twin", "--json"]);
    let shown = home.output(&["inspect", "twin"]).json();
    let shown = &shown[0]["sandbox"];
    let twin = twin.json();
    assert_eq!(
        twin,
        serde_json::json!([{"id": shown["id"], "name": "twin"}])
    );
    let taken = home.output(&["fork", "base", "--name", "twin"]);
    refused(&taken, "twin");
    let two = home.output(&["fork", "base", "--name", "other", "-n", "2"]);
    assert_eq!((two.code(), running()), (2, 4), "{}", two.stderr());
    home.output(&["stop", "-t", "0", "twin"]).ok();
    for id in &ids {
        // Each copy flushes and unmounts its own disk.
        home.output(&["stop", "-t", "0", id]).ok();
    }
    assert_eq!(running(), 1);

    // Copies that run stay when the others are cancelled.
    let mut forks = home.start(&["fork", "base", "-n", "1000"]);
    let first = forks.line();
    forks.signal(INT);
    let mut ids = vec![first];
    while let id = forks.line()
        && !id.is_empty()
    {
        ids.push(id);
    }
    assert_eq!(forks.wait(), 128 + INT);
    assert!(ids.len() < 1000);
    assert_eq!(running(), 1 + ids.len());
    assert_eq!(snapshots(&home), 0);
    for id in &ids {
        home.output(&["stop", "-t", "0", id]).ok();
    }

    // After a kill, only the next listing cleans up.
    let mut forks = home.start(&["fork", "base", "-n", "1000"]);
    forks.line();
    forks.signal(KILL);
    forks.wait();
    assert_eq!(snapshots(&home), 1);
    assert_eq!(home.output(&["snapshot", "ls"]).ok().lines().count(), 1);
    assert_eq!(snapshots(&home), 0);
    stop(original);
    wait_until("all are stopped", || {
        let left = home.output(&["ps", "-q"]).ok();
        for id in left.lines() {
            home.output(&["stop", "-t", "0", id]);
        }
        left.is_empty()
    });
}

/// Copies of a machine from a template have only what differs from the template in files of their
/// own, and nothing that they share goes before they do.
#[test]
fn copies_of_copies_outlive_template_and_originals() {
    let home = Home::new();
    let warm = ["--backend", "kvm", "--net", "none", "--memory", "256m"];
    let run = [&["run", "--rm"], &warm[..], &["box", "true"]].concat();
    home.output(&run).ok();
    // A sum that is wrong ends the loop.
    let script = "head -c 200k /dev/urandom > /r; sha256sum /r > /sum; \
        head -c 2m /dev/urandom > /x; rm /x; \
        n=0; while sha256sum -c /sum > /dev/null; do n=$((n+1)); echo $n; sleep 0.2; done; echo end";
    let start = ["run", "--rm", "--name", "one"];
    let command = ["box", "sh", "-c", script];
    let mut original = home.start(&[&start[..], &warm, &command].concat());
    let mut before = number(&mut original);
    let pruned = || home.output(&["store", "prune", "--json"]).json()["templates"].clone();
    let last = |name: &str| {
        let log = home.output(&["logs", name]).ok();
        assert!(!log.contains("end"), "{log}");
        log.lines().last().and_then(|line| line.parse::<u32>().ok())
    };
    for (from, to) in [("one", "two"), ("two", "three")] {
        home.output(&["fork", from, "--name", to]).ok();
        if from == "one" {
            assert_eq!(pruned(), 1);
        }
        // Its pages are read after the original is gone.
        home.output(&["stop", "-t", "0", from]).ok();
        wait_until("the copy goes on", || {
            last(to).is_some_and(|number| number > before)
        });
        before = last(to).unwrap();
    }
    // A snapshot that is kept needs nothing else.
    let keep = ["snapshot", "create", "--memory", "three", "kept"];
    home.output(&keep).ok();
    home.output(&["stop", "-t", "0", "three"]).ok();
    let mut copy = home.start(&["run", "--rm", "--from", "kept"]);
    let first = number(&mut copy);
    assert!(first > before, "{first} after {before}");
    assert_eq!(number(&mut copy), first + 1);
    stop(copy);
    original.wait();
    home.output(&["snapshot", "rm", "kept"]).ok();
}

#[test]
fn a_disk_is_saved_between_two_requests() {
    let home = Home::new();
    // Two processors and two writers, so that there is always a request under way.
    let script = "other() { while :; do dd if=/dev/zero of=/b bs=64k count=64 conv=fsync; done; }
        other 2>/dev/null & n=0; while :; do n=$((n+1));
        dd if=/dev/zero of=/a bs=4k count=$((n % 50)) conv=fsync 2>/dev/null; echo $n; done";
    let flags = [
        "--backend",
        "kvm",
        "--cpus",
        "2",
        "--upper",
        "disk:64m",
        "--net",
        "none",
    ];
    let start = ["run", "--rm", "--cold", "--name", "base"];
    let command = ["box", "sh", "-c", script];
    let mut original = home.start(&[&start[..], &flags, &command].concat());
    for round in 0..4 {
        let before = number(&mut original);
        let (past, name) = (format!("past{round}"), format!("copy{round}"));
        home.output(&["snapshot", "create", "--memory", "base", &past])
            .ok();
        // Both finish the requests in flight, and the copy's disk is as after a clean end.
        let mut copy = home.start(&["run", "--name", &name, "--from", &past]);
        let first = number(&mut copy);
        assert!(first > before, "{first} after {before}");
        for next in 1..10 {
            assert_eq!(number(&mut copy), first + next);
        }
        stop(copy);
        let inspected = home.output(&["ps", "-a"]).ok();
        assert!(inspected.contains(&name), "{inspected}");
        let disk = home
            .sandboxes()
            .into_iter()
            .filter(|path| {
                let record = fs::read_to_string(path.join("state.json")).unwrap_or_default();
                record.contains(&format!("\"{name}\""))
            })
            .find_map(|path| Some(path.join("upper.ext4")).filter(|path| path.exists()))
            .unwrap();
        let check = home.output(&["ext4", "check", disk.to_str().unwrap()]);
        assert_eq!(check.ok(), "clean\n");
        home.output(&["rm", &name]).ok();
    }
    stop(original);
}

/// Counts the snapshots on disk, listed or not.
fn snapshots(home: &Home) -> usize {
    let entries = fs::read_dir(home.store().join("sandboxes")).unwrap();
    let is_snapshot = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("snapshot-")
    };
    entries.map(Result::unwrap).filter(is_snapshot).count()
}

#[test]
fn a_copy_boots_nothing_and_adds_little() {
    let home = Home::new();
    let original = base(&home, &[]);
    home.output(&["snapshot", "create", "--memory", "base", "past"])
        .ok();
    // Whether its kernel booted, and the memory that is its own. How long it takes is for
    // `bench.vmm` to say.
    let came_up = |arguments: &[&str]| {
        let run = home.output(arguments);
        let text = run.stderr();
        let value: serde_json::Value = serde_json::from_str(&text).expect(&text);
        (
            value["phases"].get("kernel").is_some(),
            value["own_memory"].as_u64().unwrap(),
        )
    };
    let cold = [
        "run",
        "--rm",
        "--backend",
        "kvm",
        "--timing=json",
        "box",
        "echo",
        "x",
    ];
    let warm = [
        "run",
        "--rm",
        "--timing=json",
        "--from",
        "past",
        "echo",
        "x",
    ];
    let (cold_boots, cold_bytes) = came_up(&cold);
    let (warm_boots, warm_bytes) = came_up(&warm);
    assert!(cold_boots && !warm_boots);
    assert!(
        warm_bytes < cold_bytes / 2,
        "{warm_bytes} after {cold_bytes}"
    );
    stop(original);
}

#[test]
fn an_altered_snapshot_is_not_restored() {
    let home = Home::new();
    let original = base(&home, &[]);
    home.output(&["snapshot", "create", "--memory", "base", "past"])
        .ok();
    stop(original);
    let directory = home.store().join("sandboxes/snapshot-past");
    let run = || home.output(&["run", "--rm", "--from", "past", "true"]);
    assert_eq!(run().code(), 0);
    for (file, at, words) in [
        ("memory", 20 << 20, "damaged"),
        ("machine", 200, "damaged"),
        ("machine", 16, "another version"),
    ] {
        let path: PathBuf = directory.join(file);
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
        refused(&run(), words);
        file.write_all_at(&byte, at).unwrap();
    }
    assert_eq!(run().code(), 0);
    let memory = directory.join("memory");
    let file = fs::File::options().write(true).open(memory).unwrap();
    file.set_len(1 << 20).unwrap();
    refused(&run(), "damaged");
    let more = ["run", "--rm", "--memory", "1g", "--from", "past", "true"];
    refused(&home.output(&more), "--memory comes too late");
    let elsewhere = ["run", "--rm", "--backend", "qemu", "--from", "past", "true"];
    let elsewhere = home.output(&elsewhere);
    assert_eq!(elsewhere.code(), 125);
    wait_until("nothing runs", || {
        home.output(&["ps"]).ok().lines().count() == 1
    });
}

/// Returns how a run started, by `kernel` or by `resume`, and its command's output.
fn way(home: &Home, flags: &[&str], guest: Option<&Path>) -> (String, String) {
    let start = ["run", "--rm", "--backend", "kvm", "--timing=json"];
    let script = "cat /proc/sys/kernel/random/uuid /etc/machine-id";
    let arguments = [&start[..], flags, &["box", "sh", "-c", script]].concat();
    let mut command = home.mica(&arguments);
    if let Some(guest) = guest {
        command.env("MICABOX_GUEST", guest);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    let phases = value["phases"].as_object().unwrap();
    println!("{phases:?} {}", value["own_memory"]);
    let way = match (phases.contains_key("kernel"), phases.contains_key("resume")) {
        (true, false) => "kernel",
        (false, true) => "resume",
        other => panic!("{other:?}"),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (way.to_owned(), said)
}

#[test]
fn a_template_is_booted_once() {
    let home = Home::new();
    let by = |flags: &[&str]| way(&home, flags, None).0;
    let templates = || {
        fs::read_dir(home.store().join("templates"))
            .unwrap()
            .count()
    };
    assert_eq!(by(&["--cold"]), "kernel");
    assert_eq!(templates(), 0);
    assert_eq!(by(&[]), "kernel");
    let (way_of_second, second) = way(&home, &[], None);
    let (way_of_third, third) = way(&home, &[], None);
    assert_eq!((&*way_of_second, &*way_of_third), ("resume", "resume"));
    assert_eq!(second.lines().count(), 2);
    for line in second.lines() {
        assert!(!third.contains(line), "{line} twice");
    }
    // The first one left a list of the pages to copy at once. Any list will do.
    let template = fs::read_dir(home.store().join("templates")).unwrap();
    let list = template.last().unwrap().unwrap().path().join("touched");
    wait_until("there is a list", || {
        fs::metadata(&list).is_ok_and(|list| list.len() > 8)
    });
    for bytes in [&b"\0\0\0\0\xff\x0f\0\0"[..], &[0xff; 800], b"short"] {
        fs::write(&list, bytes).unwrap();
        assert_eq!(by(&[]), "resume");
    }
    assert_eq!(by(&["--cold"]), "kernel");
    // Machines with other settings have their own templates.
    for flags in [
        &["--memory", "512m"][..],
        &["--net", "none"],
        &["--upper", "disk:64m"],
    ] {
        assert_eq!(by(flags), "kernel", "{flags:?}");
        assert_eq!(by(flags), "resume", "{flags:?}");
    }
    assert_eq!(templates(), 4);

    // A new agent does not match an old template, though its file has the same name.
    let guest = home.path().join("guest");
    fs::create_dir(&guest).unwrap();
    let installed = PathBuf::from(std::env::var_os("MICABOX_GUEST").unwrap());
    for name in ["vmlinux", "initrd.cpio"] {
        fs::copy(installed.join(name), guest.join(name)).unwrap();
    }
    for wanted in ["kernel", "resume"] {
        assert_eq!(way(&home, &[], Some(&guest)).0, wanted);
    }
    fs::copy(installed.join("initrd.cpio"), guest.join("initrd.cpio")).unwrap();
    assert_eq!(way(&home, &[], Some(&guest)).0, "kernel");

    // A damaged template is made again.
    for entry in fs::read_dir(home.store().join("templates")).unwrap() {
        let machine = entry.unwrap().path().join("machine");
        let file = fs::File::options().write(true).open(machine).unwrap();
        file.write_all_at(b"damage", 1000).unwrap();
    }
    assert_eq!(by(&[]), "kernel");
    assert_eq!(by(&[]), "resume");

    let used = home.output(&["store", "df", "--json"]).json();
    assert!(used["templates_size"].as_u64().unwrap() > 1 << 20, "{used}");
    let pruned = home.output(&["store", "prune", "--json"]).json();
    assert!(pruned["templates"].as_u64().unwrap() > 1, "{pruned}");
    assert_eq!(templates(), 0);
    assert_eq!(by(&[]), "kernel");
    home.assert_nothing_left();
}
