//! Disks for changes that a hostile guest, or a full host, left: read by `diff`, `commit`, `cp`
//! and `snapshot create`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use micabox_ext4::SetXattr::Any;
use micabox_ext4::{Ext4, FileKind, Options, Owner, ROOT};

use crate::support::{Finished, Home, PATIENCE};

/// A stopped sandbox `it` with a disk.
fn stopped() -> Home {
    let home = Home::new();
    let run = ["run", "--name", "it", "--upper", "disk:64m", "box", "true"];
    home.output(&run).ok();
    home
}

fn disk(home: &Home) -> PathBuf {
    home.sandboxes()[0].join("upper.ext4")
}

/// Changes the disk as a guest could.
fn plant(disk: &Path, plant: impl FnOnce(&mut Ext4<File>, u32)) {
    let file = File::options().read(true).write(true).open(disk).unwrap();
    let mut filesystem = Ext4::open(file, Options::default()).unwrap();
    let root = filesystem.lookup(ROOT, b"root").unwrap();
    plant(&mut filesystem, root);
    filesystem.close().unwrap();
}

/// Returns the names in the top layer of an image, one in each line, and the archive.
fn top_layer(home: &Home, image: &str) -> (String, PathBuf) {
    let saved = home.path().join("saved");
    let _ = fs::remove_dir_all(&saved);
    fs::create_dir(&saved).unwrap();
    let archive = saved.join("image.tar");
    home.output(&["save", "-o", archive.to_str().unwrap(), image])
        .ok();
    let script = "tar -xf image.tar; \
        python3 -c 'import json; print(json.load(open(\"manifest.json\"))[0][\"Layers\"][-1])' > top; \
        zcat -f \"$(cat top)\" > layer; tar --quoting-style=literal -tf layer";
    let output = Command::new("bash")
        .args(["-euc", script])
        .current_dir(&saved)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    (names, saved.join("layer"))
}

#[test]
#[ignore = "needs a built guest"]
fn directories_in_directories_take_no_memory_to_tell() {
    // 3 GB of paths, if each were kept.
    const LEVELS: usize = 5000;
    let home = stopped();
    plant(&disk(&home), |filesystem, root| {
        let name = [b'd'; 250];
        let mut at = root;
        for _ in 0..LEVELS {
            at = filesystem.mkdir(at, &name, Owner::root(0o755)).unwrap();
        }
    });
    // Limits the memory of this command alone; the worker has its own limit.
    let mut mica = Command::new("bash");
    mica.args(["-c", "ulimit -S -v 1000000; exec \"$0\" diff it"])
        .arg(env!("CARGO_BIN_EXE_mica"))
        .env("MICABOX_HOME", home.store())
        .env("MICABOX_CONFIG", "/dev/null")
        .stdout(Stdio::piped());
    let mut mica = mica.spawn().unwrap();
    let mut lines = BufReader::with_capacity(1 << 20, mica.stdout.take().unwrap());
    let (mut line, mut count) = (Vec::new(), 0);
    while lines.read_until(b'\n', &mut line).unwrap() > 0 {
        count += 1;
        assert_eq!(line.len(), "A ".len() + count * 251 + 1);
        line.clear();
    }
    assert!(mica.wait().unwrap().success());
    assert_eq!(count, LEVELS);
    // No image can have such paths, which mica detects long before all of them are written.
    let begun = Instant::now();
    let refused = home.output(&["commit", "it", "deep"]);
    assert_eq!(refused.code(), 1);
    assert!(
        refused.stderr().contains("too deep"),
        "{}",
        refused.stderr()
    );
    assert!(begun.elapsed() < PATIENCE);
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_file_named_as_a_whiteout_is_refused_and_deletes_nothing() {
    let home = stopped();
    plant(&disk(&home), |filesystem, root| {
        let srv = filesystem.mkdir(root, b"srv", Owner::root(0o755)).unwrap();
        filesystem
            .create(srv, b".wh.data", Owner::root(0o644))
            .unwrap();
    });
    let refused = home.output(&["commit", "it", "mine"]);
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(
        said.contains("/srv/.wh.data") && said.contains("marks what is gone"),
        "{said}"
    );
    assert!(!home.output(&["images"]).ok().contains("mine"));
    // For all other commands it is an ordinary file.
    assert!(
        home.output(&["diff", "it"])
            .ok()
            .contains("A /srv/.wh.data\n")
    );
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_socket_is_named_and_the_file_it_hid_stays_deleted() {
    let home = stopped();
    plant(&disk(&home), |filesystem, root| {
        let srv = filesystem.mkdir(root, b"srv", Owner::root(0o755)).unwrap();
        for name in [&b"data"[..], b"new"] {
            let socket = FileKind::Socket;
            filesystem
                .mknod(srv, name, socket, (0, 0), Owner::root(0o755))
                .unwrap();
        }
    });
    let made = home.output(&["commit", "it", "mine"]);
    assert_eq!(made.code(), 0, "{}", made.stderr());
    let said = made.stderr();
    assert!(
        said.contains("/srv/data: a socket") && said.contains("/srv/new: a socket"),
        "{said}"
    );
    let (names, _) = top_layer(&home, "mine");
    assert_eq!(names, "./\nsrv/\nsrv/.wh.data\n");
    let list = ["run", "--rm", "mine", "sh", "-c", "ls /srv"];
    assert_eq!(home.output(&list).ok(), "hard\nhidden\nkept\nrun\n");
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn attributes_with_odd_names_and_no_values_are_in_the_layer() {
    let home = stopped();
    plant(&disk(&home), |filesystem, root| {
        let file = filesystem
            .create(root, b"file", Owner::root(0o644))
            .unwrap();
        for (name, value) in [
            (&b"user.a=b"[..], &b"value"[..]),
            (b"user.empty", b""),
            (b"trusted.overlay.overlay.inner", b"kept"),
            (b"trusted.overlay.origin", b"dropped"),
        ] {
            filesystem.set_xattr(file, name, value, Any).unwrap();
        }
    });
    home.output(&["commit", "it", "mine"]).ok();
    let (_, layer) = top_layer(&home, "mine");
    let image = home.path().join("image");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let ext4 = |words: &[&str]| home.output(&[&["ext4"], words].concat());
    ext4(&["mkfs", &text(&image), "--size", "20M"]).ok();
    ext4(&["import", &text(&image), &text(&layer)]).ok();
    let shown = ext4(&["stat", &text(&image), "/file", "--json"]).json();
    let expected = serde_json::json!({
        "user.a=b": "value",
        "user.empty": "",
        "trusted.overlay.inner": "kept",
    });
    assert_eq!(shown["xattrs"], expected);
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

/// Checks that a note says that the disk is marked, and nothing else.
#[track_caller]
fn assert_warned(finished: &Finished) -> String {
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    let said = finished.stderr();
    assert!(
        said.contains("warning: the disk of it is marked as having errors"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    finished.stdout()
}

#[test]
#[ignore = "needs a built guest"]
fn a_disk_that_is_marked_as_damaged_can_be_read_and_used() {
    let home = stopped();
    let disk = disk(&home);
    plant(&disk, |filesystem, root| {
        let file = filesystem
            .create(root, b"file", Owner::root(0o644))
            .unwrap();
        filesystem.write(file, 0, b"mine").unwrap();
    });
    // The mark that the guest's kernel sets when the host has no room for a write: EXT4_ERROR_FS.
    let marked = Command::new("debugfs")
        .args(["-w", "-R", "set_super_value state 2"])
        .arg(&disk)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .unwrap();
    assert!(marked.status.success(), "{marked:?}");
    let out = home.path().join("out");
    let out = out.to_str().unwrap();
    let changes = assert_warned(&home.output(&["diff", "it"]));
    assert!(changes.contains("A /file\n"), "{changes}");
    assert_warned(&home.output(&["cp", "it:/file", out]));
    assert_eq!(fs::read(out).unwrap(), b"mine");
    assert_warned(&home.output(&["commit", "it", "mine"]));
    assert_warned(&home.output(&["snapshot", "create", "it", "moment"]));
    for run in [
        &["start", "-a", "it"][..],
        &["run", "--rm", "--from", "moment", "cat", "/file"],
        &["run", "--rm", "mine", "cat", "/file"],
    ] {
        let run = home.output(run);
        assert_eq!(run.code(), 0, "{}", run.stderr());
    }
    home.output(&["snapshot", "rm", "moment"]).ok();
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_file_of_holes_comes_out_of_a_sandbox_at_once() {
    use std::os::unix::fs::MetadataExt;
    const SIZE: u64 = 500 << 30;
    let home = stopped();
    plant(&disk(&home), |filesystem, root| {
        let file = filesystem
            .create(root, b"big", Owner::root(0o6777))
            .unwrap();
        filesystem.truncate(file, SIZE).unwrap();
    });
    let out = home.path().join("out");
    let begun = Instant::now();
    home.output(&["cp", "it:/big", out.to_str().unwrap()]).ok();
    let found = fs::metadata(&out).unwrap();
    assert_eq!((found.len(), found.mode() & 0o7777), (SIZE, 0o777));
    assert!(found.blocks() * 512 < 1 << 20);
    assert!(begun.elapsed() < PATIENCE);
    home.output(&["commit", "it", "mine"]).ok();
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}
