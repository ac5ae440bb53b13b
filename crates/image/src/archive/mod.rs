//! Images in files: OCI layouts, as a directory or in a tar archive, and archives of `docker
//! save`, in the old format and in the one with an OCI layout inside.
//!
//! Nothing is unpacked. A directory is read through its file descriptor, an archive through an
//! index of its members; a name that leads outside never leads to a file.

mod decompressed;
mod directory;
mod docker;
mod error;
mod found;
mod layout;
mod other;
mod spool;
mod tarball;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

pub use decompressed::decompressed;
pub use error::{ArchiveError, Problem};
pub(crate) use found::Found;

use crate::{Descriptor, Digest, Limits, Platform, Reference};
use directory::Directory;
use micabox_oci::MAX_DOCUMENT;
use tarball::Tarball;

/// A file that contains images.
#[derive(Debug)]
pub(crate) struct Archive {
    path: PathBuf,
    members: Members,
}

#[derive(Debug)]
enum Members {
    Directory(Directory),
    Tarball(Tarball),
}

/// A file in an archive.
pub(crate) struct Member {
    /// Size in bytes.
    pub size: u64,
    pub contents: Box<dyn Read + Send>,
}

/// An image in an archive.
#[derive(Debug)]
pub(crate) struct ArchivedImage {
    /// Its names.
    pub names: Vec<Reference>,
    /// Tags without a repository, which are no names by themselves.
    pub bare_tags: Vec<String>,
    /// Digest of the document that the archive names: the manifest, or an index that led to it.
    pub root: Digest,
    pub manifest: Vec<u8>,
    pub config: Vec<u8>,
    /// Bottom first.
    pub layers: Vec<ArchivedLayer>,
}

/// A layer in an archive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ArchivedLayer {
    /// Name of the file with the blob.
    pub name: String,
    pub blob: Descriptor,
    pub diff_id: Digest,
    /// Of an image that was converted elsewhere: digest of the layer's archive, as the manifest says.
    pub archive: Option<Digest>,
}

impl Archive {
    /// Opens a directory, or an archive, which may be compressed as a whole, or a pipe. Input that
    /// is not seekable is first copied to an unnamed file in `tmp`.
    pub(crate) fn open(path: &Path, tmp: &Path, limits: &Limits) -> Result<Self, ArchiveError> {
        let members = open(path, tmp, limits).map_err(|problem| ArchiveError {
            path: path.to_owned(),
            problem: Box::new(problem),
        })?;
        Ok(Self {
            path: path.to_owned(),
            members,
        })
    }

    /// Returns all images that can be used, at least one, each for the platform that suits `wanted`
    /// best.
    pub(crate) fn images(&self, wanted: &Platform, limits: &Limits) -> Result<Found, ArchiveError> {
        self.find(wanted, limits)
            .and_then(|(transport, found)| {
                let mut found = found.finish()?;
                found.transport = transport;
                Ok(found)
            })
            .map_err(|problem| self.error(problem))
    }

    /// Returns what there is, and what skopeo calls an archive like this.
    fn find(&self, wanted: &Platform, limits: &Limits) -> Result<(&'static str, Found), Problem> {
        let layout = match &self.members {
            Members::Directory(_) => "oci",
            Members::Tarball(_) => "oci-archive",
        };
        let dockers = || Ok(("docker-archive", docker::images(self, wanted, limits)?));
        if self.member(layout::MARKER)?.is_some() && self.member(layout::INDEX)?.is_some() {
            let found = layout::images(self, wanted, limits)?;
            // Docker 25.0.0 and 25.0.1 write an index without entries for an image that is saved
            // by its ID (moby#47210), and the whole image beside it.
            if !found.is_empty() || self.member(docker::MANIFEST)?.is_none() {
                return Ok((layout, found));
            }
            return dockers();
        }
        if self.is_skopeo_directory()? {
            return Err(Problem::SkopeoDirectory);
        }
        if self.member(docker::MANIFEST)?.is_some() {
            return dockers();
        }
        Err(match self.member(docker::REPOSITORIES)? {
            Some(_) => Problem::TooOld,
            None => Problem::NoImage,
        })
    }

    /// Returns whether this is the output of skopeo's and Podman's `dir:` transport.
    fn is_skopeo_directory(&self) -> Result<bool, Problem> {
        const VERSION: &str = "version";
        const START: &[u8] = b"Directory Transport Version:";
        let Some(member) = self.member(VERSION)? else {
            return Ok(false);
        };
        let mut start = Vec::new();
        let read = member
            .contents
            .take(START.len() as u64)
            .read_to_end(&mut start);
        read.map_err(|source| Problem::Read {
            name: VERSION.to_owned(),
            source,
        })?;
        Ok(start == START)
    }

    /// Returns a file by its name; `None` if there is none. A name never leads outside.
    pub(crate) fn member(&self, name: &str) -> Result<Option<Member>, Problem> {
        match &self.members {
            Members::Directory(directory) => directory.member(name),
            Members::Tarball(tarball) => tarball.member(name),
        }
    }

    /// Returns a file by its name; an error if it is missing.
    pub(crate) fn require(&self, name: &str) -> Result<Member, Problem> {
        self.member(name)?.ok_or_else(|| Problem::Missing {
            name: crate::printable(name),
        })
    }

    /// Returns the contents of a small file.
    fn document(&self, name: &str) -> Result<Vec<u8>, Problem> {
        let member = self.require(name)?;
        if member.size > MAX_DOCUMENT {
            return Err(Problem::TooLarge {
                name: crate::printable(name),
                limit: MAX_DOCUMENT,
            });
        }
        let mut bytes = Vec::new();
        member
            .contents
            .take(MAX_DOCUMENT)
            .read_to_end(&mut bytes)
            .map_err(|source| Problem::Read {
                name: crate::printable(name),
                source,
            })?;
        Ok(bytes)
    }

    pub(crate) fn error(&self, problem: Problem) -> ArchiveError {
        ArchiveError {
            path: self.path.clone(),
            problem: Box::new(problem),
        }
    }
}

fn open(path: &Path, tmp: &Path, limits: &Limits) -> Result<Members, Problem> {
    let file = File::open(path).map_err(Problem::Open)?;
    let kind = file.metadata().map_err(Problem::Open)?.file_type();
    if kind.is_dir() {
        return Ok(Members::Directory(Directory::new(file)));
    }
    if kind.is_char_device() || kind.is_block_device() {
        return Err(Problem::Open(io::Error::other("it is a device")));
    }
    let file = spool::seekable(file, kind.is_file(), tmp, limits)?;
    let mut head = [0; other::HEAD];
    let count = file.read_at(&mut head, 0).map_err(Problem::Open)?;
    if let Some(what) = other::kind(head.get(..count).unwrap_or_default()) {
        return Err(Problem::Other(what));
    }
    Tarball::index(file, limits).map(Members::Tarball)
}
