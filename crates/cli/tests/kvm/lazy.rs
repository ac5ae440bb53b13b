//! Images that start before they are here, on our own monitor. `scripts/test-kvm` runs these.

use crate::support::lazy::Remote;
use crate::support::packed::READ;

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
        remote.assert_noted("cannot connect to");
        remote.home.assert_nothing_left();
        if transport == "pmem" {
            remote = Remote::new();
        }
    }
}
