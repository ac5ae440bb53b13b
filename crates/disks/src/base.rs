//! The base of a sandbox, below its changes: an image in the store, or a root disk of the user's.

use std::fs::File;
use std::path::PathBuf;

use micabox_error::Error;
use micabox_image::Config;
use micabox_image::store::Image;
use micabox_image::{Digest, Store, Trim};
use micabox_overlay::lower::LowerKind;
use micabox_parsers::{OpenDisk, RootDisk};
use micabox_spec::{ImageName, Setup};
use micabox_state::{BaseName, Record};

/// What a sandbox is made from.
#[derive(Clone, Debug)]
pub enum Base {
    /// An image in the store.
    Image(Box<Image>),
    /// A filesystem in one of the user's files.
    Disk(OpenDisk),
}

impl Base {
    /// Finds the base of the sandbox with this record.
    ///
    /// # Errors
    /// [`Error::Store`] if the image is no longer in the store; [`Error::RootDisk`] if the root
    /// disk has changed or can't be used.
    pub fn of(store: &Store, record: &Record) -> Result<Self, Error> {
        Self::find(store, &record.base, &record.name)
    }

    /// Finds the base of the sandbox or snapshot `of`.
    pub fn find(store: &Store, name: &BaseName, of: &str) -> Result<Self, Error> {
        match name {
            BaseName::Disk(disk) => Ok(Self::Disk(disk.reopen()?)),
            BaseName::DiskElsewhere { .. } => Err(Error::RootDiskUnnamed(of.to_owned())),
            BaseName::Image(image) => {
                let mut found = store.image_by_digest(&digest_of(image)?)?;
                // The reference under which the image was requested.
                found.reference = image.reference.as_ref().and_then(|name| name.parse().ok());
                Self::Image(Box::new(found)).trimmed(store, &image.trim)
            }
        }
    }

    /// Returns the base without what `trim` names, a view that the store makes if it does not have it.
    /// An empty list gives the whole image.
    ///
    /// # Errors
    /// [`Error::NotTrimmed`] for a root disk, unless the list is empty; [`Error::Store`].
    pub fn trimmed(self, store: &Store, trim: &Trim) -> Result<Self, Error> {
        match self {
            Self::Image(image) if image.trim != *trim => {
                Ok(Self::Image(Box::new(store.trimmed(&image, trim)?)))
            }
            Self::Disk(_) if !trim.is_empty() => Err(Error::NotTrimmed("a root disk")),
            base => Ok(base),
        }
    }

    /// Returns the image's configuration; the default one for a root disk, which has none.
    pub fn config(&self) -> Config {
        match self {
            Self::Image(image) => image.config.config().clone().unwrap_or_default(),
            Self::Disk(_) => Config::default(),
        }
    }

    /// Returns the base's name for the record.
    pub fn name(&self) -> BaseName {
        match self {
            Self::Image(image) => BaseName::Image(image_name(image)),
            Self::Disk(disk) => BaseName::Disk(disk.disk().clone()),
        }
    }

    /// Returns the root disk, if the base is one.
    pub fn disk(&self) -> Option<&RootDisk> {
        match self {
            Self::Disk(disk) => Some(disk.disk()),
            Self::Image(_) => None,
        }
    }

    /// Opens the base's files for reading. Returns their format and the files in order.
    pub fn lower_files(&self) -> Result<(LowerKind, Vec<File>), Error> {
        match self {
            Self::Image(image) => Ok((LowerKind::Erofs, micabox_holders::for_reading(image)?)),
            Self::Disk(disk) => disk.lower_files(),
        }
    }

    /// Returns the path that errors about the base's metadata name.
    pub fn metadata_path(&self) -> PathBuf {
        match self {
            Self::Image(image) => image.fsmeta.clone(),
            Self::Disk(disk) => disk.disk().path.clone(),
        }
    }
}

/// Returns the digest of an image's manifest.
///
/// # Errors
/// [`Error::BadRecord`] if it is not a digest.
pub fn digest_of(image: &ImageName) -> Result<Digest, Error> {
    let digest = image.parse_digest();
    digest.map_err(|_| Error::BadRecord(image.digest.clone()))
}

/// Returns an image's name, with what its view lacks.
pub fn image_name(image: &Image) -> ImageName {
    ImageName {
        trim: image.trim.clone(),
        ..ImageName::new(image.reference.as_ref(), &image.manifest_digest)
    }
}

/// Returns the digests of the manifests of the images that a sandbox mounts.
///
/// # Errors
/// As [`digest_of`].
pub fn mounted_images(setup: &Setup) -> Result<Vec<Digest>, Error> {
    let images = setup.images().into_iter();
    images.map(|(image, _)| digest_of(image)).collect()
}
