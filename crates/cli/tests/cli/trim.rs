//! Roots without what a program does not need.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::support::{Home, image};

const TRIM: &str = "docs,man,/srv/data,/srv/kept/**,!/srv/kept/old,/etc/group,/absent";

/// What the root of the sandbox must show.
const LOOK: &str = "ls -d /usr/share/doc /usr/share/doc/* /usr/share/man/man1 /usr/share/man/man1/* \
    /srv/data /srv/kept/* /etc/group /etc/passwd 2>/dev/null; stat -c %h /srv/hard";

const SEEN: &str = "/etc/passwd\n/srv/kept/old\n\
    /usr/share/doc\n/usr/share/man/man1\n1\n";

/// Makes a store whose image has documentation.
fn home() -> Home {
    let home = Home::empty();
    let docs = image::one_file("usr/share/doc/box/copyright", b"licence");
    let docs = image::with_file(docs, "usr/share/man/man1/box.1", b"man");
    let layers = [image::layers(), vec![docs]].concat();
    home.load(&layers, &image::config());
    home
}

/// Returns the fsmetas of views.
fn views(home: &Home) -> Vec<PathBuf> {
    let images = fs::read_dir(home.store().join("images/sha256")).unwrap();
    let views = images.flat_map(|image| {
        let views = fs::read_dir(image.unwrap().path().join("trimmed"));
        views.into_iter().flatten()
    });
    views
        .map(|view| view.unwrap().path().join("fsmeta.erofs"))
        .collect()
}

#[test]
#[ignore = "needs a built guest"]
fn a_root_is_trimmed_in_every_start_and_whole_in_a_committed_image() {
    let home = home();
    let write = format!(
        "{LOOK}; mkdir -p /usr/share/doc/mine && echo new >/usr/share/doc/mine/x; \
        echo other >/srv/data"
    );
    let create = [
        "create",
        "--name",
        "it",
        "--upper",
        "disk:256m",
        "--trim",
        TRIM,
    ];
    let command = ["box", "sh", "-c", &write];
    home.output(&[&create[..], &command].concat()).ok();
    let made = views(&home);
    let [view] = &made[..] else {
        panic!("{made:?}");
    };
    let inode = fs::metadata(view).unwrap().ino();
    assert_eq!(home.output(&["start", "-a", "it"]).ok(), SEEN);

    let record = home.output(&["inspect", "it"]).json();
    let patterns = record[0]["sandbox"]["image"]["trim"].as_array().unwrap();
    assert!(
        patterns
            .iter()
            .any(|pattern| pattern == "/usr/share/man/**")
    );
    let trimmed = &home.output(&["inspect", "box"]).json()[0]["image"]["trimmed"];
    // Two of the documentation, two of what is kept but one, data and group.
    assert_eq!(trimmed[0]["hidden"]["files"], 5, "{trimmed}");

    let changes = "C /srv\nA /srv/data\nC /usr\nC /usr/share\nC /usr/share/doc\n\
        A /usr/share/doc/mine\nA /usr/share/doc/mine/x\n";
    assert_eq!(home.output(&["diff", "it"]).ok(), changes);
    let copied = home.output(&["cp", "it:/etc/group", "-"]);
    assert_eq!(copied.code(), 1, "{}", copied.stdout());
    // The second start finds the view, with what the first one wrote on top.
    let second = home.output(&["start", "-a", "it"]).ok();
    let with_changes = SEEN
        .replace("/srv/kept", "/srv/data\n/srv/kept")
        .replace("/share/doc\n", "/share/doc\n/usr/share/doc/mine\n");
    assert_eq!(second, with_changes);
    assert_eq!(views(&home), made);
    assert_eq!(fs::metadata(view).unwrap().ino(), inode);

    home.output(&["snapshot", "create", "it", "monday"]).ok();
    let copy = ["run", "--rm", "--from", "monday", "sh", "-c", LOOK];
    assert_eq!(home.output(&copy).ok(), with_changes);

    home.output(&["commit", "it", "whole"]).ok();
    let look = "cat /srv/data /usr/share/doc/*/*; ls /etc/group; wc -c </srv/hard";
    let whole = home
        .output(&["run", "--rm", "whole", "sh", "-c", look])
        .ok();
    assert_eq!(whole, "other\nlicencenew\n/etc/group\n160000\n");

    // Another sandbox shares the view; the image can't go while one has it.
    let run = [
        "run",
        "--rm",
        "--transport",
        "blk",
        "--trim",
        TRIM,
        "box",
        "sh",
        "-c",
        LOOK,
    ];
    assert_eq!(home.output(&run).ok(), SEEN);
    assert_eq!(views(&home), made);
    home.output(&["store", "prune"]).ok();
    assert!(view.exists());
    home.output(&["rm", "it"]).ok();
    home.output(&["store", "prune"]).ok();
    assert!(view.exists(), "the snapshot has it");
    home.output(&["snapshot", "rm", "monday"]).ok();
    let pruned = home.output(&["store", "prune", "--json"]).json();
    assert_eq!(pruned["views"], 1);
    assert!(!view.exists());
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_disposable_root_may_lack_nearly_everything() {
    let home = home();
    // The guest makes what the kernel's filesystems are mounted on.
    let run = [
        "run",
        "--rm",
        "--trim",
        "/*,!/bin",
        "box",
        "sh",
        "-c",
        "cd /; echo *",
    ];
    assert_eq!(home.output(&run).ok(), "bin dev etc proc srv sys\n");
    let shadowed = home.output(&["run", "--rm", "--trim", "/bin/busybox", "box", "true"]);
    assert_eq!(shadowed.code(), 127, "{}", shadowed.stderr());
}
