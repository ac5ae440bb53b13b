//! What a sandbox on the host's kernel has not of its host, and of its caller.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::process::{getpid, set_child_subreaper};

use crate::support::host::{arguments, run, sh, sleeping, wait_until_gone};
use crate::support::{Finished, Home, wait_until};

#[test]
#[ignore = "needs root and a built guest"]
fn a_callers_umask_is_not_the_sandboxs() {
    let home = Home::new();
    let look = "umask; cat /etc/hosts /etc/resolv.conf >/dev/null; stat -c %a /etc/hosts . /dev /proc/self/root/";
    for mask in ["000", "077"] {
        let mut mica = Command::new("sh");
        let with_umask = format!("umask {mask}; exec \"$@\"");
        let line = home.mica(&arguments(
            &["--rm", "-u", "1000", "-w", "/new/one"],
            &["sh", "-c", look],
        ));
        mica.args(["-c", &with_umask, "sh"]).arg(line.get_program());
        mica.args(line.get_args());
        for (name, value) in line.get_envs() {
            mica.env(name, value.unwrap());
        }
        let ran = Finished::of(mica);
        assert_eq!(ran.ok(), "0022\n644\n755\n755\n755\n", "{mask}");
    }
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn no_process_of_a_sandbox_has_its_callers_environment() {
    let home = Home::new();
    let mut mica = home.mica(&arguments(
        &["-d", "--rm", "--name", "it"],
        &["sleep", "1000"],
    ));
    mica.env("PASSWORD", "hidden-from-all-of-them");
    Finished::of(mica).ok();
    let owner = home.owner();
    let keepers = fs::read_to_string(format!("/proc/{owner}/task/{owner}/children")).unwrap();
    let keepers = keepers.split_whitespace().map(|pid| pid.parse().unwrap());
    let all: Vec<u32> = keepers
        .chain([owner])
        .chain(home.processes("mica-lower"))
        .collect();
    assert!(all.len() >= 3, "{all:?}");
    for pid in all {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let text = String::from_utf8_lossy(&environment);
        assert!(!text.contains("hidden"), "{pid}: {text}");
    }
    home.output(&["kill", "it"]).ok();
    wait_until("the sandbox is gone", || home.sandboxes().is_empty());
}

#[test]
#[ignore = "needs root and a built guest"]
fn device_nodes_are_the_sandboxs_own() {
    let home = Home::new();
    let look = "cd /dev; for name in null zero full random urandom tty; do stat -c '%n %t:%T %d:%i %u %a' $name; done; \
        echo gone >null; head -c 3 zero | wc -c; head -c 3 urandom | wc -c; mknod n c 1 3 2>/dev/null || echo refused";
    let seen = sh(&home, look);
    let lines: Vec<String> = seen.ok().lines().map(str::to_owned).collect();
    let numbers = ["1:3", "1:5", "1:7", "1:8", "1:9", "5:0"];
    for (line, numbers) in lines.iter().zip(numbers) {
        let words: Vec<&str> = line.split(' ').collect();
        let host = fs::metadata(format!("/dev/{}", words[0])).unwrap();
        let hosts = format!("{}:{}", host.dev(), host.ino());
        assert_eq!((words[1], words[4]), (numbers, "666"), "{line}");
        assert_ne!(words[2], hosts, "{line}");
    }
    assert_eq!(lines[6..], ["3", "3", "refused"]);
    // Nor those of another sandbox.
    let (running, first) = sleeping(&home, &["--rm"]);
    let place = "stat -c %d:%i /dev/null";
    let others = sh(&home, place).ok();
    assert_ne!(home.output(&["exec", "it", "sh", "-c", place]).ok(), others);
    home.output(&["kill", "it"]).ok();
    running.wait();
    wait_until_gone(&home, first);
}

/// Returns the numbers and names of this process's children that are (not) in state `Z`: they have ended, and nothing
/// waits for them, which is what is left to a first process.
fn children(zombies: bool) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let parent = getpid().as_raw_nonzero().to_string();
    let name_of_ours = |stat: String| {
        // The rest of a line still changes: one that has just ended is yet to leave its processor.
        let (name, rest) = stat.rsplit_once(") ").unwrap();
        let mut words = rest.split(' ');
        let is_zombie = words.next() == Some("Z");
        (is_zombie == zombies && words.next() == Some(&parent)).then(|| format!("{name})"))
    };
    let stats = all.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter_map(name_of_ours).collect()
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_program_that_has_ended_leaves_no_process_to_the_first_one() {
    let home = Home::new();
    let disk = home.path().join("disk");
    let disk = disk.to_str().unwrap();
    // This process is what takes orphans, and waits for none.
    set_child_subreaper(Some(getpid())).unwrap();
    for _ in 0..3 {
        assert_eq!(sh(&home, "exit 7").code(), 7);
        assert_eq!(run(&home, &[], &["no-such-program"]).code(), 127);
        home.output(&["ext4", "mkfs", "--force", "--size", "16M", disk])
            .ok();
        home.output(&["ext4", "ls", disk]).ok();
    }
    assert_eq!(children(true), [""; 0], "and {:?}", children(false));
    // A detached one leaves its owner, and the holder of its image, whose parents have ended.
    let detached = arguments(&["-d", "--rm", "--name", "it"], &["sleep", "1000"]);
    home.output(&detached).ok();
    home.output(&["kill", "it"]).ok();
    wait_until("both have ended", || children(false).is_empty());
    let left = children(true);
    assert!(left.len() <= 2, "{left:?}");
    // Another one's image stays held, and is not waited for.
    let (running, first) = sleeping(&home, &["--rm"]);
    assert_eq!(sh(&home, "exit 3").code(), 3);
    assert_eq!(children(true), left);
    home.output(&["kill", "it"]).ok();
    running.wait();
    wait_until_gone(&home, first);
}

#[test]
#[ignore = "needs root and a built guest"]
fn memory_that_nothing_counts_or_limits_has_no_number() {
    let home = Home::new();
    let (running, first) = sleeping(&home, &["--rm"]);
    let fill = "dd if=/dev/zero of=/big bs=1M count=20 2>/dev/null";
    home.output(&["exec", "it", "sh", "-c", fill]).ok();
    let stats = home
        .output(&["stats", "--no-stream", "--json", "it"])
        .json();
    let (own, limit) = (&stats[0]["own_memory"], &stats[0]["memory_limit"]);
    let table = home.output(&["stats", "--no-stream", "it"]).ok();
    let metrics = home.output(&["metrics"]).ok();
    // Where a control group counts and limits it, both are there.
    match own.as_u64() {
        Some(own) => {
            assert!(own >= 20 << 20, "{stats}");
            assert_eq!(limit.as_u64(), Some(1 << 30), "{stats}");
        }
        None => {
            assert!(
                limit.is_null() && stats[0]["shared_memory"].is_null(),
                "{stats}"
            );
            assert!(
                table.lines().any(|line| line.matches(" - ").count() >= 3),
                "{table}"
            );
            for name in [
                "memory_limit_bytes{",
                "memory_own_bytes{",
                "memory_shared_bytes{",
            ] {
                assert!(!metrics.contains(name), "{metrics}");
            }
        }
    }
    assert!(
        metrics.contains("mica_sandbox_cpu_seconds_total{"),
        "{metrics}"
    );
    home.output(&["kill", "it"]).ok();
    running.wait();
    wait_until_gone(&home, first);
}
