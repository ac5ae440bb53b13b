//! Sandboxes that are made, started, renamed and restarted, and how they are listed meanwhile.

use std::fs;
use std::time::SystemTime;

use crate::support::{Finished, Home, wait_until};

/// Fails unless `mica` failed with `code` and said this.
#[track_caller]
fn refused(finished: &Finished, code: i32, words: &str) {
    assert_eq!(finished.code(), code, "{}", finished.stderr());
    assert!(finished.stderr().contains(words), "{}", finished.stderr());
}

fn state(home: &Home, name: &str) -> String {
    let filter = format!("name=^{name}$");
    let all = home.output(&["ps", "-a", "--filter", &filter, "--format", "{{.State}}"]);
    all.ok().trim_end().to_owned()
}

#[test]
fn a_sandbox_that_was_only_created_is_listed_renamed_and_removed_without_a_machine() {
    let home = Home::new();
    let file = home.path().join("labels");
    fs::write(&file, "# from a file\ntier=back\napp=none\n").unwrap();
    let labels = [
        "--label-file",
        file.to_str().unwrap(),
        "-l",
        "app=web",
        "-l",
        "bare",
    ];
    let flags = ["create", "--name", "one", "-p", "127.0.0.1:8080:80"];
    let create = [&flags[..], &labels, &["box", "sh", "-c", "exit 3"]].concat();
    let id = home.output(&create).ok().trim_end().to_owned();
    assert_eq!(id.len(), 32);
    home.output(&[
        "create", "--name", "two", "--upper", "disk:64m", "--rm", "box",
    ])
    .ok();

    // Neither runs; the image is in use by both.
    assert_eq!(home.output(&["ps", "-q"]).ok(), "");
    refused(&home.output(&["rmi", "box"]), 1, "in use");
    let names = |arguments: &[&str]| {
        let all = [&["ps", "--format", "{{.Names}}"], arguments].concat();
        home.output(&all)
            .ok()
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for (filters, found) in [
        (&["-a"][..], &["two", "one"][..]),
        (&["-l"], &["two"]),
        (&["-n", "5"], &["two", "one"]),
        (&["-a", "-f", "name=o"], &["two", "one"]),
        (&["-a", "-f", "name=^o"], &["one"]),
        (&["-a", "-f", "name=o$"], &["two"]),
        (&["-a", "-f", "name=one", "-f", "name=two"], &["two", "one"]),
        (&["-a", "-f", &format!("id={}", &id[..8])], &["one"]),
        (&["-a", "-f", "label=bare"], &["one"]),
        (
            &["-a", "-f", "label=app=web", "-f", "label=tier=back"],
            &["one"],
        ),
        (
            &["-a", "-f", "label=app=web", "-f", "label=tier=front"],
            &[],
        ),
        (&["-f", "status=created"], &["two", "one"]),
        (&["-f", "status=running"], &[]),
        (&["-a", "-f", "ancestor=box"], &["two", "one"]),
        (&["-a", "-f", "ancestor=box:1"], &[]),
        (&["-a", "-f", "before=two"], &["one"]),
        (&["-a", "-f", "since=one"], &["two"]),
        (&["-f", "exited=3"], &[]),
    ] {
        assert_eq!(names(filters), *found, "{filters:?}");
    }
    for (filter, words) in [
        ("colour=red", "there are name, id"),
        ("name", "expected KEY=VALUE"),
        ("name=a|b", "a part of a name"),
        ("status=busy", "no such status"),
        ("exited=x", "an exit code"),
        ("since=three", "no such sandbox"),
    ] {
        refused(&home.output(&["ps", "-f", filter]), 1, words);
    }
    let format = "{{.ID}} {{.Label \"app\"}} {{.Labels}} {{.Status}} {{.Ports}}|";
    let line = home.output(&["ps", "-af", "name=one", "--no-trunc", "--format", format]);
    assert_eq!(
        line.ok(),
        format!("{id} web app=web,bare=,tier=back Created |\n")
    );
    refused(
        &home.output(&["ps", "--format", "{{.Name}}"]),
        1,
        "no field `.Name`",
    );
    let all = home
        .output(&["ps", "-af", "name=one", "--format", "json"])
        .json();
    assert_eq!(
        (&all["Names"], &all["State"]),
        (&"one".into(), &"created".into())
    );
    let inspected = home.output(&["inspect", "one"]).json();
    assert_eq!(inspected[0]["sandbox"]["labels"]["tier"], "back");

    home.output(&["rename", "one", "first"]).ok();
    refused(&home.output(&["rename", "first", "two"]), 1, "in use");
    refused(
        &home.output(&["rename", "first", "-"]),
        1,
        "invalid sandbox name",
    );
    refused(
        &home.output(&["rename", "one", "other"]),
        1,
        "no such sandbox",
    );
    // Docker's own use of it: files of an image, without running it.
    fs::write(home.path().join("in"), "x").unwrap();
    let path = home.path().join("in");
    home.output(&["cp", path.to_str().unwrap(), "two:/srv/in"])
        .ok();
    assert!(home.output(&["cp", "two:/srv/in", "-"]).ok().contains("in"));

    for (arguments, words) in [
        (&["exec", "first", "true"][..], "does not run"),
        (&["port", "first"], "does not run"),
        (&["wait", "first"], "does not run"),
        (&["create", "-d", "box"], "--detach"),
        (&["create", "--timeout", "3", "box"], "--timeout"),
        (&["create", "--name", "two", "box"], "in use"),
        (&["create", "-l", "=x", "box"], "no name"),
        (&["run", "--idle", "box"], "add -d"),
    ] {
        let finished = home.output(arguments);
        assert_ne!(finished.code(), 0);
        assert!(
            finished.stderr().contains(words),
            "{arguments:?}: {}",
            finished.stderr()
        );
    }
    home.output(&["stop", "first"]).ok();
    home.output(&["rm", "first", "two"]).ok();
    home.output(&["rmi", "box"]).ok();
    assert!(home.sandboxes().is_empty());
}

#[test]
#[ignore = "needs a built guest"]
fn a_created_sandbox_starts_and_one_with_a_disk_restarts_under_its_new_name() {
    let home = Home::new();
    // In memory: it starts once, and leaves a record.
    home.output(&[
        "create",
        "--name",
        "once",
        "-e",
        "A=7",
        "box",
        "sh",
        "-c",
        "echo $A; exit 3",
    ])
    .ok();
    let run = home.output(&["start", "-a", "once"]);
    assert_eq!((run.code(), run.stdout()), (3, "7\n".into()));
    assert_eq!(state(&home, "once"), "exited");
    refused(&home.output(&["start", "once"]), 1, "--upper disk");
    refused(&home.output(&["restart", "once"]), 1, "--upper disk");
    home.output(&["rm", "once"]).ok();

    let flags = ["--name", "db", "--upper", "disk:64m", "--idle"];
    let ports = [
        "-l",
        "app=db",
        "-p",
        "127.0.0.1:28391:80",
        "-p",
        "127.0.0.1:28391:53/udp",
    ];
    home.output(&[&["create"], &flags[..], &ports, &["box"]].concat())
        .ok();
    home.output(&["start", "db"]).ok();
    let exec = |name: &str, script: &str| home.output(&["exec", name, "sh", "-c", script]).ok();
    exec("db", "echo kept >/srv/file");
    assert_eq!(
        home.output(&["port", "db"]).ok(),
        "80/tcp -> 127.0.0.1:28391\n53/udp -> 127.0.0.1:28391\n"
    );
    assert_eq!(
        home.output(&["port", "db", "53/udp"]).ok(),
        "127.0.0.1:28391\n"
    );
    refused(&home.output(&["port", "db", "53"]), 1, "not published");
    assert_eq!(
        home.output(&["ps", "-qf", "publish=28391"])
            .ok()
            .lines()
            .count(),
        1
    );

    // Its owner has the record, and writes it again later.
    home.output(&["rename", "db", "store"]).ok();
    refused(&home.output(&["rename", "store", "store"]), 1, "in use");
    home.output(&["restart", "-t", "0", "store"]).ok();
    assert_eq!(exec("store", "cat /srv/file"), "kept\n");
    let format = "{{.Label \"app\"}} {{.State}}";
    let line = home.output(&["ps", "-f", "name=store", "--format", format]);
    assert_eq!(line.ok(), "db running\n");
    home.output(&["stop", "-t", "0", "store"]).ok();
    home.output(&["restart", "store"]).ok();
    assert_eq!(state(&home, "store"), "running");
    home.output(&["rm", "-f", "store"]).ok();

    // What happened to it is found by its labels, which Docker's clients know their containers by.
    for (filters, is_found) in [
        (&["label=app=db"][..], true),
        (&["label=app"], true),
        (&["label=app=d"], false),
        (&["label=app", "label=tier"], false),
    ] {
        let starts = events(&home, &[filters, &["event=start"]].concat());
        assert_eq!(!starts.is_empty(), is_found, "{filters:?}");
        for (_, attributes) in starts {
            assert_eq!(attributes["app"], "db");
        }
    }

    // One that is to be removed after its end is not before its start.
    home.output(&["create", "--rm", "--name", "gone", "box", "true"])
        .ok();
    home.output(&["ps", "-a"]).ok();
    home.output(&["start", "gone"]).ok();
    wait_until("it is gone", || home.output(&["ps", "-aq"]).ok().is_empty());
    home.assert_nothing_left();
}

/// Returns the events of sandboxes that match, and their attributes, until now. The clocks of a
/// machine's processors can differ by milliseconds: now is a second later.
fn events(home: &Home, filters: &[&str]) -> Vec<(String, serde_json::Value)> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let until = (since_epoch.unwrap().as_secs() + 1).to_string();
    let mut arguments = vec!["events", "--json", "--since", "1h", "--until", &until];
    filters
        .iter()
        .for_each(|filter| arguments.extend(["-f", filter]));
    let lines = home.output(&arguments).ok();
    let events = lines.lines().map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let action = event["action"].as_str().unwrap().to_owned();
        (action, event["attributes"].clone())
    });
    events.collect()
}

#[test]
#[ignore = "needs a built guest"]
fn what_a_sandbox_uses_and_what_happens_to_it_is_shown_and_changes_last() {
    let home = Home::new();
    let mut follower = home.start(&["events", "-f", "event=pause", "-f", "event=unpause"]);
    let flags = [
        "run", "-d", "--idle", "--name", "it", "--upper", "disk:64m", "-m", "192m",
    ];
    let id = home
        .output(&[&flags[..], &["--max-life", "1h", "box"]].concat())
        .ok();
    let exec = |script: &str| home.output(&["exec", "it", "sh", "-c", script]).ok();
    exec("dd if=/dev/zero of=/dev/shm/x bs=1M count=20 2>/dev/null; echo x >/y; sync");

    let stats = home
        .output(&["stats", "--no-stream", "--json", "it"])
        .json();
    let number = |name: &str| stats[0][name].as_u64().unwrap();
    assert!(
        number("own_memory") > 20 << 20 && number("own_memory") < 4 << 30,
        "{stats}"
    );
    assert!(
        number("processor_time") > 0 && number("shared_memory") > 0,
        "{stats}"
    );
    assert_eq!(number("memory_limit"), 192 << 20);
    assert!(
        number("network_sent") < 1 << 20 && number("disk_written") > 0,
        "{stats}"
    );
    let table = home.output(&["stats", "--no-stream"]).ok();
    assert!(table.contains("SHARED") && table.contains("it "), "{table}");
    refused(
        &home.output(&["stats", "--no-stream", "that"]),
        1,
        "no such sandbox",
    );

    home.output(&["pause", "it"]).ok();
    let metrics = home.output(&["metrics"]).ok();
    for line in metrics.lines().filter(|line| !line.starts_with("# ")) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("mica_") && name.ends_with('}'), "{line}");
        value.parse::<f64>().unwrap();
    }
    let labels = format!("{{id=\"{}\",name=\"it\"}}", &id[..12]);
    for name in [
        "cpu_seconds_total",
        "memory_own_bytes",
        "disk_written_bytes_total",
    ] {
        let line = format!("mica_sandbox_{name}{labels} ");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    assert!(
        metrics.contains("mica_sandboxes{state=\"paused\"} 1\n"),
        "{metrics}"
    );
    home.output(&["unpause", "it"]).ok();
    for action in ["pause", "unpause"] {
        let line = follower.line();
        assert!(
            line.contains(&format!("Z {action} {} (name=it", id.trim_end())),
            "{line}"
        );
    }
    follower.signal(15);
    assert_eq!(follower.wait(), -15);

    // What is changed while it runs lasts; what can't be is refused, until it is stopped.
    refused(
        &home.output(&["update", "-m", "256m", "it"]),
        1,
        "mica stop it",
    );
    refused(
        &home.output(&["update", "--disk-rate", "1m", "it"]),
        1,
        "QEMU can't change the rate of its disks",
    );
    refused(
        &home.output(&["update", "--cpus", "2", "it"]),
        1,
        "more than the 1 processors",
    );
    refused(
        &home.output(&["update", "--pids-limit", "9", "it"]),
        1,
        "started without a limit of processes",
    );
    home.output(&["update", "--max-life", "2h", "it"]).ok();
    home.output(&["stop", "-t", "0", "it"]).ok();
    let resources = "update -m 320m --cpus 1.5 --pids-limit 77 --disk-rate 9m --net-rate in=1m \
                     --idle-timeout 3h it";
    home.output(&resources.split_whitespace().collect::<Vec<_>>())
        .ok();
    let record = home.output(&["inspect", "it"]).json()[0]["sandbox"].clone();
    assert_eq!(
        (&record["cpus"], &record["cpu_quota"]),
        (&2.into(), &1500.into())
    );
    assert_eq!(record["disk_rate"]["write"], 9 << 20);
    assert_eq!(
        record["spec"]["network"]["user"]["rate"]["incoming"],
        1 << 20
    );
    let expiry = &record["spec"]["expiry"];
    assert_eq!(
        (&expiry["max_life"]["secs"], &expiry["idle_timeout"]["secs"]),
        (&7200.into(), &10800.into())
    );
    home.output(&["start", "it"]).ok();
    let total = exec("grep MemTotal /proc/meminfo; nproc; cat /sys/fs/cgroup/pids.max");
    let kib: u64 = total.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib > 230 << 10, "{total}");
    assert!(total.ends_with("\n2\n77\n"), "{total}");
    let rates = ["update", "--pids-limit", "66", "--net-rate", "out=2m", "it"];
    home.output(&rates).ok();
    assert_eq!(exec("cat /sys/fs/cgroup/pids.max"), "66\n");
    home.output(&["update", "--pids-limit", "-1", "it"]).ok();
    assert_eq!(exec("cat /sys/fs/cgroup/pids.max"), "max\n");
    let record = &home.output(&["inspect", "it"]).json()[0]["sandbox"];
    assert_eq!(record["spec"]["expiry"]["max_life"]["secs"], 7200);
    assert_eq!(
        record["spec"]["network"]["user"]["rate"],
        serde_json::json!({"incoming": null, "outgoing": 2 << 20})
    );

    // An owner that is killed can't say so: the first that looks does.
    home.kill_owner();
    home.wait_for_no_machine();
    wait_until("it is dead", || state(&home, "it") == "dead");
    refused(
        &home.output(&["update", "-m", "1g", "that"]),
        1,
        "no such sandbox",
    );
    home.output(&["rm", "it"]).ok();
    let all = events(&home, &["sandbox=it"]);
    let actions: Vec<_> = all.iter().map(|(action, _)| action.as_str()).collect();
    assert_eq!(
        actions,
        [
            "create", "start", "exec", "exec_die", "pause", "unpause", "update", "stop", "die",
            "update", "update", "start", "exec", "exec_die", "update", "update", "exec",
            "exec_die", "update", "exec", "exec_die", "die", "destroy"
        ]
    );
    assert!(
        all[2].1["command"]
            .as_str()
            .unwrap()
            .starts_with("sh -c dd")
    );
    assert_eq!(all[3].1["exit_code"], "0");
    assert!(
        all[all.len() - 2].1["error"]
            .as_str()
            .unwrap()
            .contains("killed")
    );
    assert_eq!(events(&home, &["event=destroy", "image=box"]).len(), 0);
    assert_eq!(events(&home, &["event=destroy", "event=create"]).len(), 2);
    home.assert_nothing_left();
}
