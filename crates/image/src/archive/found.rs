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
    /// What skopeo calls an archive that is read as this one was.
    pub transport: &'static str,
    pub images: Vec<ArchivedImage>,
    /// What is left out, and why.
    pub left_out: Vec<Problem>,
    /// What is damaged; the first part of all.
    pub damage: Option<Problem>,
    /// Places in `images`, by their manifests.
    manifests: HashMap<Digest, usize>,
    /// Places in `images`, by the names that these have; the last one named last. Without those that
    /// have a digest, and may be lies.
    claims: HashMap<Reference, Vec<usize>>,
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
            Some(same) => {
                // A name with the digest of an index is true of the image that the index led to.
                if names.iter().any(|name| name.digest() == Some(&image.root)) {
                    same.root = image.root;
                }
                same.bare_tags.extend(image.bare_tags);
            }
            None => self.images.push(image),
        }
        self.name(at, names);
    }

    /// Gives names to an image.
    pub(super) fn name(&mut self, at: usize, names: impl IntoIterator<Item = Reference>) {
        let Some(image) = self.images.get_mut(at) else {
            return;
        };
        for name in names {
            if name.digest().is_none() {
                let claims = self.claims.entry(name.clone()).or_default();
                claims.retain(|other| *other != at);
                claims.push(at);
            }
            if !image.names.contains(&name) {
                image.names.push(name);
            }
        }
    }

    /// Takes the names that several images have: each with the places of these in `images`, as the
    /// archive names them.
    pub(crate) fn take_contested(&mut self) -> Vec<(Reference, Vec<usize>)> {
        let mut contested: Vec<_> = self
            .claims
            .extract_if(|_, images| images.len() > 1)
            .collect();
        contested.sort_by_key(|(name, _)| name.to_string());
        for (name, images) in &contested {
            for at in images {
                if let Some(image) = self.images.get_mut(*at) {
                    image.names.retain(|other| other != name);
                }
            }
        }
        contested
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
