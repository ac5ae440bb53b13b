//! What an archive has: images that can be used, and what is left out.
//!
//! An archive is a bundle: signatures, lists of parts and images for other machines are no reason
//! to load none of it. What is damaged is an error, but no reason to leave out its neighbours.

use std::collections::HashMap;

use super::{ArchivedImage, Problem};
use crate::manifest::ManifestError;
use crate::{Digest, Reference};

/// The images of an archive.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub images: Vec<ArchivedImage>,
    /// What is left out, and why.
    pub left_out: Vec<Problem>,
    /// What is damaged; the first part of all.
    pub damage: Option<Problem>,
    /// Places in `images`, by their manifests.
    manifests: HashMap<Digest, usize>,
    /// Places in `images`, by the names that have no digest.
    owners: HashMap<Reference, usize>,
}

impl Found {
    /// Adds an image. `docker save a:1 a:2` names one manifest twice.
    pub(super) fn add(&mut self, mut image: ArchivedImage) {
        let names = std::mem::take(&mut image.names);
        let at = *self
            .manifests
            .entry(Digest::of(&image.manifest))
            .or_insert(self.images.len());
        match self.images.get_mut(at) {
            Some(same) => same.bare_tag = same.bare_tag.take().or(image.bare_tag),
            None => self.images.push(image),
        }
        self.name(at, names);
    }

    /// Gives names to an image. A name is that of the last image that the archive gives it to, as
    /// with Docker. One with a digest may be a lie, which takes nothing from another image.
    pub(super) fn name(&mut self, at: usize, names: impl IntoIterator<Item = Reference>) {
        for name in names {
            let owner = match name.digest() {
                Some(_) => None,
                None => self.owners.insert(name.clone(), at),
            };
            if owner == Some(at) {
                continue;
            }
            if let Some(image) = owner.and_then(|owner| self.images.get_mut(owner)) {
                image.names.retain(|had| *had != name);
                self.left_out.push(Problem::Renamed {
                    name: name.familiar(),
                    image: Digest::of(&image.manifest),
                });
            }
            if let Some(image) = self.images.get_mut(at) {
                image.names.push(name);
            }
        }
    }

    /// Leaves out what can't be used, or is damaged. Something without a name may be missing: tools
    /// copy an index without all that it names.
    pub(super) fn leave_out(&mut self, problem: Problem, is_named: bool) {
        match problem {
            // A manifest's problem is that of a document whose digest is right.
            Problem::Manifest { .. } | Problem::Name(_) => self.left_out.push(problem),
            Problem::Missing { .. } if !is_named => self.left_out.push(problem),
            damage if self.damage.is_none() => self.damage = Some(damage),
            damage => self.left_out.push(damage),
        }
    }

    /// Returns whether there is nothing at all.
    pub(super) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.left_out.is_empty() && self.damage.is_none()
    }

    /// Returns what was found; without any image the reason, which is damage or the first part left
    /// out.
    pub(super) fn finish(mut self) -> Result<Self, Problem> {
        if !self.images.is_empty() {
            return Ok(self);
        }
        let mut reasons = self.damage.take().into_iter().chain(self.left_out);
        Err(match reasons.next() {
            Some(problem) => problem,
            None => Problem::Manifest {
                image: "the archive".to_owned(),
                source: ManifestError::NoImage,
            },
        })
    }
}
