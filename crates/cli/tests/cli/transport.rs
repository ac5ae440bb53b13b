//! Two transports and two kinds of root show the same tree.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{Finished, Home, image};

const WAYS: [(&str, &str); 4] = [
    ("pmem", "merged"),
    ("pmem", "stacked"),
    ("blk", "merged"),
    ("blk", "stacked"),
];

/// Lists all visible attributes of every file, and hashes of all contents. Excluded: of
/// directories, size and number of links, which depend on overlayfs; processes in `/proc`; the
/// contents of `/etc/machine-id`, which differ in each machine.
const LISTING: &str = "\
    find / -xdev ! -type d | sort | xargs stat -c '%n %F %a %u %g %h %s %Y %t %T %N'; \
    find / -xdev -type d | grep -vx /proc | sort | xargs stat -c '%n %F %a %u %g %Y'; \
    find / -xdev -type f | grep -vx /etc/machine-id | sort | xargs md5sum";

/// Runs a command with a transport and a merged or stacked root.
fn run(home: &Home, (transport, root): (&str, &str), command: &[&str]) -> Finished {
    let flags = ["run", "--rm", "--transport", transport, "--root", root];
    home.output(&[&flags, command].concat())
}

#[test]
#[ignore = "needs a built guest"]
fn all_transports_and_roots_show_the_same_tree() {
    let home = Home::new();
    let started = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let listings = WAYS.map(|way| {
        let command = ["--hostname", "h", "box", "sh", "-c", LISTING];
        let run = run(&home, way, &command);
        let listing = without_times_since(started, &run.ok());
        assert!(listing.contains("/srv/kept/+page.svelte"), "{listing}");
        assert!(!listing.contains("/srv/gone"), "{listing}");
        assert!(!listing.contains("/srv/hidden/old"), "{listing}");
        listing
    });
    // Pieces of the disk are partitions too. QEMU has one pmem device for each layer, and the fixup
    // would need each twice.
    let stacked = |transport, script| {
        let start = ["run", "--rm", "--root", "stacked", "--transport", transport];
        let command = ["--hostname", "h", "box", "sh", "-c", script];
        home.output_without_mapper(&[&start[..], &command].concat())
    };
    let partitions = stacked("blk", LISTING).ok();
    assert_eq!(without_times_since(started, &partitions), listings[3]);
    let refused = stacked("pmem", "true").stderr();
    assert!(refused.contains("no device mapper"), "{refused}");

    for (way, listing) in WAYS.iter().zip(&listings) {
        for (line, expected) in listing.lines().zip(listings[0].lines()) {
            assert_eq!(line, expected, "{way:?}");
        }
        assert_eq!(listing.len(), listings[0].len(), "{way:?}");
    }
    home.assert_nothing_left();
}

/// Removes the times of files that the guest made and of directories that it put a mount point in:
/// these are of its own boot.
fn without_times_since(started: u64, listing: &str) -> String {
    let is_new = |field: &&str| field.len() == 10 && field.parse().is_ok_and(|t: u64| t >= started);
    let lines = listing.lines().map(|line| {
        let fields: Vec<_> = line.split(' ').filter(|field| !is_new(field)).collect();
        fields.join(" ") + "\n"
    });
    lines.collect()
}

#[test]
#[ignore = "needs a built guest"]
fn the_image_can_not_be_changed_and_changes_are_gone() {
    let home = Home::new();
    for way in WAYS {
        let shell = |script| run(&home, way, &["box", "sh", "-c", script]).ok();
        let change = "echo changed > /srv/data && rm -r /srv/kept && cat /srv/data; ls /srv";
        assert_eq!(shell(change), "changed\ndata\nhard\nhidden\nrun\n");
        let look = "head -c 4 /srv/data; ls /srv/kept";
        assert_eq!(shell(look), "0123+page.svelte\nold\n");
    }
}

#[test]
#[ignore = "needs a built guest"]
fn an_image_without_layers_boots_as_far_as_it_can() {
    let home = Home::empty();
    home.load(&[], &image::config());
    for way in WAYS {
        let run = run(&home, way, &["box", "/bin/true"]);
        assert_eq!(run.code(), 127, "{}", run.stderr());
    }
}

#[test]
#[ignore = "needs a built guest"]
fn forty_layers_go_over_either_transport() {
    let home = Home::empty();
    let mut layers = image::layers();
    for number in 0..40 {
        layers.push(image::one_file(&format!("srv/file-{number}"), b"x"));
    }
    // A layer that the image has twice.
    layers.push(layers[1].clone());
    home.load(&layers, &image::config());
    let script = "ls /srv | grep -c file-; cat /srv/gone";
    for way in [
        ("auto", "merged"),
        ("pmem", "merged"),
        ("blk", "stacked"),
        ("pmem", "stacked"),
    ] {
        let run = run(&home, way, &["box", "sh", "-c", script]);
        assert_eq!(run.ok(), "40\ngone", "{way:?}");
    }
}
