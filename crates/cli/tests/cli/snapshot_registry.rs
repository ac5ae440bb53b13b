//! Snapshots that go through a registry into another store.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use micabox_testing::{Answers, Proxy};
use serde_json::{Value, json};

use crate::support::artifact::{
    CHUNK, PACK, Remote, changed, disk, filesystem, filesystem_with, import,
};
use crate::support::{Home, wait, wait_until};

#[test]
fn a_disk_goes_through_a_registry_into_another_store_byte_for_byte() {
    let remote = Remote::new();
    let bytes = filesystem(&remote.origin);
    remote.import("monday", &bytes);
    let pushed = remote.push("monday", "team/work:1");
    assert_eq!(
        (&pushed["packs"], &pushed["present"]),
        (&json!(1), &json!(0))
    );
    let sent = pushed["sent"].as_u64().unwrap();
    assert!((3 << 20..4 << 20).contains(&sent), "{sent}");

    let name = remote.name("team/work:1");
    let pulled = remote.home.output(&["pull", "-q", &name]).ok();
    assert_eq!(pulled, "work-1\n");
    let (there, here) = (disk(&remote.origin, "monday"), disk(&remote.home, "work-1"));
    assert!(fs::read(&there).unwrap() == fs::read(&here).unwrap());
    // Holes stay holes.
    let metadata = fs::metadata(&here).unwrap();
    assert!(metadata.blocks() * 512 < 8 << 20, "{}", metadata.blocks());
    assert_eq!(metadata.mode() & 0o777, 0o600);
    let listed = remote.home.output(&["snapshot", "ls", "--json"]).json();
    assert_eq!(
        (&listed[0]["sandbox"], &listed[0]["size"]),
        (&json!("it"), &json!(64 << 20))
    );
    // Its image is there as well, and is in use.
    let image = listed[0]["image"]["digest"].as_str().unwrap();
    assert_ne!(remote.home.output(&["rmi", image]).code(), 0);

    // What is here already is not fetched again, and a name of another snapshot is not taken.
    let pack = remote.manifest("team/work:1")["layers"][1]["digest"].clone();
    fs::remove_file(remote.blob_file(pack.as_str().unwrap())).unwrap();
    assert_eq!(remote.home.output(&["pull", "-q", &name]).ok(), "work-1\n");
    let named = ["pull", "-q", "--name", "work-1", &remote.name("team/other")];
    assert_ne!(remote.home.output(&named).code(), 0);
    // And it goes on from there, with what the other registry lacks.
    let json = ["pull", "-q", "--json", &name];
    let result = remote.home.output(&json).json();
    assert_eq!(result["snapshot"], "work-1");
    assert_eq!(result["manifest_digest"], pushed["manifest_digest"]);
}

/// Counts the chunks of a disk as a push does, where another disk is in the repository.
fn chunks(disk: &[u8], other: &[u8]) -> Value {
    let of = |disk: &'_ [u8]| -> Vec<Vec<u8>> {
        let all = disk
            .chunks(CHUNK)
            .filter(|chunk| chunk.iter().any(|byte| *byte != 0));
        all.map(<[u8]>::to_vec).collect()
    };
    let (all, other) = (of(disk), of(other).into_iter().collect::<HashSet<_>>());
    let own: Vec<_> = all.iter().filter(|chunk| !other.contains(*chunk)).collect();
    let distinct = own.iter().collect::<HashSet<_>>().len();
    json!({
        "all": all.len(), "of_others": all.len() - own.len(), "repeated": own.len() - distinct,
    })
}

#[test]
fn a_second_snapshot_sends_only_the_chunks_that_changed() {
    let remote = Remote::new();
    let first = filesystem(&remote.origin);
    remote.import("first", &first);
    remote.push("first", "work:1");
    let before = remote.bytes();
    let second = changed(&first, 5);
    remote.import("second", &second);
    let pushed = remote.push("second", "work:2");
    assert_eq!(
        (&pushed["packs"], &pushed["present"]),
        (&json!(2), &json!(1))
    );
    let sent = pushed["sent"].as_u64().unwrap();
    let most = 6 * CHUNK as u64 + 4096;
    assert!(sent < most, "{sent}");
    assert_eq!(pushed["chunks"], chunks(&second, &first));
    // A map of 200 chunks, a config and a manifest: nothing else has come.
    let came = remote.bytes() - before;
    assert!(came < most + (64 << 10), "{came}");

    // Another repository may have other readers: it gets all chunks, and no pack of this one.
    let third = changed(&second, 2);
    remote.import("third", &third);
    let pushed = remote.push("third", "elsewhere:3");
    assert_eq!(
        (&pushed["packs"], &pushed["present"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(pushed["chunks"], chunks(&third, &[]));
    // The same once more: nothing, and people see why.
    let again = remote
        .origin
        .output(&["push", "third", &remote.name("elsewhere:3")]);
    let expected = chunks(&third, &third);
    let said = format!(
        "{} of its {} chunks are in other snapshots of the repository",
        expected["of_others"], expected["all"]
    );
    assert!(again.stderr().contains(&said), "{}", again.stderr());
    let again = remote.push("third", "elsewhere:3");
    assert_eq!(again["sent"], 0);
    assert_eq!(again["chunks"], expected);

    for (name, here, bytes) in [
        ("work:2", "work-2", &second),
        ("elsewhere:3", "elsewhere-3", &third),
        ("work:1", "work-1", &first),
    ] {
        remote.home.output(&["pull", "-q", &remote.name(name)]).ok();
        assert!(
            fs::read(disk(&remote.home, here)).unwrap() == *bytes,
            "{name}"
        );
    }
    // Those that are here need not be fetched: the packs have gone.
    let layers = remote.manifest("work:1")["layers"].clone();
    let packs = layers
        .as_array()
        .unwrap()
        .iter()
        .filter(|layer| layer["mediaType"] == PACK);
    for pack in packs {
        let file = remote.blob_file(pack["digest"].as_str().unwrap());
        fs::rename(&file, file.with_extension("gone")).unwrap();
    }
    let again = ["pull", "-q", "--name", "again", &remote.name("work:1")];
    assert_eq!(remote.home.output(&again).ok(), "again\n");
    assert!(fs::read(disk(&remote.home, "again")).unwrap() == first);
    for pack in layers
        .as_array()
        .unwrap()
        .iter()
        .filter(|layer| layer["mediaType"] == PACK)
    {
        let file = remote.blob_file(pack["digest"].as_str().unwrap());
        fs::rename(file.with_extension("gone"), &file).unwrap();
    }
    // A name that has come to another snapshot replaces what it named.
    remote.push("second", "work:1");
    remote
        .home
        .output(&["pull", "-q", &remote.name("work:1")])
        .ok();
    assert!(fs::read(disk(&remote.home, "work-1")).unwrap() == second);
}

#[test]
fn an_image_goes_before_a_snapshot_of_its_name_and_each_can_be_named() {
    let remote = Remote::new();
    remote.import("box", &filesystem(&remote.origin));
    let name = remote.name("box:1");
    remote.origin.output(&["push", "-q", "box", &name]).ok();
    let image = remote.manifest("box:1");
    assert_eq!(image["artifactType"], Value::Null);
    remote
        .origin
        .output(&["snapshot", "push", "-q", "box", &name])
        .ok();
    let kind = "application/vnd.micabox.snapshot.v1";
    assert_eq!(remote.manifest("box:1")["artifactType"], kind);
    let failed = remote.origin.output(&["push", "-q", "none", &name]);
    assert!(failed.stderr().contains("none"), "{}", failed.stderr());
    let short = remote.origin.output(&["snapshot", "push", "box", "box"]);
    assert!(
        short.stderr().contains("Docker's own"),
        "{}",
        short.stderr()
    );
    // A sandbox can't be made of it as of an image, and an image is no snapshot.
    let run = remote.home.output(&["run", "--rm", "-q", &name, "true"]);
    let said = run.stderr();
    assert!(
        said.contains(kind) && said.contains(&format!("--from {name}")),
        "{said}"
    );
    remote.origin.output(&["push", "-q", "box", &name]).ok();
    let pull = remote.home.output(&["pull", "-q", "--name", "it", &name]);
    assert!(
        pull.stderr().contains("it is no snapshot"),
        "{}",
        pull.stderr()
    );
}

#[test]
fn what_differs_of_a_machine_is_named_before_any_of_its_blobs_is_fetched() {
    let remote = Remote::new();
    remote.import("monday", &filesystem(&remote.origin));
    remote.push("monday", "work:1");
    let manifest = remote.manifest("work:1");
    let vendor = fs::read_to_string("/proc/cpuinfo").unwrap();
    let vendor = vendor
        .lines()
        .find_map(|line| line.strip_prefix("vendor_id\t: "));
    let vendor = vendor.unwrap_or_default().to_owned();
    // Not one of them is there any more, and neither is its image.
    for layer in manifest["layers"].as_array().unwrap() {
        fs::remove_file(remote.blob_file(layer["digest"].as_str().unwrap())).unwrap();
    }
    let needs = json!({"architecture": std::env::consts::ARCH, "monitor": "kvm", "format": 2,
        "vendor": vendor, "cpus": 1, "cpuid": [[0, 0, 0, 1, 2, 3, 4]]});
    for (field, value, words) in [
        (
            "architecture",
            json!("riscv64"),
            vec!["riscv64", std::env::consts::ARCH],
        ),
        ("monitor", json!("other"), vec!["`other`"]),
        (
            "vendor",
            json!("GenuineMica"),
            vec!["GenuineMica", &*vendor],
        ),
        (
            "format",
            json!(9999),
            vec!["another version of mica", "9999"],
        ),
    ] {
        let mut needs = needs.clone();
        needs[field] = value;
        let mut changed = manifest.clone();
        let mut config: Value =
            serde_json::from_slice(&remote.blob(&manifest["config"]["digest"])).unwrap();
        config["needs"] = needs;
        let media_type = manifest["config"]["mediaType"].as_str().unwrap();
        changed["config"] = remote.put("work", media_type, config.to_string().as_bytes());
        // A registry takes no manifest of blobs that it lacks.
        changed["layers"] = json!([]);
        remote.put_manifest("work:lies", &changed);
        let said = remote.refused("work:lies");
        assert!(
            words.iter().all(|word| said.contains(word)),
            "{field}: {said}"
        );
        assert!(said.contains("without --memory"), "{said}");
        assert_eq!(remote.home.output(&["images", "-q"]).ok(), "");
    }
}

/// Forwards connections to a registry, until a request names `stop`: its answer never comes. Returns the address, and what
/// receives something then.
fn stopping(registry: &str, stop: String) -> (String, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, stopped) = mpsc::channel();
    let registry = registry.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let mut server = TcpStream::connect(&registry).unwrap();
            let (stop, sender) = (stop.clone(), sender.clone());
            let mut answers = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut answers.0, &mut answers.1));
            thread::spawn(move || {
                let mut client = client;
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    if String::from_utf8_lossy(&bytes[..count]).contains(&stop) {
                        let _ = sender.send(());
                        thread::park();
                    }
                    if server.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, stopped)
}

#[test]
fn a_pull_that_is_killed_leaves_nothing_that_is_seen_and_the_next_one_succeeds() {
    let remote = Remote::new();
    let bytes = filesystem(&remote.origin);
    remote.import("monday", &bytes);
    remote.push("monday", "work:1");
    let layers = remote.manifest("work:1")["layers"].clone();
    for blob in [&layers[0], &layers[1]] {
        let digest = blob["digest"].as_str().unwrap();
        let (address, stopped) = stopping(remote.registry.host(), format!("/blobs/{digest}"));
        let name = format!("{address}/work:1");
        let mut mica = remote.home.mica(&["pull", "-q", &name]);
        let mut child = mica
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        stopped.recv().unwrap();
        child.kill().unwrap();
        wait(&mut child);
        assert!(
            remote
                .home
                .store()
                .join("sandboxes/snapshot-work-1")
                .exists()
        );
        let run = ["run", "--from", "work-1", "true"];
        assert_ne!(remote.home.output(&run).code(), 0);
        assert_eq!(remote.home.output(&["snapshot", "ls", "-q"]).ok(), "");
        // It keeps no name taken, and goes with what is not used.
        let left = remote.home.store().join("sandboxes/snapshot-work-1");
        assert!(!left.join("lease.json").exists());
        remote.home.output(&["store", "prune"]).ok();
        assert!(!left.exists());
    }
    remote
        .home
        .output(&["pull", "-q", &remote.name("work:1")])
        .ok();
    assert!(fs::read(disk(&remote.home, "work-1")).unwrap() == bytes);
}

#[test]
fn a_pull_goes_on_where_one_was_killed_and_fetches_nothing_twice() {
    let remote = Remote::new();
    let bytes = filesystem_with(&remote.origin, 24 << 20);
    remote.import("monday", &bytes);
    remote.push("monday", "work:1");
    let size = remote.manifest("work:1")["layers"][1]["size"]
        .as_u64()
        .unwrap();
    let proxy = Proxy::start(remote.registry.host());
    let name = format!("{}/work:1", proxy.address());
    let mut mica = remote.home.mica(&["pull", "-q", &name]);
    mica.stdout(Stdio::null()).stderr(Stdio::null());
    // Of the ranges of 4 MiB that come at the same time, some have come when the answers stop.
    proxy.hold_after(size - (4 << 20));
    let mut child = mica.spawn().unwrap();
    let left = disk(&remote.home, "work-1");
    wait_until("a range is written", || {
        fs::metadata(&left).is_ok_and(|left| left.blocks() * 512 > 1 << 20)
    });
    child.kill().unwrap();
    wait(&mut child);
    assert_eq!(remote.home.output(&["snapshot", "ls", "-q"]).ok(), "");
    let here = fs::metadata(&left).unwrap().blocks() * 512;
    proxy.set(Answers::Pass);
    let before = proxy.passed();
    assert_eq!(remote.home.output(&["pull", "-q", &name]).ok(), "work-1\n");
    let came = proxy.passed() - before;
    // The documents, the pack's index, and what was missing.
    assert!(
        came + here < size + (512 << 10),
        "{came} came, {here} were here"
    );
    assert!(fs::read(&left).unwrap() == bytes);
}

#[test]
fn maps_of_other_stores_are_not_used_by_a_push() {
    let remote = Remote::new();
    let first = filesystem(&remote.origin);
    remote.import("first", &first);
    remote.push("first", "work:1");
    // Another store, which has pulled it, pushes nearly the same: its map may have lied.
    let other = Home::new();
    let name = remote.name("work:1");
    import(&other, "second", &changed(&first, 5));
    other.output(&["pull", "-q", &name]).ok();
    let push = ["push", "--json", "-q", "second", &remote.name("work:2")];
    let pushed = other.output(&push).json();
    assert_eq!(
        (&pushed["packs"], &pushed["present"]),
        (&json!(1), &json!(0))
    );
    assert!(pushed["sent"].as_u64().unwrap() > 3 << 20, "{pushed}");
    // What it has pushed itself is used.
    import(&other, "third", &changed(&first, 7));
    let push = ["push", "--json", "-q", "third", &remote.name("work:3")];
    let pushed = other.output(&push).json();
    assert!(pushed["sent"].as_u64().unwrap() < 1 << 20, "{pushed}");
}

#[test]
fn chunks_of_snapshots_of_other_repositories_are_not_used_by_a_pull() {
    let remote = Remote::new();
    let bytes = filesystem(&remote.origin);
    remote.import("monday", &bytes);
    remote.push("monday", "work:1");
    remote.push("monday", "other:1");
    let (work, other) = (remote.name("work:1"), remote.name("other:1"));
    remote.home.output(&["pull", "-q", &work]).ok();
    let pack = remote.manifest("other:1")["layers"][1]["digest"].clone();
    fs::remove_file(remote.blob_file(pack.as_str().unwrap())).unwrap();
    // All of its chunks are here, of a repository with other readers.
    assert_ne!(remote.home.output(&["pull", "-q", &other]).code(), 0);
    let again = ["pull", "-q", "--name", "again", &work];
    assert_eq!(remote.home.output(&again).ok(), "again\n");
    assert!(fs::read(disk(&remote.home, "again")).unwrap() == bytes);
}

#[test]
fn of_pulls_of_one_name_at_the_same_time_each_succeeds() {
    let remote = Remote::new();
    let bytes = filesystem(&remote.origin);
    remote.import("monday", &bytes);
    remote.push("monday", "work:1");
    let name = remote.name("work:1");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let pulled = remote.home.output(&["pull", "-q", &name]).ok();
                assert_eq!(pulled, "work-1\n");
            });
        }
    });
    assert!(fs::read(disk(&remote.home, "work-1")).unwrap() == bytes);
    let listed = remote.home.output(&["snapshot", "ls", "-q"]).ok();
    assert_eq!(listed, "work-1\n");
}

#[test]
fn what_a_snapshot_can_not_be_called_and_flags_of_images_are_refused_at_once() {
    let remote = Remote::new();
    remote.import("monday", &filesystem(&remote.origin));
    let long = format!("work:{}", "0123456789".repeat(8));
    remote.push("monday", &long);
    let said = remote.refused(&long);
    assert!(said.contains("mica pull --name"), "{said}");
    assert_eq!(remote.home.output(&["images", "-q"]).ok(), "");
    let long = remote.name(&long);
    let named = ["pull", "-q", "--name", "work", &long];
    assert_eq!(remote.home.output(&named).ok(), "work\n");
    let platform = ["pull", "-q", "--platform", "linux/amd64", &long];
    let said = remote.home.output(&platform).stderr();
    assert!(
        said.contains("is a snapshot") && said.contains("--platform"),
        "{said}"
    );
    // It has no memory that could come later.
    let lazy = ["pull", "-q", "--lazy", "--name", "lazy", &long];
    assert_eq!(remote.home.output(&lazy).ok(), "lazy\n");
    let [lazy, work] = ["lazy", "work"].map(|name| fs::read(disk(&remote.home, name)).unwrap());
    assert!(lazy == work);
    let push = ["push", "-q", "--compression", "none", "monday", &long];
    let said = remote.origin.output(&push).stderr();
    assert!(said.contains("--compression is for images"), "{said}");
    // By chance, a snapshot's name may be the beginning of a digest.
    let digest = remote.origin.output(&["images", "--json"]).json();
    let digest = digest[0]["manifest_digest"].as_str().unwrap().to_owned();
    let name = &digest["sha256:".len()..][..8];
    remote.import(name, &filesystem(&remote.origin));
    assert!(remote.push(name, "work:3")["packs"].is_u64());
    // Nothing that it was called there goes with it.
    let config = remote.manifest("work:3")["config"]["digest"].clone();
    let config: Value = serde_json::from_slice(&remote.blob(&config)).unwrap();
    assert_eq!(config["snapshot"]["image"]["reference"], Value::Null);
}

/// Starts a sandbox from a snapshot without a guest: it gets as far as looking for one.
fn start(home: &Home, name: &str) -> String {
    let mut mica = home.mica(&["run", "--rm", "-q", "--from", name, "true"]);
    mica.env("MICABOX_GUEST", "/proc/none");
    let output = mica.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_sandbox_is_made_from_a_snapshot_of_a_registry_which_is_pulled_once() {
    const GUEST: &str = "guest file vmlinux not found";
    let remote = Remote::new();
    let bytes = filesystem(&remote.origin);
    remote.import("monday", &bytes);
    remote.push("monday", "team/work");
    let name = remote.name("team/work");
    let said = start(&remote.home, &name);
    assert!(said.contains(GUEST), "{said}");
    assert!(fs::read(disk(&remote.home, "work")).unwrap() == bytes);
    // Now it is here, whatever the name means now.
    let manifest = remote.manifest("team/work:latest");
    fs::remove_file(remote.blob_file(manifest["config"]["digest"].as_str().unwrap())).unwrap();
    for name in [&*name, "work"] {
        let said = start(&remote.home, name);
        assert!(said.contains(GUEST), "{said}");
    }
    let said = start(&remote.home, &remote.name("team/none"));
    assert!(said.contains("it has no such image or tag"), "{said}");
    assert!(start(&remote.home, "none").contains("no such snapshot"));
}

#[test]
fn a_run_prints_what_is_to_be_known_of_a_disk_as_a_pull_does() {
    let remote = Remote::new();
    let path = remote.origin.path().join("damaged");
    fs::write(&path, filesystem(&remote.origin)).unwrap();
    // As a kernel marks a filesystem in which it has found errors.
    let mut debugfs = Command::new("debugfs");
    debugfs
        .args(["-w", "-R", "set_super_value state 3"])
        .arg(&path);
    micabox_testing::run(&mut debugfs);
    remote.import("monday", &fs::read(&path).unwrap());
    remote.push("monday", "work:1");
    let name = remote.name("work:1");
    let words = "is marked as having errors";
    let pulled = remote
        .home
        .output(&["pull", "-q", "--name", "pulled", &name]);
    assert!(pulled.stderr().contains(words), "{}", pulled.stderr());
    remote.home.output(&["snapshot", "rm", "pulled"]).ok();
    // The second one finds the first one's.
    for (lazy, is_said) in [("--lazy", true), ("--lazy=false", false)] {
        let mut run = remote
            .home
            .mica(&["run", "--rm", lazy, "--from", &name, "true"]);
        let output = run.env("MICABOX_GUEST", "/proc/none").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.contains(words), is_said, "{lazy}: {said}");
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_continues_with_the_disk_that_another_store_has_pushed() {
    let remote = Remote::new();
    let write = "head -c 300000 /dev/urandom > /srv/data; md5sum /srv/data";
    let make = [
        "run", "-q", "--name", "it", "--upper", "disk:64m", "box", "sh", "-c", write,
    ];
    let written = remote.origin.output(&make).ok();
    remote
        .origin
        .output(&["snapshot", "create", "it", "monday"])
        .ok();
    remote.push("monday", "work:1");
    let name = remote.name("work:1");
    let run = ["run", "--rm", "-q", "--from", &name, "md5sum", "/srv/data"];
    assert_eq!(remote.home.output(&run).ok(), written);
    let here = [
        "run",
        "--rm",
        "-q",
        "--from",
        "work-1",
        "md5sum",
        "/srv/data",
    ];
    assert_eq!(remote.home.output(&here).ok(), written);
}

#[test]
#[ignore = "needs root: it mounts a small filesystem"]
fn a_full_disk_is_named_and_nothing_is_left() {
    let remote = Remote::new();
    remote.import("monday", &filesystem(&remote.origin));
    remote.push("monday", "work:1");
    let store = remote.home.store();
    fs::create_dir(&store).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(&store).status();
    assert!(mounted.unwrap().success());
    let name = remote.name("work:1");
    let pulled = remote.home.output(&["pull", "-q", &name]);
    remote.home.output(&["snapshot", "rm", "work-1"]);
    // Its image stays, and there is room for a third of the disk.
    let mut filler = fs::File::create(store.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    let length = filler.metadata().unwrap().len();
    filler.set_len(length - (1 << 20)).unwrap();
    let output = remote.home.output(&["pull", "-q", &name]);
    let left = remote.home.sandboxes();
    drop(filler);
    let unmounted = Command::new("umount").arg("-l").arg(&store).status();
    assert!(unmounted.unwrap().success());
    assert_eq!(pulled.ok(), "work-1\n");
    assert_eq!(left.len(), 0, "{left:?}");
    let said = output.stderr();
    assert!(said.contains("disk.ext4: No space left"), "{said}");
}
