//! Takes a filesystem out of a disk image: out of its format, and of its partition.

use std::fs::File;
use std::os::fd::OwnedFd;

use micabox_disk::{Disk, Format, copy, filesystem, partition};
use micabox_jail::Call;
use serde::{Deserialize, Serialize};

use super::{Fault, Files};

/// Copies the filesystem in a disk image to a file of its own. Files: the image, an empty file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Unwrap {
    /// The partition that it is in; by default the only one that can be a root.
    pub partition: Option<u32>,
}

/// Why there is no filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NoFilesystem {
    /// The format of a disk image that can't be read, and why not.
    #[error("it is {0}, and {1}")]
    Image(String, String),
    /// What holds something that is no filesystem, and what that is.
    #[error("it is {0}, and holds {1}")]
    Contents(String, String),
    /// Why no partition is taken.
    #[error("{0}")]
    Partitions(String),
    /// Why the copy can't be written.
    #[error("{0}")]
    Output(String),
}

impl From<Fault> for NoFilesystem {
    fn from(fault: Fault) -> Self {
        Self::Output(fault.to_string())
    }
}

impl Call for Unwrap {
    const KIND: &'static str = "unwrap";
    /// The partition that it was in.
    type Reply = Option<u32>;
    type Error = NoFilesystem;

    fn run(self, files: Vec<OwnedFd>) -> Result<Option<u32>, NoFilesystem> {
        let mut files = Files::new(files);
        let (image, mut output) = (files.take()?, files.take()?);
        let kind = format_of(&image);
        let in_image = |error: micabox_disk::Error| match error {
            micabox_disk::Error::Write(error) => NoFilesystem::Output(error.to_string()),
            error => NoFilesystem::Image(kind.to_owned(), error.to_string()),
        };
        let mut disk = Disk::open(image).map_err(in_image)?;
        let size = disk.size();
        let whole = filesystem::at(&mut disk, 0, size).map_err(in_image)?;
        let (number, start, length) = match (self.partition, whole) {
            (None, Some(kind)) if kind.is_read() => (None, 0, size),
            (number, whole) => {
                let table = partition::list(&mut disk)
                    .map_err(|error| NoFilesystem::Partitions(error.to_string()))?;
                let Some(table) = table else {
                    return Err(match (number, whole) {
                        (Some(number), _) => NoFilesystem::Partitions(format!(
                            "it has no partition table, and so no partition {number}"
                        )),
                        (None, Some(other)) => {
                            NoFilesystem::Contents(kind.into(), other.to_string())
                        }
                        (None, None) => NoFilesystem::Contents(
                            kind.into(),
                            "neither an ext4 nor an EROFS filesystem".into(),
                        ),
                    });
                };
                let chosen = partition::choose(&mut disk, &table.partitions, number);
                let chosen = chosen.map_err(|error| match (number, whole) {
                    // The boot sector of a filesystem looks like a table: FAT's and NTFS's do.
                    (None, Some(other)) if table.kind == "MBR" => {
                        NoFilesystem::Contents(kind.into(), other.to_string())
                    }
                    _ => NoFilesystem::Partitions(format!(
                        "it has a partition table ({}), and {error}",
                        table.kind
                    )),
                })?;
                (Some(chosen.number), chosen.start, chosen.length)
            }
        };
        copy(&mut disk, start, length, &mut output).map_err(in_image)?;
        Ok(number)
    }
}

/// Names the format of an image as its user does.
fn format_of(image: &File) -> &'static str {
    match Format::of(image) {
        Format::Raw => "a disk",
        Format::Qcow2 => "a qcow2 image",
        Format::Vmdk => "a VMDK image",
    }
}
