//! Snapshots in a registry that lie: each field of a manifest, a config, a map, an index and a frame.

use std::fs;

use serde_json::{Value, json};

use crate::support::artifact::{DISK, PACK, Remote, changed, disk, filesystem};

#[test]
fn an_artifact_of_another_type_is_refused_by_its_type() {
    let remote = Remote::new();
    let nothing = remote.put("other", "application/vnd.oci.empty.v1+json", b"{}");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/vnd.micabox.snapshot.v2",
        "config": nothing,
        "layers": [nothing],
    });
    remote.put_manifest("other:1", &manifest);
    let said = remote.refused("other:1");
    assert!(
        said.contains("artifact of type `application/vnd.micabox.snapshot.v2`"),
        "{said}"
    );
}

#[test]
fn each_field_of_a_config_that_lies_is_named_and_nothing_is_left() {
    let remote = Remote::new();
    remote.import("monday", &filesystem(&remote.origin));
    remote.push("monday", "work:1");
    let digest = format!("sha256:{}", "1".repeat(64));
    for (pointer, value, words) in [
        ("/format", json!(2), "its format is 2"),
        ("/format", json!("one"), "malformed"),
        ("/snapshot/size", json!(64), "another size"),
        ("/snapshot/size", json!(1_u64 << 60), "too large"),
        ("/snapshot/sandbox", json!("../it"), "the sandbox's name"),
        ("/snapshot/name", json!(7), "malformed"),
        ("/snapshot/image/digest", json!("sha256:12"), "bad digest"),
        ("/snapshot/image/digest", json!(digest), "no such image"),
        ("/files/disk/size", json!(4096), "another size"),
        ("/files/disk/sha256", json!("00"), "its config says"),
        ("/files", json!({}), "another size"),
        ("/files/disk", Value::Null, "another size"),
        ("/snapshot", json!({}), "malformed"),
    ] {
        let lies = remote.put_config("work:1", |config| {
            *config.pointer_mut(pointer).unwrap() = value
        });
        let said = remote.refused(&lies);
        assert!(said.contains(words), "{pointer}: {said}");
    }
    // Files that are in one of the two only.
    let lies = remote.put_config("work:1", |config| {
        config["snapshot"]["size"] = json!(0);
        config["files"] = json!({});
    });
    let said = remote.refused(&lies);
    assert!(said.contains("neither a disk nor a memory"), "{said}");
    let lies = remote.put_config("work:1", |config| {
        config["files"]["memory"] = config["files"]["disk"].clone();
    });
    let said = remote.refused(&lies);
    assert!(said.contains("a part of a machine"), "{said}");
    let lies = remote.put_config("work:1", |config| {
        config["snapshot"]["root_disk"] = json!({"path": "/etc/shadow", "format": "ext4", "in_place": false,
            "size": 4096, "uuid": vec![7; 16], "modified": [1, 2]});
    });
    let said = remote.refused(&lies);
    assert!(said.contains("a file of another machine"), "{said}");
    // The true one is still taken.
    remote
        .home
        .output(&["pull", "-q", &remote.name("work:1")])
        .ok();
}

#[test]
fn each_field_of_a_map_an_index_and_a_frame_that_lies_is_named_and_nothing_is_left() {
    let remote = Remote::new();
    remote.import("monday", &filesystem(&remote.origin));
    remote.push("monday", "work:1");
    let index = Remote::index_of(&remote.manifest("work:1"));
    let set = |at: usize, value: &[u8]| {
        let value = value.to_vec();
        move |bytes: &mut Vec<u8>| bytes[at..at + value.len()].copy_from_slice(&value)
    };
    // Maps: the header, and the first entry behind its 24 bytes.
    for (at, value, words) in [
        (0, &b"x"[..], "magic or version"),
        (7, &[2], "magic or version"),
        (8, &[1], "it is of"),
        (16, &[1], "another length"),
        (20, &[255], "length is not that"),
        (24, &[255; 4], "beyond the end of the file"),
        (72, &[0; 4], "not in order"),
        (28, &[1], "a pack that there is not"),
        (32, &[1], "other bytes than its map says"),
        (32, &131_071_u64.to_le_bytes(), "in one frame"),
        (32, &[255; 8], "beyond the end"),
        (38, &[1], "in one frame"),
        (40, &[0; 32], "other bytes than its map says"),
    ] {
        let lies = remote.put_layer("work:1", DISK, set(at, value));
        let said = remote.refused(&lies);
        assert!(
            said.contains("map of the disk")
                || said.contains("map says")
                || said.contains("a map names"),
            "{at}: {said}"
        );
        assert!(said.contains(words), "{at}: {said}");
    }
    let lies = remote.put_layer("work:1", DISK, |bytes| bytes.truncate(bytes.len() - 48));
    assert!(remote.refused(&lies).contains("length is not that"));
    // Without one chunk, the disk is another one.
    let lies = remote.put_layer("work:1", DISK, |bytes| {
        bytes.truncate(bytes.len() - 48);
        let count = (bytes.len() - 24) / 48;
        bytes[20..24].copy_from_slice(&u32::try_from(count).unwrap().to_le_bytes());
    });
    assert!(remote.refused(&lies).contains("its config says"));

    // Indexes: the header, and the first entry behind its 32 bytes.
    for (at, value, words) in [
        (0, &b"x"[..], "magic"),
        (4, &[9], "another version"),
        (5, &[0], "uncompressed"),
        (5, &[7], "another compression"),
        (6, &[1], "flags"),
        (8, &[1], "checksum"),
        (16, &[255], "length is not that"),
        (20, &[9], "other checksums"),
        (21, &[64], "length"),
        (22, &[1], "flags"),
        (32, &[1], "first chunk"),
        (40, &[1], "first chunk"),
        (48, &[0; 32], "another checksum"),
    ] {
        let lies = remote.put_layer("work:1", PACK, set(index + at, value));
        let said = remote.refused(&lies);
        assert!(said.contains("pack sha256:"), "{at}: {said}");
        if ![5, 8].contains(&at) || value == [7] {
            assert!(said.contains(words), "{at}: {said}");
        }
    }
    // Frames: other bytes, and other bytes that have the checksum of the index.
    let lies = remote.put_layer("work:1", PACK, set(5000, &[0x5a; 64]));
    let said = remote.refused(&lies);
    assert!(
        said.contains("another checksum than its index says"),
        "{said}"
    );
    let lies = remote.put_layer("work:1", PACK, |bytes| {
        // The first frame of the blob, as long as it was.
        let end = u64::from_le_bytes(bytes[index + 32 + 48..][..8].try_into().unwrap()) as usize;
        bytes[..end].fill(0x5a);
        let checksum = <sha2::Sha256 as sha2::Digest>::digest(&bytes[..end]);
        bytes[index + 48..index + 80].copy_from_slice(&checksum);
    });
    let said = remote.refused(&lies);
    assert!(said.contains("does not inflate"), "{said}");
    remote
        .home
        .output(&["pull", "-q", &remote.name("work:1")])
        .ok();
}

#[test]
fn a_registry_that_swaps_or_damages_blobs_is_noticed() {
    let remote = Remote::new();
    let bytes = filesystem(&remote.origin);
    remote.import("first", &bytes);
    remote.import("second", &changed(&bytes, 40));
    remote.push("first", "one:1");
    remote.push("second", "two:2");
    let layers = |name: &str| {
        let layers = remote.manifest(name)["layers"].clone();
        let layers = layers.as_array().unwrap().iter();
        let digests = layers.map(|layer| layer["digest"].as_str().unwrap().to_owned());
        digests.collect::<Vec<_>>()
    };
    let (one, two) = (layers("one:1"), layers("two:2"));
    let (map, pack) = (remote.blob_file(&one[0]), remote.blob_file(&one[1]));
    let other = fs::read(remote.blob_file(&two[0])).unwrap();
    let true_map = fs::read(&map).unwrap();
    fs::write(&map, &other).unwrap();
    let said = remote.refused("one:1");
    assert!(said.contains("map of the disk: blob"), "{said}");
    assert!(said.contains("it has the digest"), "{said}");
    fs::write(&map, true_map).unwrap();

    let true_pack = fs::read(&pack).unwrap();
    let mut swapped = true_pack.clone();
    swapped.reverse();
    fs::write(&pack, &swapped).unwrap();
    let said = remote.refused("one:1");
    assert!(
        said.contains(&format!("pack {}: its chunk index has the digest", one[1])),
        "{said}"
    );
    fs::write(&pack, &true_pack[..true_pack.len() / 2]).unwrap();
    remote.refused("one:1");
    fs::write(&pack, &true_pack).unwrap();
    remote
        .home
        .output(&["pull", "-q", &remote.name("one:1")])
        .ok();
    assert!(fs::read(disk(&remote.home, "one-1")).unwrap() == bytes);
}
