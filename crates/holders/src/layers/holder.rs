//! The process that serves an image's layers.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use micabox_erofs::{BLOCK_SIZE, ReadAt};
use micabox_error::{Error, Source};
use micabox_ground::chain;
use micabox_image::store::{Cache, Image, Layer};
use micabox_image::{Digest, Store};
use micabox_jail::Kind;
use micabox_state::note_image;
use serde::{Deserialize, Serialize};

use super::missing::Missing;
use crate::holder::{self, Done};
use crate::own_process::{self, Environment};
use crate::served::{self, Mount, Served, Work, has_room};

/// The kind of worker that serves layers.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "layers";

/// Which image's layers it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// The digest of the image's manifest.
    pub(super) manifest: String,
    /// What the image is called.
    pub(super) name: String,
    /// Whether reads may wait for a registry.
    pub(super) is_lazy: bool,
    /// Whether the image becomes whole meanwhile.
    pub(super) completes_in_background: bool,
}

/// Starts the process, and waits until it serves clients.
pub(super) fn start(
    job: &served::Job<Job>,
    environment: Environment,
    lock: &File,
    listener: UnixListener,
) -> io::Result<Done> {
    let files = Vec::new();
    holder::start_process(NAME, "mica-layers", environment, job, lock, listener, files)
}

fn work(_: RawFd) -> i32 {
    let ran = served::run(serve);
    own_process::end();
    i32::from(ran.is_err())
}

/// Mounts the filesystem, if there can be one, and serves it in threads.
fn serve(job: &served::Job<Job>) -> Result<(Served<Padded>, Work), String> {
    let text = |error: &dyn std::error::Error| chain(error);
    let Job {
        manifest,
        name,
        is_lazy,
        completes_in_background,
    } = &job.of;
    let mount = Mount::new(*is_lazy);
    let store = Store::open(&job.store).map_err(|error| text(&error))?;
    let digest = manifest.parse().map_err(|_| "no digest")?;
    let image = store
        .image_by_digest(&digest)
        .map_err(|error| text(&error))?;
    let cache = Arc::default();
    let missing = Missing::of(&image).map_err(|error| text(&error))?;
    let layers = image.layers.iter().enumerate();
    let layers = layers.map(|(number, layer)| match missing.layer(number) {
        Some(lazy) => Padded::new(layer, Box::new(Arc::clone(lazy))),
        None => Padded::open(&store, layer, &cache),
    });
    let layers: Result<Vec<_>, _> = layers.collect();
    let layers = layers.map_err(|error| text(&error))?;
    let problems = Problems::of(&image, name);
    let noted = move |number, error: &io::Error| problems.note(number, error);
    let served = Served::new(mount, &job.directory, layers, noted).map_err(|error| text(&error))?;
    if let Some(order) = store.start_order(&digest) {
        missing.prefetch(&order, store.root());
    }
    let (image, name, completes_in_background) =
        (Arc::new(image), name.clone(), *completes_in_background);
    let noted = Arc::clone(&image);
    let work = Work {
        note: Arc::new(move || missing.keep_order(&noted)),
        complete: Box::new(move || {
            if completes_in_background {
                unpack(&image, &name);
            }
        }),
    };
    Ok((served, work))
}

/// Makes the image whole, so that later machines need no server.
fn unpack(image: &Image, name: &str) {
    // Without it, the image stays as it is.
    if has_room(image.store.root(), needed(image))
        && let Err(error) = super::make_whole(image)
    {
        let attributes = [
            ("digest", image.manifest_digest.to_string()),
            ("error", chain(&error)),
        ];
        note_image(image.store.root(), name, "incomplete", &attributes);
    }
}

/// Returns how many bytes of disk it takes to make an image whole.
fn needed(image: &Image) -> u64 {
    let layers = image.layers.iter();
    let needed = layers.map(|layer| {
        if image.store.is_whole(layer) {
            0
        } else if image.store.is_lazy(layer) {
            // Its blob is there as well until the layer is published.
            layer.image_size().saturating_mul(2)
        } else {
            layer.image_size()
        }
    });
    needed.sum()
}

/// Notes what can't be read, once for each layer, where `mica events` shows it.
struct Problems {
    store: PathBuf,
    image: String,
    /// That of its manifest.
    digest: String,
    /// Each layer's diff ID, and whether its first problem was noted.
    layers: Vec<(Digest, AtomicBool)>,
}

impl Problems {
    fn of(image: &Image, name: &str) -> Self {
        let layers = image.layers.iter();
        let layers = layers.map(|layer| (layer.diff_id, AtomicBool::new(false)));
        Self {
            store: image.store.root().to_owned(),
            image: name.to_owned(),
            digest: image.manifest_digest.to_string(),
            layers: layers.collect(),
        }
    }

    fn note(&self, number: usize, error: &io::Error) {
        if let Some((layer, is_noted)) = self.layers.get(number)
            && !is_noted.swap(true, Ordering::Relaxed)
        {
            let attributes = [
                ("digest", self.digest.clone()),
                ("layer", layer.to_string()),
                ("error", chain(error)),
            ];
            note_image(&self.store, &self.image, "read_error", &attributes);
        }
    }
}

/// A layer's image as its file has it: with zeros behind what is packed.
struct Padded {
    image: Box<dyn ReadAt + Send + Sync>,
    /// Bytes of the image.
    length: u64,
    /// Bytes of the file.
    size: u64,
}

impl Padded {
    fn open(store: &Store, layer: &Layer, cache: &Arc<Cache>) -> Result<Self, Error> {
        let image = store.open_layer(layer)?.with_cache(cache);
        Self::new(layer, Box::new(image))
    }

    fn new(layer: &Layer, image: Box<dyn ReadAt + Send + Sync>) -> Result<Self, Error> {
        let unusable = |source: Source| Error::ImageFile {
            path: layer.path.clone(),
            source,
        };
        let length = image.size().map_err(|error| unusable(error.into()))?;
        if length < layer.image_size() {
            return Err(unusable("its chunks are of a shorter image".into()));
        }
        Ok(Self {
            image,
            length,
            size: layer.blocks.saturating_mul(BLOCK_SIZE),
        })
    }
}

impl ReadAt for Padded {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let packed = self.length.saturating_sub(offset).min(buffer.len() as u64);
        let (packed, padding) = buffer.split_at_mut(packed as usize);
        padding.fill(0);
        self.image.read_exact_at(packed, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }
}

impl micabox_layerfs::Source for Padded {}
