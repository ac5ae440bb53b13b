//! Snapshots and volumes that are packed, and what uses them then.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use micabox::{Kept, KeptChoice, KeptReport, Sandboxes, Store};
use micabox_image::progress::{Event, Progress};
use micabox_image::store::Patience;

use crate::support::{Home, assert_clean, snapshot};

/// Bytes of the file on each disk: text, which becomes smaller.
fn text() -> Vec<u8> {
    let lines = (0..150_000).map(|number| format!("line {number} of a file\n"));
    lines.collect::<String>().into_bytes()
}

/// Runs a command of debugfs on a disk.
fn debugfs(disk: &Path, command: &str) {
    let output = Command::new("debugfs")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .args(["-w", "-R", command])
        .arg(disk)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command}: {said}");
}

/// Puts the file on a disk.
fn fill(home: &Home, disk: &Path, place: &str) {
    let file = home.path().join("text");
    fs::write(&file, text()).unwrap();
    debugfs(disk, &format!("write {} {place}", file.display()));
    assert_clean(disk);
}

/// Asserts that a disk has the file.
fn assert_filled(home: &Home, disk: &Path, place: &str) {
    let found = home.path().join("found");
    let _ = fs::remove_file(&found);
    debugfs(disk, &format!("dump {place} {}", found.display()));
    assert!(fs::read(found).unwrap() == text());
    assert_clean(disk);
}

/// Makes the volume `data` with the file. Returns the path of its disk.
fn volume(home: &Home) -> PathBuf {
    home.output(&["volume", "create", "--size", "64M", "data"])
        .ok();
    let disk = home.store().join("volumes/data/disk.ext4");
    fill(home, &disk, "/_data/text");
    disk
}

/// Makes the snapshot `good` of the image with the file. Returns the path of its disk.
fn made(home: &Home) -> PathBuf {
    let images = home.output(&["images", "--json"]).json();
    let digest = images[0]["manifest_digest"].as_str().unwrap();
    let disk = home.path().join("disk");
    let path = disk.to_str().unwrap();
    home.output(&["ext4", "mkfs", path, "--size", "64M"]).ok();
    fill(home, &disk, "/text");
    let upper = fs::read(&disk).unwrap();
    let file = home.path().join("file");
    let head = snapshot::snapshot("good", digest, upper.len());
    snapshot::write(&file, &head, &upper);
    home.output(&["snapshot", "import", file.to_str().unwrap()])
        .ok();
    home.store().join("sandboxes/snapshot-good/disk.ext4")
}

fn packs_size(home: &Home) -> u64 {
    let usage = home.output(&["store", "df", "--json"]).json();
    usage["packs_size"].as_u64().unwrap()
}

#[test]
fn a_packed_volume_takes_less_and_is_whole_for_what_uses_it() {
    let home = Home::empty();
    let disk = volume(&home);
    let before = home.output(&["volume", "inspect", "data"]).json();
    assert_eq!(before[0]["packed"], false);
    let packed = home.output(&["store", "pack", "--volume", "data"]).ok();
    assert!(packed.starts_with("volume data: packed\n"), "{packed}");
    assert!(!disk.exists());

    let after = home.output(&["volume", "inspect", "data"]).json();
    assert_eq!(after[0]["packed"], true);
    assert_eq!(
        (&after[0]["size"], &after[0]["allocated"]),
        (&before[0]["size"], &0.into())
    );
    let listed = home.output(&["volume", "ls"]).ok();
    assert!(
        listed.contains("67.1 MB") && listed.contains("packed"),
        "{listed}"
    );
    let allocated = before[0]["allocated"].as_u64().unwrap();
    assert!(packs_size(&home) * 2 < allocated, "{allocated}");
    let usage = home.output(&["store", "df"]).ok();
    assert!(usage.contains("snapshots and volumes: 1"), "{usage}");
    let checked = home.output(&["store", "fsck"]).ok();
    assert!(checked.contains("1 packed disk or memory"), "{checked}");
    home.output(&["store", "prune"]).ok();
    // Once more, and there is nothing to do.
    let again = home.output(&["store", "pack", "--all", "--json"]).json();
    assert_eq!(again["kept"]["packed"].as_array().unwrap().len(), 0);

    home.output(&["volume", "resize", "data", "80M"]).ok();
    assert_eq!(fs::metadata(&disk).unwrap().len(), 80 << 20);
    assert_filled(&home, &disk, "/_data/text");
    home.output(&["store", "pack", "--all"]).ok();
    home.output(&["store", "unpack", "--volume", "data"]).ok();
    assert_filled(&home, &disk, "/_data/text");

    home.output(&["store", "pack", "--volume", "data"]).ok();
    home.output(&["volume", "rm", "data"]).ok();
    assert_ne!(packs_size(&home), 0);
    home.output(&["store", "prune"]).ok();
    assert_eq!(packs_size(&home), 0);
    let left = fs::read_dir(home.store().join("volumes")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn what_is_in_use_or_was_a_short_time_ago_stays_whole() {
    let home = Home::empty();
    let disk = volume(&home);
    let pack = |words: &[&str]| {
        let words = [&["store", "pack", "--json"], words].concat();
        home.output(&words).json()["kept"].clone()
    };
    let user = File::open(&disk).unwrap();
    user.lock_shared().unwrap();
    let kept = pack(&["--volume", "data"]);
    assert_eq!(kept["in_use"][0]["volume"], "data");
    assert!(disk.exists());
    drop(user);

    assert_eq!(
        pack(&["--unused-for", "1d"])["packed"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    let yesterday = SystemTime::now() - Duration::from_secs(2 * 86_400);
    let age = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(yesterday).unwrap();
    };
    age(&disk);
    assert_eq!(
        pack(&["--unused-for", "1d"])["packed"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    age(&disk.with_file_name("volume.json"));
    assert_eq!(pack(&["--unused-for", "1d"])["packed"][0]["volume"], "data");
    assert!(!disk.exists());

    for (words, message) in [
        (&["--volume", "none"][..], "no such volume"),
        (&["--snapshot", "none"], "no such snapshot"),
    ] {
        for verb in ["pack", "unpack"] {
            let refused = home.output(&[&["store", verb], words].concat());
            assert_eq!(refused.code(), 1);
            assert!(refused.stderr().contains(message), "{}", refused.stderr());
        }
    }
}

#[test]
fn a_packed_snapshot_is_exported_listed_started_and_removed_as_any_other() {
    let home = Home::new();
    let disk = made(&home);
    let export = |name: &str| {
        let file = home.path().join(name);
        home.output(&["snapshot", "export", "good", file.to_str().unwrap()])
            .ok();
        fs::read(file).unwrap()
    };
    let pack = || {
        home.output(&["store", "pack", "--snapshot", "good"]).ok();
        assert!(!disk.exists());
    };
    let before = export("before");
    pack();
    let listed = home.output(&["snapshot", "ls", "--json"]).json();
    assert_eq!(
        (&listed[0]["packed"], &listed[0]["size"]),
        (&true.into(), &(64 << 20).into())
    );
    home.output(&["store", "prune"]).ok();
    assert!(home.output(&["store", "fsck"]).ok().contains("all well"));
    // It was written in one run of bytes, and has holes now.
    let after = export("after");
    assert!(after.len() < before.len() / 2, "{}", after.len());
    assert_filled(&home, &disk, "/text");
    pack();
    assert!(export("again") == after);

    pack();
    // It gets as far as its disk.
    home.output(&["create", "--from", "good", "--name", "copy", "true"])
        .ok();
    assert_filled(&home, &disk, "/text");
    assert_filled(
        &home,
        &home.directory_of("copy").join("upper.ext4"),
        "/text",
    );

    pack();
    home.output(&["snapshot", "rm", "good"]).ok();
    assert!(!disk.parent().unwrap().exists());
    home.output(&["store", "prune"]).ok();
    assert_eq!(packs_size(&home), 0);
}

#[test]
#[ignore = "needs a built guest"]
fn sandboxes_use_packed_volumes_and_snapshots_unseen() {
    let home = Home::new();
    let mount = ["--rm", "-v", "data:/data"];
    let run = |flags: &[&str], script: &str| {
        let words = [&["run", "-q"], flags, &["sh", "-c", script]].concat();
        home.output(&words).ok()
    };
    let write = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done >";
    run(
        &[&mount[..], &["box"]].concat(),
        &format!("{write} /data/text"),
    );
    let sum = run(&[&mount[..], &["box"]].concat(), "md5sum /data/text");
    let keep = ["--name", "it", "--upper", "disk:64m", "box"];
    run(&keep, &format!("{write} /srv/text; md5sum /srv/text"));
    home.output(&["snapshot", "create", "it", "past"]).ok();

    let packed = home.output(&["store", "pack", "--all", "--json"]).json();
    assert_eq!(
        packed["kept"]["packed"].as_array().unwrap().len(),
        2,
        "{packed}"
    );
    let again = run(&[&mount[..], &["box"]].concat(), "md5sum /data/text");
    assert_eq!(again, sum);
    let copy = run(&["--rm", "--from", "past"], "md5sum /srv/text");
    assert_eq!(copy.split(' ').next(), sum.split(' ').next());

    // Readers of a packed volume, and a sandbox's own.
    home.output(&["store", "pack", "--volume", "data"]).ok();
    let read = run(&["--rm", "-v", "data:/data:ro", "box"], "md5sum /data/text");
    assert_eq!(read, sum);
    let own = ["--name", "own", "-v", "/own", "box"];
    run(&own, &format!("{write} /own/text"));
    home.output(&["store", "pack", "--all"]).ok();
    home.output(&["rm", "own"]).ok();
    assert_eq!(home.output(&["volume", "ls", "-q"]).ok(), "data\n");
    assert!(home.output(&["store", "fsck"]).ok().contains("all well"));
}

/// Does something once, in the middle of packing.
struct Meanwhile<'a>(Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>);

impl Progress for Meanwhile<'_> {
    fn event(&self, event: Event<'_>) {
        if let Event::File { .. } = event
            && let Some(meddle) = self.0.lock().unwrap().take()
        {
            meddle();
        }
    }
}

fn pack_while(home: &Home, kept: &Kept, meddle: impl FnOnce() + Send) -> KeptReport {
    let sandboxes = Sandboxes::open(&Store::open(&home.store()).unwrap()).unwrap();
    let progress = Meanwhile(Mutex::new(Some(Box::new(meddle))));
    let choice = KeptChoice::Named(vec![kept.clone()]);
    let report = sandboxes.pack(&choice, Patience::Wait, &progress).unwrap();
    assert!(progress.0.lock().unwrap().is_none());
    report
}

#[test]
fn a_volume_is_used_at_once_while_it_is_packed_and_stays_whole_then() {
    let home = Home::empty();
    let disk = volume(&home);
    let data = Kept::Volume("data".to_owned());
    let report = pack_while(&home, &data, || {
        home.output(&["volume", "resize", "data", "80M"]).ok();
    });
    assert_eq!(report.in_use, std::slice::from_ref(&data));
    assert_eq!(fs::metadata(&disk).unwrap().len(), 80 << 20);
    assert_filled(&home, &disk, "/_data/text");
    // Who has it open at the end keeps it, without a change.
    let user = File::open(&disk).unwrap();
    let report = pack_while(&home, &data, || user.lock_shared().unwrap());
    assert_eq!(report.in_use, std::slice::from_ref(&data));
    assert!(disk.exists());
    drop(user);
    // Nothing of all that is left.
    home.output(&["store", "prune"]).ok();
    assert_eq!(packs_size(&home), 0);
    assert_eq!(pack_while(&home, &data, || ()).packed, [data]);
}

#[test]
fn what_is_removed_while_it_is_packed_is_gone() {
    let home = Home::new();
    let (snapshot, volume) = (made(&home), volume(&home));
    for (kept, path, verb) in [
        (Kept::Snapshot("good".to_owned()), &snapshot, "snapshot"),
        (Kept::Volume("data".to_owned()), &volume, "volume"),
    ] {
        let name = kept.to_string();
        let name = name.rsplit(' ').next().unwrap();
        let report = pack_while(&home, &kept, || {
            home.output(&[verb, "rm", name]).ok();
        });
        assert_eq!(report.packed, [], "{kept}");
        assert!(!path.parent().unwrap().exists(), "{kept}");
    }
    home.output(&["store", "prune"]).ok();
    assert_eq!(packs_size(&home), 0);
}
