use std::fs;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::{Error, Upper};

fn record(id: &str) -> Record {
    Record {
        id: id.repeat(32 / id.len()),
        name: String::new(),
        image: ImageName {
            reference: None,
            digest: "sha256:00".into(),
        },
        root_disk: None,
        command: "true".into(),
        created: 0,
        memory_mib: 1,
        cpus: 1,
        transport: "pmem".into(),
        root: "merged".into(),
        upper: Upper::Tmpfs,
        spec: None,
        auto_remove: false,
        owner: None,
        creator: None,
        machine: None,
        status: Status::Starting,
    }
}

fn names(sandboxes: &Directory) -> Vec<String> {
    let all = sandboxes.scan().unwrap();
    all.into_iter().map(|found| found.record.name).collect()
}

fn entries(root: &Path) -> usize {
    fs::read_dir(root.join("sandboxes")).unwrap().count()
}

#[test]
fn a_name_is_given_once() {
    let root = tempfile::tempdir().unwrap();
    let sandboxes = Directory::open(root.path()).unwrap();
    let first = sandboxes.register(Some("web"), record("a")).unwrap();
    let error = sandboxes.register(Some("web"), record("b")).unwrap_err();
    assert!(matches!(&error, Error::NameTaken { id, .. } if id == "aaaaaaaaaaaa"));
    let unnamed = sandboxes.register(None, record("d")).unwrap();
    assert!(unnamed.record().name.contains('-'));
    drop(first);
    // The record remains, so the name is still in use.
    sandboxes.register(Some("web"), record("e")).unwrap_err();
    sandboxes.remove("web").unwrap();
    sandboxes.register(Some("web"), record("f")).unwrap();
}

#[test]
fn records_are_found_by_name_and_by_the_beginning_of_an_id() {
    let root = tempfile::tempdir().unwrap();
    let sandboxes = Directory::open(root.path()).unwrap();
    let _a = sandboxes.register(Some("one"), record("ab")).unwrap();
    let _b = sandboxes.register(Some("two"), record("ac")).unwrap();
    assert_eq!(sandboxes.find("one").unwrap().record.id, record("ab").id);
    assert_eq!(sandboxes.find("acac").unwrap().record.name, "two");
    assert!(matches!(sandboxes.find("a"), Err(Error::Ambiguous(_))));
    for unknown in ["", "x", "on"] {
        assert!(matches!(
            sandboxes.find(unknown),
            Err(Error::NoSuchSandbox(_))
        ));
    }
}

#[test]
fn a_sandbox_lives_as_long_as_its_creator() {
    let root = tempfile::tempdir().unwrap();
    let sandboxes = Directory::open(root.path()).unwrap();
    let mut registration = sandboxes.register(Some("it"), record("a")).unwrap();
    registration
        .update(|record| record.status = Status::Running { since: 1 })
        .unwrap();
    assert!(sandboxes.find("it").unwrap().record.status.is_live());
    assert!(matches!(sandboxes.remove("it"), Err(Error::Running(_))));
    let found = sandboxes.find("it").unwrap();
    fs::write(found.path.join("lease.json"), "{}").unwrap();
    assert!(!sandboxes.wait_for_end(&found, Duration::ZERO));
    // As if the owner were killed: only the lock is released.
    drop(registration);
    assert_eq!(sandboxes.find("it").unwrap().record.status, Status::Dead);
    assert!(!found.path.join("lease.json").exists());
    assert!(sandboxes.wait_for_end(&found, Duration::ZERO));
    sandboxes.remove("it").unwrap();
    assert_eq!(entries(root.path()), 0);
    assert!(sandboxes.wait_for_end(&found, Duration::ZERO));
}

#[test]
fn a_sandbox_with_auto_remove_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let sandboxes = Directory::open(root.path()).unwrap();
    let fleeting = Record {
        auto_remove: true,
        ..record("a")
    };
    let registration = sandboxes.register(Some("gone"), fleeting.clone()).unwrap();
    assert_eq!(names(&sandboxes), ["gone"]);
    let path = registration.path().to_owned();
    drop(registration);
    assert_eq!(entries(root.path()), 0);

    // The same after a killed creator, and for an incomplete directory of another one.
    fs::create_dir(&path).unwrap();
    fs::write(path.join("lock"), "").unwrap();
    fs::write(
        path.join("state.json"),
        serde_json::to_vec(&fleeting).unwrap(),
    )
    .unwrap();
    fs::create_dir(path.with_file_name(record("b").id)).unwrap();
    let torn = path.with_file_name(record("c").id);
    fs::create_dir(&torn).unwrap();
    fs::write(torn.join("lock"), "").unwrap();
    fs::write(torn.join("state.json"), "{").unwrap();
    assert_eq!(names(&sandboxes), [""; 0]);
    assert_eq!(entries(root.path()), 0);
}

#[test]
fn foreign_files_among_sandboxes_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let sandboxes = Directory::open(root.path()).unwrap();
    let foreign = root.path().join("sandboxes/notes");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("state.json"), "{}").unwrap();
    assert_eq!(names(&sandboxes), [""; 0]);
    assert!(foreign.join("state.json").exists());
}
