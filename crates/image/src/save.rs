//! Saves images to an archive: an OCI layout that Docker accepts as well, or the format of older
//! versions of `docker save`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use micabox_ground::lock;
use micabox_tar::{Attributes, Kind, Member, Writer};
use serde_json::{Value, json};

use crate::export::{Compression, PackError, Packed, pack, rewrite};
use crate::manifest::ManifestError;
use crate::store::{self, Image, Layer};
use crate::{Descriptor, Digest, Progress, Reference, Settings, Store};
use micabox_oci::progress::{self, Event, LayerState, Phase};

/// The format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArchiveFormat {
    /// An OCI layout in a tar archive, together with Docker's `manifest.json`: the format of
    /// `docker save` since version 25.
    #[default]
    Oci,
    /// The format of `docker save` before. Its layers are not compressed.
    Docker,
}

impl fmt::Display for ArchiveFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Oci => "oci-archive",
            Self::Docker => "docker-archive",
        })
    }
}

/// An unknown name of an archive format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid archive format `{0}`: expected oci-archive or docker-archive")]
pub struct UnknownFormat(String);

impl FromStr for ArchiveFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "oci-archive" => Ok(Self::Oci),
            "docker-archive" => Ok(Self::Docker),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

/// Options of a save.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// The archive's format.
    pub format: ArchiveFormat,
    /// How layers are compressed; `None` is the format's default.
    pub compression: Option<Compression>,
    /// How many layers to pack at the same time.
    pub settings: Arc<Settings>,
}

/// Why images could not be saved. The output until then is not an archive of images: the file that
/// names them comes last.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The store, or an image in it, failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A manifest in the store that can't be rewritten.
    #[error("cannot save {image}: {source}")]
    Manifest {
        /// Name or digest.
        image: String,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// The archive can't be written.
    #[error("writing the archive fails: {0}")]
    Write(#[source] io::Error),
    /// Docker's format has no compressed layers.
    #[error("layers in a docker-archive are never compressed: leave the compression out")]
    Compressed,
}

/// Saves the images that `names` refer to, each with the requested name.
///
/// The same images give the same bytes, at any time and on any machine.
///
/// # Errors
///
/// [`SaveError`]; the output until then is not an archive of images.
pub fn save(
    store: &Store,
    names: &[String],
    out: &mut dyn Write,
    options: &SaveOptions,
    progress: &dyn Progress,
) -> Result<(), SaveError> {
    progress.event(Event::Phase(Phase::Resolving));
    let compression = match (options.format, options.compression) {
        (ArchiveFormat::Oci, compression) => compression.unwrap_or_default(),
        (ArchiveFormat::Docker, None | Some(Compression::None)) => Compression::None,
        (ArchiveFormat::Docker, Some(_)) => return Err(SaveError::Compressed),
    };
    // Until the end `prune` removes nothing that we found.
    let _shared = store.shared()?;
    let images = find(store, names)?;
    let mut layers = Layers::of(store, &images, progress)?;

    progress.event(Event::Phase(Phase::Layers));
    let scratch = store.scratch()?;
    if compression != Compression::None {
        layers.pack(&scratch, compression, &options.settings)?;
    }
    let mut archive = ArchiveWriter::new(out);
    match options.format {
        ArchiveFormat::Oci => write_oci(&mut archive, &images, &mut layers)?,
        ArchiveFormat::Docker => write_docker(&mut archive, &images, &mut layers)?,
    }
    archive.finish()?;
    progress.event(Event::Phase(Phase::Done));
    Ok(())
}

/// An image and its names in the archive.
struct Saved {
    image: Image,
    names: Vec<Reference>,
    manifest: Vec<u8>,
    config: Vec<u8>,
}

impl Saved {
    fn called(&self) -> String {
        match self.names.first() {
            Some(name) => name.familiar(),
            None => self.image.manifest_digest.to_string(),
        }
    }

    /// Returns the names that are tags: Docker's formats have no others.
    fn tags(&self) -> Vec<String> {
        let tagged = self.names.iter().filter(|name| name.tag().is_some());
        tagged.map(Reference::familiar).collect()
    }

    fn diff_ids(&self) -> impl Iterator<Item = Digest> {
        self.image.layers.iter().map(|layer| layer.diff_id)
    }
}

/// Returns the images, each once, in the requested order.
fn find(store: &Store, names: &[String]) -> Result<Vec<Saved>, SaveError> {
    let mut images: Vec<Saved> = Vec::new();
    for name in names {
        let image = store.image(name)?;
        let name = image.reference.clone();
        let digest = image.manifest_digest;
        match images
            .iter_mut()
            .find(|other| other.image.manifest_digest == digest)
        {
            Some(same) => same.names.extend(name),
            None => images.push(Saved {
                names: name.into_iter().collect(),
                manifest: store.manifest(&digest)?,
                config: store.config(&digest)?,
                image,
            }),
        }
    }
    for image in &mut images {
        image.names.dedup();
    }
    Ok(images)
}

/// All layers of all images, each once.
struct Layers<'a> {
    store: &'a Store,
    progress: &'a dyn Progress,
    layers: Vec<Layer>,
    packed: BTreeMap<Digest, Packed>,
}

impl<'a> Layers<'a> {
    fn of(
        store: &'a Store,
        images: &[Saved],
        progress: &'a dyn Progress,
    ) -> Result<Self, SaveError> {
        let mut layers: Vec<Layer> = Vec::new();
        for layer in images.iter().flat_map(|image| &image.image.layers) {
            if layers.iter().all(|other| other.diff_id != layer.diff_id) {
                // A layer that can't be saved is an error before anything is written.
                store.archive(layer)?;
                layers.push(layer.clone());
            }
        }
        let sizes: Vec<_> = layers
            .iter()
            .map(|layer| progress::Layer {
                diff_id: layer.diff_id,
                blob: layer.uncompressed(),
            })
            .collect();
        progress.event(Event::Layers(&sizes));
        Ok(Self {
            store,
            progress,
            layers,
            packed: BTreeMap::new(),
        })
    }

    /// Packs the layers, a few at a time.
    fn pack(
        &mut self,
        scratch: &store::Scratch,
        compression: Compression,
        settings: &Settings,
    ) -> Result<(), SaveError> {
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let (store, progress, layers) = (self.store, self.progress, &self.layers);
        let outcome: Mutex<Result<BTreeMap<_, _>, store::Error>> = Mutex::new(Ok(BTreeMap::new()));
        let work = || {
            while !stop.load(Ordering::Relaxed)
                && let Some(layer) = layers.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let packed = pack_one(store, layer, scratch, compression, &stop, progress);
                let mut outcome = lock(&outcome);
                match packed {
                    Ok(packed) => {
                        if let Ok(all) = &mut *outcome {
                            all.insert(layer.diff_id, packed);
                        }
                    }
                    Err(PackError::Stopped) => {}
                    Err(PackError::Store(error)) => {
                        if outcome.is_ok() {
                            *outcome = Err(error);
                        }
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..settings.parallel_layers.get().min(layers.len()) {
                scope.spawn(work);
            }
        });
        self.packed = lock::into_inner(outcome)?;
        Ok(())
    }

    /// Returns the descriptor of a layer's blob in the archive.
    fn blob(&self, layer: &Layer) -> Descriptor {
        match self.packed.get(&layer.diff_id) {
            Some(packed) => packed.blob.clone(),
            None => layer.uncompressed(),
        }
    }

    /// Writes every layer's blob to the archive, under the name that `called` returns.
    fn write(
        &mut self,
        archive: &mut ArchiveWriter<'_>,
        called: impl Fn(&Digest) -> String,
    ) -> Result<(), SaveError> {
        for layer in &self.layers {
            let diff_id = layer.diff_id;
            match self.packed.remove(&diff_id) {
                Some(packed) => {
                    archive.file(&called(&packed.blob.digest), packed.blob.size, packed.file)?;
                }
                None => {
                    let source = Watched {
                        archive: self.store.archive(layer)?,
                        bytes: 0,
                        progress: self.progress,
                    };
                    let size = layer.record.uncompressed_size;
                    archive.file(&called(&diff_id), size, source)?;
                }
            }
            let state = LayerState::Done;
            self.progress.event(Event::Layer {
                diff_id: &diff_id,
                state,
            });
        }
        Ok(())
    }
}

fn pack_one(
    store: &Store,
    layer: &Layer,
    scratch: &store::Scratch,
    compression: Compression,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Packed, PackError> {
    let diff_id = &layer.diff_id;
    let mut archive = store.archive(layer)?;
    let name = diff_id.hex();
    let file = scratch.create(&name)?;
    pack(
        &mut archive,
        compression,
        file,
        &scratch.path(&name),
        &mut |bytes| {
            let state = LayerState::Packed { bytes };
            progress.event(Event::Layer { diff_id, state });
            !stop.load(Ordering::Relaxed)
        },
    )
}

/// Reports how much of a layer is in the archive.
struct Watched<'a> {
    archive: store::LayerArchive,
    bytes: u64,
    progress: &'a dyn Progress,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.archive.read(buffer)?;
        self.bytes += count as u64;
        let state = LayerState::Packed { bytes: self.bytes };
        let diff_id = self.archive.diff_id();
        self.progress.event(Event::Layer { diff_id, state });
        Ok(count)
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn write_oci(
    archive: &mut ArchiveWriter<'_>,
    images: &[Saved],
    layers: &mut Layers<'_>,
) -> Result<(), SaveError> {
    archive.document("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    archive.directory("blobs")?;
    archive.directory("blobs/sha256")?;
    // The documents need the layers' descriptors before the blobs are removed one by one.
    let mut documents = BTreeMap::new();
    let (mut index, mut items) = (Vec::new(), Vec::new());
    for image in images {
        let blobs: Vec<Descriptor> = image
            .image
            .layers
            .iter()
            .map(|layer| layers.blob(layer))
            .collect();
        let (manifest, media_type) =
            rewrite(&image.manifest, &image.config, &blobs).map_err(|source| {
                SaveError::Manifest {
                    image: image.called(),
                    source,
                }
            })?;
        index.extend(entries(image, &manifest, &media_type));
        let names: Vec<_> = blobs.iter().map(|blob| blob_name(&blob.digest)).collect();
        let config = blob_name(&Digest::of(&image.config));
        items.push(json!({"Config": config, "RepoTags": image.tags(), "Layers": names}));
        documents.insert(blob_name(&Digest::of(&image.config)), image.config.clone());
        documents.insert(blob_name(&Digest::of(&manifest)), manifest);
    }
    layers.write(archive, blob_name)?;
    for (name, bytes) in &documents {
        archive.document(name, bytes)?;
    }
    archive.json("manifest.json", &json!(items))?;
    archive.json(
        "index.json",
        &json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": index,
        }),
    )
}

/// Returns an image's entries in the index: one for each of its names, or one without.
fn entries(image: &Saved, manifest: &[u8], media_type: &str) -> Vec<Value> {
    let entry = json!({
        "mediaType": media_type, "digest": Digest::of(manifest), "size": manifest.len(),
    });
    if image.names.is_empty() {
        return vec![entry];
    }
    let named = |name: &Reference| {
        let mut entry = entry.clone();
        // containerd and Docker read the first annotation, skopeo and Podman the second.
        entry["annotations"] = json!({
            "io.containerd.image.name": name.to_string(),
            "org.opencontainers.image.ref.name": name.to_string(),
        });
        entry
    };
    image.names.iter().map(named).collect()
}

fn write_docker(
    archive: &mut ArchiveWriter<'_>,
    images: &[Saved],
    layers: &mut Layers<'_>,
) -> Result<(), SaveError> {
    let layer_name = |diff_id: &Digest| format!("{}.tar", diff_id.hex());
    layers.write(archive, layer_name)?;
    let mut configs = BTreeMap::new();
    let mut items = Vec::new();
    for image in images {
        let config = format!("{}.json", Digest::of(&image.config).hex());
        let names: Vec<_> = image.diff_ids().map(|id| layer_name(&id)).collect();
        items.push(json!({"Config": config, "RepoTags": image.tags(), "Layers": names}));
        configs.insert(config, &image.config);
    }
    for (name, bytes) in &configs {
        archive.document(name, bytes)?;
    }
    archive.json("manifest.json", &json!(items))
}

/// Writes an archive whose bytes depend only on its contents.
struct ArchiveWriter<'a> {
    tar: Writer<&'a mut dyn Write>,
}

impl<'a> ArchiveWriter<'a> {
    fn new(out: &'a mut dyn Write) -> Self {
        Self {
            tar: Writer::new(out),
        }
    }

    /// Adds a file; `contents` gives `size` bytes.
    fn file(&mut self, name: &str, size: u64, mut contents: impl Read) -> Result<(), SaveError> {
        // An error of the contents may be the store's own.
        let explain = |error: io::Error| match error.downcast::<store::Error>() {
            Ok(error) => SaveError::Store(error),
            Err(error) => SaveError::Write(error),
        };
        let member = member(name, Kind::file(size), 0o644);
        let read = |_: u64, piece: &mut [u8]| contents.read_exact(piece);
        self.tar.add_file(&member, read).map_err(explain)?;
        // An altered layer is detected at its end.
        match contents.read(&mut [0]).map_err(explain)? {
            0 => Ok(()),
            _ => Err(SaveError::Write(io::Error::other(
                "a blob is longer than it should be",
            ))),
        }
    }

    fn document(&mut self, name: &str, bytes: &[u8]) -> Result<(), SaveError> {
        self.file(name, bytes.len() as u64, bytes)
    }

    fn json(&mut self, name: &str, value: &Value) -> Result<(), SaveError> {
        self.document(name, value.to_string().as_bytes())
    }

    fn directory(&mut self, name: &str) -> Result<(), SaveError> {
        let member = member(name, Kind::Directory, 0o755);
        self.tar.add(&member).map_err(SaveError::Write)
    }

    fn finish(self) -> Result<(), SaveError> {
        self.tar.finish().map(drop).map_err(SaveError::Write)
    }
}

/// Returns a member that is owned by root and has no time.
fn member(name: &str, kind: Kind, mode: u16) -> Member {
    Member {
        path: name.into(),
        kind,
        attributes: Attributes {
            mode,
            ..Attributes::default()
        },
    }
}
