//! Guests that check what they read of their image, emulated.

use crate::support::Home;
use crate::support::packed::{READ, home, pack};
use crate::support::verity::{AROUND, BLOCK, change, is_io_error};

#[test]
#[ignore = "needs a built guest"]
fn a_guest_that_checks_its_image_reads_what_is_in_it_until_the_disk_changes() {
    let home = home();
    let before = home.output(&["run", "--rm", "box", "sh", "-c", READ]).ok();
    let start = [
        "run", "-d", "--name", "it", "--verity", "box", "sleep", "1000",
    ];
    home.output(&start).ok();
    let exec = |script| home.output(&["exec", "it", "sh", "-c", script]);
    // The root is on the device that checks, and nothing can write to it.
    assert_eq!(
        exec("cat /sys/block/dm-0/ro; ls /sys/block | grep -c dm-").ok(),
        "1\n1\n"
    );
    home.output(&["rm", "-f", "it"]).ok();

    // Another machine has the same tree; this one has read nothing of the files yet.
    home.output(&start).ok();
    change(&home);
    let around = exec(AROUND).ok();
    let broken = exec(BLOCK);
    let said = broken.stdout();
    assert!(broken.code() != 0 && is_io_error(&said), "{said}");
    // And nowhere else, but for what is read ahead into one large page with it.
    assert_eq!(exec(AROUND).ok(), around);
    home.output(&["rm", "-f", "it"]).ok();

    // A machine that checks nothing reads what the disk has made of it.
    let run = ["run", "--rm", "--transport", "blk", "box", "sh", "-c"];
    let changed = home.output(&[&run[..], &[READ]].concat()).ok();
    assert_ne!(changed, before);
    assert_eq!(home.output(&[&run[..], &[AROUND]].concat()).ok(), around);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_packed_image_and_a_trimmed_one_can_be_checked_too() {
    let home = home();
    let run = |words: &[&str], script| {
        let start = ["run", "--rm", "--verity"];
        home.output(&[&start, words, &["box", "sh", "-c", script]].concat())
    };
    assert_ne!(pack(&home), 0);
    let packed = run(&[], READ).ok();
    assert_eq!(run(&["--trim", "/srv/text"], "ls /srv/text").code(), 1);
    assert_eq!(run(&[], READ).ok(), packed);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn what_a_guest_could_not_check_is_refused() {
    let home = Home::new();
    for (words, part) in [
        (&["--transport", "pmem", "box"][..], "is mapped as memory"),
        (&["--root", "stacked", "box"], "a stack of layers"),
        (
            &["--backend", "host", "--upper", "tmpfs", "box"],
            "checks nothing",
        ),
    ] {
        let run = home.output(&[&["run", "--rm", "--verity"], words, &["true"]].concat());
        assert_eq!(run.code(), 125, "{}", run.stderr());
        assert!(run.stderr().contains(part), "{}", run.stderr());
    }
    let disk = [
        "run",
        "--rm",
        "--verity",
        "--root-disk",
        "disk.ext4",
        "true",
    ];
    let said = home.output(&disk).stderr();
    assert!(said.contains("cannot be used with"), "{said}");
}
