//! Changes in mounted trees: in memory, in the kernel's overlay, in a folder, over a sandbox's own.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use micabox_testing::shell;

use crate::support::trees::{World, assert_same, shape};
use crate::support::{Finished, upper::Place, wait_until};

#[test]
#[ignore = "needs root: mounts filesystems"]
fn changes_in_memory_are_listed_and_become_an_image() {
    let world = World::new();
    world.mica("mount --rw box a").ok();
    shell(
        &world.path("a"),
        "cd srv; echo new > added; ln added hardlink; ln -s data link; rm data; rm -r hidden
        rm -r kept; mkdir kept; echo fresh > kept/fresh; chmod 600 run; mkdir twice; rmdir twice
        cd ..; mv many moved; echo more >> long; setfattr -n user.new -v 1 file",
    );
    // A second name of a changed file has changed as well.
    let expected = "C /deep\nC /file\nC /long\nD /many\nA /moved\n";
    let changes = world.mica("diff a").ok();
    let top: String = changes
        .lines()
        .filter(|line| line.matches('/').count() == 1 && !line.ends_with("/srv"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(top, expected, "{changes}");
    for change in [
        "A /srv/added",
        "D /srv/data",
        "C /srv/kept",
        "D /srv/hidden",
        "C /srv/run",
    ] {
        assert!(
            changes.lines().any(|line| line == change),
            "{change}: {changes}"
        );
    }
    assert!(!changes.contains("twice"));

    let digest = world.mica("commit -m why a mine").ok();
    assert!(digest.starts_with("sha256:"), "{digest}");
    let seen = world.look("a");
    world.mica("mount --with kernel mine b").ok();
    assert_same(&seen, &world.look("b"));
    let read_only = world.mica("diff ./b");
    assert!(
        read_only.stderr().contains("read-only"),
        "{}",
        read_only.stderr()
    );
    // It can be changed and committed again.
    shell(&world.path("a"), "rm srv/added");
    world.mica("commit a mine:2").ok();
    world.mica("mount --with fuse mine:2 c").ok();
    assert_same(&world.look("a"), &world.look("c"));
    world.mica("umount a b c").ok();
    world.assert_nothing_left();
}

/// The kernel says so once, to whichever program asks it first.
#[test]
#[ignore = "needs root: mounts filesystems"]
fn what_had_no_room_is_not_committed() {
    let world = World::new();
    world.mica("mount --rw --size 1M box a").ok();
    shell(&world.path("a"), "head -c 3000000 /dev/zero >large || true");
    assert_ne!(world.mica("commit a torn").code(), 0);
    let again = world.mica("commit a torn");
    assert_eq!(again.code(), 1);
    assert!(
        again.stderr().contains("1 of its files lack"),
        "{}",
        again.stderr()
    );
    shell(&world.path("a"), "rm large; echo small >small");
    world.mica("commit a whole").ok();
    world.mica("umount a").ok();
    world.assert_nothing_left();
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn a_directory_is_below_changes_in_memory() {
    let world = World::new();
    shell(
        world.home.path(),
        "mkdir t/mounted t/inside; mount -t tmpfs none t/mounted; touch t/mounted/file",
    );
    world.mica("mount --rw ./t a").ok();
    shell(world.home.path(), "umount t/mounted");
    assert_eq!(world.mounted()[0]["kind"], "directory");
    let below = world.look("t");
    assert_same(&below, &world.look("a"));
    assert!(below.contains("trusted.secret") && below.contains("system.posix_acl_default"));
    shell(
        &world.path("a"),
        "echo more >> long; rm -r deep/er; mv many moved; echo new > new; chmod 600 file",
    );
    assert_same(&below, &world.look("t"));
    let changes = world.mica("diff ./a").ok();
    for change in [
        "C /long",
        "D /deep/er",
        "D /many",
        "A /moved/name-1",
        "A /new",
        "C /file",
    ] {
        assert!(
            changes.lines().any(|line| line == change),
            "{change}: {changes}"
        );
    }
    let refused = world.mica("commit ./a mine");
    assert!(refused.stderr().contains("image"), "{}", refused.stderr());

    // On a directory in itself, where what is mounted is not seen.
    world.mica("mount ./t t/inside").ok();
    assert_same(&below, &world.look("t/inside"));
    world.mica("umount t/inside").ok();

    // Whatever changes below, it answers.
    let changing = "for i in $(seq 30); do rm -rf t/many; mkdir t/many; seq $i > t/many/name-$i; truncate -s $i t/long
        rm -f t/old; mkdir t/old; rm -rf t/old; ln -s /etc/passwd t/old; mv t/deep t/many/deep; mv t/many/deep t/deep; done";
    let mut changing = std::process::Command::new("sh")
        .args(["-c", changing])
        .current_dir(world.home.path())
        .spawn()
        .unwrap();
    let read = "find . -ls; find . -type f -exec cat {} +; getfattr -R -h -d -m - .";
    while changing.try_wait().unwrap().is_none() {
        let mut sh = std::process::Command::new("timeout");
        sh.args(["300", "sh", "-c", read])
            .current_dir(world.path("a"));
        let code = Finished::of(sh).code();
        assert_ne!(code, 124, "reading takes too long");
    }
    assert_eq!(world.mounted()[0]["is_alive"], true);
    world.mica("umount a").ok();
    world.assert_nothing_left();
}

/// Makes changes of all kinds that overlayfs makes as memory does: no directory of the image is renamed, and
/// no file with several names is changed. Then all that was changed gets one time: once the clock of files has gone on,
/// it is newer than the stamp.
const CHANGE: &str = r#": > ../stamp; until : > ../now; [ "$(find ../now -newer ../stamp)" ]; do :; done
cd srv; echo new > added; ln added hardlink; ln -s data link; mkfifo pipe; mknod null c 1 3
rm ../disk; rm -r hidden; rm -r kept; mkdir kept; echo fresh > kept/fresh; chmod 600 ../old; mkdir -m 2770 group
chown 7:8 group; truncate -s 5M sparse; echo end >> sparse; mkdir twice; rmdir twice; cd ..
echo more >> long; mv empty full; setfattr -n user.new -v 1 old; setfattr -n trusted.new -v 2 capable
chmod 700 deep/er; chown 12:34 zero; chmod 700 .; rm many/name-7; ln many/name-8 many/name-8.2
find . -newer ../stamp -exec touch -h -d '2020-01-02 03:04:05.678' {} +"#;

#[test]
#[ignore = "needs root: mounts filesystems"]
fn the_kernels_overlay_and_memory_have_the_same_changes() {
    let world = World::new();
    world.mica("mount --rw --with kernel --size 64M box a").ok();
    world.mica("mount --rw --with fuse box b").ok();
    let listed = world.mounted();
    assert_eq!(
        (&listed[0]["by"], &listed[1]["by"]),
        (&"kernel".into(), &"fuse".into())
    );
    let before = shape(&world.look("a"));
    assert_same(&before, &shape(&world.look("b")));
    assert_eq!(world.mica("diff a").ok(), "");
    for place in ["a", "b"] {
        shell(&world.path(place), CHANGE);
    }
    let seen = shape(&world.look("a"));
    assert_same(&seen, &shape(&world.look("b")));
    let changes = world.mica("diff a").ok();
    assert_same(&changes, &world.mica("diff b").ok());
    assert!(
        changes.contains("D /disk\n") && changes.contains("C /zero\n"),
        "{changes}"
    );
    for (place, name) in [("a", "one"), ("b", "two")] {
        world.mica(&format!("commit {place} {name}")).ok();
        world.mica(&format!("mount {name} c")).ok();
        assert_same(&seen, &shape(&world.look("c")));
        world.mica("umount c").ok();
    }

    // Its changes have their limit, and go with it; so does what keeps them.
    let full = Finished::of({
        let mut dd = std::process::Command::new("dd");
        dd.args(["if=/dev/zero", "bs=1M", "count=80", "of=full"]);
        dd.current_dir(world.path("a"));
        dd
    });
    assert!(full.stderr().contains("No space left"), "{}", full.stderr());
    let keeper = listed[0]["process"]["pid"].as_u64().unwrap();
    world.mica("umount a b").ok();
    world.assert_nothing_left();
    wait_until("the process that keeps the changes ends", || {
        !fs::read_to_string(format!("/proc/{keeper}/comm"))
            .is_ok_and(|name| name.starts_with("mica"))
    });
    // As without mica: umount(8), and in use.
    world
        .mica("mount --rw --with kernel box a -- sh -c touch${IFS}new;umount${IFS}-l${IFS}$PWD")
        .ok();
    world.assert_nothing_left();
}

#[test]
#[ignore = "needs root: mounts filesystems"]
fn changes_in_a_folder_are_there_again() {
    let world = World::new();
    let place = Place::in_memory();
    let folder = place.folder();
    let mount = |tree: &str, place: &str| {
        world.mica(&format!(
            "mount --rw --upper {} {tree} {place}",
            folder.display()
        ))
    };
    mount("box", "a").ok();
    assert_eq!(world.mounted()[0]["upper"], folder.to_str().unwrap());
    shell(&world.path("a"), CHANGE);
    let seen = world.look("a");
    let changes = world.mica("diff a").ok();
    world.mica("commit a mine").ok();
    let used = mount("box", "b");
    assert!(used.stderr().contains("in use"), "{}", used.stderr());
    world.mica("umount a").ok();
    world.assert_nothing_left();

    // In the kernel's overlay's terms.
    let whiteout = fs::symlink_metadata(folder.join("upper/disk")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    assert_eq!(
        fs::read(folder.join("upper/srv/kept/fresh")).unwrap(),
        b"fresh\n"
    );
    let other = mount("mine", "a");
    assert!(
        other.stderr().contains("another image"),
        "{}",
        other.stderr()
    );
    mount("box", "a").ok();
    assert_same(&seen, &world.look("a"));
    assert_eq!(world.mica("diff a").ok(), changes);
    shell(&world.path("a"), "rm srv/added srv/hardlink");
    assert!(!world.mica("diff a").ok().contains("added"));
    world.mica("umount a").ok();

    // A sandbox's are other ones.
    let path = folder.to_str().unwrap();
    let sandbox = world
        .home
        .output(&["create", "--upper", &format!("folder:{path}"), "box"]);
    assert!(
        sandbox.stderr().contains("mounted tree"),
        "{}",
        sandbox.stderr()
    );
    let refused = world.mica("mount --rw --upper there --with fuse box a");
    assert!(
        refused.stderr().contains("mica commit"),
        "{}",
        refused.stderr()
    );
    assert!(!world.path("there").exists());
    world.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest, and root: mounts filesystems"]
fn a_sandbox_is_mounted_as_it_is_now() {
    let world = World::new();
    let change =
        "cd /srv; echo new > added; ln added hardlink; rm data; rm -r hidden; chmod 600 run
        rm -r kept; mkdir kept; mkfifo pipe; truncate -s 5M sparse; echo end >> sparse";
    let home = &world.home;
    home.output(&[
        "run",
        "--name",
        "it",
        "--upper",
        "disk:256m",
        "box",
        "sh",
        "-c",
        change,
    ])
    .ok();
    home.output(&["snapshot", "create", "it", "then"]).ok();
    home.output(&["commit", "it", "mine"]).ok();
    world.mica("mount it a").ok();
    world.mica("mount then b").ok();
    world.mica("mount --with kernel mine c").ok();
    let seen = world.look("a");
    assert!(seen.contains("srv/added") && !seen.contains("srv/gone"));
    assert_same(&seen, &world.look("b"));
    assert_same(&shape(&seen), &shape(&world.look("c")));
    // The sandbox may start meanwhile.
    home.output(&["start", "it"]).ok();
    assert_same(&seen, &world.look("a"));
    world.mica("umount a b c").ok();

    // With more changes in memory, it differs from its image by both.
    for source in ["it", "then"] {
        world.mica(&format!("mount --rw {source} a")).ok();
        let more = "cd srv; rm hardlink pipe; echo more >> sparse; mkdir data; mv kept moved; ln run ../ran; rm -r ../many";
        shell(&world.path("a"), more);
        let changes = world.mica("diff ./a").ok();
        for change in [
            "A /srv/added",
            "C /srv/data",
            "D /srv/hidden",
            "D /srv/kept",
            "A /srv/moved",
            "D /many",
        ] {
            let mut lines = changes.lines();
            assert!(lines.any(|line| line == change), "{change}: {changes}");
        }
        assert!(!changes.contains("pipe") && !changes.contains("/deep"));
        world.mica("commit ./a both").ok();
        world.mica("mount --with kernel both b").ok();
        assert_same(&shape(&world.look("a")), &shape(&world.look("b")));
        world.mica("umount a b").ok();
    }
    home.output(&["run", "--name", "memory", "box", "true"])
        .ok();
    let refused = world.mica("mount memory a");
    assert!(
        refused.stderr().contains("--upper disk"),
        "{}",
        refused.stderr()
    );
}
