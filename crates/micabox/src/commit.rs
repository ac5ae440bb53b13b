//! A sandbox's changes as a new image.

use std::io::{BufWriter, Seek, Write};

use micabox_image::store::Image;
use micabox_image::{Changes, Limits, Reference, Store, extend};

use crate::{Base, Error, Sandboxes};

impl Sandboxes {
    /// Makes an image of a sandbox's changes on top of its image's layers, and gives it the
    /// names in `references`. A running sandbox stands still for a moment, as
    /// [`Sandboxes::still_disk`] says.
    ///
    /// # Errors
    /// Those of [`Sandboxes::still_disk`]; [`Error::NoImage`] if it has a root disk;
    /// [`Error::Commit`].
    pub fn commit(
        &self,
        store: &Store,
        name_or_id: &str,
        changes: &Changes,
        references: &[Reference],
        limits: &Limits,
    ) -> Result<Image, Error> {
        let record = self.get(name_or_id)?;
        let Base::Image(base) = Base::of(store, &record)? else {
            return Err(Error::NoImage(record.name));
        };
        let disk = self.still_disk(&record.id)?;
        // All of it before anything is made of it: half a layer would look like a whole one.
        let failed = |what| move |source| Error::System { what, source };
        let mut archive = tempfile::tempfile_in(store.root()).map_err(failed("making a file"))?;
        let mut writer = BufWriter::with_capacity(1 << 20, &mut archive);
        disk.write_layer(&mut writer)?;
        writer.flush().map_err(failed("writing the layer"))?;
        drop(writer);
        archive.rewind().map_err(failed("reading the layer"))?;
        Ok(extend(store, &base, archive, changes, references, limits).map_err(Box::new)?)
    }
}
