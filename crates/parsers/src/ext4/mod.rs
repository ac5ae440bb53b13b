//! Jobs on an ext4 filesystem in a file, apart from any sandbox.

mod archive;
mod look;
mod volume;

use std::fs::File;

use micabox_ext4::device::ReadOnly;
use micabox_ext4::{Ext4, Options};
use micabox_jail::CallError;

use super::{Fault, Notes};

pub use archive::{Destination, Export, Import, export, import, pack};
pub use look::{Attributes, List, Listed, Read, Show, Shown, list, read, show};
pub use volume::{Check, Finding, Grow, Grown, Replay, Replayed, findings, grow, replay};

/// Bytes per read from an archive or a file.
const PIECE: usize = 1 << 20;

/// The result of a job on a filesystem.
pub type Result<T> = std::result::Result<T, CallError<Fault>>;

type Filesystem = Ext4<ReadOnly<File>>;

fn open(file: File) -> std::result::Result<Filesystem, Fault> {
    Ext4::open_read_only(ReadOnly(file), Options::default()).map_err(Fault::disk)
}

fn notes(filesystem: &Filesystem) -> Notes {
    Notes {
        damaged: filesystem.has_errors(),
        ..Notes::default()
    }
}
