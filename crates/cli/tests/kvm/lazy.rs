//! Images that start before they are here, on our own monitor. `scripts/test-kvm` runs these.

use std::process::Command;

use crate::support::lazy::Remote;
use crate::support::packed::READ;
use crate::support::{Finished, Home};

/// Executes a program where these devices are not there.
const WITHOUT: &str = r#"
new=$1; hidden=$2; shift 2
mkdir -p "$new"
# As /dev is: in one that all may write to no locks of root's are made.
mount -t tmpfs -o mode=755 none "$new"
for device in null zero full random urandom tty kvm fuse userfaultfd; do
    case " $hidden " in *" $device "*) continue ;; esac
    [ -e "/dev/$device" ] || continue
    : >"$new/$device"
    mount --bind "/dev/$device" "$new/$device"
done
mount --rbind "$new" /dev
exec "$@"
"#;

fn without(home: &Home, hidden: &str, words: &[&str]) -> Finished {
    let mica = home.mica(words);
    let mut command = Command::new("unshare");
    let script = ["-m", "sh", "-c", WITHOUT, "sh"];
    command
        .args(script)
        .arg(home.path().join("dev"))
        .arg(hidden);
    command.arg(mica.get_program()).args(mica.get_args());
    for (name, value) in mica.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Finished::of(command)
}

#[test]
fn without_fuse_or_userfaultfd_layers_come_by_what_is_left_and_a_line_says_so() {
    const DISK: &str = "the image is a disk and no memory";
    let remote = Remote::new();
    let start = ["run", "--rm", "--backend", "kvm", "--cold"];
    let read = ["sh", "-c", READ];
    let whole = [&start[..], &["-q", "box"], &read].concat();
    let expected = remote.origin.output(&whole).ok();
    let has_faults = std::path::Path::new("/dev/userfaultfd").exists();
    for (hidden, notice) in [
        ("userfaultfd", None),
        ("fuse", (!has_faults).then_some(DISK)),
        ("fuse userfaultfd", Some(DISK)),
    ] {
        // So that the start finds an image of which only a part is here.
        remote.pull();
        let words = [&start[..], &["--lazy", &*remote.name], &read].concat();
        let finished = without(&remote.home, hidden, &words);
        let said = finished.stderr();
        assert_eq!(said.contains(DISK), notice.is_some(), "{hidden}: {said}");
        assert_eq!(
            (finished.code(), finished.stdout()),
            (0, expected.clone()),
            "{hidden}: {said}"
        );
        remote.home.assert_nothing_left();
        assert_eq!(remote.lazy(), 0);
        remote.home.output(&["rmi", &remote.name]).ok();
        remote.home.output(&["store", "prune"]).ok();
    }
    // Who asks for memory gets it, and the rest of the image first.
    remote.pull();
    let memory = ["--lazy", "--transport", "pmem", &*remote.name];
    let words = [&start[..], &memory, &read].concat();
    let finished = without(&remote.home, "fuse userfaultfd", &words);
    let said = finished.stderr();
    assert!(
        said.contains("all of the image is fetched before the start"),
        "{said}"
    );
    assert_eq!((finished.code(), finished.stdout()), (0, expected));
}

#[test]
fn what_a_machine_reads_of_an_image_that_is_not_here_is_what_is_in_it() {
    let mut remote = Remote::new();
    let run = |home: &crate::support::Home, words: &[&str], image: &str| {
        let start = ["run", "--rm", "-q", "--backend", "kvm", "--cold"];
        home.output(&[&start, words, &[image, "sh", "-c", READ]].concat())
    };
    let expected = run(&remote.origin, &[], "box").ok();
    assert!(expected.contains("/srv/random"), "{expected}");
    for transport in ["pmem", "blk"] {
        let words = ["--lazy", "--transport", transport];
        let read = run(&remote.home, &words, &remote.name);
        assert_eq!(read.ok(), expected, "{transport}");
        remote.home.assert_nothing_left();
        assert_eq!(remote.lazy(), 0);
        remote.home.output(&["rmi", &remote.name]).ok();
        remote.home.output(&["store", "prune"]).ok();
    }
    // Without its registry, no byte of it is made up.
    for transport in ["pmem", "blk"] {
        remote.pull();
        remote.registry = None;
        let words = ["--lazy", "--transport", transport];
        let read = run(&remote.home, &words, &remote.name);
        assert_ne!(read.code(), 0);
        assert!(!read.stdout().contains("/srv/random"), "{}", read.stdout());
        // One line of mica's says why.
        let said = read.stderr();
        let why =
            |line: &&str| line.contains("could not be read") && line.contains("cannot connect to");
        assert_eq!(said.lines().filter(why).count(), 1, "{said}");
        remote.assert_noted("cannot connect to");
        remote.home.assert_nothing_left();
        if transport == "pmem" {
            remote = Remote::new();
        }
    }
}
