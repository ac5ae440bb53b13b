//! Chunks that are in packs already.

use std::collections::HashMap;

use micabox_oci::Digest;

use crate::list::{Frame, List};

/// Chunks that are in packs already, by the digest of their bytes: about 100 bytes of memory for each.
#[derive(Debug, Clone, Default)]
pub struct Known {
    packs: Vec<Digest>,
    /// With the number of a pack in `packs`.
    frames: Vec<Frame>,
    chunks: HashMap<Digest, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Number of the frame in [`Known::frames`].
    frame: usize,
    within: u32,
    length: u32,
}

impl Known {
    /// Adds an image's chunks, in place of those that are the same. The packs that its list names must stay for as long as
    /// this is used.
    pub fn add(&mut self, list: &List) {
        let (packs, frames) = (self.packs.len() as u32, self.frames.len());
        self.packs.extend(list.packs());
        self.frames.extend(list.frames().iter().map(|frame| Frame {
            pack: packs + frame.pack,
            ..*frame
        }));
        for chunk in list.chunks() {
            if let Some(place) = chunk.place {
                let entry = Entry {
                    frame: frames + place.frame as usize,
                    within: place.within,
                    length: chunk.length,
                };
                self.chunks.insert(place.digest, entry);
            }
        }
    }

    /// Returns the pack and the frame that have a chunk of so many bytes, and its offset in the frame's content. The
    /// number of the frame's pack means nothing.
    pub(crate) fn find(&self, digest: &Digest, length: u32) -> Option<(Digest, Frame, u32)> {
        let entry = self.chunks.get(digest)?;
        let frame = self.frames.get(entry.frame)?;
        let pack = self.packs.get(frame.pack as usize)?;
        (entry.length == length).then_some((*pack, *frame, entry.within))
    }
}
