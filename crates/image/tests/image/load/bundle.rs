//! Files for a layout or an archive.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use micabox_image::Digest;
use serde_json::{Value, json};

use crate::image::{TestImage, TestLayer, index};
use crate::layer::archive::Archive;

/// A file in a bundle.
#[derive(Clone)]
pub enum File {
    Bytes(Vec<u8>),
    Symlink(String),
    HardLink(String),
}

/// Named files.
#[derive(Clone, Default)]
pub struct Bundle(pub BTreeMap<String, File>);

impl Bundle {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.insert(name.to_owned(), File::Bytes(bytes.into()));
        self
    }

    pub fn link(mut self, name: &str, to: &str) -> Self {
        self.0.insert(name.to_owned(), File::Symlink(to.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        assert!(self.0.remove(name).is_some(), "{name}");
        self
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        match &self.0[name] {
            File::Bytes(bytes) => bytes.clone(),
            _ => panic!("{name} is a link"),
        }
    }

    pub fn archive(&self) -> Vec<u8> {
        let archive = self
            .0
            .iter()
            .fold(Archive::new(), |archive, (name, file)| match file {
                File::Bytes(bytes) => archive.file(name, bytes),
                File::Symlink(to) => archive.symlink(name, to),
                File::HardLink(to) => archive.hard_link(name, to),
            });
        archive.finish()
    }

    /// Writes the bundle as an archive in `directory`.
    pub fn write_archive(&self, directory: &Path) -> PathBuf {
        write(directory, self.archive())
    }

    /// Writes the bundle as a directory in `directory`.
    pub fn write_directory(&self, directory: &Path) -> PathBuf {
        let root = directory.join("unpacked");
        for (name, file) in &self.0 {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match file {
                File::Bytes(bytes) => fs::write(path, bytes).unwrap(),
                File::Symlink(to) => std::os::unix::fs::symlink(to, path).unwrap(),
                File::HardLink(to) => fs::hard_link(root.join(to), path).unwrap(),
            }
        }
        root
    }
}

/// Writes `bytes` to a file in `directory`.
pub fn write(directory: &Path, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join("images.tar");
    fs::write(&path, bytes).unwrap();
    path
}

/// Makes a layout whose `index.json` has these entries, with these images' blobs.
pub fn layout(entries: &[Value], images: &[&TestImage]) -> Bundle {
    let mut bundle = Bundle::new()
        .with("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)
        .with("index.json", index(entries));
    for image in images {
        for (digest, bytes) in image.blobs() {
            bundle = bundle.with(&blob(&digest), bytes);
        }
        bundle = bundle.with(&blob(&image.digest()), image.manifest.clone());
    }
    bundle
}

pub fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Returns an image's entry in an `index.json`, with an annotation.
pub fn named(image: &TestImage, annotation: &str, value: &str) -> Value {
    let mut entry = image.entry(None);
    entry["annotations"] = json!({annotation: value});
    entry
}

pub const FULL_NAME: &str = "io.containerd.image.name";
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Makes an uncompressed layer, as saved by Docker.
pub fn plain_layer(name: &str) -> TestLayer {
    let blob = Archive::new().directory("./").file(name, name).finish();
    TestLayer {
        diff_id: Digest::of(&blob),
        blob,
        media_type: "application/vnd.oci.image.layer.v1.tar",
    }
}

/// Makes an archive of Docker up to version 24. A layer that occurs twice is a link.
pub fn docker_save(images: &[(&TestImage, &[&str])]) -> Bundle {
    let mut bundle = Bundle::new();
    let mut items = Vec::new();
    let mut seen = BTreeMap::new();
    for (number, (image, tags)) in images.iter().enumerate() {
        let config = format!("{}.json", Digest::of(&image.config).hex());
        bundle = bundle.with(&config, image.config.clone());
        let mut layers = Vec::new();
        for (depth, layer) in image.layers.iter().enumerate() {
            let id = format!("{number}-{depth}");
            let name = format!("{id}/layer.tar");
            bundle = bundle.with(&format!("{id}/VERSION"), "1.0");
            bundle = match seen.get(&layer.diff_id) {
                Some(first) => bundle.link(&name, &format!("../{first}")),
                None => bundle.with(&name, layer.blob.clone()),
            };
            seen.entry(layer.diff_id).or_insert_with(|| name.clone());
            layers.push(name);
        }
        let tags = if tags.is_empty() {
            json!(null)
        } else {
            json!(tags)
        };
        items.push(json!({"Config": config, "RepoTags": tags, "Layers": layers}));
    }
    bundle
        .with("manifest.json", json!(items).to_string())
        .with("repositories", "{}")
}
