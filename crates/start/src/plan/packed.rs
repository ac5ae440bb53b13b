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

use micabox_error::Error;
use micabox_holders::{ImageFile, ImageFiles};
use micabox_vmm::MachineFile;
use micabox_wire::{Device, Extent, Format, Lower, Range};

use super::partitions::{MOST, ROOM, Table};
use super::{Plan, open_files, stack};

/// Names of the files that a plan adds to the sandbox's directory.
const HEAD: &str = "partitions";
const TAIL: &str = "partitions.copy";

/// The files of one device, and the ranges of its pieces.
pub(super) struct Packed {
    /// The device's UUID: the table's, or that of the layer at its start.
    pub(super) uuid: [u8; 16],
    /// Without the table's.
    pub(super) files: Vec<MachineFile>,
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
        let length = |piece: &Vec<&ImageFile>| piece.iter().map(|file| file.file.length()).sum();
        let lengths: Vec<u64> = pieces.iter().map(length).collect();

        let table = (lengths.len() <= MOST).then(|| {
            let uuids: Vec<u8> = pieces.iter().flatten().flat_map(|it| it.uuid).collect();
            Table::of(&uuids, &lengths)
        });
        let files = open_files(pieces.into_iter().flatten());
        let mut offset = if table.is_some() { ROOM } else { 0 };
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
    /// Writes the plan's own files into `directory`, the sandbox's, and adds them to the device.
    ///
    /// # Errors
    /// [`Error::System`] if they can't be written.
    pub fn write_files(&mut self, directory: &Path) -> Result<(), Error> {
        let Some(table) = self.table.take() else {
            return Ok(());
        };
        let [head, tail] = write_table(&table, directory).map_err(|source| Error::System {
            what: "writing a partition table",
            source,
        })?;
        let region = self.pmem.first_mut().map(|region| &mut region.files);
        let disk = self.disks.first_mut().map(|disk| &mut disk.files);
        if let Some(files) = region.or(disk) {
            files.insert(0, head);
            files.push(tail);
        }
        Ok(())
    }
}

fn write_table(table: &Table, directory: &Path) -> io::Result<[MachineFile; 2]> {
    let tail_at = ROOM.saturating_sub(table.tail.len() as u64);
    let write = |name, bytes: &[u8], at| {
        let path = directory.join(name);
        let file = File::create(&path)?;
        file.set_len(ROOM)?;
        file.write_all_at(bytes, at)?;
        MachineFile::open(&path).map_err(io::Error::other)
    };
    Ok([
        write(HEAD, &table.head, 0)?,
        write(TAIL, &table.tail, tail_at)?,
    ])
}
