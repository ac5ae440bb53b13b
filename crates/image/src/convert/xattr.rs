//! Converts the extended attributes of an archive's members to a layer's.

use std::collections::BTreeMap;

use micabox_erofs::{Xattr, XattrProblem, overlay};
use micabox_tar::{Records, XattrError};

/// Why an entry's attributes can't be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Archive(#[from] XattrError),
    #[error(transparent)]
    Xattr(#[from] XattrProblem),
}

/// Returns the attributes in `records`, and how many were left out. An archive's own
/// `trusted.overlay.*` attributes are escaped, so that they can't pass for our markers.
pub(super) fn from_records(records: &Records, most: u64) -> Result<(Vec<Xattr>, u64), Problem> {
    let xattrs = records.xattrs(most)?;
    let mut kept = Vec::with_capacity(xattrs.kept.len());
    for (name, value) in xattrs.kept {
        let xattr = Xattr::new(overlay::escape_xattr_name(&name), value);
        xattr.check()?;
        kept.push(xattr);
    }
    // Their order is part of the image.
    kept.sort_unstable();
    Ok((kept, xattrs.dropped))
}

/// Merges a directory's attributes with newer ones; the newer value wins.
pub(super) fn union(older: Vec<Xattr>, newer: Vec<Xattr>) -> Vec<Xattr> {
    let both: BTreeMap<_, _> = older
        .into_iter()
        .chain(newer)
        .map(|xattr| (xattr.name, xattr.value))
        .collect();
    both.into_iter()
        .map(|(name, value)| Xattr { name, value })
        .collect()
}

/// Returns the memory that attributes take until the layer is finished: the bytes once in the
/// tree, and those of shared attributes once more while they are encoded.
pub(super) fn memory(xattrs: &[Xattr]) -> u64 {
    const EACH: u64 = 128;
    let bytes = |xattr: &Xattr| 2 * (xattr.name.len() + xattr.value.len()) as u64;
    xattrs.iter().map(|xattr| EACH + bytes(xattr)).sum()
}

#[cfg(test)]
mod tests {
    use micabox_tar::{Attributes, Kind, Limits, Member, Reader, Writer};

    use super::*;

    #[test]
    fn markers_of_overlayfs_are_escaped() {
        let member = Member {
            path: b"file".to_vec(),
            kind: Kind::file(0),
            attributes: Attributes {
                xattrs: vec![(b"trusted.overlay.opaque".to_vec(), b"y".to_vec())],
                ..Attributes::default()
            },
        };
        let mut writer = Writer::new(Vec::new());
        writer.add(&member).unwrap();
        let archive = writer.finish().unwrap();
        let mut reader = Reader::new(&archive[..], Limits::default());
        reader.next_member().unwrap().unwrap();
        let (xattrs, dropped) = from_records(&reader.take_records(), 99).unwrap();
        let escaped = Xattr::new(*b"trusted.overlay.overlay.opaque", *b"y");
        assert_eq!((xattrs, dropped), (vec![escaped], 0));
    }
}
