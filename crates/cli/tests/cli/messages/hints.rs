//! Hints that help if they are followed.

use super::*;

#[test]
fn the_message_for_a_full_disk_says_what_frees_it() {
    let home = Home::new();
    let small = "mount -t tmpfs -o size=256k none \"$HOME\"";
    let out = home.path().join("out");
    fs::create_dir(&out).unwrap();
    let file = out.join("box.tar");
    let save = ["save", "-o", file.to_str().unwrap(), "box"];
    let full = in_namespace(&home, &small.replace("$HOME", out.to_str().unwrap()), &save);
    assert_eq!(full.code(), 1);
    let text = full.stderr();
    assert!(text.contains("No space left on device"), "{text}");
    let hint = format!(
        "\n      free some space there; where it is the disk of the store, {}, `mica store prune` \
         removes what is not in use\n",
        home.store().display()
    );
    assert!(
        text.starts_with("mica: ") && text.ends_with(&hint),
        "{text}"
    );
    // The store's message names the directory.
    let archive = home.path().join("box.tar");
    let path = archive.to_str().unwrap();
    home.output(&["save", "-o", path, "box"]).ok();
    let empty = Home::empty();
    fs::create_dir(empty.store()).unwrap();
    let store = empty.store();
    let store = store.to_str().unwrap();
    let full = in_namespace(&empty, &small.replace("$HOME", store), &["load", path]);
    let text = full.stderr();
    assert!(
        text.contains(store) && text.contains("store prune"),
        "{text}"
    );
}

/// A command that fails, words of its hint, what the hint says to do, and the command again, which works.
fn assert_hint_helps(home: &Home, command: &[&str], hint: &str, step: &[&str]) {
    let failed = home.output(command);
    assert_ne!(failed.code(), 0, "{command:?}");
    assert!(failed.stderr().contains(hint), "{}", failed.stderr());
    home.output(step).ok();
    let again = home.output(command);
    assert_eq!(
        (again.code(), again.stderr()),
        (0, String::new()),
        "{command:?}"
    );
}

#[test]
fn a_hint_helps_if_it_is_followed() {
    let home = Home::new();
    let create = ["create", "--name", "it", "-v", "data:/data", "box", "true"];
    home.output(&["volume", "create", "data", "--size", "16M"])
        .ok();
    home.output(&create).ok();
    assert_hint_helps(&home, &create, "`mica rm`", &["rm", "it"]);
    let remove = ["volume", "rm", "data"];
    assert_hint_helps(&home, &remove, "`mica rm`", &["rm", "it"]);

    let folder = home.path().join("folder");
    let mount = format!("type=bind,src={},dst=/data", folder.display());
    let create = ["create", "--name", "it", "--mount", &mount, "box", "true"];
    let failed = home.output(&create);
    assert!(
        failed.stderr().contains("make it first"),
        "{}",
        failed.stderr()
    );
    fs::create_dir(&folder).unwrap();
    home.output(&create).ok();

    let commit = ["commit", "it", "new:1"];
    let failed = home.output(&commit);
    assert!(
        failed.stderr().contains("run it with `--upper disk`"),
        "{}",
        failed.stderr()
    );
    home.output(&["rm", "it"]).ok();
    home.output(&[
        "create", "--name", "it", "--upper", "disk:16m", "box", "true",
    ])
    .ok();
}
