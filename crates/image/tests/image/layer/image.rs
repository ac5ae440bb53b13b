//! Images made from archives.

use micabox_image::store::Image;
use micabox_image::{Digest, Reference};

use super::{TestStore, convert};

/// Publishes an image of these layers under `name`.
pub fn publish(store: &TestStore, archives: &[Vec<u8>], name: &str) -> Image {
    for archive in archives {
        convert(store, archive).unwrap();
    }
    let (manifest, config) = documents(archives);
    let reference: Reference = name.parse().unwrap();
    store
        .publish_image(&manifest, &config, &[reference])
        .unwrap()
}

/// Returns the manifest and config of these layers.
pub fn documents(archives: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let diff_ids: Vec<_> = archives.iter().map(|a| Digest::of(a)).collect();
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {"Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = serde_json::to_vec(&config).unwrap();
    let layer = |archive: &Vec<u8>| {
        serde_json::json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": Digest::of(archive), "size": archive.len(),
        })
    };
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": Digest::of(&config), "size": config.len(),
        },
        "layers": archives.iter().map(layer).collect::<Vec<_>>(),
    });
    (serde_json::to_vec(&manifest).unwrap(), config)
}
