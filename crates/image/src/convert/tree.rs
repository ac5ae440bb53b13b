//! Builds one layer's filesystem from an archive's entries, by OCI's rules.
//!
//! `docs/oci.md` says how ambiguous archives are read, and which other engines read them the same
//! way.

mod links;
mod paths;

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Seek, Write};

use micabox_erofs::{
    Data, Error as ErofsError, InodeId, Kind, Metadata, Options, Summary, Writer, Xattr, format,
    overlay,
};
use micabox_tar::{Kind as Type, Member, Records, XattrError, printable, whiteout};

use self::links::PendingLinks;
use super::error::Reason;
use super::memory::{Exceeded, Memory};
use super::path::{self, components};
use super::xattr;
use crate::limits::Limit;
use crate::{ENTRY_MEMORY, Limits};

/// Most symbolic links in an entry's path, as in Linux.
const SYMLINKS_MAX: u32 = 40;
/// The permissions of every symbolic link in Linux, whatever an archive says.
pub(super) const SYMLINK_MODE: u16 = 0o777;
/// Linux's `PATH_MAX` without the final NUL.
const SYMLINK_TARGET_MAX: usize = 4095;

/// One layer, between its archive and its image.
pub(super) struct LayerTree<W> {
    writer: Writer<W>,
    limits: Limits,
    /// Number of entries and implied directories.
    count: u64,
    memory: Memory,
    /// Names to hide in lower layers, unless an entry of this layer has them at the end.
    whiteouts: Vec<(InodeId, Box<[u8]>)>,
    /// The same for devices 0/0; a later entry with the same name removes one.
    device_whiteouts: BTreeSet<(InodeId, Box<[u8]>)>,
    opaque: BTreeSet<InodeId>,
    links: PendingLinks,
    /// AUFS's link contents by name.
    aufs_links: HashMap<Box<[u8]>, InodeId>,
    /// The parent directory of the last entry: archives list files directory by directory.
    recent: Option<(Vec<Vec<u8>>, InodeId)>,
    dropped_xattrs: u64,
}

/// A member of the archive with its records, which contain its extended attributes.
#[derive(Clone, Copy)]
struct Entry<'a> {
    member: &'a Member,
    records: &'a Records,
}

/// A finished layer.
pub(super) struct Finished<W> {
    pub out: W,
    pub summary: Summary,
    /// Attributes and ACLs that were left out.
    pub dropped_xattrs: u64,
}

/// Why an entry can't be part of the layer.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("it has no name")]
    NoName,
    #[error("`{0}`, which it is in, is not a directory")]
    NotADirectory(String),
    #[error("its path leads through more than {SYMLINKS_MAX} symbolic links")]
    SymlinkLoop,
    #[error("it is a whiteout without a name")]
    Whiteout,
    #[error("it is a hard link to `{0}`, a directory")]
    LinkToDirectory(String),
    #[error("it is a hard link to `{0}`: {1}")]
    LinkTarget(String, path::Problem),
    #[error("a symbolic link's target has {0} bytes; 1 to {SYMLINK_TARGET_MAX} are possible")]
    SymlinkTarget(usize),
    #[error("device number {0}:{1} is out of range; Linux has 4095:1048575")]
    Device(u32, u32),
    #[error(transparent)]
    Path(#[from] path::Problem),
    #[error(transparent)]
    Xattr(#[from] xattr::Problem),
    #[error(transparent)]
    Erofs(#[from] ErofsError),
    #[error("exceeds `entries`")]
    TooMany,
    #[error("exceeds `{}`", .0.setting)]
    Memory(Exceeded),
}

impl<W: Write + Seek> LayerTree<W> {
    /// Starts an empty layer in `out`, from a blob of `blob` bytes.
    pub(super) fn new(
        out: W,
        uuid: [u8; 16],
        blob: Option<u64>,
        limits: &Limits,
    ) -> Result<Self, Reason> {
        // Until the archive has an entry for it, the root is implied, like a missing parent.
        let options = Options {
            uuid,
            root: overlay::implied_directory(),
        };
        Ok(Self {
            writer: Writer::new(out, options).map_err(erofs_reason)?,
            limits: limits.clone(),
            count: 0,
            memory: Memory::new(limits, blob),
            whiteouts: Vec::new(),
            device_whiteouts: BTreeSet::new(),
            opaque: BTreeSet::new(),
            links: PendingLinks::default(),
            aufs_links: HashMap::new(),
            recent: None,
            dropped_xattrs: 0,
        })
    }

    /// Returns the number of entries and implied directories so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Adds the archive's next entry; `body` reads a file's stored bytes. Returns where they are
    /// now, if they were stored.
    pub(super) fn add(
        &mut self,
        member: &Member,
        records: &Records,
        body: &mut dyn Read,
    ) -> Result<Option<&Data>, Reason> {
        match self.try_add(Entry { member, records }, body) {
            Ok(None) => Ok(None),
            Ok(Some(inode)) => match &self.writer.tree().inode(inode).kind {
                Kind::File { size: 1.., data } => Ok(Some(data)),
                _ => Ok(None),
            },
            Err(problem) => Err(self.reason(&member.path, problem)),
        }
    }

    /// Resolves hard links and whiteouts, which need the whole archive, and writes the image's
    /// metadata.
    pub(super) fn finish(mut self) -> Result<Finished<W>, Reason> {
        self.resolve_links()?;
        let mut whiteouts = std::mem::take(&mut self.whiteouts);
        whiteouts.retain(|(directory, name)| self.is_wanted(*directory, name));
        whiteouts.extend(std::mem::take(&mut self.device_whiteouts));
        for (directory, name) in whiteouts {
            overlay::add_whiteout(self.writer.tree(), directory, &name).map_err(erofs_reason)?;
        }
        for &directory in &self.opaque {
            overlay::set_opaque(self.writer.tree(), directory);
        }
        let (out, summary) = self.writer.finish().map_err(erofs_reason)?;
        Ok(Finished {
            out,
            summary,
            dropped_xattrs: self.dropped_xattrs,
        })
    }

    /// Returns whether a whiteout must hide a name in lower layers: not if this layer has an entry
    /// there. A directory there is made opaque instead.
    fn is_wanted(&mut self, directory: InodeId, name: &[u8]) -> bool {
        match self.writer.tree().lookup(directory, name) {
            // Some archivers write whiteouts for a directory and for all its entries. A directory
            // that exists only because of whiteouts is not an entry of this layer.
            Some(inode) if self.is_only_implied(inode) => {
                self.writer.tree().unlink(directory, name);
                true
            }
            Some(inode) => {
                if self.writer.tree().inode(inode).is_directory() {
                    self.opaque.insert(inode);
                }
                false
            }
            None => true,
        }
    }

    /// Returns whether neither this inode nor any below it is from an entry of the archive.
    fn is_only_implied(&mut self, inode: InodeId) -> bool {
        let tree = self.writer.tree();
        let mut pending = vec![inode];
        while let Some(inode) = pending.pop() {
            let implied = |xattr: &Xattr| &*xattr.name == overlay::IMPLIED;
            if !tree.inode(inode).meta.xattrs.iter().any(implied) {
                return false;
            }
            pending.extend(tree.entries(inode).map(|(_, inode)| inode));
        }
        true
    }

    /// Returns the new inode, if there is one and it has a body.
    fn try_add(
        &mut self,
        entry: Entry<'_>,
        body: &mut dyn Read,
    ) -> Result<Option<InodeId>, Problem> {
        let Member { path, kind, .. } = entry.member;
        self.count_one(path.len() + kind.target().len())?;
        let path = components(path, self.limits.path_depth)?;
        let Some((&name, parents)) = path.split_last() else {
            return self.add_root(entry).map(|()| None);
        };
        if path[0].starts_with(whiteout::AUFS) && path[0] != whiteout::OPAQUE {
            if parents == [whiteout::AUFS_LINKS] && matches!(kind, Type::File { .. }) {
                let inode = self.new_inode(entry, body)?;
                self.aufs_links.insert(name.into(), inode);
                return Ok(Some(inode));
            }
            return Ok(None);
        }
        let directory = self.directory(parents)?;
        // A whiteout's name decides; its type has no meaning.
        if name == whiteout::OPAQUE {
            self.opaque.insert(directory);
            return Ok(None);
        }
        if name.starts_with(whiteout::AUFS) {
            return Ok(None);
        }
        if let Some(hidden) = name.strip_prefix(whiteout::PREFIX) {
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(Problem::Whiteout);
            }
            self.whiteouts.push((directory, hidden.into()));
            return Ok(None);
        }
        match kind {
            Type::Directory => self.add_directory(directory, name, entry)?,
            Type::HardLink(_) => self.add_hard_link(directory, name, entry)?,
            // overlayfs's own whiteout; every engine over overlayfs treats it as one.
            Type::CharDevice(0, 0) => {
                self.unlink(directory, name);
                self.device_whiteouts.insert((directory, name.into()));
            }
            _ => {
                let inode = self.new_inode(entry, body)?;
                self.link(directory, name, inode)?;
                return Ok(Some(inode));
            }
        }
        Ok(None)
    }

    fn add_root(&mut self, entry: Entry<'_>) -> Result<(), Problem> {
        if entry.member.kind != Type::Directory {
            return Err(Problem::NoName);
        }
        let root = self.writer.tree().root();
        self.update_directory(root, entry)
    }

    fn add_directory(
        &mut self,
        directory: InodeId,
        name: &[u8],
        entry: Entry<'_>,
    ) -> Result<(), Problem> {
        match self.writer.tree().lookup(directory, name) {
            Some(inode) if self.writer.tree().inode(inode).is_directory() => {
                self.update_directory(inode, entry)
            }
            _ => {
                let inode = self.new_inode(entry, &mut std::io::empty())?;
                self.link(directory, name, inode)
            }
        }
    }

    /// Updates a directory from its second entry, or from its first one after entries inside: its
    /// contents stay, its attributes become the newer ones.
    fn update_directory(&mut self, inode: InodeId, entry: Entry<'_>) -> Result<(), Problem> {
        let mut metadata = self.metadata(entry)?;
        let old = &mut self.writer.tree().inode_mut(inode).meta;
        let mut xattrs = std::mem::take(&mut old.xattrs);
        xattrs.retain(|xattr| &*xattr.name != overlay::IMPLIED);
        metadata.xattrs = xattr::union(xattrs, metadata.xattrs);
        *old = metadata;
        Ok(())
    }

    /// Makes an inode for an entry, without a name yet.
    fn new_inode(&mut self, entry: Entry<'_>, body: &mut dyn Read) -> Result<InodeId, Problem> {
        let metadata = self.metadata(entry)?;
        let kind = match &entry.member.kind {
            Type::File { size: 0, .. } => Kind::EMPTY_FILE,
            Type::File { size, segments } => {
                let size = *size;
                let data = match segments {
                    None => self.writer.body(size, body)?,
                    Some(segments) => self.writer.sparse_body(size, segments, body)?,
                };
                self.charge(data_memory(&data))?;
                Kind::File { size, data }
            }
            Type::Symlink(target) => match target.len() {
                1..=SYMLINK_TARGET_MAX => Kind::Symlink(target.as_slice().into()),
                length => return Err(Problem::SymlinkTarget(length)),
            },
            Type::CharDevice(major, minor) => Kind::CharDevice(device(*major, *minor)?),
            Type::BlockDevice(major, minor) => Kind::BlockDevice(device(*major, *minor)?),
            Type::Fifo => Kind::Fifo,
            Type::Directory => Kind::directory(),
            // A hard link has no inode of its own; see `add_hard_link`.
            Type::HardLink(_) => Kind::EMPTY_FILE,
        };
        Ok(self.writer.tree().add(metadata, kind))
    }

    fn metadata(&mut self, entry: Entry<'_>) -> Result<Metadata, Problem> {
        let (xattrs, dropped) = xattr::from_records(entry.records, self.limits.xattr_size)?;
        self.dropped_xattrs += dropped;
        self.charge(xattr::memory(&xattrs))?;
        let attributes = &entry.member.attributes;
        Ok(Metadata {
            mode: match entry.member.kind {
                Type::Symlink(_) => SYMLINK_MODE,
                _ => attributes.mode,
            },
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: attributes.mtime,
            xattrs,
        })
    }

    /// Gives `inode` a name, and removes what had the name before, with everything below it.
    fn link(&mut self, directory: InodeId, name: &[u8], inode: InodeId) -> Result<(), Problem> {
        if self.writer.tree().link(directory, name, inode)?.is_some() {
            self.recent = None;
        }
        if !self.device_whiteouts.is_empty() {
            self.device_whiteouts.remove(&(directory, name.into()));
        }
        Ok(())
    }

    fn unlink(&mut self, directory: InodeId, name: &[u8]) {
        self.writer.tree().unlink(directory, name);
        self.recent = None;
    }

    /// Counts an entry with `names` bytes of names.
    fn count_one(&mut self, names: usize) -> Result<(), Problem> {
        self.count += 1;
        if self.count > self.limits.entries {
            return Err(Problem::TooMany);
        }
        self.charge(ENTRY_MEMORY + names as u64)
    }

    /// Counts memory that is held until the layer is finished.
    fn charge(&mut self, bytes: u64) -> Result<(), Problem> {
        self.memory.take(bytes).map_err(Problem::Memory)
    }

    /// Returns the error with the entry's name.
    fn reason(&self, name: &[u8], problem: Problem) -> Reason {
        let entry = printable(name);
        let limit = |setting, limit| Reason::Limit {
            setting,
            limit,
            entry: Some(entry.clone()),
        };
        match problem {
            Problem::TooMany => limit(Limit::Entries, self.limits.entries),
            Problem::Memory(Exceeded {
                setting,
                limit: most,
            }) => limit(setting, most),
            Problem::Path(path::Problem::TooDeep)
            | Problem::LinkTarget(_, path::Problem::TooDeep) => {
                limit(Limit::PathDepth, self.limits.path_depth)
            }
            Problem::Xattr(xattr::Problem::Archive(XattrError::TooLarge)) => {
                limit(Limit::XattrSize, self.limits.xattr_size)
            }
            Problem::Erofs(error @ (ErofsError::Output(_) | ErofsError::ImageTooLarge)) => {
                erofs_reason(error)
            }
            problem => Reason::Entry {
                entry,
                problem: problem.to_string(),
            },
        }
    }
}

/// Returns the memory that a file's list of pieces takes.
pub(super) fn data_memory(data: &Data) -> u64 {
    match data {
        Data::Contiguous { .. } => 0,
        Data::Chunked(chunks) => size_of_val(&*chunks.blocks) as u64,
    }
}

fn device(major: u32, minor: u32) -> Result<u32, Problem> {
    format::encode_device(major, minor).ok_or(Problem::Device(major, minor))
}

pub(super) fn erofs_reason(error: ErofsError) -> Reason {
    match error {
        ErofsError::Output(error) => Reason::Write(error),
        error => Reason::Erofs(error.to_string()),
    }
}
