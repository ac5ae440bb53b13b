//! Checks of images, and of what is made of them.

use std::fs;
use std::path::Path;

use super::{Found, Fsck, check_format};
use crate::identity;
use crate::store::disk_tree;
use crate::store::durable;
use crate::store::error::Result;
use crate::store::fsck_report::Repair;
use crate::store::image_record::{CONFIG, FIXUP, FSMETA, FileRecord, MANIFEST, VMDK};
use crate::store::images;
use crate::store::layers::Layer;
use crate::store::layout::{IMAGE_FROM_VIEW, VIEWS};
use crate::store::prune::remove_directory;
use crate::store::reachability::ImageEntry;
use crate::store::trimmed::{VIEW, ViewRecord};
use micabox_oci::Digest;

impl Fsck<'_> {
    pub(super) fn image(&mut self, digest: &Digest, image: &ImageEntry) -> Result<()> {
        self.report.images += 1;
        let problem = match self.image_problem(digest, image) {
            Ok(layers) => {
                self.tree(&image.path)?;
                return self.views(image, &layers);
            }
            Err(problem) => problem,
        };
        self.finding(&image.path, problem, Repair::RemoveImage, |store| {
            image
                .references
                .iter()
                .try_for_each(|name| store.untag(name).map(drop))?;
            for sandbox in &image.sandboxes {
                durable::remove_file(&store.lease_path(sandbox)?)?;
            }
            remove_directory(store, &image.path)
        })
    }

    /// Checks the hash tree of the disk whose fsmeta is in a directory.
    fn tree(&mut self, directory: &Path) -> Result<()> {
        let Some(problem) = disk_tree::problem(directory) else {
            return Ok(());
        };
        let path = disk_tree::path(directory);
        self.finding(&path, problem, Repair::RemoveTree, |_| {
            disk_tree::remove(directory)
        })
    }

    /// Checks an image's trimmed views.
    fn views(&mut self, image: &ImageEntry, layers: &[Layer]) -> Result<()> {
        let directory = image.path.join(VIEWS);
        for name in durable::list(&directory)? {
            let path = directory.join(&name);
            match self.view_problem(&name, &path, layers) {
                Ok(()) => self.tree(&path)?,
                Err(problem) => self.finding(&path, problem, Repair::RemoveView, |store| {
                    remove_directory(store, &path)
                })?,
            }
        }
        Ok(())
    }

    fn view_problem(&mut self, name: &str, path: &Path, layers: &[Layer]) -> Found {
        let record: ViewRecord = durable::read_json(&path.join(VIEW))
            .map_err(|error| error.to_string())?
            .ok_or("its record is missing")?;
        check_format(record.format)?;
        if record.trim.digest().hex() != name {
            return Err("its record is of another view".to_owned());
        }
        let diff_ids = layers.iter().map(Layer::identity);
        let uuid = identity::trimmed_uuid(diff_ids, &record.trim);
        self.image_file(&path.join(FSMETA), &record.fsmeta, uuid)
            .map_err(|problem| format!("{FSMETA}: {problem}"))?;
        check_vmdk(path, &record.fsmeta, layers, Path::new(IMAGE_FROM_VIEW))
    }

    /// Checks an image. Returns its layers.
    fn image_problem(
        &mut self,
        digest: &Digest,
        image: &ImageEntry,
    ) -> std::result::Result<Vec<Layer>, String> {
        let record = image.record.as_ref().map_err(ToString::to_string)?;
        check_format(record.format)?;
        if record.manifest != *digest {
            return Err(format!("its record is of image {}", record.manifest));
        }
        for (name, expected) in [(MANIFEST, record.manifest), (CONFIG, record.config)] {
            let bytes = fs::read(image.path.join(name)).map_err(|e| format!("{name}: {e}"))?;
            if Digest::of(&bytes) != expected {
                return Err(format!("{name} is not {expected}"));
            }
        }
        let layers = self.store.usable_layers(record)?;
        if let Some(layer) = layers
            .iter()
            .find(|l| !self.sound_layers.contains(&l.diff_id))
        {
            return Err(format!("its layer {} is bad", layer.diff_id));
        }
        let diff_ids = || layers.iter().map(Layer::identity);
        let fsmeta = image.path.join(FSMETA);
        self.image_file(&fsmeta, &record.fsmeta, identity::fsmeta_uuid(diff_ids()))
            .map_err(|problem| format!("{FSMETA}: {problem}"))?;
        if let Some(fixup) = &record.fixup {
            self.image_file(
                &image.path.join(FIXUP),
                fixup,
                identity::fixup_uuid(diff_ids()),
            )
            .map_err(|problem| format!("{FIXUP}: {problem}"))?;
        }
        check_vmdk(&image.path, &record.fsmeta, &layers, Path::new(""))?;
        Ok(layers)
    }
}

/// Checks the disk's descriptor in a directory from which `image` leads to the image's.
fn check_vmdk(directory: &Path, fsmeta: &FileRecord, layers: &[Layer], image: &Path) -> Found {
    let vmdk = images::descriptor(fsmeta, layers, image).map_err(|e| e.to_string())?;
    match fs::read(directory.join(VMDK)) {
        Ok(bytes) if bytes == vmdk.as_bytes() => Ok(()),
        Ok(_) => Err(format!("{VMDK} describes something else")),
        Err(error) => Err(format!("{VMDK}: {error}")),
    }
}
