//! Records of sandboxes and snapshots, in files that may come from elsewhere.

use micabox_disks::snapshot::head_alone;
use micabox_disks::{Arriving, Snapshot};
use micabox_state::{BaseName, Record};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: &[u8] = b"micabox snapshot 1\n";
/// Maximum number of bytes of a disk.
const DISK_MAX: u64 = 16 << 40;

/// Parses an exported snapshot's file. Input without the magic is its head alone.
pub fn file(bytes: &[u8]) {
    let mut file = bytes.to_vec();
    if !bytes.starts_with(MAGIC) {
        let length = bytes.len() as u32;
        file = [MAGIC, &length.to_le_bytes(), bytes].concat();
    }
    let Ok((snapshot, runs)) = head_alone(&mut &file[..]) else {
        return;
    };
    assert!(snapshot.size <= DISK_MAX);
    let mut end = 0;
    for (offset, length) in runs {
        assert!(offset >= end, "runs overlap");
        end = offset.checked_add(length).expect("an end");
        assert!(end <= snapshot.size, "a run outside of the disk");
    }
    survives(&snapshot);
}

/// Parses `state.json`: a record must survive a round trip.
pub fn record(bytes: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<Record>(bytes) {
        let _ = (record.status.to_string(), record.status.is_live());
        assert!(record.short_id().len() <= record.id.len());
        if let BaseName::Image(image) = &record.base
            && let Ok(digest) = image.parse_digest()
        {
            assert_eq!(digest.to_string(), image.digest);
        }
        survives(&record);
    }
    if let Ok(snapshot) = serde_json::from_slice::<Snapshot>(bytes) {
        survives(&snapshot);
    }
}

fn survives<T: Serialize + DeserializeOwned>(value: &T) {
    let text = serde_json::to_vec(value).expect("it was JSON");
    let again: T = serde_json::from_slice(&text).expect("it is ours");
    assert_eq!(serde_json::to_vec(&again).expect("it was JSON"), text);
}

/// A snapshot's head; and records.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let head = br#"{"snapshot":{"name":"a","image":{"reference":"debian:12","digest":
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
        "sandbox":"b","created":1700000000,"size":1048576},"runs":[[0,4096],[8192,4096]]}"#;
    vec![("head", head.to_vec())]
}

/// A sandbox's record.
pub fn records() -> Vec<(&'static str, Vec<u8>)> {
    let record = br#"{"id":"0123456789abcdef0123456789abcdef","name":"db","image":{"reference":
        "debian:12","digest":"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
        "command":"sh -c x","created":1700000000,"memory_mib":512,"cpus":2,"transport":"pmem",
        "root":"merged","auto_remove":false,"owner":null,"machine":null,
        "status":{"state":"exited","code":1,"at":1700000001,"error":null}}"#;
    let snapshot = br#"{"name":"a","image":{"reference":null,"digest":""},"sandbox":"b",
        "created":1700000000,"size":1048576}"#;
    vec![("record", record.to_vec()), ("snapshot", snapshot.to_vec())]
}

/// Reads the config of a snapshot in a registry: what is left of one that is taken names nothing of this machine.
///
/// # Panics
///
/// If its image has no digest.
pub fn config(bytes: &[u8]) {
    let name = "registry.example/team/work:1".parse().expect("a name");
    let Ok(arriving) = Arriving::read(&name, bytes) else {
        return;
    };
    if let Some(image) = arriving.image().expect("it was checked") {
        assert_eq!(image.registry(), "registry.example");
        assert!(image.digest().is_some());
    }
}

/// Configs of snapshots of a disk.
pub fn config_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let digest = format!("sha256:{}", "1".repeat(64));
    let config = format!(
        r#"{{"format":1,"made_by":"0.1.0","snapshot":{{"name":"monday","image":{{"reference":"debian:12",
            "digest":"{digest}"}},"sandbox":"db","created":1763800000,"size":67108864}},
            "files":{{"disk":{{"size":67108864,"sha256":"{}"}}}}}}"#,
        "2".repeat(64)
    );
    vec![("disk", config.into_bytes())]
}
