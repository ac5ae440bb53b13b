//! Loads images from archives and layouts.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use micabox_ground::lock;

use crate::archive::{Archive, ArchiveError, ArchivedImage, ArchivedLayer, Found, Problem};
use crate::convert::{self, Expect};
use crate::printable;
use crate::store::{self, Claim, Image, Origin};
use crate::{Digest, Limits, Platform, Progress, Reference, Settings, Store};
use micabox_oci::progress::{self, Event, LayerState, Phase};
use micabox_trust::{Policy, PolicyError, Refused, Scope, Signatures, Subject};

/// Most parts that are left out and reported one by one.
const MAX_NOTICES: usize = 10;

/// Options of a load.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Which variant of a multi-platform image to load; `None` means this machine's.
    pub platform: Option<Platform>,
    /// Limits, and how many layers to convert at the same time.
    pub settings: Arc<Settings>,
}

/// Why images could not be loaded. Complete layers and images stay in the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The archive can't be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A layer in the archive can't be imported.
    #[error("cannot load {image}: {source}")]
    Layer {
        /// Name or manifest digest.
        image: String,
        /// What is wrong with it.
        source: Box<convert::Error>,
    },
    /// One name was given for several images.
    #[error(
        "cannot name the image {name}, since the archive holds {}: load it without a name",
        images.join(", ")
    )]
    Several {
        /// The name.
        name: Box<Reference>,
        /// The images in the archive.
        images: Vec<String>,
    },
    /// The policy does not let images be loaded from there.
    #[error("cannot load {}: {source}", path.display())]
    Refused {
        /// The file or directory.
        path: PathBuf,
        /// Which part of the policy, and why.
        source: Box<Refused>,
    },
    /// Where an archive is can't be told, and the policy asks.
    #[error("cannot load {}, whose place the policy has to know: {source}", path.display())]
    Policed {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The policy can't be used, so that no image may be loaded.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Loads every image in the file or directory at `path`, each for one platform.
///
/// An image gets the names that the archive has for it, or `name` if it is the only one. An image
/// without a name is available by its digest. `-` stands for the standard input.
///
/// # Errors
///
/// [`LoadError`]. Complete layers and images stay in the store.
pub fn load(
    store: &Store,
    path: &Path,
    name: Option<&Reference>,
    options: &LoadOptions,
    progress: &dyn Progress,
) -> Result<Vec<Image>, LoadError> {
    progress.event(Event::Phase(Phase::Resolving));
    let path = match path.as_os_str().as_encoded_bytes() {
        b"-" => Path::new("/dev/stdin"),
        _ => path,
    };
    let settings = &*options.settings;
    let policy = settings.policy.as_deref().map(Policy::read).transpose()?;
    // A link that leads elsewhere by then does not matter.
    let real = policy.as_ref().map(|_| real_path(path)).transpose()?;
    let opened = real.as_ref().map_or(path, |real| &real.opened);
    let archive = Archive::open(opened, &store.root().join("tmp"), &settings.limits)?;
    let platform = options.platform.clone().unwrap_or_else(Platform::host);
    let mut archived = archive.images(&platform, &settings.limits)?;
    if let (Some(policy), Some(real)) = (policy, real) {
        check_policy(&policy, archived.transport, path, &real.scope)?;
    }
    let contested = archived.take_contested();
    let Found {
        images: mut found,
        mut left_out,
        damage,
        ..
    } = archived;
    let mut failed = damage.map(|problem| LoadError::Archive(archive.error(problem)));
    if let Some(name) = name {
        if let Some(error) = failed.take() {
            // It may be the image that the name is for.
            return Err(error);
        }
        call(&mut found, name)?;
    } else {
        for image in &mut found {
            keep_true_names(image, progress);
        }
    }

    // From here on `prune` removes nothing that we find and make.
    let _shared = store.shared()?;
    let mut loaded = Vec::with_capacity(found.len());
    for (at, image) in found.iter().enumerate() {
        let conversion = Conversion {
            store,
            archive: &archive,
            image,
            settings,
            progress,
        };
        // A tool may have copied the index with an image that has no name, and not the image.
        let is_named = !image.names.is_empty()
            || !image.bare_tags.is_empty()
            || contested.iter().any(|(_, images)| images.contains(&at));
        match conversion.whole() {
            Ok(image) => loaded.push((at, image)),
            Err(LoadError::Store(error)) => return Err(error.into()),
            Err(error) if !is_named && is_missing(&error) && found.len() > 1 => {
                progress.event(Event::Notice(&format!(
                    "left out {}: {error}",
                    called(image)
                )));
            }
            // The others are not to blame.
            Err(error) if failed.is_none() => failed = Some(error),
            Err(error) => progress.event(Event::Notice(&error.to_string())),
        }
    }
    for (name, images) in contested {
        give_to_last(store, &name, &images, &found, &mut loaded, &mut left_out)?;
    }
    report(&left_out, progress);
    let loaded = loaded.into_iter().map(|(at, image)| {
        if image.reference.is_none()
            && let Some(archived) = found.get(at)
        {
            progress.event(Event::Notice(&without_name(archived)));
        }
        image
    });
    let loaded: Vec<Image> = loaded.collect();
    if let Some(error) = failed {
        for image in &loaded {
            let name = image.reference.as_ref().map(Reference::familiar);
            let name = name.unwrap_or_else(|| image.manifest_digest.to_string());
            progress.event(Event::Notice(&format!("loaded {name}")));
        }
        return Err(error);
    }
    progress.event(Event::Phase(Phase::Done));
    Ok(loaded)
}

/// Gives the only image of an archive a name of the user's choice.
fn call(found: &mut [ArchivedImage], name: &Reference) -> Result<(), LoadError> {
    match found {
        // One that isn't true is an error of the store then, which nothing gets past.
        [image] => {
            image.names = vec![name.clone()];
            Ok(())
        }
        several => Err(LoadError::Several {
            name: Box::new(name.clone()),
            images: several.iter().map(called).collect(),
        }),
    }
}

/// Gives a name that the archive has for several images to the last one that was loaded, as Docker
/// does.
fn give_to_last(
    store: &Store,
    name: &Reference,
    images: &[usize],
    found: &[ArchivedImage],
    loaded: &mut [(usize, Image)],
    left_out: &mut Vec<Problem>,
) -> Result<(), LoadError> {
    let order = |at: usize| images.iter().position(|other| *other == at);
    let Some((at, owner)) = loaded
        .iter_mut()
        .filter(|(at, _)| order(*at).is_some())
        .max_by_key(|(at, _)| order(*at))
    else {
        return Ok(());
    };
    let later = owner.manifest_digest;
    let root = found.get(*at).map_or(later, |archived| archived.root);
    store.tag_resolved(name, &later, &Origin::from(&root))?;
    owner.reference.get_or_insert_with(|| name.clone());
    let others = loaded.iter().filter(|(at, _)| order(*at).is_some());
    let others = others.map(|(_, image)| image.manifest_digest);
    left_out.extend(
        others
            .filter(|digest| *digest != later)
            .map(|image| Problem::Renamed {
                name: name.familiar(),
                image,
                later,
            }),
    );
    Ok(())
}

/// Returns whether a part of the image isn't there.
fn is_missing(error: &LoadError) -> bool {
    matches!(error, LoadError::Archive(ArchiveError { problem, .. })
        if matches!(**problem, Problem::Missing { .. }))
}

fn without_name(image: &ArchivedImage) -> String {
    let tags = match &image.bare_tags[..] {
        [] => String::new(),
        [tag] => format!(", only the tag `{tag}`"),
        tags => format!(", only the tags `{}`", tags.join("`, `")),
    };
    let called = called(image);
    format!("the archive has no name for {called}{tags}; `mica tag {called} NAME` gives it one")
}

/// A path without links.
struct RealPath {
    /// What is opened.
    opened: PathBuf,
    /// What a policy's scopes are compared with; of a pipe `/dev/stdin`.
    scope: PathBuf,
}

fn real_path(path: &Path) -> Result<RealPath, LoadError> {
    const STDIN: &str = "/dev/stdin";
    let failed = |source| LoadError::Policed {
        path: path.to_owned(),
        source,
    };
    if path != Path::new(STDIN) {
        let real = path.canonicalize().map_err(failed)?;
        return Ok(RealPath {
            opened: real.clone(),
            scope: real,
        });
    }
    let is_file = path.metadata().map_err(failed)?.is_file();
    let scope = if is_file {
        path.canonicalize().map_err(failed)?
    } else {
        STDIN.into()
    };
    Ok(RealPath {
        opened: STDIN.into(),
        scope,
    })
}

/// Checks that the policy lets images be loaded from an archive, in which none has signatures.
fn check_policy(
    policy: &Policy,
    transport: &'static str,
    path: &Path,
    scope: &Path,
) -> Result<(), LoadError> {
    let subject = Subject {
        reference: None,
        manifests: &[],
    };
    let none = Signatures::default();
    let checked = policy.check(Scope::Path(transport, scope), subject, &none);
    checked.map(drop).map_err(|source| LoadError::Refused {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Drops the names with the digest of something else: such a name is trusted for its digest, and
/// an archive can claim any.
fn keep_true_names(image: &mut ArchivedImage, progress: &dyn Progress) {
    let digests = [image.root, Digest::of(&image.manifest)];
    image.names.retain(|name| {
        let is_true = name.digest().is_none_or(|digest| digests.contains(digest));
        if !is_true {
            progress.event(Event::Notice(&format!(
                "left out the name {}: the image's digest is {}",
                name.familiar(),
                digests[1]
            )));
        }
        is_true
    });
}

/// Reports what of the archive isn't loaded.
fn report(left_out: &[Problem], progress: &dyn Progress) {
    for problem in left_out.iter().take(MAX_NOTICES) {
        progress.event(Event::Notice(&format!("left out {problem}")));
    }
    if let Some(more) = left_out
        .len()
        .checked_sub(MAX_NOTICES)
        .filter(|more| *more > 0)
    {
        progress.event(Event::Notice(&format!("left out {more} more")));
    }
}

fn called(image: &ArchivedImage) -> String {
    match image.names.first() {
        Some(name) => name.familiar(),
        None => Digest::of(&image.manifest).to_string(),
    }
}

/// The conversion of one image's layers.
struct Conversion<'a> {
    store: &'a Store,
    archive: &'a Archive,
    image: &'a ArchivedImage,
    settings: &'a Settings,
    progress: &'a dyn Progress,
}

impl Conversion<'_> {
    /// Converts what is missing, and publishes the image.
    fn whole(&self) -> Result<Image, LoadError> {
        self.layers()?;
        let Self {
            image, progress, ..
        } = self;
        progress.event(Event::Phase(Phase::Publishing));
        let (manifest, config) = (&image.manifest, &image.config);
        let published = self.store.publish_resolved(
            manifest,
            config,
            &image.names,
            &Origin::from(&image.root),
        )?;
        Ok(published)
    }

    /// Converts every missing layer, a few at a time.
    fn layers(&self) -> Result<(), LoadError> {
        let (mut diff_ids, mut seen) = (HashSet::new(), HashSet::new());
        let layers = &self.image.layers;
        let sizes: Vec<_> = layers
            .iter()
            .filter(|layer| diff_ids.insert(layer.diff_id))
            .map(|layer| progress::Layer {
                diff_id: layer.diff_id,
                blob: layer.blob.clone(),
            })
            .collect();
        self.progress.event(Event::Phase(Phase::Layers));
        self.progress.event(Event::Layers(&sizes));
        // Empty layers occur many times in one image.
        let todo: Vec<&ArchivedLayer> = layers.iter().filter(|layer| seen.insert(*layer)).collect();

        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        let stop = AtomicBool::new(false);
        let workers = self.settings.parallel_layers.get().min(todo.len());
        let limits = self.settings.limits.shared_by(workers);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed)
                        && let Some(layer) = todo.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        if let Err(error) = self.layer(layer, &limits, &stop) {
                            let mut failed = lock(&failed);
                            // Later errors are consequences of the first.
                            failed.get_or_insert(error);
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        match lock::into_inner(failed) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn layer(
        &self,
        layer: &ArchivedLayer,
        limits: &Limits,
        stop: &AtomicBool,
    ) -> Result<(), LoadError> {
        let (blob, diff_id) = (&layer.blob, &layer.diff_id);
        let claim = self.store.claim_layer(diff_id, Some(&blob.digest))?;
        let expect = Expect {
            blob: Some(blob.clone()),
            diff_id: *diff_id,
            archive: layer.archive,
            checksum: None,
        };
        let unusable = |source| LoadError::Layer {
            image: called(self.image),
            source: Box::new(source),
        };
        let error = |problem| LoadError::Archive(self.archive.error(problem));
        let member = match &claim {
            Claim::Missing(_) => self.archive.require(&layer.name).map(Some),
            Claim::Present(present) => {
                convert::check_kind(present, &expect).map_err(unusable)?;
                self.archive.member(&layer.name)
            }
        };
        let Some(member) = member.map_err(error)? else {
            // The store's layer is from that blob.
            let state = LayerState::Present;
            self.progress.event(Event::Layer { diff_id, state });
            return Ok(());
        };
        if member.size != blob.size {
            return Err(error(Problem::Size {
                name: printable(&layer.name),
                declared: blob.size,
                actual: member.size,
            }));
        }
        let source = Watched {
            contents: member.contents,
            diff_id,
            bytes: 0,
            progress: self.progress,
            stop,
        };
        let state = match claim {
            Claim::Missing(claim) => {
                let place = self.settings.conversion;
                let converted = convert::convert_claimed(claim, source, &expect, limits, place);
                converted.map(|layer| {
                    if let Some(notice) = layer.record.notice() {
                        self.progress.event(Event::Notice(&notice));
                    }
                    LayerState::Done
                })
            }
            // An archive with wrong bytes is refused, whether they are needed or not.
            Claim::Present(_) => convert::check_blob(source, &expect).map(|()| LayerState::Present),
        };
        let state = state.map_err(unusable)?;
        self.progress.event(Event::Layer { diff_id, state });
        Ok(())
    }
}

/// Reports how much of a blob was read, and stops if another layer failed.
struct Watched<'a> {
    contents: Box<dyn Read + Send>,
    diff_id: &'a Digest,
    bytes: u64,
    progress: &'a dyn Progress,
    stop: &'a AtomicBool,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("another layer failed"));
        }
        let count = self.contents.read(buffer)?;
        self.bytes += count as u64;
        let state = LayerState::Received { bytes: self.bytes };
        let diff_id = self.diff_id;
        self.progress.event(Event::Layer { diff_id, state });
        Ok(count)
    }
}
