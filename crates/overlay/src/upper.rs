//! What an upper layer is read from.

use std::io;

use micabox_ext4::{BlockDevice, Errno, Error, Ext4, Ino, Segment, Stat};

use crate::words;

/// A filesystem with files of one or more layers, for reading. Files have numbers, which no other
/// file gets.
pub trait Upper {
    /// Returns the directory with the upper layer; none if the sandbox never started.
    ///
    /// # Errors
    /// [`UpperError`], like those of all others.
    fn layer(&mut self) -> Result<Option<Ino>>;

    /// Returns a directory's entry with a name.
    ///
    /// # Errors
    /// [`UpperError`].
    fn entry(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Ino>>;

    /// Returns a file's attributes.
    ///
    /// # Errors
    /// [`UpperError`].
    fn attributes(&mut self, file: Ino) -> Result<Stat>;

    /// Returns the names in a directory with their files, in any order.
    ///
    /// # Errors
    /// [`UpperError`].
    fn entries(&mut self, directory: Ino) -> Result<Entries>;

    /// Reads from a file. Returns the number of bytes, 0 at its end.
    ///
    /// # Errors
    /// [`UpperError`].
    fn read_at(&mut self, file: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Returns the parts of a file that are not holes, ascending.
    ///
    /// # Errors
    /// [`UpperError`].
    fn data(&mut self, file: Ino) -> Result<Vec<Segment>>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`UpperError`].
    fn target(&mut self, link: Ino) -> Result<Vec<u8>>;

    /// Returns the value of an extended attribute, if the file has it.
    ///
    /// # Errors
    /// [`UpperError`].
    fn attribute(&mut self, file: Ino, name: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Returns the names of a file's extended attributes.
    ///
    /// # Errors
    /// [`UpperError`].
    fn attribute_names(&mut self, file: Ino) -> Result<Vec<Box<[u8]>>>;

    /// Returns the size of the whole filesystem in bytes.
    fn capacity(&self) -> u64;
}

/// Names with their files.
pub type Entries = Vec<(Box<[u8]>, Ino)>;

/// Why an upper layer can't be read.
#[derive(Debug, thiserror::Error)]
pub enum UpperError {
    /// From a disk.
    #[error(transparent)]
    Disk(#[from] Error),
    /// From a folder of the host.
    #[error(transparent)]
    Folder(#[from] io::Error),
}

type Result<T> = std::result::Result<T, UpperError>;

impl<D: BlockDevice> Upper for Ext4<D> {
    fn layer(&mut self) -> Result<Option<Ino>> {
        self.entry(micabox_ext4::ROOT, words::ROOT)
    }

    fn entry(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Ino>> {
        match self.lookup(directory, name) {
            Ok(ino) => Ok(Some(ino)),
            Err(error) if error.errno() == Errno::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn attributes(&mut self, file: Ino) -> Result<Stat> {
        Ok(self.stat(file)?)
    }

    fn entries(&mut self, directory: Ino) -> Result<Entries> {
        let entries = self.read_dir(directory)?.into_iter();
        Ok(entries.map(|entry| (entry.name, entry.ino)).collect())
    }

    fn read_at(&mut self, file: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.read(file, offset, buffer)?)
    }

    fn data(&mut self, file: Ino) -> Result<Vec<Segment>> {
        Ok(self.segments(file)?)
    }

    fn target(&mut self, link: Ino) -> Result<Vec<u8>> {
        Ok(self.read_link(link)?)
    }

    fn attribute(&mut self, file: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.xattr(file, name) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.errno() == Errno::NoAttribute => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn attribute_names(&mut self, file: Ino) -> Result<Vec<Box<[u8]>>> {
        Ok(self.xattr_names(file)?)
    }

    fn capacity(&self) -> u64 {
        let statistics = self.statistics();
        statistics
            .blocks
            .saturating_mul(statistics.block_size.into())
    }
}

impl<U: Upper + ?Sized> Upper for Box<U> {
    fn layer(&mut self) -> Result<Option<Ino>> {
        (**self).layer()
    }

    fn entry(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Ino>> {
        (**self).entry(directory, name)
    }

    fn attributes(&mut self, file: Ino) -> Result<Stat> {
        (**self).attributes(file)
    }

    fn entries(&mut self, directory: Ino) -> Result<Entries> {
        (**self).entries(directory)
    }

    fn read_at(&mut self, file: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        (**self).read_at(file, offset, buffer)
    }

    fn data(&mut self, file: Ino) -> Result<Vec<Segment>> {
        (**self).data(file)
    }

    fn target(&mut self, link: Ino) -> Result<Vec<u8>> {
        (**self).target(link)
    }

    fn attribute(&mut self, file: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        (**self).attribute(file, name)
    }

    fn attribute_names(&mut self, file: Ino) -> Result<Vec<Box<[u8]>>> {
        (**self).attribute_names(file)
    }

    fn capacity(&self) -> u64 {
        (**self).capacity()
    }
}
