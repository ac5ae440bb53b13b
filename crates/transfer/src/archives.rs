//! Brings the archives of an image that came as EROFS images: archives and registries' manifests are made of them.

use std::sync::Arc;

use micabox_image::manifest::{self, Document, Index, ManifestError};
use micabox_image::progress::Event;
use micabox_image::store::{self, Image, Origin};
use micabox_image::{Progress, Reference, Store};
use micabox_registry::Repository;

use crate::pull::{blocking, pull_as};
use crate::trust::Judged;
use crate::verify::form;
use crate::{PullError, PullOptions, PullPolicy, threads};

/// Makes sure that an image under a name can be saved and pushed, and blocks until that is so: of one that came as EROFS
/// images, whole or in part, the archives are pulled that its registry has beside these, and get the name. An image that
/// was given by its digest stays as it is. `progress` is called if there is anything to pull.
///
/// # Errors
///
/// [`PullError`]; [`ManifestError::NotBeside`] if the registry has no archives of this image under its name.
pub fn bring_archives_blocking(
    store: &Store,
    name: &str,
    options: &PullOptions,
    progress: impl FnOnce() -> Arc<dyn Progress>,
) -> Result<(), PullError> {
    let image = store.image(name)?;
    let is_archive = |image: &Image| image.layers.iter().all(|l| l.record.recipe.is_some());
    let Some(reference) = image.reference.clone().filter(|_| !is_archive(&image)) else {
        return Ok(());
    };
    let runtime = threads("mica-pull").map_err(PullError::Threads)?;
    let brought = runtime.block_on(bring(store, &image, &reference, options, progress()));
    // Without waiting for threads: one may be waiting for another process.
    runtime.shutdown_background();
    brought
}

async fn bring(
    store: &Store,
    image: &Image,
    reference: &Reference,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<(), PullError> {
    let from = origin(store, image)?.unwrap_or_else(|| reference.clone());
    let unusable = |source| PullError::Manifest {
        reference: Box::new(from.clone()),
        source: Box::new(source),
    };
    let settings = Arc::new(options.settings.for_registries());
    let repository = Repository::new(&from, &settings, &options.credentials, &progress)?;
    let named = repository.named(&from).await?;
    let index = match Document::parse(&named.bytes, named.media_type.as_deref()) {
        Ok(Document::Index(index)) => *index,
        Ok(Document::Manifest(_)) => Index::default(),
        Err(error) => return Err(unusable(error)),
    };
    // The name may mean another image by now.
    let ours = image.manifest_digest.to_string();
    let is_same = index.entries.iter().any(|entry| entry.digest == ours);
    let platform = manifest::platform_of(&image.config);
    let archives = form(&index, &platform, false).filter(|_| is_same);
    let archives = archives.ok_or_else(|| unusable(ManifestError::NotBeside))?;
    let digest = manifest::digest_of(archives, "index", "manifest").map_err(unusable)?;

    progress.event(Event::Notice(&format!(
        "{} came as EROFS images: it is pulled as archives, which its name means from now on",
        reference.familiar()
    )));
    let judged = Judged {
        name: from.clone(),
        above: Some(named.digest),
    };
    let pulled = PullOptions {
        policy: PullPolicy::Missing,
        lazy: false,
        platform: Some(platform),
        ..options.clone()
    };
    let by_digest = from.with_digest(digest);
    let has_name = {
        let images = store.images()?;
        images
            .iter()
            .any(|image| image.references.contains(&by_digest))
    };
    let archives = pull_as(store, &by_digest, judged, &pulled, progress).await?;
    if !is_made_of(image, &archives) {
        return Err(unusable(ManifestError::NotBeside));
    }
    let (store, reference) = (store.clone(), reference.clone());
    let name = move || {
        let origin = Origin {
            signers: store.signers(&by_digest)?,
            ..Origin::from(&named.digest)
        };
        store.tag_resolved(&reference, &archives.manifest_digest, &origin)?;
        if !has_name {
            store.untag(&by_digest)?;
        }
        Ok::<_, store::Error>(())
    };
    Ok(blocking(name).await?)
}

/// Returns the name by which a registry has an image of which only a part is here.
fn origin(store: &Store, image: &Image) -> Result<Option<Reference>, PullError> {
    for layer in &image.layers {
        if let Some(record) = store.lazy_record(&layer.diff_id)? {
            return Ok(Some(record.from));
        }
    }
    Ok(None)
}

/// Returns whether an image's EROFS images were converted from these archives, as far as their manifest says.
fn is_made_of(image: &Image, archives: &Image) -> bool {
    let mut layers = image.layers.iter().zip(&archives.layers);
    image.layers.len() == archives.layers.len()
        && layers.all(|(erofs, archive)| {
            let from = erofs.record.archive;
            from.is_none_or(|from| from == archive.diff_id) && archive.record.recipe.is_some()
        })
}
