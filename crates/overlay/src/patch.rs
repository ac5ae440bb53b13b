//! Changes of an upper layer, one after the other.

use std::fs::File;

use micabox_ext4::{BlockDevice, Segment};
use serde::{Deserialize, Serialize};

use crate::edit::{Attributes, Edit, Problem};
use crate::unpack::unpack;

/// A change. Paths are absolute; symbolic links on the way are followed as in the sandbox,
/// directories on the way are made if they are missing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Patch {
    /// Removes whatever is there, with everything below it.
    Remove(Vec<u8>),
    /// Makes a directory, if there is none.
    Directory(Vec<u8>),
    /// Unpacks the archive in a file below a directory.
    Archive(Vec<u8>),
    /// Writes a copy of a file, owned by root.
    File {
        /// Its own name.
        name: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// In the sandbox; a directory, or a path that ends with a slash, gets the file
        /// under its own name.
        to: Vec<u8>,
    },
    /// Makes a symbolic link.
    Symlink {
        /// What it says.
        target: Vec<u8>,
        /// Where it is.
        path: Vec<u8>,
    },
}

impl Patch {
    /// Whether it comes with a file.
    pub fn has_file(&self) -> bool {
        matches!(self, Self::Archive(_) | Self::File { .. })
    }

    /// Carries it out. `file` is the one that it comes with.
    ///
    /// # Errors
    /// [`Problem`]; half of it may be done then.
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
                let mut to = to.clone();
                if to.ends_with(b"/") || edit.is_directory(&to)? {
                    to.push(b'/');
                    to.extend_from_slice(name);
                }
                let attributes = Attributes::root(*mode);
                // To its end, wherever that is: some have more than they say.
                let parts = [Segment::whole(u64::MAX)];
                let written = edit.file(&to, &attributes, 0, &parts, &mut file()?);
                written.map(drop)
            }
        }
    }
}
