//! What can be wrong with a file that should hold images.

use std::io;
use std::path::PathBuf;

use crate::Digest;
use crate::manifest::ManifestError;

/// Why images can't be loaded from a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot load {}: {problem}", path.display())]
pub struct ArchiveError {
    /// The archive or directory.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: Box<Problem>,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It isn't there or can't be read at all.
    #[error("{0}")]
    Open(#[source] io::Error),
    /// It could be opened, but not read to the end.
    #[error("reading `{name}` fails: {source}")]
    Read {
        /// The file in the archive.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Making a seekable copy failed.
    #[error("copying it to the store's disk fails: {0}; an uncompressed file needs no copy")]
    Copy(#[source] io::Error),
    /// It is compressed in a way that we can't undo.
    #[error("it is compressed with {0}: decompress it first")]
    Compression(&'static str),
    /// Its zstd frames want too much memory.
    #[error(
        "its zstd data exceeds the limit `zstd-window` of {limit}, which can be raised in the \
         settings"
    )]
    Window {
        /// The setting's value in bytes.
        limit: u64,
    },
    /// It becomes too large.
    #[error("decompressed it is larger than limits.{setting} = {limit} allows")]
    Bomb {
        /// The setting.
        setting: &'static str,
        /// Its value.
        limit: u64,
    },
    /// It is no tar archive, or a broken one.
    #[error(
        "it is not a readable tar archive: at byte {offset}{}: {problem}",
        near(name)
    )]
    Tar {
        /// How far it could be read.
        offset: u64,
        /// The last file whose name could be read.
        name: String,
        /// What is wrong there.
        problem: String,
    },
    /// There is nothing in it that we know.
    #[error(
        "it holds no image: neither an OCI layout (oci-layout, index.json) nor what `docker save` \
         writes (manifest.json)"
    )]
    NoImage,
    /// A format of skopeo's and Podman's for their own use.
    #[error(
        "it is a directory of skopeo's `dir:` transport, which is neither an OCI layout nor an \
         archive: `skopeo copy dir:DIRECTORY oci:LAYOUT` makes one"
    )]
    SkopeoDirectory,
    /// From before Docker 1.10.
    #[error("it was written by a Docker older than 1.10: load it into a newer one and save again")]
    TooOld,
    /// A file that another one names.
    #[error("`{name}` is missing in it")]
    Missing {
        /// The file in the archive.
        name: String,
    },
    /// A file that isn't a plain one.
    #[error("`{name}` in it is not a regular file, or a link that leads nowhere or out of it")]
    NotAFile {
        /// The file in the archive.
        name: String,
    },
    /// A symbolic link to a place outside, as Bazel makes them.
    #[error(
        "`{name}` in it is a link that leads nowhere or out of it, and what is outside is not \
         read: `cp -rL DIRECTORY COPY` makes a copy that has everything inside"
    )]
    LeadsOut {
        /// The file in the directory.
        name: String,
    },
    /// A document that is too large to be one.
    #[error("`{name}` in it is larger than {limit} bytes")]
    TooLarge {
        /// The file in the archive.
        name: String,
        /// In bytes.
        limit: u64,
    },
    /// A document of another shape.
    #[error("`{name}` in it is malformed: {problem}")]
    Malformed {
        /// The file in the archive.
        name: String,
        /// Where and what.
        problem: String,
    },
    /// A file with other contents than its name says.
    #[error("`{name}` in it is damaged: its digest is {actual}")]
    Digest {
        /// The file in the archive.
        name: String,
        /// What its contents hash to.
        actual: Digest,
    },
    /// A blob of another length than its descriptor says.
    #[error("`{name}` in it is {actual} bytes long instead of {declared}")]
    Size {
        /// The file in the archive.
        name: String,
        /// According to the descriptor, in bytes.
        declared: u64,
        /// In bytes.
        actual: u64,
    },
    /// A manifest or config that can't be used.
    #[error("{image}: {source}")]
    Manifest {
        /// Which image.
        image: String,
        /// What is wrong with it.
        source: ManifestError,
    },
}

fn near(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(", near `{name}`"),
    }
}
