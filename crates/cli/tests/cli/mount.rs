//! `mica mount`: trees on this machine, beside the kernel's own view of the same.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use micabox_testing::shell;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::trees::{World, assert_same};
use crate::support::{wait, wait_until};

#[test]
#[ignore = "needs root: mounts filesystems"]
fn an_image_looks_as_the_kernel_shows_it() {
    let world = World::new();
    world.mica("mount --with kernel box a").ok();
    world.mica("mount --with fuse box b").ok();
    world.mica("mount --with fuse --rw box c").ok();
    let listed = world.mounted();
    let by = |index: usize| listed[index]["by"].as_str().unwrap().to_owned();
    assert_eq!([by(0), by(1), by(2)], ["kernel", "fuse", "fuse"]);
    let table = world.mica("mount").ok();
    assert_eq!(table.lines().count(), 4, "{table}");
    let kernels = world.look("a");
    assert!(kernels.contains("srv/kept/+page.svelte") && !kernels.contains("srv/gone"));
    assert!(kernels.contains("trusted.secret") && kernels.contains("security.capability"));
    assert_same(&kernels, &world.look("b"));
    assert_same(&kernels, &world.look("c"));
    assert_same(&births(&world.path("a")), &births(&world.path("b")));

    // By itself the kernel serves root, and the image stays while it is mounted.
    let again = world.mica("mount box a");
    assert!(again.stderr().contains("mounted on"), "{}", again.stderr());
    world.mica("umount a").ok();
    world.mica("mount box a").ok();
    assert_eq!(world.mounted()[2]["by"], "kernel");
    let used = world.mica("rmi box");
    for words in ["is mounted on", "`mica umount "] {
        assert!(used.stderr().contains(words), "{}", used.stderr());
    }
    world.mica("store prune --all").ok();
    assert_same(&kernels, &world.look("a"));
    assert_same(&kernels, &world.look("b"));
    world.mica("umount a b c").ok();
    world.assert_nothing_left();
    world.mica("store prune --all").ok();
    assert_eq!(world.mica("mount box a").code(), 1);
}

/// Lists when files were made, which ext4 knows and EROFS does not.
fn births(place: &Path) -> String {
    let list = Command::new("sh")
        .args(["-c", "find . -printf '%P %B@\\n' | sort"])
        .current_dir(place)
        .output();
    String::from_utf8(list.unwrap().stdout).unwrap()
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn filesystems_in_files_look_as_the_kernel_shows_them() {
    let world = World::new();
    shell(
        world.home.path(),
        "mke2fs -q -t ext4 -d t disk.ext4 64M && mkfs.erofs -x 1 --quiet disk.erofs t",
    );
    for (file, options) in [("disk.ext4", "loop,ro,noload"), ("disk.erofs", "loop,ro")] {
        let place = world.path("a");
        let script = format!("mount -o {options} {file} {}", place.display());
        shell(world.home.path(), &script);
        world.mica(&format!("mount {file} b")).ok();
        assert_same(&world.look("a"), &world.look("b"));
        assert_same(&births(&world.path("a")), &births(&world.path("b")));
        world.mica("umount b").ok();
        shell(world.home.path(), "umount a");
    }
    let refused = world.mica("mount --with kernel disk.erofs b");
    assert!(refused.stderr().contains("hostile"), "{}", refused.stderr());
    world.assert_nothing_left();
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn compressed_images_are_refused_with_their_reason_and_disk_images_are_opened() {
    let world = World::new();
    shell(
        world.home.path(),
        "seq 1 50000 >t/numbers; mkfs.erofs -zlz4hc --quiet lz4.erofs t >/dev/null 2>&1
        mke2fs -q -t ext4 -d t disk.ext4 64M
        qemu-img convert -q -f raw -O qcow2 disk.ext4 disk.qcow2",
    );
    let refused = world.mica("mount lz4.erofs b");
    assert!(
        refused.stderr().contains("compressed"),
        "{}",
        refused.stderr()
    );
    world.mica("mount disk.ext4 a").ok();
    world.mica("mount disk.qcow2 b").ok();
    assert_same(&world.look("a"), &world.look("b"));
    world.mica("umount a b").ok();
    world.assert_nothing_left();
}

/// Returns the processes that serve trees of this world, the jailed one last.
fn servers(world: &World) -> Vec<Pid> {
    let listed = world.mounted();
    let owner = listed[0]["process"]["pid"].as_i64().unwrap() as i32;
    let mut all = vec![Pid::from_raw(owner).unwrap()];
    // `/proc/PID/task/TID/children` leaves some out while processes come and go.
    while let Some(child) = all.last().and_then(|last| child_of(*last)) {
        all.push(child);
    }
    all
}

/// Returns a process that another one has started.
fn child_of(parent: Pid) -> Option<Pid> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let child = numbers.find(|number: &i32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // Behind the name, which is in parentheses, and the state.
        let parents = stat.rsplit(')').next().unwrap_or_default();
        parents.split_whitespace().nth(1) == Some(&parent.to_string())
    });
    child.and_then(Pid::from_raw)
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_killed_server_leaves_no_process_waiting() {
    let world = World::new();
    // The process that answers for it, its keeper, the jailed worker.
    for victim in [0, 2] {
        world.mica("mount --rw --with fuse box a").ok();
        let load = "while cat $0/long > $0/$1 && mv $0/$1 $0/$1.old && ls -lR $0/many; do :; done";
        let mut busy: Vec<Child> = (0..6)
            .map(|number| {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", load])
                    .arg(world.path("a"))
                    .arg(number.to_string());
                shell
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        // Sleep: the kill may come at any moment of the load.
        sleep(Duration::from_millis(200));
        kill_process(servers(&world)[victim], Signal::KILL).unwrap();
        for process in &mut busy {
            wait(process);
        }
        wait_until("its end is seen", || {
            world.mounted()[0]["is_alive"] == false
        });
        wait_until("it answers nothing", || {
            let error = match fs::read_dir(world.path("a")) {
                Ok(mut names) => names.next().and_then(Result::err),
                Err(error) => Some(error),
            };
            let gone = rustix::io::Errno::NOTCONN.raw_os_error();
            error.is_some_and(|error| error.raw_os_error() == Some(gone))
        });
        world.mica("umount a").ok();
        world.assert_nothing_left();
    }
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn damaged_filesystems_give_errors_and_no_more() {
    let world = World::new();
    shell(
        world.home.path(),
        "rm -r t/many t/long t/sparse; mkfs.erofs -x 1 --quiet one.erofs t; mke2fs -q -t ext4 -d t one.ext4 8M",
    );
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut served = 0;
    for round in 0..24 {
        let name = if round % 2 == 0 {
            "one.erofs"
        } else {
            "one.ext4"
        };
        let path = world.path("damaged");
        fs::copy(world.path(name), &path).unwrap();
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        // In the metadata, which are at the beginning; not in the superblock's checksum.
        let size = file.metadata().unwrap().len().min(400 << 10);
        for _ in 0..200 {
            let at = 2048 + next(size - 2048);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << next(8))], at).unwrap();
        }
        let mounted = world.mica("mount damaged a");
        if mounted.code() != 0 {
            assert!(
                !mounted.stderr().contains("internal error"),
                "{}",
                mounted.stderr()
            );
            continue;
        }
        served += 1;
        let start = Instant::now();
        let script = "(find $0 -ls; find $0 -type f -exec cat {} +; getfattr -R -h -d -m - $0) >/dev/null 2>&1";
        let mut walk = Command::new("timeout");
        walk.args(["300", "sh", "-c", script]).arg(world.path("a"));
        let status = walk.status().unwrap();
        assert_ne!(
            status.code(),
            Some(124),
            "walking takes {:?}",
            start.elapsed()
        );
        assert_eq!(world.mounted()[0]["is_alive"], true, "round {round}");
        world.mica("umount a").ok();
    }
    assert!(served > 4, "only {served} could be mounted");
    world.assert_nothing_left();
}

#[test]
#[ignore = "needs root: mounts a filesystem"]
fn a_command_runs_in_it_and_gives_its_exit_code() {
    let world = World::new();
    for with in ["kernel", "fuse"] {
        let words = format!(
            "mount --with {with} box a -- sh -c pwd;cat${{IFS}}srv/hidden/new;exit${{IFS}}7"
        );
        let output = world.mica(&words);
        let expected = format!("{}\nnew", world.path("a").canonicalize().unwrap().display());
        assert_eq!(
            (output.code(), output.stdout()),
            (7, expected),
            "{}",
            output.stderr()
        );
        world.assert_nothing_left();
    }
    let mut foreground = world.home.mica(&["mount", "--foreground", "box"]);
    let mut foreground = foreground.arg(world.path("a")).spawn().unwrap();
    wait_until("it is mounted", || world.path("a").join("srv").exists());
    // In use: no path leads there any more.
    let open = fs::File::open(world.path("a").join("srv/data")).unwrap();
    kill_process(Pid::from_child(&foreground), Signal::INT).unwrap();
    wait(&mut foreground);
    drop(open);
    world.assert_nothing_left();

    world.mica("mount --with fuse box a").ok();
    let open = fs::File::open(world.path("a").join("srv/data")).unwrap();
    let unmounted = world.mica("umount a");
    assert!(
        unmounted.stderr().contains("until they end"),
        "{}",
        unmounted.stderr()
    );
    let mut byte = [0];
    open.read_exact_at(&mut byte, 9).unwrap();
    assert_eq!(&byte, b"9");
    drop(open);
    world.assert_nothing_left();
}

/// Without root, on a machine where `/dev/fuse` is for all, as udev makes it.
#[test]
#[ignore = "needs root: becomes another user"]
fn without_root_and_without_fusermount_only_a_command_sees_it() {
    let world = World::new();
    let script = r#"
        set -e
        mount --make-rprivate /
        chmod 755 "$0"; chown -R 1234:1234 "$0/store" "$0/a"; install -m 755 "$1" "$0/mica"
        mkdir "$0/dev"; mknod "$0/dev/fuse" c 10 229; chmod 666 "$0/dev/fuse"
        mount --bind "$0/dev/fuse" /dev/fuse
        ! [ -e /usr/bin/fusermount3 ] || mount --bind /dev/null /usr/bin/fusermount3
        as() { setpriv --reuid 1234 --regid 1234 --clear-groups "$@"; }
        as "$0/mica" mount box "$0/a" -- sh -c 'stat -c %u:%a root srv/run; cat srv/hidden/new || echo refused'
        as "$0/mica" mount box "$0/a" || echo $?"#;
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "sh", "-c", script])
        .arg(world.home.path());
    unshare.arg(env!("CARGO_BIN_EXE_mica"));
    unshare
        .env("MICABOX_HOME", world.home.store())
        .env("MICABOX_CONFIG", "/dev/null");
    let output = unshare.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Owners that the namespace does not map show as the overflow user. All is the user's to look into.
    let expected = "65534:700\n65534:644\nnew1\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{said}");
    assert!(said.contains("install fuse3"), "{said}");
}

/// A user with `fusermount3`, which asks for their name.
#[test]
#[ignore = "needs root: becomes another user"]
fn without_root_a_tree_is_its_users_to_change() {
    let world = World::new();
    let script = r#"
        set -e
        mount --make-rprivate /
        chmod 755 "$0"; chown -R nobody "$0/store" "$0/a"; cd "$0"; install -m 755 "$1" mica; set -- ./mica
        mkdir dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse; mount --bind dev/fuse /dev/fuse
        as() { setpriv --reuid nobody --clear-groups "$@"; }
        as "$1" mount --rw box a
        as "$1" mount | grep -c memory
        as sh -c 'cat a/srv/hidden/new; echo; rm -r a/srv a/many; chown 5:6 a/long; stat -c %u:%g a/long a/file'
        as "$1" diff a | grep -v /many
        as sh -c ': > a/file' && as "$1" commit a mine >/dev/null
        as "$1" umount a; as "$1" mount --rw mine a; stat -c %u a || echo closed to root
        as stat -c %u:%g:%s a/long a/file; as "$1" umount a; as "$1" mount | grep -c memory"#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script]);
    unshare
        .arg(world.home.path())
        .arg(env!("CARGO_BIN_EXE_mica"));
    unshare
        .env("MICABOX_HOME", world.home.store())
        .env("MICABOX_CONFIG", "/dev/null");
    let output = unshare.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "1\nnew\n5:6\n0:0\nC /long\nD /srv\nclosed to root\n5:6:1288895\n0:0:0\n0\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{said}");
    world.assert_nothing_left();
}
