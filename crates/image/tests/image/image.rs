//! Images for registries to serve.

use micabox_image::{Digest, Platform};
use serde_json::{Value, json};

use crate::layer::archive::Archive;
use crate::layer::gzip;

/// A layer's blob and its properties.
#[derive(Clone)]
pub struct TestLayer {
    pub blob: Vec<u8>,
    pub diff_id: Digest,
    pub media_type: &'static str,
}

impl TestLayer {
    pub fn gzip(archive: &[u8]) -> Self {
        Self {
            blob: gzip(archive),
            diff_id: Digest::of(archive),
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip",
        }
    }

    /// Makes a layer with one file of `size` incompressible bytes, different for each `seed`.
    pub fn noise(seed: u64, size: usize) -> Self {
        let name = format!("noise-{seed}");
        Self::gzip(
            &Archive::new()
                .directory("./")
                .file(&name, noise(seed, size))
                .finish(),
        )
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.blob)
    }
}

/// Returns `size` bytes of xorshift's output.
pub fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed + 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// An image's documents and blobs.
#[derive(Clone)]
pub struct TestImage {
    pub layers: Vec<TestLayer>,
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
}

impl TestImage {
    pub fn new(layers: Vec<TestLayer>) -> Self {
        Self::for_platform(layers, &Platform::host())
    }

    pub fn for_platform(layers: Vec<TestLayer>, platform: &Platform) -> Self {
        let diff_ids: Vec<_> = layers.iter().map(|layer| layer.diff_id).collect();
        let config = json!({
            "architecture": platform.architecture(), "os": platform.os(),
            "variant": platform.variant(), "config": {"Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        Self::with_config(layers, &config)
    }

    pub fn with_config(layers: Vec<TestLayer>, config: &Value) -> Self {
        let config = config.to_string().into_bytes();
        let descriptors = layers.iter().map(|layer| {
            json!({"mediaType": layer.media_type, "digest": layer.digest(), "size": layer.blob.len()})
        });
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": Digest::of(&config), "size": config.len(),
            },
            "layers": descriptors.collect::<Vec<_>>(),
        });
        Self {
            layers,
            config,
            manifest: manifest.to_string().into_bytes(),
        }
    }

    /// A small image of two layers.
    pub fn small() -> Self {
        Self::new(vec![TestLayer::noise(1, 5000), TestLayer::noise(2, 7000)])
    }

    /// An image whose only layer takes long to convert.
    pub fn large() -> Self {
        Self::new(vec![TestLayer::noise(3, 3 << 20)])
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// Edits the manifest, valid or not.
    pub fn edit_manifest(&mut self, edit: impl FnOnce(&mut Value)) {
        let mut manifest = serde_json::from_slice(&self.manifest).unwrap();
        edit(&mut manifest);
        self.manifest = manifest.to_string().into_bytes();
    }

    pub fn blobs(&self) -> impl Iterator<Item = (Digest, Vec<u8>)> {
        let layers = self.layers.iter().map(|layer| layer.blob.clone());
        layers
            .chain([self.config.clone()])
            .map(|bytes| (Digest::of(&bytes), bytes))
    }

    /// Returns its entry in an index.
    pub fn entry(&self, platform: Option<&str>) -> Value {
        let mut entry = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": self.digest(), "size": self.manifest.len(),
        });
        if let Some(platform) = platform.map(|text| text.parse::<Platform>().unwrap()) {
            entry["platform"] = json!({
                "os": platform.os(), "architecture": platform.architecture(),
                "variant": platform.variant(),
            });
        }
        entry
    }
}

/// Returns an index of these entries.
pub fn index(entries: &[Value]) -> Vec<u8> {
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": entries,
    });
    index.to_string().into_bytes()
}
