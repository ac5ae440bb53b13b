//! Packs all layers of a stack on one device, back to back, and a partition for each.
//!
//! `[table | layer 0 | layer 1 | ... | fixup, layer 0, layer 1, ... | table's copy]`
//!
//! EROFS refuses a device of another mounted image as its own device, and a table can't name a
//! piece twice. So the fixup gets the layers once more, as a flat image of its own. That costs
//! address space, not the host's memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use micabox_image::store::vmdk;
use micabox_vmm::{DiskSource, PmemFile};
use micabox_wire::{Device, Extent, Format, Lower, Range};

use super::partitions::{MOST, ROOM, Table};
use super::{ImageFile, ImageFiles, Plan, region, stack};
use crate::Error;

/// Names of the files that a plan adds to the sandbox's directory.
const HEAD: &str = "partitions";
const TAIL: &str = "partitions.copy";
pub(super) const DESCRIPTOR: &str = "stack.vmdk";

/// The files of one device, and the ranges of its pieces.
pub(super) struct Packed {
    /// The device's UUID: the table's, or that of the layer at its start.
    pub(super) uuid: [u8; 16],
    pub(super) files: Vec<PmemFile>,
    /// None if there are more pieces than possible partitions; then the guest needs a device
    /// mapper.
    pub(super) table: Option<Table>,
    layers: Vec<Range>,
    fixup: Option<Range>,
}

impl Packed {
    /// Packs all layers of `image`, which has at least one.
    pub(super) fn new(image: &ImageFiles) -> Self {
        let layers = image.layers.iter().map(|layer| vec![layer]);
        let flat = |fixup| std::iter::once(fixup).chain(&image.layers).collect();
        let pieces: Vec<Vec<&ImageFile>> = layers.chain(image.fixup.iter().map(flat)).collect();
        let length = |piece: &Vec<&ImageFile>| piece.iter().map(|file| file.size).sum();
        let lengths: Vec<u64> = pieces.iter().map(length).collect();

        let table = (lengths.len() <= MOST).then(|| {
            let uuids: Vec<u8> = pieces.iter().flatten().flat_map(|it| it.uuid).collect();
            Table::of(&uuids, &lengths)
        });
        let mut files = region(pieces.into_iter().flatten()).files;
        let mut offset = 0;
        if table.is_some() {
            offset = ROOM;
            let own = |name: &str| PmemFile {
                path: name.into(),
                size: ROOM,
            };
            files.insert(0, own(HEAD));
            files.push(own(TAIL));
        }
        let mut layers = Vec::with_capacity(lengths.len());
        for length in lengths {
            layers.push(Range { offset, length });
            offset = offset.saturating_add(length);
        }
        let fixup = layers.split_off(image.layers.len()).pop();
        let first = image.layers.first().map(|layer| layer.uuid);
        Self {
            uuid: table
                .as_ref()
                .map(|table| table.uuid)
                .or(first)
                .unwrap_or_default(),
            files,
            table,
            layers,
            fixup,
        }
    }

    /// Returns the mounts, with all pieces on `device`.
    pub(super) fn lowers(&self, image: &ImageFiles, device: Device) -> Vec<Lower> {
        let extent = |range: &Range| Extent {
            device: device.clone(),
            range: Some(*range),
        };
        let fixup = self.fixup.as_ref().map(|range| Lower {
            format: Format::Erofs,
            image: extent(range),
            devices: Vec::new(),
        });
        stack(image, self.layers.iter().map(extent).collect(), fixup)
    }
}

impl Plan {
    /// Writes the plan's own files into `directory`, the sandbox's.
    ///
    /// # Errors
    /// [`Error::System`] if they can't be written; [`Error::Store`] if a path can't be in
    /// a VMDK descriptor.
    pub(crate) fn write_files(&mut self, directory: &Path) -> Result<(), Error> {
        if let Some(table) = self.table.take() {
            write_table(&table, directory).map_err(|source| Error::System {
                what: "writing a partition table",
                source,
            })?;
        }
        for region in &mut self.pmem {
            place(&mut region.files, directory);
        }
        for disk in &mut self.disks {
            let DiskSource::Files { files, vmdk } = &mut disk.source else {
                continue;
            };
            place(files, directory);
            if vmdk.as_path() == Path::new(DESCRIPTOR) {
                *vmdk = directory.join(DESCRIPTOR);
                write_descriptor(files, vmdk)?;
            }
        }
        Ok(())
    }
}

/// Sets the paths of the plan's own files among `files`.
fn place(files: &mut [PmemFile], directory: &Path) {
    for file in files {
        if [HEAD, TAIL].iter().any(|name| file.path == Path::new(name)) {
            file.path = directory.join(&file.path);
        }
    }
}

fn write_table(table: &Table, directory: &Path) -> io::Result<()> {
    let tail_at = ROOM.saturating_sub(table.tail.len() as u64);
    for (name, bytes, at) in [(HEAD, &table.head, 0), (TAIL, &table.tail, tail_at)] {
        let file = File::create(directory.join(name))?;
        file.set_len(ROOM)?;
        file.write_all_at(bytes, at)?;
    }
    Ok(())
}

fn write_descriptor(files: &[PmemFile], path: &Path) -> Result<(), Error> {
    let failed = |source| Error::System {
        what: "writing a disk's descriptor",
        source,
    };
    // Relative paths in a descriptor are relative to its directory.
    let paths: io::Result<Vec<_>> = files
        .iter()
        .map(|file| std::path::absolute(&file.path))
        .collect();
    let paths = paths.map_err(failed)?;
    let extents: Vec<_> = paths
        .iter()
        .zip(files)
        .map(|(path, file)| vmdk::Extent {
            path,
            length: file.size,
        })
        .collect();
    let text = vmdk::descriptor(&extents)?;
    std::fs::write(path, text).map_err(failed)
}
