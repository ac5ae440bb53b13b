//! Chunks that are in packs already.

use std::collections::HashMap;

use micabox_oci::Digest;

use crate::list::{List, Place};

/// Chunks that are in packs already, by the digest of their bytes: about 100 bytes of memory for each.
#[derive(Debug, Clone, Default)]
pub struct Known {
    packs: Vec<Digest>,
    /// Their places, with the number of a pack in `packs`.
    chunks: HashMap<Digest, (Place, u32)>,
}

impl Known {
    /// Adds an image's chunks. The packs that its list names must stay for as long as this is used.
    pub fn add(&mut self, list: &List) {
        let first = self.packs.len() as u32;
        self.packs.extend(list.packs());
        for chunk in list.chunks() {
            if let Some(place) = chunk.place {
                let pack = first + place.pack;
                let known = (Place { pack, ..place }, chunk.length);
                self.chunks.entry(place.digest).or_insert(known);
            }
        }
    }

    /// Returns the pack that has a chunk of so many bytes, and its place, in which the pack's number means nothing.
    pub(crate) fn find(&self, digest: &Digest, length: u32) -> Option<(Digest, Place)> {
        let (place, known) = self.chunks.get(digest)?;
        let pack = self.packs.get(place.pack as usize)?;
        (*known == length).then_some((*pack, *place))
    }
}
