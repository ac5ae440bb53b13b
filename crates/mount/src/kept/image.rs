//! EROFS images, as the members of an archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};

use micabox_erofs::format::{FileType, decode_device, encode_device};
use micabox_erofs::reader::Inode;
use micabox_erofs::{
    InodeId, Kind as ImageKind, Metadata, Options, Reader, Segment, Writer, Xattr,
};
use micabox_memfs::{Errno, Filesystem};
use micabox_tar::{Attributes, Kind, Member};

use super::save::{Members, walk};
use super::sent::Sender;
use super::{BUFFER, KeepError, ReadAt};

/// Writes a filesystem as an image.
pub(super) fn write(files: &Filesystem, file: &File) -> Result<(), KeepError> {
    let root = Metadata {
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: micabox_tar::Timestamp::EPOCH,
        xattrs: Vec::new(),
    };
    let options = Options {
        // No other image is on the same device.
        uuid: [0; 16],
        root,
    };
    let mut image = Image {
        writer: Writer::new(BufWriter::with_capacity(BUFFER, file), options)?,
        named: HashMap::new(),
    };
    walk(files, &mut image)?;
    let (mut output, summary) = image.writer.finish()?;
    output.flush()?;
    file.set_len(u64::from(summary.blocks) * micabox_erofs::BLOCK_SIZE)?;
    Ok(())
}

/// An image that members are added to.
struct Image<W> {
    writer: Writer<W>,
    /// All files by path: directories, and those that links are other names of.
    named: HashMap<Vec<u8>, InodeId>,
}

impl<W: Write + std::io::Seek> Members for Image<W> {
    fn take(&mut self, member: &Member, read: &mut ReadAt<'_, KeepError>) -> Result<(), KeepError> {
        let metadata = metadata(&member.attributes);
        if member.path.is_empty() {
            let root = self.writer.tree().root();
            self.writer.tree().inode_mut(root).meta = metadata;
            self.named.insert(Vec::new(), root);
            return Ok(());
        }
        let missing = || KeepError::file(&member.path, Errno::NOENT);
        let id = match &member.kind {
            Kind::HardLink(first) => *self.named.get(first).ok_or_else(missing)?,
            kind => {
                let kind = self.kind(kind, &member.path, read)?;
                self.writer.tree().add(metadata, kind)
            }
        };
        let slash = member.path.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = match slash {
            Some(at) => (&member.path[..at], &member.path[at + 1..]),
            None => (&[][..], &member.path[..]),
        };
        let parent = *self.named.get(parent).ok_or_else(missing)?;
        self.writer.tree().link(parent, name, id)?;
        self.named.insert(member.path.clone(), id);
        Ok(())
    }
}

impl<W: Write + std::io::Seek> Image<W> {
    fn kind(
        &mut self,
        kind: &Kind,
        path: &[u8],
        read: &mut ReadAt<'_, KeepError>,
    ) -> Result<ImageKind, KeepError> {
        let device = |major, minor| {
            encode_device(major, minor).ok_or_else(|| KeepError::file(path, Errno::OVERFLOW))
        };
        Ok(match kind {
            Kind::File { size, segments } => {
                let whole = [Segment::whole(*size)];
                let segments = segments.as_deref().unwrap_or(&whole);
                let mut body = Stored::new(segments, read);
                let data = self.writer.sparse_body(*size, segments, &mut body);
                if let Some(error) = body.error {
                    return Err(error);
                }
                ImageKind::File {
                    size: *size,
                    data: data?,
                }
            }
            Kind::Symlink(target) => ImageKind::Symlink(target.as_slice().into()),
            Kind::Directory | Kind::HardLink(_) => ImageKind::directory(),
            Kind::CharDevice(major, minor) => ImageKind::CharDevice(device(*major, *minor)?),
            Kind::BlockDevice(major, minor) => ImageKind::BlockDevice(device(*major, *minor)?),
            Kind::Fifo => ImageKind::Fifo,
        })
    }
}

/// The bytes of some segments, without gaps.
struct Stored<'a, E> {
    segments: &'a [Segment],
    /// Bytes of the first that were read.
    done: u64,
    read: &'a mut ReadAt<'a, E>,
    error: Option<E>,
}

impl<'a, E> Stored<'a, E> {
    fn new(segments: &'a [Segment], read: &'a mut ReadAt<'a, E>) -> Self {
        Self {
            segments,
            done: 0,
            read,
            error: None,
        }
    }
}

impl<E> Read for Stored<'_, E> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while let Some((first, rest)) = self.segments.split_first() {
            let left = first.length - self.done;
            if left == 0 {
                (self.segments, self.done) = (rest, 0);
                continue;
            }
            let count = left.min(buffer.len() as u64) as usize;
            let piece = buffer.get_mut(..count).unwrap_or_default();
            if let Err(error) = (self.read)(first.offset + self.done, piece) {
                self.error = Some(error);
                return Err(std::io::ErrorKind::Other.into());
            }
            self.done += count as u64;
            return Ok(count);
        }
        Ok(0)
    }
}

fn metadata(attributes: &Attributes) -> Metadata {
    let xattrs = attributes.xattrs.iter();
    Metadata {
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        mtime: attributes.mtime,
        xattrs: xattrs
            .map(|(name, value)| Xattr::new(&name[..], &value[..]))
            .collect(),
    }
}

/// Reads an image, and sends all that is in it.
pub(super) fn read(file: File, sender: &mut Sender<impl Write>) -> Result<(), KeepError> {
    let image = Reader::open(file)?;
    let mut found: Vec<(Vec<u8>, Inode)> = Vec::new();
    image.walk(|path, inode| {
        found.push((path.to_vec(), inode.clone()));
        Ok(())
    })?;
    // First names of files that have several.
    let mut linked: HashMap<u64, Vec<u8>> = HashMap::new();
    for (path, inode) in found {
        let first = linked.get(&inode.nid).cloned();
        let kind = match first {
            Some(first) => Kind::HardLink(first),
            None => match kind(&image, &inode)? {
                Some(kind) => kind,
                None => continue,
            },
        };
        if inode.nlink > 1 && inode.kind != FileType::Directory {
            linked.entry(inode.nid).or_insert_with(|| path.clone());
        }
        let xattrs = image.xattrs(&inode)?.into_iter();
        let attributes = Attributes {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            mtime: inode.mtime,
            xattrs: xattrs
                .map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec()))
                .collect(),
        };
        let segments = match &kind {
            Kind::File { segments, .. } => segments.clone().unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut read = |offset, buffer: &mut [u8]| image.read(&inode, offset, buffer).map(drop);
        let mut body = Stored::new(&segments, &mut read);
        let member = Member {
            path,
            kind,
            attributes,
        };
        let added = sender.add(&member, &mut body);
        if let Some(error) = body.error {
            return Err(error.into());
        }
        added?;
    }
    Ok(())
}

/// Returns a member's kind; None for a socket, which no archive has.
fn kind(image: &Reader<File>, inode: &Inode) -> Result<Option<Kind>, KeepError> {
    let (major, minor) = decode_device(inode.device);
    Ok(Some(match inode.kind {
        FileType::Regular => {
            let extents = image.extents(inode)?.into_iter();
            let stored = extents.filter(|extent| extent.address.is_some());
            let segment = |offset, length| Segment { offset, length };
            let segments = stored.map(|extent| segment(extent.offset, extent.length));
            Kind::File {
                size: inode.size,
                segments: Some(segments.collect()),
            }
        }
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink(image.read_link(inode)?.into_vec()),
        FileType::CharDevice => Kind::CharDevice(major, minor),
        FileType::BlockDevice => Kind::BlockDevice(major, minor),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => return Ok(None),
    }))
}
