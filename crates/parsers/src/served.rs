//! A folder of the host, read through its server: an upper layer in it as the guest reads it, or all of it.

use std::fs::File;
use std::io;

use micabox_ext4::{Ino, Segment, Stat, Timestamp};
use micabox_overlay::upper::{Entries, Upper, UpperError};
use micabox_share::{Client, ROOT};

/// The directory in the folder.
const LAYER: &[u8] = b"upper";

/// A conversation with the folder's server.
#[derive(Debug)]
pub struct Served {
    client: Client,
    capacity: u64,
    /// The name of the layer in the folder; none if it is all of that.
    layer: Option<&'static [u8]>,
}

impl Served {
    /// Begins the conversation about a folder with an upper layer, on the socket that came with the server.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn new(socket: File) -> io::Result<Self> {
        Self::begin(socket, Some(LAYER))
    }

    /// Does the same where the layer is the folder itself.
    ///
    /// # Errors
    /// As above.
    pub fn whole(socket: File) -> io::Result<Self> {
        Self::begin(socket, None)
    }

    fn begin(socket: File, layer: Option<&'static [u8]>) -> io::Result<Self> {
        let mut client = Client::new(socket.into())?;
        let capacity = client.capacity()?;
        Ok(Self {
            client,
            capacity,
            layer,
        })
    }
}

type Result<T> = std::result::Result<T, UpperError>;

impl Upper for Served {
    fn layer(&mut self) -> Result<Option<Ino>> {
        let layer = match self.layer {
            Some(name) => self.client.lookup(ROOT, name)?,
            None => Some(ROOT),
        };
        Ok(layer.map(number).transpose()?)
    }

    fn entry(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let entry = self.client.lookup(directory.into(), name)?;
        Ok(entry.map(number).transpose()?)
    }

    fn attributes(&mut self, file: Ino) -> Result<Stat> {
        let found = self.client.attributes(file.into())?;
        let time = |(seconds, nanos)| Timestamp { seconds, nanos };
        Ok(Stat {
            ino: file,
            // The kernel's modes have 16 bits.
            mode: (found.mode & 0xffff) as u16,
            links: found.links,
            uid: found.uid,
            gid: found.gid,
            size: found.size,
            blocks: found.blocks,
            device: found.device,
            atime: time(found.atime),
            mtime: time(found.mtime),
            ctime: time(found.ctime),
            crtime: Timestamp::default(),
            flags: 0,
            generation: 0,
        })
    }

    fn entries(&mut self, directory: Ino) -> Result<Entries> {
        let entries = self.client.entries(directory.into())?.into_iter();
        let numbered = entries.map(|(name, file)| Ok((name, number(file)?)));
        numbered.collect()
    }

    fn read_at(&mut self, file: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.client.read(file.into(), offset, buffer)?)
    }

    fn data(&mut self, file: Ino) -> Result<Vec<Segment>> {
        let mut segments = Vec::new();
        let mut offset = 0;
        while let Some((start, end)) = self.client.data(file.into(), offset)? {
            if start < offset || end <= start {
                return Err(io::Error::from(io::ErrorKind::InvalidData).into());
            }
            segments.push(Segment {
                offset: start,
                length: end - start,
            });
            offset = end;
        }
        Ok(segments)
    }

    fn target(&mut self, link: Ino) -> Result<Vec<u8>> {
        Ok(self.client.read_link(link.into())?)
    }

    fn attribute(&mut self, file: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.client.xattr(file.into(), name)?)
    }

    fn attribute_names(&mut self, file: Ino) -> Result<Vec<Box<[u8]>>> {
        Ok(self.client.xattr_names(file.into())?)
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }
}

/// Returns a file's number. The server counts from 1.
fn number(file: u64) -> io::Result<Ino> {
    let many = |_| io::Error::other("the folder has more than 4,294,967,295 files");
    Ino::try_from(file).map_err(many)
}
