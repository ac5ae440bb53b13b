//! Changes before a sandbox boots.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{Home, assert_clean};

const LOOK: &str = "cd /srv; echo *; echo kept/* hidden/*; cat kept/file hidden/from-tar; \
    stat -c '%n %a %u %g %Y' /srv hidden hidden/from-tar; stat -c '%n %a %u %h' /home/app/file \
    hidden/again; readlink /opt/link; echo /opt/link/kept/*; test -d /opt/a/b && echo made; \
    stat -c %a /opt /";

const SEEN: &str = "hard hidden kept run\nkept/file hidden/again hidden/from-tar hidden/new\n\
    contents\nfrom tar\n/srv 755 0 0 1700000000\nhidden 700 7 8 1600000000\n\
    hidden/from-tar 4640 7 8 1600000001\n/home/app/file 750 0 1\nhidden/again 4640 7 2\n../srv\n\
    /opt/link/kept/file\nmade\n755\n755\n";

const CHANGES: &str = "C /home\nC /home/app\nA /home/app/file\nA /opt\nA /opt/a\nA /opt/a/b\n\
    A /opt/link\nC /srv\nD /srv/data\nC /srv/hidden\nA /srv/hidden/again\n\
    A /srv/hidden/from-tar\nC /srv/kept\nD /srv/kept/+page.svelte\nA /srv/kept/file\n\
    D /srv/kept/old\n";

/// Makes an archive with a directory that the image has, a file and a hard link to it.
fn archive() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_uid(7);
    header.set_gid(8);
    header.set_size(0);
    header.set_mode(0o700);
    header.set_mtime(1_600_000_000);
    header.set_entry_type(tar::EntryType::Directory);
    builder
        .append_data(&mut header, "srv/hidden/", &[][..])
        .unwrap();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o4640);
    header.set_mtime(1_600_000_001);
    header.set_size(9);
    // A path through a link of the command line would be too early, so this is a real directory.
    builder
        .append_data(&mut header, "srv/hidden/from-tar", &b"from tar\n"[..])
        .unwrap();
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Link);
    builder
        .append_link(&mut header, "srv/hidden/again", "srv/hidden/from-tar")
        .unwrap();
    builder.into_inner().unwrap()
}

#[test]
#[ignore = "needs a built guest"]
fn patches_are_applied_before_the_start_in_memory_and_on_disk() {
    let home = Home::new();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("file"), "contents\n").unwrap();
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(at("patch.tar"), archive()).unwrap();
    let into_kept = format!("{}:/srv/kept/file", at("file"));
    let into_home = format!("{}:/home/app", at("file"));
    let tar = at("patch.tar");
    let flags = [
        "--remove=/srv/data",
        "--remove=/srv/kept",
        "--mkdir",
        "/srv/kept",
        "--mkdir",
        "/opt/a/b",
        "--patch-tar",
        &tar,
        "--patch",
        &into_kept,
        "--patch",
        &into_home,
        "--symlink",
        "../srv:/opt/link",
    ];
    for upper in ["tmpfs", "disk:256m"] {
        for root in ["merged", "stacked"] {
            let name = if upper == "tmpfs" { "m" } else { "d" }.to_owned() + root;
            let own = ["run", "--name", &name, "--upper", upper, "--root", root];
            let run = [&own[..], &flags, &["box", "sh", "-c", LOOK]].concat();
            assert_eq!(home.output(&run).ok(), SEEN, "{upper}, {root}");
        }
    }
    assert_eq!(home.output(&["diff", "dmerged"]).ok(), CHANGES);
    // The next start does not apply them again.
    assert_eq!(home.output(&["start", "-a", "dstacked"]).ok(), SEEN);
    for directory in home.sandboxes() {
        // The file of the patches' layer is removed as soon as the machine has opened it.
        assert!(!directory.join("patches.ext4").exists());
        let disk = directory.join("upper.ext4");
        if disk.exists() {
            assert_clean(&disk);
        }
    }
    home.output(&["rm", "mmerged", "mstacked", "dmerged", "dstacked"])
        .ok();

    for (flag, what) in [
        ("--remove=/srv/nope", "nothing of that name"),
        ("--mkdir=/srv/run/x", "not a directory"),
        ("--symlink=x:/srv", "there is a directory"),
        ("--patch-tar=/proc/none", "No such file"),
    ] {
        let run = home.output(&["run", "--rm", flag, "box", "true"]);
        assert_eq!(run.code(), 125);
        assert!(run.stderr().contains(what), "{}", run.stderr());
    }
    home.assert_nothing_left();
}
