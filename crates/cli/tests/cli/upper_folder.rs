//! `--upper folder:DIR` on QEMU: a sandbox's changes in a folder of the host.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::support::upper::{Place, assert_opaque, assert_whiteout, last_layer, works};
use crate::support::{Finished, Home, PATIENCE, Running};

#[test]
#[ignore = "needs a built guest"]
fn changes_in_a_folder_are_those_on_a_disk() {
    works(&Home::new(), "qemu", &Place::new());
}

/// Runs a script in a sandbox `it` until its next line, and keeps the sandbox running.
fn begin(home: &Home, place: &Place, script: &str) -> Running {
    let script = format!("{script}; echo ready; sleep {}", PATIENCE.as_secs());
    let flag = place.flag();
    let flags = ["run", "--name", "it", "--backend", "qemu", "--upper", &flag];
    let mut running = home.start(&[&flags[..], &["box", "sh", "-c", &script]].concat());
    assert_eq!(running.line(), "ready");
    running
}

#[test]
#[ignore = "needs a built guest"]
fn the_folder_is_readable_while_its_only_sandbox_runs() {
    let home = Home::new();
    let place = Place::new();
    let running = begin(
        &home,
        &place,
        // In its first start.
        "test -e added || { echo new > added; rm data; rm -r kept; mkdir kept; }",
    );
    assert_eq!(
        fs::read_to_string(place.upper("srv/added")).unwrap(),
        "new\n"
    );
    assert_whiteout(&place.upper("srv/data"));
    assert_opaque(&place.upper("srv/kept"));
    let changes = home.output(&["diff", "it"]).ok();
    let expected = "C /srv\nA /srv/added\nD /srv/data\nC /srv/kept\n\
                    D /srv/kept/+page.svelte\nD /srv/kept/old\n";
    assert_eq!(changes, expected);
    home.output(&["commit", "it", "running"]).ok();
    assert!(last_layer(&home, "running").contains_key("srv/.wh.data"));

    let second = home.output(&["run", "--rm", "--upper", &place.flag(), "box", "true"]);
    assert_eq!(second.code(), 125);
    assert!(second.stderr().contains("is in use"), "{}", second.stderr());
    let inspected = home.output(&["inspect", "it"]).ok();
    assert!(inspected.contains(place.folder().to_str().unwrap()));
    // The folder is not the sandbox's to copy. What is saved with memory needs our own monitor.
    for (copy, why) in [
        (
            &["snapshot", "create", "it", "shot"][..],
            "are in the folder",
        ),
        (
            &["snapshot", "create", "--memory", "it", "shot"],
            "need KVM",
        ),
        (&["fork", "it"], "need KVM"),
    ] {
        let refused = home.output(copy);
        assert_ne!(refused.code(), 0, "{copy:?}");
        let said = refused.stderr();
        assert!(said.contains(why), "{copy:?}: {said}");
    }
    home.output(&["exec", "it", "sh", "-c", "echo more >> /srv/added"])
        .ok();
    home.output(&["stop", "-t", "0", "it"]).ok();
    running.wait();

    // From outside while it is stopped, and inside in its next start.
    let copied = home.path().join("copied");
    home.output(&["cp", "it:/srv/added", copied.to_str().unwrap()])
        .ok();
    assert_eq!(fs::read_to_string(&copied).unwrap(), "new\nmore\n");
    let into = home.output(&["cp", copied.to_str().unwrap(), "it:/srv/in"]);
    assert_ne!(into.code(), 0);
    assert!(
        into.stderr().contains("are in the folder"),
        "{}",
        into.stderr()
    );
    home.output(&["start", "it"]).ok();
    let again = home.output(&["exec", "it", "sh", "-c", "cat /srv/added; ls /srv/kept"]);
    assert_eq!(again.ok(), "new\nmore\n");
    home.kill_owner();
    home.wait_for_no_machine();
    home.output(&["start", "it"]).ok();
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();

    // Another sandbox continues with the folder, as it is the user's.
    let other = [
        "run",
        "--rm",
        "--upper",
        &place.flag(),
        "box",
        "cat",
        "added",
    ];
    assert_eq!(home.output(&other).ok(), "new\nmore\n");
}

/// The kernel of the host, as the user who ran the sandbox, sees the tree that the sandbox had.
#[test]
#[ignore = "needs a built guest, and user namespaces"]
fn the_hosts_overlayfs_reads_the_folder() {
    const LOOK: &str = "find srv home -type f -exec md5sum {} + | sort; \
                        find srv home -exec stat -c '%n %F %h' {} + | sort";
    let home = Home::new();
    let place = Place::new();
    let lower = home.path().join("lower");
    fs::create_dir(&lower).unwrap();
    let archive = home.path().join("lower.tar");
    let mut whole = home.mica(&["run", "--rm", "box", "tar", "-C", "/", "-c", "srv", "home"]);
    let whole = whole.stdout(fs::File::create(&archive).unwrap());
    assert!(whole.status().unwrap().success());
    let status = Command::new("tar")
        .arg("-C")
        .arg(&lower)
        .arg("-xf")
        .arg(&archive)
        .status();
    assert!(status.unwrap().success());

    let script = format!(
        "{}; cd /; {LOOK}",
        "cd /srv; rm -r hidden; rm data; rm -r kept; mkdir -p kept/in; echo x > kept/in/file; \
         mv hard soft; mkdir new; ln soft new/name; echo y >> run"
    );
    let flags = ["run", "--name", "it", "--upper", &place.flag(), "box"];
    let seen = home
        .output(&[&flags[..], &["sh", "-c", &script]].concat())
        .ok();
    let merged = home.path().join("merged");
    fs::create_dir(&merged).unwrap();
    let mount = format!(
        "mount -t overlay overlay -o userxattr,lowerdir={},upperdir={},workdir={} {merged} && \
         cd {merged} && {LOOK}",
        lower.display(),
        place.folder().join("upper").display(),
        place.folder().join("work").display(),
        merged = merged.display(),
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &mount]);
    assert_eq!(Finished::of(unshare).ok(), seen);
}

/// What a hostile guest's kernel may write there: nothing of it is followed.
#[test]
#[ignore = "needs a built guest"]
fn nothing_in_the_folder_leads_out_of_it() {
    let home = Home::new();
    let place = Place::new();
    let flags = ["run", "--name", "it", "--upper", &place.flag(), "box"];
    let script = "echo mine > file; mkdir directory; echo x > directory/below";
    home.output(&[&flags[..], &["sh", "-c", script]].concat())
        .ok();
    let secret = home.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("file"), "the host's secret").unwrap();
    symlink(&secret, place.upper("srv/link")).unwrap();
    symlink(secret.join("file"), place.upper("srv/link-to-file")).unwrap();
    for (path, name, value) in [
        (
            "srv/directory",
            "user.overlay.redirect",
            secret.to_str().unwrap(),
        ),
        ("srv/file", "user.overlay.redirect", "/../../../etc/passwd"),
        ("srv/file", "user.overlay.metacopy", ""),
        (
            "srv/file",
            "user.containers.override_stat",
            "0:0:0777:block-8-0",
        ),
        ("srv/directory", "user.containers.override_stat", "::"),
        ("srv/directory", "user.overlay.opaque", "yes"),
    ] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(place.upper(path), name, value.as_bytes(), flags).unwrap();
    }
    let changes = home.output(&["diff", "it"]).ok();
    let expected = "C /srv\nA /srv/directory\nA /srv/directory/below\nA /srv/file\n\
                    A /srv/link\nA /srv/link-to-file\n";
    assert_eq!(changes, expected);
    home.output(&["commit", "it", "mine"]).ok();
    let layer = last_layer(&home, "mine");
    assert_eq!(layer["srv/file"].5, b"mine\n");
    assert_eq!(layer["srv/link"].0, b'2');
    assert!(
        layer
            .values()
            .all(|described| !described.5.starts_with(b"the host's"))
    );
    let out = home.output(&["cp", "it:/srv/link/file", home.path().to_str().unwrap()]);
    assert_ne!(out.code(), 0);

    // The layer itself is a link to elsewhere.
    fs::rename(place.folder().join("upper"), home.path().join("was-upper")).unwrap();
    symlink(&secret, place.folder().join("upper")).unwrap();
    assert_ne!(home.output(&["diff", "it"]).code(), 0);
    let start = home.output(&["start", "it"]);
    assert!(
        start.stderr().contains("is not a directory"),
        "{}",
        start.stderr()
    );
    home.output(&["rm", "it"]).ok();
    assert!(secret.join("file").exists());
}
