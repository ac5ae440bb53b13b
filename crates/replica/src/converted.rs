//! Images of the store as EROFS images, chunk by chunk: learned when they are first asked for, and kept as long as they
//! are asked for.
//!
//! The blobs are made again while they are sent, as archives are. What there is to learn of an image takes reading and
//! compressing all of it once: their digests, and where the chunks are.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use micabox_ground::lock;
use micabox_image::Store;
use micabox_image::export::{
    ErofsDocuments, ErofsEntry, RemadeErofs, erofs_documents, remade_device, remade_fsmeta,
    zstd_version,
};
use micabox_image::manifest::{Document, digest_of};
use micabox_image::store::{self, Image, Layer};
use micabox_oci::Digest;

use crate::problem::Problem;

/// Most blobs that are known: each has an open file with its end.
const BLOBS: usize = 256;

/// How long a request waits for an image before its client has to ask again, and when that is.
const PATIENCE: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_secs(5);

/// How long a failure is not tried again.
const REST: Duration = Duration::from_secs(30);

/// An image as EROFS images.
#[derive(Debug)]
pub struct Converted {
    pub documents: ErofsDocuments,
    /// The devices, bottom first, and fsmeta.
    pub blobs: Vec<Arc<RemadeErofs>>,
}

/// The images that were asked for, by their manifests in the store.
#[derive(Debug, Default)]
pub struct Conversions {
    images: Mutex<HashMap<Digest, State>>,
    changed: Condvar,
    /// Of layers that several images have.
    devices: Mutex<HashMap<Digest, Weak<RemadeErofs>>>,
    /// One is learned at a time: it takes a processor and the disk.
    turn: Mutex<()>,
}

#[derive(Debug)]
enum State {
    Learning,
    Known(Arc<Converted>, Instant),
    Failed(String, Instant),
}

impl Conversions {
    /// Returns an image of the store as EROFS images, and waits for that.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: it takes longer than a client waits, or fails.
    pub fn of(self: &Arc<Self>, store: &Store, image: &Image) -> Result<Arc<Converted>, Problem> {
        let digest = image.manifest_digest;
        let begun = Instant::now();
        let mut images = lock(&self.images);
        loop {
            match images.get_mut(&digest) {
                Some(State::Known(converted, used)) => {
                    *used = Instant::now();
                    return Ok(Arc::clone(converted));
                }
                Some(State::Failed(why, when)) if when.elapsed() < REST => {
                    let what = "the image can't be converted";
                    return Err(Problem::ours(what, why.clone()));
                }
                Some(State::Learning) => {}
                None | Some(State::Failed(..)) => {
                    let begun = self.begin(store.clone(), image.clone());
                    begun.map_err(|e| Problem::ours("no thread can be started", e.to_string()))?;
                    images.insert(digest, State::Learning);
                }
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Problem::busy("the image is being converted", AGAIN));
            }
            let waited = self.changed.wait_timeout(images, left);
            images = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(images, _)| images);
        }
    }

    /// Returns the blob of this digest, if it is of an image that was asked for.
    pub fn blob(&self, digest: &Digest) -> Option<Arc<RemadeErofs>> {
        let mut images = lock(&self.images);
        images.values_mut().find_map(|state| {
            let State::Known(converted, used) = state else {
                return None;
            };
            let mut blobs = converted.blobs.iter();
            let found = blobs.find(|blob| blob.entry().blob.digest == *digest)?;
            *used = Instant::now();
            Some(Arc::clone(found))
        })
    }

    /// Returns the config of this digest, if it is of an image that was asked for.
    pub fn config(&self, digest: &Digest) -> Option<Vec<u8>> {
        let images = lock(&self.images);
        images.values().find_map(|state| {
            let State::Known(converted, _) = state else {
                return None;
            };
            let config = &converted.documents.config;
            (Digest::of(config) == *digest).then(|| config.clone())
        })
    }

    /// Learns an image on a thread of its own, which goes on when its client has gone.
    fn begin(self: &Arc<Self>, store: Store, image: Image) -> io::Result<()> {
        let this = Arc::clone(self);
        let digest = image.manifest_digest;
        let thread = thread::Builder::new().name("mica-convert".to_owned());
        let spawned = thread.spawn(move || {
            let learned = {
                let _turn = lock(&this.turn);
                this.learn(&store, &image)
            };
            this.end(digest, learned);
        });
        spawned.map(drop)
    }

    fn end(&self, digest: Digest, learned: Result<Converted, String>) {
        let now = Instant::now();
        let mut images = lock(&self.images);
        let state = match learned {
            Ok(converted) => State::Known(Arc::new(converted), now),
            Err(why) => State::Failed(why, now),
        };
        images.insert(digest, state);
        forget(&mut images);
        self.changed.notify_all();
    }

    fn learn(&self, store: &Store, image: &Image) -> Result<Converted, String> {
        let said = |error: store::Error| error.to_string();
        let _shared = store.shared().map_err(said)?;
        let mut blobs = Vec::with_capacity(image.layers.len() + 1);
        for layer in &image.layers {
            blobs.push(self.device(store, layer)?);
        }
        let fsmeta = remade_fsmeta(store, image, &mut |_| true);
        blobs.push(Arc::new(fsmeta.map_err(|error| error.to_string())?));
        let digest = &image.manifest_digest;
        let manifest = store.manifest(digest).map_err(said)?;
        let config = store.config(digest).map_err(said)?;
        let documents = if is_archives(image) {
            let entries: Vec<ErofsEntry> = blobs.iter().map(|blob| blob.entry().clone()).collect();
            erofs_documents(&manifest, &config, &entries).map_err(|error| error.to_string())?
        } else {
            check(&manifest, &blobs)?;
            ErofsDocuments { config, manifest }
        };
        Ok(Converted { documents, blobs })
    }

    fn device(&self, store: &Store, layer: &Layer) -> Result<Arc<RemadeErofs>, String> {
        let mut devices = lock(&self.devices);
        devices.retain(|_, device| device.strong_count() > 0);
        if let Some(known) = devices.get(&layer.diff_id).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let device = remade_device(store, layer, &mut |_| true);
        let device = Arc::new(device.map_err(|error| error.to_string())?);
        devices.insert(layer.diff_id, Arc::downgrade(&device));
        Ok(device)
    }
}

/// Forgets images that were not asked for the longest.
fn forget(images: &mut HashMap<Digest, State>) {
    loop {
        let known = images.iter().filter_map(|(digest, state)| match state {
            State::Known(converted, used) => Some((*digest, converted.blobs.len(), *used)),
            _ => None,
        });
        let known: Vec<_> = known.collect();
        let blobs: usize = known.iter().map(|(_, blobs, _)| blobs).sum();
        let oldest = known.iter().min_by_key(|(_, _, used)| *used);
        match oldest {
            Some((digest, ..)) if blobs > BLOBS && known.len() > 1 => images.remove(digest),
            _ => return,
        };
    }
}

/// Returns whether all layers of an image were converted here from their archives.
pub fn is_archives(image: &Image) -> bool {
    image.layers.iter().all(|l| l.record.recipe.is_some())
}

/// Returns whether an image came as EROFS images that mica had converted, and all of it is here.
pub fn is_converted(image: &Image) -> bool {
    !image.layers.is_empty()
        && !image.is_lazy()
        && image.layers.iter().all(|l| l.record.archive.is_some())
}

/// Checks that these are the blobs of the image's manifest: another version of zstd would make others.
fn check(manifest: &[u8], blobs: &[Arc<RemadeErofs>]) -> Result<(), String> {
    let Ok(Document::Manifest(manifest)) = Document::parse(manifest, None) else {
        return Err("its manifest can't be read".to_owned());
    };
    let named = manifest.layers.iter();
    let named = named.map(|entry| digest_of(entry, "manifest", "layer").ok());
    let made = blobs.iter().map(|blob| Some(blob.entry().blob.digest));
    if named.eq(made) {
        return Ok(());
    }
    let zstd = zstd_version();
    Err(format!(
        "its layers came as other blobs than zstd {zstd} makes of them: they are only where they came from"
    ))
}
