//! Trimmed views of an image: further fsmetas over the same layers, which lack some names.
//!
//! A view is made by the first that asks for it, and belongs to its image: it lies in the image's
//! directory, and goes with it.

use std::path::Path;
use std::time::Instant;

use micabox_ground::locked::Mode;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::durable;
use super::error::Result;
use super::image::Image;
use super::image_record::{FSMETA, FileRecord, VMDK};
use super::images;
use super::layers::padded_blocks;
use super::layout::IMAGE_FROM_VIEW;
use super::lock::Lock;
use super::merged;
use super::scratch::Scratch;
use super::{ImageName, Store};
use crate::{Hidden, Trim, identity};
use micabox_oci::Digest;

pub(super) const VIEW: &str = "view.json";

/// The JSON file in a view's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ViewRecord {
    /// The [`identity::FORMAT`] of its files.
    pub format: u32,
    pub trim: Trim,
    pub hidden: Hidden,
    pub fsmeta: FileRecord,
}

/// A view in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// What it lacks, as patterns.
    pub trim: Trim,
    /// How much that is.
    pub hidden: Hidden,
}

impl Store {
    /// Returns the image without what `trim` names: the same layers under another fsmeta, which is made
    /// if the store does not have it. An empty list gives the whole image.
    ///
    /// # Errors
    ///
    /// Those of [`Store::image_by_digest`]; errors of the disk.
    pub fn trimmed(&self, image: &Image, trim: &Trim) -> Result<Image> {
        let _shared = self.shared()?;
        let whole = self.load(ImageName {
            reference: image.reference.clone(),
            manifest: image.manifest_digest,
        })?;
        if trim.is_empty() {
            return Ok(whole);
        }
        let directory = self.layout.views(&whole.manifest_digest);
        let directory = directory.join(trim.digest().hex());
        let record = match usable(&directory) {
            Some(record) => record,
            None => self.make_view(&whole, trim, &directory)?,
        };
        Ok(Image {
            fsmeta: directory.join(FSMETA),
            fsmeta_blocks: padded_blocks(record.fsmeta.blocks),
            fixup: None,
            vmdk: directory.join(VMDK),
            trim: trim.clone(),
            ..whole
        })
    }

    /// Returns the views of an image that the store has.
    ///
    /// # Errors
    ///
    /// [`super::Error::Io`] if they can't be listed.
    pub fn views(&self, image: &Digest) -> Result<Vec<View>> {
        let directory = self.layout.views(image);
        let names = durable::list(&directory)?;
        let records = names
            .iter()
            .filter_map(|name| usable(&directory.join(name)));
        let views = records.map(|record| View {
            trim: record.trim,
            hidden: record.hidden,
        });
        Ok(views.collect())
    }

    fn make_view(&self, image: &Image, trim: &Trim, directory: &Path) -> Result<ViewRecord> {
        let digest = &image.manifest_digest;
        let _lock = Lock::wait(&self.layout.image_lock(digest), Mode::Exclusive)?;
        // Another process may have made it meanwhile.
        if let Some(record) = usable(directory) {
            return Ok(record);
        }
        let begun = Instant::now();
        let scratch = Scratch::new(&self.layout.tmp())?;
        let (fsmeta, hidden) = merged::make_trimmed(self, &scratch, digest, &image.layers, trim)?;
        let vmdk = images::descriptor(&fsmeta, &image.layers, Path::new(IMAGE_FROM_VIEW))?;
        durable::write(&scratch, VMDK, vmdk.as_bytes())?;
        let record = ViewRecord {
            format: identity::FORMAT,
            trim: trim.clone(),
            hidden,
            fsmeta,
        };
        durable::write_json(&scratch, VIEW, &record)?;
        durable::sync_directory(scratch.directory())?;
        images::put(scratch, directory)?;
        info!(
            files = hidden.files,
            bytes = hidden.bytes,
            ms = begun.elapsed().as_millis() as u64,
            "made a trimmed view"
        );
        Ok(record)
    }
}

/// Returns the record of a view that can be used. Others are replaced.
fn usable(directory: &Path) -> Option<ViewRecord> {
    let record = durable::read_json::<ViewRecord>(&directory.join(VIEW));
    let record = record.ok().flatten()?;
    (record.format == identity::FORMAT).then_some(record)
}
