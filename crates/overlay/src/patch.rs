//! Patches: changes of an upper layer before the sandbox starts.

use std::fs::File;

use micabox_ext4::{BlockDevice, Segment};
use serde::{Deserialize, Serialize};

use crate::edit::{Attributes, Edit, Problem};
use crate::unpack::unpack;

/// A change. Paths are absolute; symbolic links in them are followed as in the sandbox, and
/// missing parent directories are made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Patch {
    /// Removes a file or directory, with everything below it.
    Remove(Vec<u8>),
    /// Makes a directory, if it is missing.
    Directory(Vec<u8>),
    /// Unpacks an archive below a directory.
    Archive(Vec<u8>),
    /// Writes a copy of a file, owned by root.
    File {
        /// The file's own name.
        name: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// Path in the sandbox. If it is a directory, or ends with a slash, the file is written
        /// there under its own name. If it is a symbolic link, that leads to where it is written.
        to: Vec<u8>,
    },
    /// Makes a symbolic link.
    Symlink {
        /// The link's target.
        target: Vec<u8>,
        /// The link's path.
        path: Vec<u8>,
    },
}

impl Patch {
    /// Returns whether the patch comes with a file.
    pub fn has_file(&self) -> bool {
        matches!(self, Self::Archive(_) | Self::File { .. })
    }

    /// Applies the patch. `file` is the file that comes with it.
    ///
    /// # Errors
    /// [`Problem`]; the patch may be partly applied then.
    pub fn apply<D: BlockDevice>(
        &self,
        edit: &mut Edit<D>,
        file: Option<File>,
    ) -> Result<(), Problem> {
        let file = || file.ok_or("its file was not handed over");
        match self {
            Self::Remove(path) => edit.remove(path),
            Self::Directory(path) => edit.directory(path).map(drop),
            Self::Archive(root) => {
                let place = |path: &[u8]| [root, &b"/"[..], path].concat();
                let unpacked = unpack(edit, file()?, place);
                unpacked
                    .map(drop)
                    .map_err(|error| Problem::from(&*error.to_string()))
            }
            Self::Symlink { target, path } => edit.symlink(path, target, &Attributes::root(0o777)),
            Self::File { name, mode, to } => {
                let mut to = edit.through_links(to)?;
                if to.ends_with(b"/") || edit.is_directory(&to)? {
                    to.push(b'/');
                    to.extend_from_slice(name);
                }
                let attributes = Attributes::root(*mode);
                // Read to its end: some files are longer than their size says.
                let parts = [Segment::whole(u64::MAX)];
                let written = edit.file(&to, &attributes, 0, &parts, &mut file()?);
                written.map(drop)
            }
        }
    }
}
