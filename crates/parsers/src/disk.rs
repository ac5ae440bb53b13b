//! Jobs on a sandbox's disk for changes, over the sandbox's base.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;

use micabox_erofs::Description;
use micabox_ext4::{Ext4, Options};
use micabox_jail::Call;
use micabox_overlay::export::{ExportError, Exported};
use micabox_overlay::layer::{LayerError, write_layer};
use micabox_overlay::lower::{Lower, LowerKind};
use micabox_overlay::pack::{PackError, pack};
use micabox_overlay::patch::Patch;
use micabox_overlay::upper::Upper;
use micabox_overlay::view::{self, PathKind, View, ViewError};
use serde::{Deserialize, Serialize};

use super::{ChangesError, Fault, Files, Notes, PatchFault, Served, patches, write_changes};

/// Bytes per write into a pipe.
const PIECE: usize = 64 << 10;

/// What a worker reads an upper layer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// An ext4 filesystem.
    Disk,
    /// A socket that leads to the server of a folder.
    Folder,
}

/// Lists the changes on the disk. Files: the disk or a folder's server, a pipe, the base.
#[derive(Debug, Serialize, Deserialize)]
pub struct Changes {
    /// What the upper layer is in.
    pub medium: Medium,
    /// The filesystem of the base.
    pub lower: LowerKind,
}

/// Writes the changes as a layer of an image. Files: as for [`Changes`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Layer {
    /// What the upper layer is in.
    pub medium: Medium,
    /// The filesystem of the base.
    pub lower: LowerKind,
}

/// Finds what a path leads to, all symbolic links followed. Files: the disk or a folder's server, the
/// base.
#[derive(Debug, Serialize, Deserialize)]
pub struct Look {
    /// What the upper layer is in.
    pub medium: Medium,
    /// The filesystem of the base.
    pub lower: LowerKind,
    /// A path in the sandbox, absolute.
    pub path: Vec<u8>,
}

/// Writes what is at a path as an archive. Files: as for [`Changes`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Pack {
    /// What the upper layer is in.
    pub medium: Medium,
    /// The filesystem of the base.
    pub lower: LowerKind,
    /// A path in the sandbox, absolute.
    pub path: Vec<u8>,
    /// Whether a symbolic link at its end is followed.
    pub follow: bool,
    /// Its name in the archive.
    pub name: Vec<u8>,
}

/// Applies patches to the disk. Files: the disk, one for each patch that has one, the base.
#[derive(Debug, Serialize, Deserialize)]
pub struct Patches {
    /// The filesystem of the base.
    pub lower: LowerKind,
    /// The patches, in the order in which they are applied.
    pub patches: Vec<Patch>,
}

/// Replays the journal, and checks whether the filesystem can be used. A mark of errors stays.
/// File: the disk.
#[derive(Debug, Serialize, Deserialize)]
pub struct Settle;

/// Checks whether a filesystem can be read. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Inspect {
    /// The filesystem that the file should have.
    pub kind: LowerKind,
}

/// A filesystem's description of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Inspected {
    /// In the order of the superblock's bytes.
    pub uuid: [u8; 16],
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Whether some of its files' bytes are on other devices.
    pub has_devices: bool,
}

impl Call for Changes {
    const KIND: &'static str = "changes";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<Notes, Fault> {
        let mut files = Files::new(files);
        let (disk, notes) = upper(self.medium, files.take()?)?;
        let mut output = BufWriter::with_capacity(PIECE, files.take()?);
        let mut view = view(disk, self.lower, files)?;
        let written = write_changes(&mut view, &mut output);
        written.map_err(|error| match error {
            ChangesError::View(error) => error.into(),
            ChangesError::Output(error) => Fault::output(error),
        })?;
        Ok(notes)
    }
}

impl Call for Layer {
    const KIND: &'static str = "layer";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<Notes, Fault> {
        let mut files = Files::new(files);
        let (disk, notes) = upper(self.medium, files.take()?)?;
        let output = BufWriter::with_capacity(PIECE, files.take()?);
        match write_layer(&mut view(disk, self.lower, files)?, output) {
            Ok(exported) => Ok(notes.with(exported)),
            Err(LayerError::View(error)) => Err(error.into()),
            Err(LayerError::Export(ExportError::Output(error))) => Err(Fault::output(error)),
            Err(error) => Err(Fault::disk(error)),
        }
    }
}

impl Call for Look {
    const KIND: &'static str = "look";
    type Reply = (PathKind, Vec<u8>);
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<Self::Reply, Fault> {
        let mut files = Files::new(files);
        let (disk, _) = upper(self.medium, files.take()?)?;
        let mut view = view(disk, self.lower, files)?;
        let path = view.through_links(&self.path).map_err(Fault::asked)?;
        let kind = view.path_kind(&path).map_err(Fault::asked)?;
        Ok((kind, path))
    }
}

impl Call for Pack {
    const KIND: &'static str = "pack";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<Notes, Fault> {
        let mut files = Files::new(files);
        let (disk, mut notes) = upper(self.medium, files.take()?)?;
        let mut output = BufWriter::with_capacity(PIECE, files.take()?);
        let mut view = view(disk, self.lower, files)?;
        let found = view.find(&self.path, self.follow);
        let found = found.map_err(|error| match error {
            ViewError::Nothing => Fault::Missing(error.to_string()),
            error => Fault::asked(error),
        })?;
        let mut socket = |path: &[u8]| notes.socket(path);
        let packed = pack(&mut view, found, &self.name, &mut output, &mut socket);
        packed.map_err(|error| match error {
            PackError::Output(error) => Fault::output(error),
            error => Fault::asked(error),
        })?;
        output.flush().map_err(Fault::output)?;
        Ok(notes)
    }
}

impl Call for Patches {
    const KIND: &'static str = "patch";
    type Reply = ();
    type Error = PatchFault;

    fn run(self, files: Vec<OwnedFd>) -> Result<(), PatchFault> {
        let mut files = Files::new(files);
        let disk = files.take().map_err(PatchFault::disk)?;
        let with_files = self.patches.iter().filter(|patch| patch.has_file());
        let sources = with_files
            .map(|_| files.take())
            .collect::<Result<Vec<_>, _>>()
            .map_err(PatchFault::disk)?;
        let lower = lower(self.lower, files).map_err(PatchFault::disk)?;
        patches::carry_out(disk, lower, &self.patches, sources)
    }
}

impl Call for Settle {
    const KIND: &'static str = "replay";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<Notes, Fault> {
        let options = Options {
            // A guest's kernel would replay the journal as well.
            despite_errors: true,
            ..Options::default()
        };
        let disk = Ext4::open(Files::new(files).take()?, options).map_err(Fault::disk)?;
        let notes = Notes {
            damaged: disk.has_errors(),
            ..Notes::default()
        };
        disk.close().map_err(Fault::disk)?;
        Ok(notes)
    }
}

impl Call for Inspect {
    const KIND: &'static str = "inspect";
    type Reply = Inspected;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<Inspected, Fault> {
        let file = Files::new(files).take()?;
        Ok(match self.kind {
            LowerKind::Erofs => {
                let image = Description::read(&file).map_err(Fault::disk)?;
                Inspected {
                    uuid: image.uuid,
                    size: image.size,
                    block_size: image.block_size,
                    has_devices: image.has_devices,
                }
            }
            LowerKind::Ext4 => {
                let disk = view::open(file).map_err(Fault::disk)?;
                let statistics = disk.statistics();
                Inspected {
                    uuid: disk.superblock().uuid,
                    size: statistics.blocks * u64::from(statistics.block_size),
                    block_size: statistics.block_size,
                    has_devices: false,
                }
            }
        })
    }
}

/// Opens what the upper layer is in for reading.
fn upper(medium: Medium, file: File) -> Result<(Box<dyn Upper>, Notes), Fault> {
    if medium == Medium::Folder {
        let served = Served::new(file).map_err(Fault::disk)?;
        return Ok((Box::new(served), Notes::default()));
    }
    let disk = view::open(file).map_err(Fault::disk)?;
    let notes = Notes {
        damaged: disk.has_errors(),
        ..Notes::default()
    };
    Ok((Box::new(disk), notes))
}

/// Opens the base, which the rest of the files are.
fn lower(kind: LowerKind, files: Files) -> Result<Lower, Fault> {
    Lower::open(kind, files.rest()).map_err(|error| Fault::Below(error.to_string()))
}

/// Opens the view of the upper layer over the base.
fn view(
    upper: Box<dyn Upper>,
    kind: LowerKind,
    files: Files,
) -> Result<View<Box<dyn Upper>>, Fault> {
    Ok(View::new(upper, lower(kind, files)?))
}

impl From<ViewError> for Fault {
    fn from(error: ViewError) -> Self {
        match error {
            ViewError::Lower(error) => Self::Below(error.to_string()),
            error => Self::disk(error),
        }
    }
}

impl Notes {
    /// Adds a socket that was left out.
    pub fn socket(&mut self, path: &[u8]) {
        if self.sockets.len() < Exported::SOCKETS {
            self.sockets.push(path.to_vec());
        } else {
            self.more_sockets += 1;
        }
    }

    /// Adds what an export has left out.
    pub fn with(self, exported: Exported) -> Self {
        Self {
            sockets: exported.sockets,
            more_sockets: exported.more_sockets,
            ..self
        }
    }
}
