//! Images that start packed, on our own monitor. `scripts/test-kvm` runs these.

use crate::support::packed::{READ, assert_noted, damage, home, pack, packed};
use crate::support::wait_until;

#[test]
fn what_a_machine_reads_of_a_packed_image_is_what_is_in_it() {
    let home = home();
    let run = |words: &[&str]| {
        let start = ["run", "--rm", "--backend", "kvm", "--cold"];
        home.output(&[&start, words, &["box", "sh", "-c", READ]].concat())
            .ok()
    };
    let before = run(&[]);
    assert!(before.contains("/srv/random"), "{before}");
    for transport in ["pmem", "blk"] {
        for root in ["merged", "stacked"] {
            assert_ne!(pack(&home), 0);
            let after = run(&["--transport", transport, "--root", root]);
            assert_eq!(after, before, "{transport} {root}");
            // The files' server ends with the last that has one open.
            home.assert_nothing_left();
        }
    }
}

#[test]
fn all_machines_of_a_packed_image_have_one_server_and_a_later_one_needs_none() {
    let home = home();
    assert_ne!(pack(&home), 0);
    let start = |name| {
        let start = [
            "run",
            "-d",
            "-q",
            "--backend",
            "kvm",
            "--cold",
            "--name",
            name,
        ];
        home.output(&[&start[..], &["box", "sleep", "1000"]].concat())
            .ok();
    };
    assert_ne!(packed(&home), 0);
    start("first");
    assert_eq!(home.held_images().len(), 1);
    wait_until("the image is unpacked", || packed(&home) == 0);
    start("second");
    assert_eq!(home.held_images().len(), 1);
    let read = |name| home.output(&["exec", name, "sh", "-c", READ]).ok();
    assert_eq!(read("first"), read("second"));
    home.output(&["rm", "-f", "first"]).ok();
    wait_until("no image is held", || home.held_images().is_empty());
    read("second");
    home.output(&["rm", "-f", "second"]).ok();
    home.assert_nothing_left();
}

#[test]
fn of_a_damaged_chunk_no_byte_is_read() {
    let home = home();
    assert_ne!(pack(&home), 0);
    damage(&home);
    for transport in ["pmem", "blk"] {
        let start = [
            "run",
            "--rm",
            "--backend",
            "kvm",
            "--cold",
            "--transport",
            transport,
        ];
        let read = [
            "box",
            "sh",
            "-c",
            "md5sum /srv/text; md5sum /srv/random && echo all",
        ];
        let output = home.output(&[&start[..], &read].concat());
        assert_ne!(output.code(), 0, "{}", output.stderr());
        if transport == "pmem" {
            // An I/O error is the guest's to handle, and a page that does not come is its end.
            assert!(
                output.stderr().contains("can't be read"),
                "{}",
                output.stderr()
            );
        }
        assert!(!output.stdout().contains("random"), "{}", output.stdout());
    }
    assert_noted(&home);
    assert_eq!(home.output(&["store", "fsck"]).code(), 1);
}

#[test]
fn a_machine_continues_from_a_memory_that_was_packed() {
    let home = home();
    let script = "head -c 300000 /dev/urandom > /dev/shm/data; yes text | head -c 9000000 > /dev/shm/text; \
                  cat /dev/shm/* | md5sum; while :; do sleep 1; done";
    let start = ["run", "--name", "it", "--backend", "kvm", "-m", "128m"];
    let disk = ["--upper", "disk:64m", "box", "sh", "-c", script];
    let mut running = home.start(&[&start[..], &disk].concat());
    let written = running.line();
    for name in ["first", "second"] {
        let create = ["snapshot", "create", "--memory", "it", name];
        home.output(&create).ok();
    }
    running.signal(9);
    running.wait();
    let packed = home.output(&["store", "pack", "--all", "--json"]).json();
    let kept = &packed["kept"];
    assert_eq!(kept["packed"].as_array().unwrap().len(), 2, "{packed}");
    let sizes = ["added", "before"].map(|size| kept[size].as_u64().unwrap());
    assert!(sizes[0] * 3 < sizes[1], "{packed}");
    for name in ["first", "second"] {
        let memory = home
            .store()
            .join(format!("sandboxes/snapshot-{name}/memory"));
        assert!(!memory.exists());
        let sums = "cat /dev/shm/* | md5sum";
        let run = ["run", "--rm", "-q", "--backend", "kvm", "--from", name];
        for _ in 0..2 {
            let continued = home.output(&[&run[..], &["sh", "-c", sums]].concat()).ok();
            assert_eq!(continued.trim_end(), written);
        }
        assert!(memory.exists());
    }
    // While a machine has it mapped it stays.
    let run = [
        "run",
        "-d",
        "-q",
        "--backend",
        "kvm",
        "--name",
        "copy",
        "--from",
        "first",
    ];
    home.output(&[&run[..], &["sleep", "1000"]].concat()).ok();
    let packed = home.output(&["store", "pack", "--snapshot", "first", "--json"]);
    let packed = packed.json();
    let memory = home.store().join("sandboxes/snapshot-first/memory");
    assert!(memory.exists(), "{packed}");
    home.output(&["rm", "-f", "copy"]).ok();
    wait_until("nothing uses the memory", || {
        home.output(&["store", "pack", "--snapshot", "first"]).ok();
        !memory.exists()
    });
    home.wait_for_no_machine();
}
