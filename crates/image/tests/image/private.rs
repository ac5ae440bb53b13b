//! A store is private to its owner.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use micabox_image::Store;

use crate::layer::archive::Archive;
use crate::layer::{convert, store};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_new_store_and_its_locks_are_for_their_owner() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("on/the/way/store");
    let store = Store::open(&root).unwrap();
    assert_eq!(store.tightened(), None);
    assert_eq!(mode(&root), 0o700);
    drop(store.shared().unwrap());
    assert_eq!(mode(&root.join("locks/store")), 0o600);
}

#[test]
fn an_old_store_is_tightened_when_it_is_opened() {
    let old = store();
    let root = old.root();
    let lock = root.join("locks/store");
    drop(old.shared().unwrap());
    set_mode(root, 0o755);
    set_mode(&lock, 0o644);
    let opened = Store::open(root).unwrap();
    assert_eq!(opened.tightened(), Some(0o755));
    assert_eq!((mode(root), mode(&lock)), (0o700, 0o600));
    assert_eq!(Store::open(root).unwrap().tightened(), None);
    // Permissions that its owner removed are not restored.
    set_mode(root, 0o550);
    assert_eq!(Store::open(root).unwrap().tightened(), Some(0o550));
    assert_eq!(mode(root), 0o500);
    set_mode(root, 0o700);
}

/// Returns whether user 65534 can run this.
fn stranger_can(command: &[&str]) -> bool {
    let status = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(command)
        .output()
        .expect("setpriv, of util-linux, is needed");
    status.status.success()
}

#[test]
#[ignore = "needs root"]
fn another_user_can_neither_hold_a_lock_nor_read_a_layer() {
    let store = store();
    set_mode(store.directory.path(), 0o755);
    let layer = convert(&store, &Archive::new().file("secret", "x").finish()).unwrap();
    drop(store.shared().unwrap());
    let lock = store.root().join("locks/store");
    let attempts = [
        ["flock", "-n", lock.to_str().unwrap(), "true"],
        [
            "dd",
            "of=/dev/null",
            "count=1",
            &format!("if={}", layer.path.display()),
        ],
    ];
    for attempt in &attempts {
        assert!(!stranger_can(attempt), "{attempt:?}");
    }
    // Below an open root a lock is still private to its owner.
    set_mode(store.root(), 0o755);
    assert!(!stranger_can(&attempts[0]));
    // It is the modes that deny this user access.
    set_mode(&lock, 0o644);
    for attempt in &attempts {
        assert!(stranger_can(attempt), "{attempt:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn another_users_store_is_left_as_it_is() {
    let store = store();
    set_mode(store.root(), 0o755);
    std::os::unix::fs::chown(store.root(), Some(65534), None).unwrap();
    assert_eq!(Store::open(store.root()).unwrap().tightened(), None);
    assert_eq!(mode(store.root()), 0o755);
}
