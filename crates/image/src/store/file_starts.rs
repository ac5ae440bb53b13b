//! Where files begin in a layer's image: chunks are cut there.

use std::path::Path;

use micabox_erofs::format::FileType;
use micabox_erofs::{Cached, ReadAt, Reader};

use super::error::{Context, Error, Result};

/// Returns where files' contents begin in an image of `length` bytes at `path`, in ascending order.
pub(crate) fn file_starts(image: impl ReadAt, length: u64, path: &Path) -> Result<Vec<u64>> {
    let damaged = |error: micabox_erofs::Error| Error::Damaged {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    let image = Cached::new(image).context("read", path)?;
    let reader = Reader::open(image).map_err(damaged)?;
    let mut starts = Vec::new();
    reader
        .walk(|_, inode| {
            if inode.kind == FileType::Regular {
                let extents = reader.extents(inode)?;
                // Those of fsmeta are in other images.
                let own = extents.iter().filter_map(|extent| extent.address);
                starts.extend(own.filter(|address| *address < length));
            }
            Ok(())
        })
        .map_err(damaged)?;
    starts.sort_unstable();
    starts.dedup();
    Ok(starts)
}
