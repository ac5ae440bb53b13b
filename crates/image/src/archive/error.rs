//! Errors of files that should contain images.

use std::io;
use std::path::PathBuf;

use crate::Digest;
use crate::convert::decompress::ForeignCompression;
use crate::limits::Limit;
use crate::manifest::ManifestError;

/// Why images can't be loaded from a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot load {}: {problem}", path.display())]
pub struct ArchiveError {
    /// The archive or directory.
    pub path: PathBuf,
    /// The problem.
    #[source]
    pub problem: Box<Problem>,
}

/// Problem of an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It doesn't exist or can't be opened.
    #[error("{0}")]
    Open(#[source] io::Error),
    /// It was opened, but can't be read to the end.
    #[error("reading `{name}` fails: {source}")]
    Read {
        /// The file in the archive.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// Making a seekable copy failed.
    #[error("copying it to the store's disk fails: {0}; an uncompressed file needs no copy")]
    Copy(#[source] io::Error),
    /// It is compressed with an unsupported algorithm.
    #[error("it is compressed with {0}: decompress it first, as in `{0} -dc FILE | mica load`")]
    Compression(ForeignCompression),
    /// Its zstd frames require too much memory.
    #[error(
        "its zstd data exceeds the limit `zstd-window` of {limit}, which can be raised in the \
         settings"
    )]
    Window {
        /// The setting's value in bytes.
        limit: u64,
    },
    /// It becomes too large when decompressed.
    #[error("decompressed it is larger than limits.{setting} = {limit} allows")]
    Bomb {
        /// The setting.
        setting: Limit,
        /// Its value.
        limit: u64,
    },
    /// It is not a tar archive, or a damaged one.
    #[error(
        "it is not a readable tar archive: at byte {offset}{}: {problem}",
        near(name)
    )]
    Tar {
        /// The offset at which reading stopped.
        offset: u64,
        /// The last file whose name could be read.
        name: String,
        /// The problem there.
        problem: String,
    },
    /// It is something else.
    #[error("it is {0}, and no archive of images")]
    Other(&'static str),
    /// It has no known format.
    #[error(
        "it holds no image: neither an OCI layout (oci-layout, index.json) nor what `docker save` \
         writes (manifest.json)"
    )]
    NoImage,
    /// A format that skopeo and Podman use internally.
    #[error(
        "it is a directory of skopeo's `dir:` transport, which is neither an OCI layout nor an \
         archive: `skopeo copy dir:DIRECTORY oci:LAYOUT` makes one"
    )]
    SkopeoDirectory,
    /// A format from before Docker 1.10.
    #[error("it was written by a Docker older than 1.10: load it into a newer one and save again")]
    TooOld,
    /// A missing file that another one refers to.
    #[error("`{name}` is missing in it")]
    Missing {
        /// The file in the archive.
        name: String,
    },
    /// A file that isn't a regular one.
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
    /// A document larger than the limit.
    #[error("`{name}` in it is larger than {limit} bytes")]
    TooLarge {
        /// The file in the archive.
        name: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// A document of another structure.
    #[error("`{name}` in it is malformed: {problem}")]
    Malformed {
        /// The file in the archive.
        name: String,
        /// The position and the problem.
        problem: String,
    },
    /// A file whose contents don't match the digest in its name.
    #[error("`{name}` in it is damaged: its digest is {actual}")]
    Digest {
        /// The file in the archive.
        name: String,
        /// Digest of its contents.
        actual: Digest,
    },
    /// A blob whose length isn't the one in its descriptor.
    #[error("`{name}` in it is {actual} bytes long instead of {declared}")]
    Size {
        /// The file in the archive.
        name: String,
        /// Size in the descriptor, in bytes.
        declared: u64,
        /// Actual size in bytes.
        actual: u64,
    },
    /// A name of an image that is none.
    #[error("a name of it: {0}")]
    Name(micabox_oci::reference::ReferenceError),
    /// A name that the archive gives to another image later.
    #[error("the name {name} of {image}: {later}, which comes later, has it")]
    Renamed {
        /// The name.
        name: String,
        /// Manifest digest of the image that is without it.
        image: Digest,
        /// Manifest digest of the one that has it.
        later: Digest,
    },
    /// A manifest or config that can't be used.
    #[error("{image}: {source}")]
    Manifest {
        /// The image.
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
