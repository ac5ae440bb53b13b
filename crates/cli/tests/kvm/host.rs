//! What limits a sandbox on this machine's own kernel (`--backend host`): its control group, which the
//! emulated machine has and most machines without KVM do not.

use std::fs;
use std::path::PathBuf;

use crate::support::{Home, wait_until};

fn arguments<'a>(flags: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    let fixed = "run --backend host --quiet --net none";
    let flags = fixed.split_whitespace().chain(flags.split_whitespace());
    flags
        .chain(["box"])
        .chain(command.iter().copied())
        .collect()
}

/// Returns the control group of a container's processes.
fn group(home: &Home, name: &str) -> PathBuf {
    let record = home.output(&["inspect", name]).json()[0]["sandbox"].clone();
    let pid = record["machine"]["pid"].as_u64().unwrap();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    PathBuf::from("/sys/fs/cgroup").join(path.unwrap())
}

#[test]
fn memory_processes_and_processor_time_are_limited_by_its_group() {
    let home = Home::new();
    // More memory than it has ends it as a whole, and nothing else.
    let eat = "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done";
    let ended = home.output(&arguments("--rm -m 64m", &["sh", "-c", eat]));
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr().contains("signal 9"), "{}", ended.stderr());
    // Also memory of its files.
    let fill = home.output(&arguments(
        "--rm -m 64m",
        &["sh", "-c", "dd if=/dev/zero of=/x bs=1M count=200"],
    ));
    assert_ne!(fill.code(), 0);
    // Processes, those of the agent not counted.
    let many = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 100 & done; wait";
    let few = home.output(&arguments("--rm --pids-limit 6", &["sh", "-c", many]));
    assert!(few.stderr().contains("fork"), "{}", few.stderr());

    home.output(&arguments(
        "-d --idle --name it --cpus 0.5 --pids-limit 50",
        &[],
    ))
    .ok();
    let group = group(&home, "it");
    let read = |name: &str| fs::read_to_string(group.join(name)).unwrap();
    assert_eq!(read("cpu.max"), "50000 100000\n");
    home.output(&["update", "--cpus", "1", "it"]).ok();
    assert_eq!(read("cpu.max"), "100000 100000\n");

    // Paused, nothing runs.
    let count = "n=0; while :; do n=$((n + 1)); echo $n >/count; done";
    let busy = home.start(&["exec", "it", "sh", "-c", count]);
    let counted = || home.output(&["exec", "it", "cat", "/count"]);
    wait_until("it counts", || counted().code() == 0);
    home.output(&["pause", "it"]).ok();
    assert_eq!(read("cgroup.freeze"), "1\n");
    assert!(counted().stderr().contains("paused"));
    home.output(&["unpause", "it"]).ok();
    let before = counted().ok();
    wait_until("it counts on", || counted().ok() != before);
    home.output(&["rm", "-f", "it"]).ok();
    assert_ne!(busy.wait(), 0);
    wait_until("the group is gone", || !group.exists());
    home.assert_nothing_left();
}
