//! Hand-made snapshot files: `mica snapshot export` writes only true ones.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Makes the head's snapshot: of the image `digest`, with a disk of `size` bytes.
pub fn snapshot(name: &str, digest: &str, size: usize) -> Value {
    json!({
        "name": name,
        "image": {"reference": "docker.io/library/box:latest", "digest": digest},
        "sandbox": "it",
        "created": 1_700_000_000,
        "size": size,
    })
}

/// Writes the file: magic, length of the head, head, the disk as one run of bytes, and a digest.
pub fn write(path: &Path, snapshot: &Value, disk: &[u8]) {
    let head = json!({"snapshot": snapshot, "runs": [[0, disk.len()]]}).to_string();
    let mut bytes = b"micabox snapshot 1\n".to_vec();
    bytes.extend(u32::try_from(head.len()).unwrap().to_le_bytes());
    bytes.extend(head.as_bytes());
    bytes.extend(disk);
    let digest = Sha256::digest(&bytes);
    bytes.extend(&digest[..]);
    fs::write(path, bytes).unwrap();
}
