//! Reads a layer's metadata into memory.

use std::collections::{HashMap, HashSet};

use crate::format::FileType;
use crate::overlay;
use crate::reader::{self, Budget, Reader, SharedXattrs};
use crate::source::{Cached, ReadAt};
use crate::tree::{Chunks, Data, InodeId, Kind, Metadata, Tree};
use crate::{Error, Result};

/// A layer in memory.
pub(super) struct Loaded {
    /// Its tree, including markers. File data is addressed in the flat space.
    pub tree: Tree,
    /// Link counts of inodes other than directories, as in the image, by inode.
    pub nlinks: Vec<u32>,
    /// Length of the source in bytes.
    pub size: u64,
    /// Length of the image in blocks, from its superblock.
    pub blocks: u32,
}

/// Reads a layer that starts at `first_block` of the flat space.
pub(super) fn load<R: ReadAt + ?Sized>(image: &R, first_block: u32) -> Result<Loaded> {
    let cached = Cached::new(image).map_err(Error::Read)?;
    let size = cached.size().map_err(Error::Read)?;
    let reader = Reader::open(cached)?;
    if !reader.devices().is_empty() {
        return Err(Error::Unsupported("further devices, in a layer"));
    }
    let root = reader.inode(reader.root())?;
    if root.kind != FileType::Directory {
        return Err(Error::Corrupt("its root is not a directory"));
    }
    let mut loader = Loader {
        budget: Budget::new(&reader),
        shared: SharedXattrs::new(),
        reader: &reader,
        first_block,
        links: HashMap::new(),
        nlinks: vec![0],
    };
    loader.budget.take(&reader, &root)?;
    let mut tree = Tree::new(loader.metadata(&root)?);
    let mut seen = HashSet::from([root.nid]);
    let mut pending = vec![(root, tree.root())];
    while let Some((directory, id)) = pending.pop() {
        let mut entries = Vec::new();
        loader
            .reader
            .for_each_entry(&directory, |name, nid, kind| {
                let id = match loader.links.get(&nid) {
                    Some(&id) => id,
                    None => {
                        let inode = loader.reader.inode(nid)?;
                        if inode.kind != kind {
                            return Err(Error::CorruptInode {
                                nid,
                                problem: "its type is not that of its directory entry",
                            });
                        }
                        let is_directory = inode.kind == FileType::Directory;
                        if is_directory && !seen.insert(nid) {
                            return Err(Error::CorruptInode {
                                nid,
                                problem: "it is a directory with several names",
                            });
                        }
                        let id = loader.add(&mut tree, &inode)?;
                        if is_directory {
                            pending.push((inode, id));
                        }
                        id
                    }
                };
                entries.push((name.into(), id));
                Ok(())
            })?;
        tree.fill(id, entries);
    }
    Ok(Loaded {
        tree,
        nlinks: loader.nlinks,
        size,
        blocks: reader.blocks(),
    })
}

struct Loader<'r, R> {
    reader: &'r Reader<R>,
    first_block: u32,
    budget: Budget,
    shared: SharedXattrs,
    /// Inodes with several names, by inode number.
    links: HashMap<u64, InodeId>,
    nlinks: Vec<u32>,
}

impl<R: ReadAt> Loader<'_, R> {
    fn add(&mut self, tree: &mut Tree, inode: &reader::Inode) -> Result<InodeId> {
        self.budget.take(self.reader, inode)?;
        let kind = match inode.kind {
            FileType::Directory => Kind::directory(),
            FileType::Regular => Kind::File {
                size: inode.size,
                data: self.data(inode)?,
            },
            FileType::Symlink => Kind::Symlink(self.reader.read_link(inode)?),
            FileType::CharDevice => Kind::CharDevice(inode.device),
            FileType::BlockDevice => Kind::BlockDevice(inode.device),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        };
        let id = tree.add(self.metadata(inode)?, kind);
        self.nlinks.push(inode.nlink);
        if inode.nlink > 1 && inode.kind != FileType::Directory {
            self.links.insert(inode.nid, id);
        }
        Ok(id)
    }

    fn metadata(&mut self, inode: &reader::Inode) -> Result<Metadata> {
        let xattrs = self.reader.xattrs_with(inode, &mut self.shared)?;
        let redirected = inode.kind == FileType::Directory
            && xattrs.iter().any(|x| &*x.name == overlay::REDIRECT);
        if redirected {
            return Err(Error::Unsupported("redirected directories, in a layer"));
        }
        Ok(Metadata {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            mtime: inode.mtime,
            xattrs,
        })
    }

    /// Returns the position of a file's bytes in the flat space.
    fn data(&self, inode: &reader::Inode) -> Result<Data> {
        let shift = |block: u32| {
            block
                .checked_add(self.first_block)
                .filter(|&block| block != Chunks::HOLE)
                .ok_or(Error::ImageTooLarge)
        };
        match self.reader.data(inode)? {
            None => Err(Error::Unsupported("files packed into inodes, in a layer")),
            Some(data) if inode.size == 0 => Ok(data),
            Some(Data::Contiguous { block }) => Ok(Data::Contiguous {
                block: shift(block)?,
            }),
            Some(Data::Chunked(mut chunks)) => {
                for block in &mut chunks.blocks {
                    if *block != Chunks::HOLE {
                        *block = shift(*block)?;
                    }
                }
                Ok(Data::Chunked(chunks))
            }
        }
    }
}
