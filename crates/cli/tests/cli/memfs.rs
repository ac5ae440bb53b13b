//! `mica memfs`: what it mounts, runs, and leaves behind.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use micabox_testing::{shell, wait, wait_until};
use rustix::process::{Pid, Signal, kill_process};

const MICA: &str = env!("CARGO_BIN_EXE_mica");

fn mica() -> Command {
    let mut mica = Command::new(MICA);
    // Where what is mounted is recorded.
    mica.env(
        "MICABOX_HOME",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/memfs"),
    );
    mica
}

/// Runs `mica` with words.
fn ask(words: &[&str]) -> Output {
    mica().args(words).output().unwrap()
}

/// Runs `mica memfs` with words, the last of them a shell's command.
fn run(flags: &[&str], place: &Path, command: &str) -> Output {
    let mut mica = mica();
    mica.arg("memfs").args(flags).arg(place);
    mica.args(["--", "sh", "-c", command]).output().unwrap()
}

#[track_caller]
fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn is_mounted(place: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(place.to_str().unwrap())
}

/// A server without a command.
fn server(place: &Path) -> Child {
    let mica = mica().arg("memfs").arg(place).spawn().unwrap();
    wait_until("mounting", || is_mounted(place));
    mica
}

fn signal(process: &Child, signal: Signal) {
    kill_process(Pid::from_child(process), signal).unwrap();
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_command_runs_in_it_and_gives_its_exit_code() {
    let place = tempfile::tempdir().unwrap();
    let output = run(
        &[],
        place.path(),
        "pwd; echo hello > a; ln a b; stat -c %h b; exit 7",
    );
    let expected = format!("{}\n2\n", place.path().display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(!is_mounted(place.path()));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);

    let output = run(&[], place.path(), "kill -TERM $$");
    assert_eq!(output.status.code(), Some(128 + 15), "{output:?}");
    let output = mica()
        .arg("memfs")
        .arg(place.path())
        .args(["--", "/proc/none/program"])
        .output();
    assert_eq!(output.unwrap().status.code(), Some(127));
    assert!(!is_mounted(place.path()));
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_process_in_the_background_does_not_keep_it() {
    let place = tempfile::tempdir().unwrap();
    let pid = text(&run(
        &[],
        place.path(),
        "sleep 1000 >/dev/null 2>&1 & echo $!",
    ));
    assert!(!is_mounted(place.path()));
    // Its working directory is gone.
    let directory = fs::read_link(format!("/proc/{}/cwd", pid.trim()));
    shell(Path::new("/"), &format!("kill {}", pid.trim()));
    assert!(directory.is_ok_and(|path| path != place.path()));
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn limits_hold_and_what_fits_stays() {
    let place = tempfile::tempdir().unwrap();
    // The kernel reports the close asynchronously, possibly after the removal; only then is there room.
    let fill = "dd if=/dev/zero of=full bs=64k 2>/dev/null && exit 9
        stat -c %s full; rm full; until echo kept > small; do sleep 0.01; done 2>/dev/null
        cat small; stat -f -c %b .";
    let flags = ["--size", "1M", "--cache", "none"];
    assert_eq!(
        text(&run(&flags, place.path(), fill)),
        "1048576\nkept\n256\n"
    );

    let fill = "for i in 1 2 3 4 5; do echo > $i || break; done 2>/dev/null; ls | wc -l";
    assert_eq!(text(&run(&["--inodes", "3"], place.path(), fill)), "3\n");

    // A cache takes more than there is room for, and says so when the file is closed.
    let fill =
        "dd if=/dev/urandom of=full bs=64k count=32 2>&1 >/dev/null | grep -o 'No space left'";
    assert_eq!(
        text(&run(&["--size", "1M"], place.path(), fill)),
        "No space left\n"
    );
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_signal_or_an_unmount_ends_it() {
    let place = tempfile::tempdir().unwrap();
    for end in [Signal::INT, Signal::TERM] {
        let mut mica = server(place.path());
        fs::write(place.path().join("file"), "x").unwrap();
        signal(&mica, end);
        assert!(mica.wait().unwrap().success());
        assert!(!is_mounted(place.path()));
    }
    let mut mica = server(place.path());
    shell(
        Path::new("/"),
        &format!("umount {}", place.path().display()),
    );
    assert!(mica.wait().unwrap().success());
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_killed_server_leaves_no_process_waiting() {
    let place = tempfile::tempdir().unwrap();
    let mut mica = server(place.path());
    let load = "i=0; while echo $i > $0/$1 && cat $0/$1 && mv $0/$1 $0/$1.old && ls $0; do
        i=$((i+1)); done; dd if=/dev/zero of=$0/big bs=1M count=64 conv=fsync";
    let mut busy: Vec<Child> = (0..8)
        .map(|number| {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", load])
                .arg(place.path())
                .arg(number.to_string());
            shell
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    // Sleep: the kill may come at any moment of the load.
    sleep(Duration::from_millis(300));
    signal(&mica, Signal::KILL);
    mica.wait().unwrap();
    for process in &mut busy {
        wait(process);
    }
    shell(
        Path::new("/"),
        &format!("umount {}", place.path().display()),
    );
}

/// Another user, on a machine where `/dev/fuse` is for all, as udev makes it.
fn as_other_user(place: &Path, before: &str, command: &str) -> Output {
    let script = "
        set -e
        mount --make-rprivate /
        mkdir $0/dev $0/place && chown 1234:1234 $0/place
        mknod $0/dev/fuse c 10 229 && chmod 666 $0/dev/fuse && mount --bind $0/dev/fuse /dev/fuse
        install -m 755 \"$1\" $0/mica
        eval \"$3\"
        exec setpriv --reuid 1234 --regid 1234 --clear-groups $0/mica memfs $0/place -- sh -c \"$2\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script]).arg(place);
    unshare.args([MICA, command, before]).output().unwrap()
}

#[test]
#[ignore = "needs root: becomes another user"]
fn without_root_and_without_fusermount_only_the_command_sees_it() {
    let place = tempfile::tempdir().unwrap();
    shell(place.path(), "chmod 755 .");
    let hide = "! [ -e /usr/bin/fusermount3 ] || mount --bind /dev/null /usr/bin/fusermount3";
    let command =
        "id -u; echo hello > a; stat -c %u a; grep -c \" $PWD fuse.memfs\" /proc/self/mounts";
    let output = as_other_user(place.path(), hide, command);
    assert_eq!(text(&output), "1234\n1234\n1\n");
    assert_eq!(fs::read_dir(place.path().join("place")).unwrap().count(), 0);

    let place = tempfile::tempdir().unwrap();
    shell(place.path(), "chmod 755 .");
    // As one that the helper refuses: it mounts for no user without a name.
    let refusal = "printf '#!/bin/sh\necho could not determine username >&2; exit 1' >$0/refuses
        chmod 755 $0/refuses; [ ! -e /usr/bin/fusermount3 ] || mount --bind $0/refuses /usr/bin/fusermount3";
    let output = as_other_user(place.path(), refusal, command);
    assert_eq!(text(&output), "1234\n1234\n1\n");
    assert_eq!(fs::read_dir(place.path().join("place")).unwrap().count(), 0);
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn set_id_bits_and_devices_of_a_strangers_archive_have_no_effect() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (place, tree) = (at("place"), at("tree"));
    fs::create_dir(&place).unwrap();
    fs::create_dir(&tree).unwrap();
    shell(directory.path(), "chmod 755 .");
    let make = "cp /usr/bin/id id; chmod 4755 id; mknod -m 666 null c 1 3
        tar -cf ../tree.tar . && mkfs.erofs --quiet ../tree.erofs . >/dev/null 2>&1";
    shell(&tree, make);
    let look = "setpriv --reuid 65534 --regid 65534 --clear-groups ./id -u
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c ': <null' 2>/dev/null && echo opened
        stat -c %a id";
    for name in ["tree.tar", "tree.erofs"] {
        let source = at(name);
        let output = run(&["--load", source.to_str().unwrap()], &place, look);
        assert_eq!(text(&output), "65534\n4755\n", "{name}");
    }
    // What root itself puts there is root's.
    let own = format!("tar -xf {}; {look}", at("tree.tar").display());
    assert_eq!(text(&run(&[], &place, &own)), "0\nopened\n4755\n");
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn one_in_the_background_is_listed_and_unmounted_by_mica() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (place, kept) = (at("place"), at("kept.tar"));
    fs::create_dir(&place).unwrap();
    let path = place.to_str().unwrap();
    text(&ask(&[
        "memfs",
        "-d",
        "--save",
        kept.to_str().unwrap(),
        path,
    ]));
    assert!(is_mounted(&place));
    fs::write(place.join("file"), "kept").unwrap();
    let listed = text(&ask(&["mount", "--list"]));
    let line = listed.lines().find(|line| line.starts_with(path)).unwrap();
    assert!(line.contains("memfs") && line.contains("fuse"), "{line}");
    let refused = ask(&["diff", path]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("filesystem in memory"), "{said}");
    text(&ask(&["umount", path]));
    assert!(!is_mounted(&place));
    assert_eq!(shell(directory.path(), "tar -xOf kept.tar file"), "kept");
    assert!(!text(&ask(&["mount", "--list"])).contains(path));

    // What it could not save is said by the command that unmounts it.
    let small = [
        "memfs",
        "-d",
        "--size",
        "1M",
        "--save",
        kept.to_str().unwrap(),
        path,
    ];
    text(&ask(&small));
    shell(
        &place,
        "head -c 3000000 /dev/zero >large 2>/dev/null || true",
    );
    let lost = ask(&["umount", path]);
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert!(said.contains("1 of the saved files lack"), "{said}");
    assert!(!is_mounted(&place));

    // What prevents it is said at once.
    let nowhere = ask(&["memfs", "-d", "--load", "/proc/none/archive", path]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(said.contains("/proc/none/archive"), "{said}");
    assert!(!is_mounted(&place));
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn one_whose_server_was_killed_is_listed_and_unmounted() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_str().unwrap();
    let mut mica = server(place.path());
    let is_listed = || text(&ask(&["mount", "--list"])).contains(path);
    wait_until("recording it", is_listed);
    signal(&mica, Signal::KILL);
    mica.wait().unwrap();
    let listed = text(&ask(&["mount", "--list"]));
    let line = listed.lines().find(|line| line.starts_with(path)).unwrap();
    assert!(line.contains("its server was killed"), "{line}");
    text(&ask(&["umount", path]));
    assert!(!is_mounted(place.path()));
    assert!(!is_listed());
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_size_of_zero_is_no_limit_and_of_one_is_a_page() {
    let place = tempfile::tempdir().unwrap();
    let fill = "head -c 3000000 /dev/zero >a; sync a; stat -c %s a";
    let unlimited = ["--size", "0", "--inodes", "0"];
    assert_eq!(text(&run(&unlimited, place.path(), fill)), "3000000\n");
    let fill = "printf x >a && { printf y >b || echo full; } 2>/dev/null; stat -c %s a";
    let small = ["--size", "1", "--cache", "none"];
    assert_eq!(text(&run(&small, place.path(), fill)), "full\n1\n");
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn an_archive_that_does_not_fit_is_refused_with_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    shell(
        directory.path(),
        "mkdir place tree; echo >tree/a; head -c 3000000 /dev/zero >tree/large
        tar -cf tree.tar -C tree a large",
    );
    let archive = directory.path().join("tree.tar");
    for (flag, value) in [("--size", "1M"), ("--inodes", "1")] {
        let flags = [flag, value, "--load", archive.to_str().unwrap()];
        let output = run(&flags, &directory.path().join("place"), "true");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(
            said.contains("large") && said.contains("the limit is"),
            "{said}"
        );
        assert!(said.contains(&format!("`{flag}` gives more")), "{said}");
        assert!(!said.contains("store prune"), "{said}");
    }
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn what_is_in_it_is_kept_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (place, tree) = (at("place"), at("tree"));
    fs::create_dir(&place).unwrap();
    fs::create_dir(&tree).unwrap();
    let make = "umask 022; mkdir -p d/e/f; chmod 1777 d; echo one > d/one; ln d/one two; ln -s d/one link
        mkfifo fifo; mknod whiteout c 0 0; chown 12:34 two; chmod 4751 d/e; touch -d '2001-02-03 04:05:06.789' two
        setfattr -n user.note -v x two; setfattr -n trusted.overlay.opaque -v y d/e; setfacl -m u:5:rwx d/e/f
        truncate -s 5M holes; printf x | dd of=holes bs=1 seek=3000000 conv=notrunc 2>/dev/null
        head -c 1500000 /dev/urandom > random; touch -d 2002-03-04 d/e/f d/e d .";
    shell(&tree, make);
    // GNU tar and mkfs.erofs make what is loaded, and read what is saved.
    let xattrs = "--xattrs --xattrs-include='*' --acls --format=pax -S";
    shell(
        &tree,
        &format!(
            "tar {xattrs} -cf ../tree.tar . && mkfs.erofs --quiet ../tree.erofs . >/dev/null 2>&1"
        ),
    );
    let compare = |left: &Path, right: &Path| {
        let list = "find . -printf '%p %y %m %U %G %n %T@ %l\n' | sort; getfattr -dhR -m - . | sort
            find . -type f -exec sha256sum {} + | sort";
        assert_eq!(shell(left, list), shell(right, list));
    };
    for source in ["tree.tar", "tree.erofs"] {
        for kept in ["kept.tar", "kept.erofs"] {
            let (source, kept) = (at(source), at(kept));
            let flags = [
                "--load",
                source.to_str().unwrap(),
                "--save",
                kept.to_str().unwrap(),
            ];
            let seen = at("seen");
            fs::create_dir(&seen).unwrap();
            let look = format!("cp -a . {}; stat -c %b holes", seen.display());
            let blocks: u64 = text(&run(&flags, &place, &look)).trim().parse().unwrap();
            // mkfs.erofs keeps none.
            let has_holes = source.extension().unwrap() == "tar";
            assert_eq!(
                blocks <= 16,
                has_holes,
                "holes of {source:?}: {blocks} blocks"
            );
            compare(&tree, &seen);
            fs::remove_dir_all(&seen).unwrap();

            if kept.extension().unwrap() == "tar" {
                fs::create_dir(&seen).unwrap();
                shell(
                    &seen,
                    "tar --xattrs --xattrs-include='*' --acls -xpf ../kept.tar",
                );
                compare(&tree, &seen);
                fs::remove_dir_all(&seen).unwrap();
            } else {
                shell(
                    directory.path(),
                    "mount -t erofs -o ro,loop kept.erofs place",
                );
                compare(&tree, &place);
                shell(directory.path(), "umount place");
            }
            fs::remove_file(kept).unwrap();
        }
    }
    // Before anything is done, and nothing is replaced: as root, /dev/null would be.
    let refused = run(&["--save", "/dev/null"], &place, "touch ../ran");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("no regular file"), "{said}");
    assert!(!at("ran").exists());
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_file_that_is_no_tree_is_refused_and_nothing_is_mounted() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    let mut image = vec![0; 8192];
    image[1024..1028].copy_from_slice(&0xe0f5_e1e2_u32.to_le_bytes());
    let mut outside = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..9].copy_from_slice(b"a/../../b");
    header.set_size(0);
    header.set_cksum();
    outside.append(&header, &[][..]).unwrap();
    for bytes in [vec![b'x'; 1000], image, outside.into_inner().unwrap()] {
        fs::write(&file, bytes).unwrap();
        let output = run(
            &["--load", file.to_str().unwrap()],
            place.path(),
            "echo not reached",
        );
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(!is_mounted(place.path()));
    }
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn what_can_not_be_saved_is_said() {
    let place = tempfile::tempdir().unwrap();
    let kept = tempfile::tempdir().unwrap();
    let tar = kept.path().join("kept.tar");
    let save = ["--size", "1M", "--save", tar.to_str().unwrap()];
    // The kernel takes what there is no room for, and says so to nothing but fsync(2).
    let lost = run(
        &save,
        place.path(),
        "head -c 3000000 /dev/zero >large 2>/dev/null || true",
    );
    assert_eq!(lost.status.code(), Some(125), "{lost:?}");
    let said = String::from_utf8_lossy(&lost.stderr);
    assert!(said.contains("1 of the saved files lack"), "{said}");
    assert!(tar.exists());
    // Without the file nothing is missing.
    let removed = "head -c 3000000 /dev/zero >large; sync; rm large; echo small >small";
    text(&run(&save, place.path(), removed));

    // Noticed before the command has run, and not after it.
    let nowhere = kept.path().join("none/kept.tar");
    let early = run(
        &["--save", nowhere.to_str().unwrap()],
        place.path(),
        "echo reached",
    );
    assert_eq!(early.status.code(), Some(125), "{early:?}");
    assert!(early.stdout.is_empty(), "{early:?}");

    // What is there is replaced where a link leads, with its owner and permissions.
    let (link, secret) = (kept.path().join("link.tar"), kept.path().join("secret.tar"));
    fs::write(&secret, "old").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("secret.tar", &link).unwrap();
    let save = ["--save", link.to_str().unwrap()];
    text(&run(&save, place.path(), "echo new >file"));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o7777, 0o600);
    let loaded = run(
        &["--load", secret.to_str().unwrap()],
        place.path(),
        "cat file",
    );
    assert_eq!(text(&loaded), "new\n");
    assert_eq!(fs::read_dir(kept.path()).unwrap().count(), 3);

    // Attributes that an archive can't hold are refused when they are set.
    let script = "touch a; setfattr -n user. -v 1 a; setfattr -n foo.bar -v 1 a; setfattr -n user.x -v 1 a; \
                  getfattr -d -m - a | grep -c =";
    let output = run(&save, place.path(), script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n");

    // A FIFO would wait for a writer.
    let fifo = kept.path().join("fifo");
    shell(kept.path(), "mkfifo fifo");
    let refused = run(&["--load", fifo.to_str().unwrap()], place.path(), "true");
    assert_eq!(refused.status.code(), Some(125));
    let mut mica = Command::new(MICA);
    mica.arg("mount").arg(&fifo).arg(place.path());
    mica.env("MICABOX_HOME", kept.path().join("home"));
    assert!(!mica.status().unwrap().success());
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn what_is_saved_is_its_users_alone_and_what_is_loaded_is_read_by_a_worker() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("place")).unwrap();
    for name in ["saved.tar", "saved.erofs"] {
        let kept = at(name);
        text(&run(
            &["--save", kept.to_str().unwrap()],
            &at("place"),
            "echo text >file",
        ));
        assert_eq!(fs::metadata(at(name)).unwrap().mode() & 0o7777, 0o600);
        let load = |worker: &str| {
            let mut mica = Command::new(MICA);
            mica.env("MICABOX_WORKER", worker);
            mica.args(["memfs", "--load", at(name).to_str().unwrap()]);
            mica.arg(at("place"))
                .args(["--", "cat", "file"])
                .output()
                .unwrap()
        };
        assert_eq!(text(&load("")), "text\n");
        // Not even a sound file is read by this process itself.
        let refused = load("/bin/false");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(125), "{said}");
        assert!(said.contains("worker"), "{said}");
    }
}
