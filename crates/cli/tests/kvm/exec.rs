//! `mica exec` on our own monitor, and in every copy of a sandbox. `scripts/test-kvm` runs this.

use std::time::{Duration, Instant};

use crate::support::exec::{FLAGS, Sandbox, WAITS};
use crate::support::{Home, PATIENCE, share, wait_until};

#[test]
fn commands_run_in_a_sandbox_and_in_every_copy_of_it() {
    let home = Home::new();
    let start = ["run", "-d", "--rm", "--backend", "kvm", "--name", "it"];
    let arguments = [&start[..], &FLAGS, &["box", "sh", "-c", WAITS]].concat();
    home.output(&arguments).ok();
    let sandbox = Sandbox {
        home: &home,
        name: "it",
    };
    sandbox.has_exit_codes();
    sandbox.has_surroundings();
    sandbox.lists_processes();
    sandbox.ends_with_its_caller();
    sandbox.runs_at_once(10);
    sandbox.passes_on(2_000_000);

    // Copies have neither the original's clients nor their commands, and serve clients of their own.
    let running = sandbox.ready("echo ready; exec sleep 1000");
    let copies = home.output(&["fork", "it", "-n", "2"]).ok();
    for (number, name) in copies.lines().enumerate() {
        let copy = Sandbox { home: &home, name };
        let finished = copy.script(&[], "echo $A; exit 3");
        assert_eq!((finished.stdout(), finished.code()), ("1\n".into(), 3));
        if number == 0 {
            copy.ends_with_its_caller();
        }
        assert_eq!(home.output(&["kill", "-s", "TERM", copy.name]).code(), 0);
    }
    drop(running);
    home.output(&["stop", "it"]).ok();
    wait_until("all are gone", || home.sandboxes().is_empty());
}

#[test]
fn an_idle_sandbox_is_copied_with_what_was_done_in_it() {
    let home = Home::new();
    let start = [
        "run",
        "-d",
        "--rm",
        "--idle",
        "--backend",
        "kvm",
        "--name",
        "it",
    ];
    home.output(&[&start[..], &["box"]].concat()).ok();
    // Paused, it is copied as well: the copy runs, and the original does not.
    home.output(&["pause", "it"]).ok();
    let copy = home.output(&["fork", "it"]).ok();
    assert_eq!(home.output(&["exec", copy.trim_end(), "true"]).code(), 0);
    assert!(
        home.output(&["exec", "it", "true"])
            .stderr()
            .contains("paused")
    );
    home.output(&["rm", "-f", copy.trim_end()]).ok();
    home.output(&["unpause", "it"]).ok();
    let it = Sandbox {
        home: &home,
        name: "it",
    };
    it.script(&[], "echo done >/done").ok();
    let copy = home.output(&["fork", "it"]).ok();
    home.output(&["stop", "it"]).ok();
    let copy = Sandbox {
        home: &home,
        name: copy.trim(),
    };
    assert_eq!(copy.exec(&[], &["cat", "/done"]).ok(), "done\n");
    // Its files, in and out.
    let (there, back) = (home.path().join("there"), home.path().join("back"));
    std::fs::write(&there, vec![7; 300_000]).unwrap();
    let inside = format!("{}:/there", copy.name);
    home.output(&["cp", there.to_str().unwrap(), &inside]).ok();
    assert_eq!(
        copy.exec(&[], &["wc", "-c", "/there"]).ok(),
        "300000 /there\n"
    );
    home.output(&["cp", &inside, back.to_str().unwrap()]).ok();
    assert!(std::fs::read(&there).unwrap() == std::fs::read(&back).unwrap());
    home.output(&["stop", copy.name]).ok();
    wait_until("all are gone", || home.sandboxes().is_empty());
}

/// The time of a running sandbox's processors is that of its machine's control group, and a new rate
/// of its disk counts for what waits already.
#[test]
fn processor_time_and_the_rate_of_a_disk_change_while_a_sandbox_runs() {
    let home = Home::new();
    let run = "run -d --idle --backend kvm --name it --upper disk:64m --cpus 2 box";
    home.output(&run.split_whitespace().collect::<Vec<_>>())
        .ok();
    let record = || home.output(&["inspect", "it"]).json()[0]["sandbox"].clone();
    let limit = || {
        let pid = record()["machine"]["pid"].as_u64().unwrap();
        let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let group = group
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap()
            .to_owned();
        let limit = std::path::Path::new("/sys/fs/cgroup")
            .join(group)
            .join("cpu.max");
        std::fs::read_to_string(limit).unwrap()
    };
    assert_eq!(limit(), "300000 100000\n");
    home.output(&["update", "--cpus", "1.5", "it"]).ok();
    assert_eq!(limit(), "150000 100000\n");
    assert_eq!(
        (&record()["cpus"], &record()["cpu_quota"]),
        (&2.into(), &1500.into())
    );
    let more = home.output(&["update", "--cpus", "3", "it"]);
    assert!(
        more.stderr().contains("more than the 2 processors"),
        "{}",
        more.stderr()
    );
    // A further start has it.
    home.output(&["restart", "-t", "0", "it"]).ok();
    assert_eq!(limit(), "150000 100000\n");
    home.output(&["update", "--cpus", "2", "it"]).ok();
    assert_eq!(limit(), "300000 100000\n");
    assert_eq!(record()["cpu_quota"], serde_json::Value::Null);

    // Eight minutes.
    home.output(&["update", "--disk-rate", "write=4k", "it"])
        .ok();
    assert_eq!(record()["disk_rate"]["write"], 4096);
    let write = "echo begin; dd if=/dev/zero of=/x bs=1M count=2 conv=fsync 2>/dev/null; echo end";
    let mut writer = home.start(&["exec", "it", "sh", "-c", write]);
    assert_eq!(writer.line(), "begin");
    // Sleep: it may not end meanwhile.
    std::thread::sleep(Duration::from_secs(3));
    assert!(writer.is_running());
    let begun = Instant::now();
    home.output(&["update", "--disk-rate", "1g", "it"]).ok();
    assert_eq!(writer.line(), "end");
    let taken = begun.elapsed();
    assert!(taken < PATIENCE, "{taken:?}");
    assert_eq!(writer.wait(), 0);
    home.output(&["pause", "it"]).ok();
    let paused = home.output(&["update", "--disk-rate", "1m", "it"]);
    assert!(paused.stderr().contains("paused"), "{}", paused.stderr());
    assert_eq!(record()["disk_rate"]["write"], 1 << 30);
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();
}

/// A sandbox with limits starts from the template of those without, and a copy has the limits and
/// the contents of its mounts.
#[test]
fn mounts_and_limits_need_no_other_template_and_are_copied() {
    let home = Home::new();
    let flags = "run -d --rm --idle --backend kvm --name it --read-only --shm-size 3m --tmpfs \
                 /scratch:size=1m --pids-limit 7 --cap-drop SYS_ADMIN --ulimit nofile=99 box";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let look = "(: > /x) 2>&1; df -k /dev/shm /scratch | awk 'NR > 1 {print $2}'; ulimit -n; \
                cat /sys/fs/cgroup/pids.max; mount -o remount,rw / 2>&1; \
                echo more >> /scratch/log; cat /scratch/log";
    let seen = "sh: can't create /x: Read-only file system\n3072\n1024\n99\n7\n\
                mount: permission denied (are you root?)\n";
    home.output(&["run", "--rm", "--backend", "kvm", "box", "true"])
        .ok();
    home.output(&flags).ok();
    let templates = home.store().join("templates");
    assert_eq!(std::fs::read_dir(templates).unwrap().count(), 1);
    let it = Sandbox {
        home: &home,
        name: "it",
    };
    assert_eq!(it.script(&[], look).ok(), format!("{seen}more\n"));
    let copy = home.output(&["fork", "it"]).ok();
    home.output(&["stop", "it"]).ok();
    let copy = Sandbox {
        home: &home,
        name: copy.trim(),
    };
    assert_eq!(copy.script(&[], look).ok(), format!("{seen}more\nmore\n"));
    home.output(&["stop", copy.name]).ok();
    wait_until("all are gone", || home.sandboxes().is_empty());
}

#[test]
fn each_of_many_quick_edits_is_seen() {
    share::edits(&Home::new(), "kvm", 50);
}

#[test]
fn a_folder_is_inside_what_programs_expect_and_outside_the_users_own() {
    let home = Home::new();
    // Each with as many devices as the template that is made first.
    share::works(&home, "kvm");
    let templates = std::fs::read_dir(home.store().join("templates")).unwrap();
    assert_eq!(templates.count(), 1);
    let folder = tempfile::tempdir().unwrap();
    let volume = format!("{}:/w", folder.path().display());
    let start = [
        "run",
        "-d",
        "--rm",
        "--idle",
        "--backend",
        "kvm",
        "--name",
        "it",
    ];
    home.output(&[&start[..], &["-v", &volume, "box"]].concat())
        .ok();
    let fork = home.output(&["fork", "it"]);
    assert_ne!(fork.code(), 0);
    let text = fork.stderr();
    assert!(text.contains("shares folders"), "{text}");
    home.output(&["exec", "it", "touch", "/w/alive"]).ok();
    home.output(&["stop", "it"]).ok();
}
