//! Machines that continue in another store, where a registry has brought them. `scripts/test-kvm` runs this.

use std::fs;

use serde_json::{Value, json};

use crate::support::artifact::Remote;

#[test]
fn a_machine_continues_in_another_store_and_every_byte_of_it_is_the_same() {
    let remote = Remote::new();
    // The first half of its memory's programs is on the disk, the other one in memory alone.
    let script = "head -c 200000 /dev/urandom > /srv/data; head -c 200000 /dev/urandom > /dev/shm/data; \
                  cat /srv/data /dev/shm/data | md5sum; while :; do sleep 1; done";
    let run = [
        "run",
        "--name",
        "it",
        "--backend",
        "kvm",
        "--net",
        "none",
        "-m",
        "128m",
    ];
    let disk = ["--upper", "disk:64m", "box", "sh", "-c", script];
    let mut running = remote.origin.start(&[&run[..], &disk].concat());
    let written = running.line();
    let snapshot = |name: &str| {
        let create = ["snapshot", "create", "--memory", "it", name];
        remote.origin.output(&create).ok();
    };
    snapshot("first");
    let first = remote.push("first", "work:1");
    snapshot("second");
    let second = remote.push("second", "work:2");
    running.signal(9);
    running.wait();
    // Most of its pages are the same.
    let sent = |pushed: &Value| pushed["sent"].as_u64().unwrap();
    assert!(sent(&second) * 3 < sent(&first), "{first} {second}");

    for (name, here, there) in [
        ("work:1", "work-1", "first"),
        ("work:2", "work-2", "second"),
    ] {
        let name = remote.name(name);
        let sums = "cat /srv/data /dev/shm/data | md5sum";
        let run = [
            "run",
            "--rm",
            "-q",
            "--backend",
            "kvm",
            "--from",
            &name,
            "sh",
            "-c",
            sums,
        ];
        assert_eq!(remote.home.output(&run).ok().trim_end(), written);
        for file in ["memory", "machine", "disk.ext4"] {
            let (origin, home) = (remote.origin.store(), remote.home.store());
            let origin = origin.join(format!("sandboxes/snapshot-{there}/{file}"));
            let home = home.join(format!("sandboxes/snapshot-{here}/{file}"));
            assert!(
                fs::read(origin).unwrap() == fs::read(home).unwrap(),
                "{file}"
            );
        }
    }

    // Of another processor, by one register.
    let lies = remote.put_config("work:1", |config| {
        let leaf = &mut config["needs"]["cpuid"][1];
        leaf[4] = json!(leaf[4].as_u64().unwrap() ^ 1);
    });
    let output = remote
        .home
        .output(&["pull", "-q", "--name", "other", &remote.name(&lies)]);
    let said = output.stderr();
    assert!(
        said.contains("CPUID leaf") && said.contains("has EBX = "),
        "{said}"
    );
    // A memory that is not all here is another one.
    let map = "application/vnd.micabox.snapshot.memory.v1";
    let lies = remote.put_layer("work:1", map, |bytes| {
        bytes.truncate(bytes.len() - 48);
        let count = u32::try_from((bytes.len() - 24) / 48).unwrap();
        bytes[20..24].copy_from_slice(&count.to_le_bytes());
    });
    let output = remote
        .home
        .output(&["pull", "-q", "--name", "other", &remote.name(&lies)]);
    let said = output.stderr();
    assert!(
        said.contains("its memory has") && said.contains("its config says"),
        "{said}"
    );
}
