//! Copies and operations on files while the guest exchanges directories with links, as fast as it can.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use micabox::{Sandboxes, Store};

use crate::support::{Home, PATIENCE, image};

/// How long the guest races at least.
const TIME: Duration = Duration::from_secs(10);

/// Exchanges `x` with a link to a directory of the host, and `y` with one to a directory of the guest
/// (renameat2(2), `RENAME_EXCHANGE`). What was removed is made again.
const RACE: &str = r#"
    mkdir "/race";
    for (;;) {
        for (["x", "l", $ARGV[0]], ["y", "m", "/precious"]) {
            my ($name, $link, $target) = @$_;
            mkdir "/race/$name";
            mkdir "/race/$name/sub";
            for ("f", "sub/g") { open(F, ">", "/race/$name/$_") and print F "the guest's" and close F }
            symlink $target, "/race/$link";
            my ($one, $other) = ("/race/$name", "/race/$link");
            syscall(316, -100, $one, -100, $other, 2) for 1..101;
        }
    }"#;

/// Returns what is below a directory, without following links.
fn tree(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let contents = match entry.file_type().unwrap() {
            kind if kind.is_dir() => {
                found.extend(tree(&entry.path()));
                continue;
            }
            kind if kind.is_file() => fs::read(entry.path()).unwrap(),
            _ => Vec::new(),
        };
        let contents = String::from_utf8_lossy(&contents);
        found.push(format!("{}: {contents}", entry.path().display()));
    }
    found.sort();
    found
}

#[test]
#[ignore = "needs a built guest"]
fn a_guest_that_races_renames_leads_nothing_out() {
    let home = Home::empty();
    let mut layers = image::layers();
    layers.push(image::programs(&["/usr/bin/perl"]));
    home.load(&layers, &image::config());
    let host = home.path().join("host");
    fs::create_dir_all(host.join("sub")).unwrap();
    fs::write(host.join("f"), "the host's").unwrap();
    fs::write(host.join("sub/g"), "the host's").unwrap();
    let before = tree(&host);
    let out = home.path().join("out");
    fs::create_dir(&out).unwrap();

    let run = ["run", "-d", "--name", "it", "box", "perl", "-e", RACE];
    home.output(&[&run[..], &[host.to_str().unwrap()]].concat())
        .ok();
    let make = "mkdir /precious && echo kept >/precious/keep; cat /etc/hostname";
    let name = home.output(&["exec", "it", "sh", "-c", make]).ok();
    let sandboxes = Sandboxes::open(&Store::open(&home.store()).unwrap()).unwrap();
    let files = sandboxes.get("it").unwrap().files();
    let (mut links, mut directories, mut removed) = (0, 0, 0);
    let begun = Instant::now();
    let has_seen_all = |counts: [u32; 3]| counts.iter().all(|count| *count > 0);
    // On a busy machine it takes longer until everything has happened once.
    while begun.elapsed() < TIME || !has_seen_all([links, directories, removed]) {
        let counts = format!("{links} links, {directories} directories, {removed} removed");
        assert!(begun.elapsed() < PATIENCE, "{counts}");
        // Into the same folder, in which links to the host's directory already are.
        home.output(&["cp", "it:/race/.", out.to_str().unwrap()]);
        let copied = tree(&out);
        let is_ours = |line: &String| line.contains("the host's");
        assert!(!copied.iter().any(is_ours), "{copied:?}");
        match out.join("x").symlink_metadata() {
            Ok(found) if found.is_symlink() => links += 1,
            Ok(_) => directories += 1,
            Err(_) => {}
        }
        assert_eq!(tree(&host), before);
        // Every other time, what the next copy finds is a link or a directory of the guest's choice.
        if (links + directories) % 2 == 0 {
            fs::remove_dir_all(&out).unwrap();
            fs::create_dir(&out).unwrap();
        }

        for _ in 0..10 {
            // Whatever is exchanged on the way, it is a file of the sandbox.
            if let Ok(read) = files.read("/race/y/sub/../../../../etc/hostname") {
                assert_eq!(String::from_utf8_lossy(&read), name);
            }
            if let Ok(read) = files.read("/race/x/f") {
                assert!(!String::from_utf8_lossy(&read).contains("host"));
            }
            let _ = files.write("/race/x/sub/written", b"ours");
            let _ = files.list("/race", 5).map(|entries| entries.count());
            removed += u32::from(files.remove("/race/y", true).is_ok());
            let kept = files.read("/precious/keep").unwrap_or_else(|error| {
                let [state, log] = [&["inspect", "it"], &["logs", "it"]].map(|words| {
                    let said = home.output(words);
                    said.stdout() + &said.stderr()
                });
                panic!("{error:?}: {state}{log}")
            });
            assert_eq!(kept, b"kept\n");
        }
    }
    assert_eq!(tree(&host), before);
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();
}
