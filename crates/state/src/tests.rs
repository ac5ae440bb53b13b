use std::fs;
use std::path::Path;
use std::time::Duration;

use micabox_error::Error;
use micabox_image::Trim;
use micabox_parsers::RootDisk;
use micabox_spec::{BackendChoice, ImageName, Root, Spec, Transport, Upper};
use serde_json::Value;

use super::*;

fn record(id: &str) -> Record {
    Record {
        id: id.repeat(32 / id.len()),
        name: String::new(),
        base: BaseName::Image(ImageName {
            reference: None,
            digest: "sha256:00".into(),
            trim: Trim::default(),
        }),
        command: "true".into(),
        created: 0,
        created_nanos: 0,
        transport: Transport::Pmem,
        root: Root::Merged,
        backend: BackendChoice::default(),
        spec: Spec::default(),
        defaults: None,
        published: Vec::new(),
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
fn a_disk_is_kept_though_its_record_cannot_be_read() {
    let root = tempfile::tempdir().unwrap();
    let sandboxes = Directory::open(root.path()).unwrap();
    let registration = sandboxes.register(Some("db"), record("a")).unwrap();
    let path = registration.path().to_owned();
    drop(registration);
    fs::write(path.join("upper.ext4"), "data").unwrap();
    fs::write(
        path.join("state.json"),
        r#"{"transport": "of a later version"}"#,
    )
    .unwrap();
    assert_eq!(names(&sandboxes), [""; 0]);
    assert_eq!(fs::read(path.join("upper.ext4")).unwrap(), b"data");
    assert_eq!(sandboxes.unreadable().unwrap(), [path]);
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

/// Records as versions of mica before [`BaseName`] wrote them: each reads as itself, and its JSON,
/// which `mica ps --json` shows, stays the same.
#[test]
fn records_of_earlier_versions_are_read_and_written_as_they_were() {
    let image = r#"{
        "id": "0123456789abcdef0123456789abcdef", "name": "calm-fox",
        "image": {"reference": "docker.io/library/debian:12", "digest": "sha256:00"},
        "command": "sleep 9", "created": 1763800000, "memory_mib": 1024, "cpus": 2,
        "transport": "blk", "root": "stacked", "upper": {"kind": "disk", "size": 10737418240},
        "auto_remove": false, "owner": null, "creator": null, "machine": null,
        "status": {"state": "exited", "code": 3, "at": 1763800001, "error": null}
    }"#;
    let disk = r#"{
        "id": "0123456789abcdef0123456789abcdef", "name": "calm-fox",
        "image": {"reference": "/srv/root.ext4", "digest": ""},
        "root_disk": {
            "path": "/srv/root.ext4", "format": "ext4", "in_place": true, "size": 67108864,
            "uuid": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],
            "unmapped": "its blocks are not of 4096 bytes", "modified": [1763800000, 5]
        },
        "command": "sh", "created": 1763800000, "memory_mib": 512, "cpus": 1,
        "transport": "pmem", "root": "merged", "upper": {"kind": "in_place"},
        "auto_remove": true, "owner": null, "creator": null, "machine": null,
        "status": {"state": "running", "since": 1763800001}
    }"#;
    let read = |text| serde_json::from_str::<Record>(text).unwrap();
    let (of_image, of_disk) = (read(image), read(disk));
    let BaseName::Image(name) = &of_image.base else {
        panic!("{of_image:?}");
    };
    assert_eq!(name.digest, "sha256:00");
    assert_eq!(of_image.transport, Transport::Blk);
    assert_eq!(of_image.root, Root::Stacked);
    let BaseName::Disk(RootDisk { path, in_place, .. }) = &of_disk.base else {
        panic!("{of_disk:?}");
    };
    assert_eq!((path.to_str(), *in_place), (Some("/srv/root.ext4"), true));
    assert!(matches!(of_disk.disk_size(), Err(Error::InPlace { .. })));
    assert_eq!(of_image.spec.machine.cpus, Some(2));
    assert_eq!(of_image.spec.upper, Upper::Disk { size: 10 << 30 });
    assert!(!of_image.can_restart());
    for (record, text) in [(of_image, image), (of_disk, disk)] {
        let before: Value = serde_json::from_str(text).unwrap();
        let mut now = serde_json::to_value(&record).unwrap();
        // These sandboxes could not be started again.
        assert_eq!(now["settings"]["command"], Value::Null);
        assert!(!record.spec.auto_remove);
        now.as_object_mut().unwrap().remove("settings");
        assert_eq!(now, before);
        for name in ["memory_mib", "cpus"] {
            let mut damaged = before.clone();
            damaged.as_object_mut().unwrap().remove(name);
            serde_json::from_value::<Record>(damaged).unwrap_err();
        }
    }
}

/// A record of a sandbox with a disk, as `mica create` wrote it before a record had the whole specification: it is read,
/// and its JSON stays the same.
#[test]
fn a_record_with_a_part_of_its_specification_is_read_and_written_as_it_was() {
    let text = include_str!("record.json");
    let record: Record = serde_json::from_str(text).unwrap();
    let spec = &record.spec;
    assert_eq!(spec.machine.cpu_quota, Some(500));
    assert_eq!(spec.machine.disk_rate.read, Some(52_428_800));
    assert!(spec.machine.require_limits);
    assert_eq!(spec.upper, Upper::Disk { size: 64 << 20 });
    assert_eq!(spec.setup.mounts.len(), 1);
    assert_eq!((spec.stop_signal, spec.auto_remove), (Some(2), false));
    assert_eq!(
        (spec.transport, record.transport),
        (Transport::Auto, Transport::Pmem)
    );
    let command = spec.command.as_ref().unwrap();
    assert_eq!(command.argv.last().unwrap(), "echo hi");
    assert!(record.can_restart());
    let before: Value = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_value(&record).unwrap(), before);

    // A machine that was saved has the same layout.
    let part = |name: &str| (name.to_owned(), before[name].clone());
    let names = [
        "memory_mib",
        "cpus",
        "cpu_quota",
        "disk_rate",
        "upper",
        "setup",
        "spec",
    ];
    let mut before: Value = names.into_iter().map(part).collect();
    before["main"] = 7.into();
    before["memory"] = Value::Null;
    let machine: SavedMachine = serde_json::from_value(before.clone()).unwrap();
    assert_eq!((&machine.spec, machine.main), (spec, Some(7)));
    assert_eq!(serde_json::to_value(&machine).unwrap(), before);
}
