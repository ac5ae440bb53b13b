//! Snapshots in registries: an artifact whose layers are chunks of a disk and of a memory, which several snapshots share.
//!
//! ```text
//! manifest   artifactType application/vnd.micabox.snapshot.v1
//!   config   application/vnd.micabox.snapshot.config.v1+json   what the snapshot is, and what it needs
//!   layers   application/vnd.micabox.snapshot.disk.v1          the map of the disk
//!            application/vnd.micabox.snapshot.memory.v1        the map of the memory
//!            application/vnd.micabox.snapshot.machine.v1       processors and devices
//!            application/vnd.micabox.snapshot.chunks.v1+zstd   packs, any number; maps count them from 0
//! ```
//!
//! A map ([`micabox_chunk::Map`]) says which bytes of which packs a file has. A pack is a blob of zstd frames with a chunk
//! index ([`micabox_chunk::Index`]), whose place and digest are annotations of its descriptor, as those of EROFS images
//! are. A manifest names each pack that its maps do, also those that came with other snapshots, so a registry keeps them.

mod cut;
mod fetch;
mod image;
mod known;
mod local;
mod packs;
mod part;
mod pull;
mod push;

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use micabox_chunk::{FRAME_HEADER, MOST_INDEX, MOST_MAP};
use micabox_image::manifest::Manifest;
use micabox_image::manifest::erofs::{INDEX_DIGEST, INDEX_RANGE};
use micabox_image::{Descriptor, Digest};
use micabox_oci::printable;
use serde_json::{Value, json};

pub use cut::Chunks;
pub use image::push_image_blocking;
pub use local::CutFile;
pub use part::{Kept, open_part};
pub use pull::{Offer, Target, offer_blocking};
pub use push::{Cargo, SnapshotPushed, Source, push_snapshot_blocking};

/// What the artifact is.
pub const ARTIFACT: &str = "application/vnd.micabox.snapshot.v1";

/// Media type of the config.
const CONFIG: &str = "application/vnd.micabox.snapshot.config.v1+json";

/// Media type of a machine's state.
const MACHINE: &str = "application/vnd.micabox.snapshot.machine.v1";

/// Media type of a pack.
const PACK: &str = "application/vnd.micabox.snapshot.chunks.v1+zstd";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Most packs that a snapshot's chunks are in.
const MOST_PACKS: usize = 256;

/// Bytes of chunks after which another pack begins.
const FULL: u64 = 1 << 30;

/// Most bytes of a pack: zstd adds little to what it can't compress, and an index has 48 bytes a frame.
const MOST_PACK: u64 = FULL + FULL / 16;

/// Most bytes of the indexes of all packs, which are in memory together.
const MOST_INDEXES: u64 = 128 << 20;

/// A file of a snapshot that is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The disk.
    Disk,
    /// The machine's memory.
    Memory,
}

impl Part {
    const ALL: [Self; 2] = [Self::Disk, Self::Memory];

    /// Returns the media type of its map.
    fn media_type(self) -> &'static str {
        match self {
            Self::Disk => "application/vnd.micabox.snapshot.disk.v1",
            Self::Memory => "application/vnd.micabox.snapshot.memory.v1",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
        })
    }
}

/// A part that is cut, or that is put together.
#[derive(Debug)]
pub struct SparseFile {
    /// Which one.
    pub part: Part,
    /// The file.
    pub file: File,
    /// Its path, for errors.
    pub path: PathBuf,
}

/// A pack, as a manifest names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pack {
    blob: Descriptor,
    /// Where its index is, without the header of the frame around it.
    index: Range<u64>,
    index_digest: Digest,
}

/// The manifest of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Artifact {
    config: Descriptor,
    maps: Vec<(Part, Descriptor)>,
    machine: Option<Descriptor>,
    packs: Vec<Pack>,
}

/// A field of a manifest that is not as it has to be.
struct Wrong(String);

impl Artifact {
    /// Reads a manifest that says that it is a snapshot's.
    fn read(manifest: &Manifest) -> Result<Self, Wrong> {
        let wrong = |what: &str, problem: &str| Wrong(format!("{what} {problem}"));
        let blob = |what: &str, entry: &micabox_image::manifest::Entry| {
            let digest = entry.digest.parse();
            let digest = digest.map_err(|error| wrong(what, &format!("has a bad digest: {error}")));
            Ok::<_, Wrong>(Descriptor {
                media_type: entry.media_type.clone(),
                digest: digest?,
                size: entry.size.ok_or_else(|| wrong(what, "has no size"))?,
            })
        };
        if manifest.config.media_type != CONFIG {
            let kind = printable(&manifest.config.media_type);
            return Err(wrong("its config", &format!("is a `{kind}`")));
        }
        let mut artifact = Self {
            config: blob("its config", &manifest.config)?,
            maps: Vec::new(),
            machine: None,
            packs: Vec::new(),
        };
        for entry in &manifest.layers {
            let kind = entry.media_type.as_str();
            if let Some(part) = Part::ALL.into_iter().find(|part| part.media_type() == kind) {
                let what = format!("its map of the {part}");
                let map = blob(&what, entry)?;
                if artifact.maps.iter().any(|(other, _)| *other == part) {
                    return Err(wrong(&what, "is there twice"));
                }
                if map.size > MOST_MAP {
                    return Err(wrong(&what, "is too long"));
                }
                artifact.maps.push((part, map));
            } else if kind == MACHINE && artifact.machine.is_none() {
                artifact.machine = Some(blob("its machine", entry)?);
            } else if kind == PACK {
                let pack = blob("a pack", entry)?;
                if pack.size > MOST_PACK {
                    return Err(wrong("a pack", "is too long"));
                }
                let (index, index_digest) = index_of(entry, pack.size).ok_or_else(|| {
                    wrong(
                        "a pack",
                        "has annotations that do not say where its index is",
                    )
                })?;
                artifact.packs.push(Pack {
                    blob: pack,
                    index,
                    index_digest,
                });
            } else {
                return Err(wrong("it", &format!("has a layer `{}`", printable(kind))));
            }
        }
        if artifact.packs.len() > MOST_PACKS {
            return Err(wrong("it", &format!("has more than {MOST_PACKS} packs")));
        }
        let indexes = artifact
            .packs
            .iter()
            .map(|pack| pack.index.end - pack.index.start);
        if indexes.sum::<u64>() > MOST_INDEXES {
            return Err(wrong("its packs", "have chunk indexes that are too long"));
        }
        Ok(artifact)
    }

    /// Writes the manifest.
    fn to_json(&self) -> Value {
        let mut layers: Vec<Value> = Vec::new();
        layers.extend(self.maps.iter().map(|(_, map)| json!(map)));
        layers.extend(self.machine.iter().map(|machine| json!(machine)));
        layers.extend(self.packs.iter().map(Pack::to_json));
        json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": self.config,
            "layers": layers,
        })
    }
}

impl Pack {
    fn to_json(&self) -> Value {
        let start = self.index.start - FRAME_HEADER;
        let mut layer = json!(self.blob);
        layer["annotations"] = json!({
            INDEX_RANGE: format!("{start}:{}", self.index.end),
            INDEX_DIGEST: self.index_digest,
        });
        layer
    }
}

/// Returns where a pack's index is, and its digest; none if the annotations don't say so.
fn index_of(entry: &micabox_image::manifest::Entry, size: u64) -> Option<(Range<u64>, Digest)> {
    let (start, end) = entry.annotation(INDEX_RANGE)?.split_once(':')?;
    let start: u64 = start.parse().ok()?;
    let index = start.checked_add(FRAME_HEADER)?..end.parse().ok()?;
    let is_sound =
        index.start < index.end && index.end == size && index.end - index.start <= MOST_INDEX;
    is_sound.then_some((index, entry.annotation(INDEX_DIGEST)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use micabox_image::manifest::Document;

    use super::*;

    fn blob(media_type: &str, size: u64) -> Descriptor {
        Descriptor {
            media_type: media_type.to_owned(),
            digest: Digest::of(media_type.as_bytes()),
            size,
        }
    }

    fn sample() -> Artifact {
        Artifact {
            config: blob(CONFIG, 100),
            maps: vec![
                (Part::Disk, blob(Part::Disk.media_type(), 24)),
                (Part::Memory, blob(Part::Memory.media_type(), 72)),
            ],
            machine: Some(blob(MACHINE, 9000)),
            packs: vec![Pack {
                blob: blob(PACK, 1000),
                index: 808..1000,
                index_digest: Digest::of(b"index"),
            }],
        }
    }

    fn read(manifest: &Value) -> Result<Artifact, String> {
        let Ok(Document::Manifest(manifest)) =
            Document::parse(manifest.to_string().as_bytes(), None)
        else {
            return Err("no manifest".to_owned());
        };
        Artifact::read(&manifest).map_err(|Wrong(problem)| problem)
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        assert_eq!(read(&sample().to_json()), Ok(sample()));
    }

    #[test]
    fn each_field_of_a_manifest_that_lies_is_named() {
        let refused = |pointer: &str, value: Value, words: &str| {
            let mut manifest = sample().to_json();
            *manifest.pointer_mut(pointer).unwrap() = value;
            let problem = read(&manifest).unwrap_err();
            assert!(problem.contains(words), "{pointer}: {problem}");
        };
        let range = "/layers/3/annotations/org.erofs.chunk-index.range";
        let digest = "/layers/3/annotations/org.erofs.chunk-index.digest";
        let disk = Part::Disk.media_type();
        refused(
            "/config/mediaType",
            json!("text/plain"),
            "its config is a `text/plain`",
        );
        refused(
            "/config/digest",
            json!("sha256:12"),
            "its config has a bad digest",
        );
        refused("/config/size", Value::Null, "its config has no size");
        refused(
            "/layers/0/mediaType",
            json!("text/plain"),
            "it has a layer `text/plain`",
        );
        refused(
            "/layers/0/digest",
            json!("md5:1"),
            "map of the disk has a bad digest",
        );
        refused(
            "/layers/0/size",
            json!(MOST_MAP + 1),
            "map of the disk is too long",
        );
        refused(
            "/layers/1/mediaType",
            json!(disk),
            "map of the disk is there twice",
        );
        refused("/layers/2/mediaType", json!(PACK), "a pack has annotations");
        refused("/layers/3/mediaType", json!(MACHINE), "it has a layer");
        refused("/layers/3/digest", json!("x"), "a pack has a bad digest");
        refused("/layers/3/size", json!(1001), "a pack has annotations");
        refused("/layers/3/size", json!(2_u64 << 30), "a pack is too long");
        refused(digest, json!("x"), "a pack has annotations");
        for value in [
            "",
            "800",
            "800:",
            "x:1000",
            "800:999",
            "1000:1000",
            "992:1000",
            "18446744073709551615:1000",
        ] {
            refused(range, json!(value), "a pack has annotations");
        }
        let mut many = sample();
        many.packs = vec![many.packs[0].clone(); MOST_PACKS + 1];
        assert!(
            read(&many.to_json())
                .unwrap_err()
                .contains("more than 256 packs")
        );
    }
}
