//! Containers of an image that is packed: its layers are served until it is unpacked.

use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::host::{HOST, run};
use crate::support::packed::{READ, assert_noted, damage, home, pack, packed};
use crate::support::{Finished, Home, image, wait_until};

fn read(home: &Home) -> Finished {
    run(home, &[], &["sh", "-c", READ])
}

fn start(home: &Home) {
    let words = [&HOST[..], &["-d", "--name", "it", "box", "sleep", "1000"]].concat();
    home.output(&words).ok();
}

#[test]
#[ignore = "needs root and a built guest"]
fn containers_that_start_at_once_read_what_is_in_the_image() {
    let home = home();
    let before = read(&home).ok();
    home.assert_nothing_left();
    for _ in 0..3 {
        assert_ne!(pack(&home), 0);
        thread::scope(|scope| {
            let all: Vec<_> = (0..6).map(|_| scope.spawn(|| read(&home))).collect();
            for one in all {
                assert_eq!(one.join().unwrap().ok(), before);
            }
        });
        // A server ends when the image is unpacked.
        home.assert_nothing_left();
        assert_eq!(packed(&home), 0);
    }
    assert!(home.output(&["store", "fsck"]).ok().contains("all well"));
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_layer_that_is_whole_is_used_beside_those_that_are_packed() {
    let home = home();
    let before = read(&home).ok();
    home.output(&["tag", "box", "all"]).ok();
    // The lowest layer stays whole: a sandbox of another image uses it.
    home.load(&image::layers()[..1], &image::config());
    home.assert_nothing_left();
    start(&home);
    assert_ne!(pack(&home), 0);
    let words = ["--rm", "all", "sh", "-c", READ];
    assert_eq!(home.output(&[&HOST[..], &words].concat()).ok(), before);
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn without_its_server_a_layer_is_not_read_and_a_later_start_has_another_one() {
    let home = home();
    assert_ne!(pack(&home), 0);
    start(&home);
    let servers = home.processes("mica-layers");
    assert_eq!(servers.len(), 1);
    for pid in servers {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
    wait_until("the server is gone", || {
        home.processes("mica-layers").is_empty()
    });
    let exec = home.output(&["exec", "it", "md5sum", "/srv/random"]);
    assert_ne!(exec.code(), 0, "{}", exec.stdout());
    // A tree of the one that was killed is no one else's.
    read(&home).ok();
    home.output(&["rm", "-f", "it"]).ok();
    wait_until("no image is held", || {
        home.output(&["ps"]).ok();
        home.held_images().is_empty()
    });
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn of_a_damaged_chunk_no_byte_is_read() {
    let home = home();
    assert_ne!(pack(&home), 0);
    damage(&home);
    let output = run(
        &home,
        &[],
        &["sh", "-c", "md5sum /srv/text; md5sum /srv/random"],
    );
    assert_ne!(output.code(), 0);
    let stdout = output.stdout();
    assert!(
        stdout.contains("/srv/text") && !stdout.contains("/srv/random"),
        "{stdout}"
    );
    assert_noted(&home);
    assert_eq!(home.output(&["store", "fsck"]).code(), 1);
    home.assert_nothing_left();
}
