//! Stores that can't be used.

use super::*;

#[test]
fn a_store_that_can_not_be_written_to_can_be_looked_at() {
    let home = Home::new();
    home.output(&["ps", "-a"]).ok();
    let digest = home.output(&["images", "-q"]).ok();
    let read_only = "mount --bind \"$STORE\" \"$STORE\"; mount -o remount,ro,bind \"$STORE\"";
    let run = |words: &[&str]| in_namespace(&home, read_only, words);
    assert_eq!(run(&["images", "-q"]).ok(), digest);
    assert_eq!(run(&["ps", "-aq"]).ok(), "");
    assert!(run(&["inspect", "box"]).ok().contains(digest.trim()));
    assert_eq!(run(&["snapshot", "ls", "--json"]).ok(), "[]\n");
    let refused = run(&["tag", "box", "other:1"]);
    assert_eq!(refused.code(), 1);
    assert!(
        refused.stderr().contains("Read-only file system"),
        "{}",
        refused.stderr()
    );
    assert_eq!(home.output(&["images", "-q"]).ok(), digest);
}

#[test]
fn a_store_that_is_none_says_why() {
    let home = Home::empty();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let mut mica = home.mica(&["images"]);
    mica.env("MICABOX_HOME", &file);
    let finished = Finished::of(mica);
    let expected = format!(
        "mica: cannot keep a store in `{}`: it is a file, not a directory: name another in MICABOX_HOME\n",
        file.display()
    );
    assert_eq!((finished.code(), finished.stderr()), (1, expected));
    // Nor is it made private.
    let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o644);
}

#[test]
#[ignore = "needs root"]
fn a_store_of_another_user_says_whose_it_is() {
    let home = Home::empty();
    let script = "mount -t tmpfs -o mode=755 none /mnt; mkdir -m 700 /mnt/store; chown 1 /mnt/store; \
                  cp \"$0\" /mnt/mica; exec setpriv --reuid 65534 --regid 65534 --clear-groups \
                  env MICABOX_HOME=/mnt/store /mnt/mica \"$@\"";
    let refused = in_namespace(&home, script, &["images"]);
    let expected = "mica: cannot use `/mnt/store`: it belongs to the user with ID 1: name a directory \
                    of your own in MICABOX_HOME\n";
    assert_eq!((refused.code(), refused.stderr()), (1, expected.to_owned()));
}
