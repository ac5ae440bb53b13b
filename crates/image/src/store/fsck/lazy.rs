//! Checks of layers of which only a part is here.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use super::{Found, Fsck};
use crate::store::error::{Context, Error, Result};
use crate::store::layers::Layer;
use crate::store::packed::LayerImage;
use micabox_oci::Digest;

impl Fsck<'_> {
    /// Checks a layer of which only a part is here: its metadata, and the chunks that are here. One that is not what its index
    /// says is no finding: a killed process leaves such, and to all that reads it is missing.
    pub(super) fn lazy_layer(&mut self, diff_id: &Digest, uuid: [u8; 16]) -> Result<Found> {
        let Some(layer) = self.store.layer(diff_id)? else {
            return Ok(Err("not all of what is needed of it is here".to_owned()));
        };
        let record = match self.store.lazy_metadata(&layer) {
            Ok(record) => record,
            // It has become whole meanwhile, from a blob that was checked.
            Err(_) if self.store.is_whole(&layer) => return Ok(Ok(())),
            Err(error @ Error::Damaged { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        let path = self.store.layout.lazy_metadata(diff_id);
        let file = match File::open(&path) {
            Err(_) if self.store.is_whole(&layer) => return Ok(Ok(())),
            file => file.context("open", &path)?,
        };
        let written = file.metadata().context("look at", &path)?.blocks() * 512;
        let before = self.report.bytes;
        let found = self.bytes(&LayerImage::Whole(file), &record, uuid);
        let found = found.context("read", &path)?;
        // It is sparse.
        self.report.bytes = before + written.min(self.report.bytes - before);
        self.lazy_chunks(&layer).map(|()| found)
    }

    fn lazy_chunks(&mut self, layer: &Layer) -> Result<()> {
        let blob = match self.store.lazy_blob(layer) {
            Ok((_, blob)) => blob,
            Err(_) if self.store.is_whole(layer) => return Ok(()),
            Err(error) => return Err(error),
        };
        let path = self.store.layout.lazy_blob(&layer.diff_id);
        for number in 0..blob.index().len() {
            if let Some((length, is_right)) = blob.check(number).context("read", &path)? {
                self.report.bytes += length;
                self.report.lost_chunks += usize::from(!is_right);
            }
        }
        Ok(())
    }
}
