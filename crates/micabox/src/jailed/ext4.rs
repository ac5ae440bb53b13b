//! An ext4 filesystem in a file, by itself.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::OwnedFd;

use micabox_ext4::check::{check, clear_errors};
use micabox_ext4::device::ReadOnly;
use micabox_ext4::export::{ExportError, Exporter};
use micabox_ext4::import::{Importer, Kind, Member};
use micabox_ext4::{Errno, Ext4, FileKind, Ino, Options, Owner, Segment, Stat, Timestamp, resize};
use micabox_image::Limits;
use micabox_image::convert::members::{self, MemberKind, Members};
use micabox_jail::{Call, CallError};
use serde::{Deserialize, Serialize};

use super::stream::Records;
use super::unread::HEADERS;
use super::{Fault, Files, Notes, Stream, length, records};

/// Bytes read from an archive, and from a file, at once.
const PIECE: usize = 1 << 20;

/// What one inode says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// Its number.
    pub inode: u32,
    /// Type and permissions.
    pub mode: u16,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Seconds and nanoseconds: last access,
    pub atime: (i64, u32),
    /// last change of the contents,
    pub mtime: (i64, u32),
    /// last change of the inode,
    pub ctime: (i64, u32),
    /// creation.
    pub crtime: (i64, u32),
    /// What a symbolic link says.
    pub target: Option<Vec<u8>>,
}

impl Attributes {
    /// The type; none for a mode that has none.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }
}

/// A name in a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// What has it, if that was asked for.
    pub attributes: Option<Attributes>,
}

/// What an inode says of itself, with its extended attributes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shown {
    /// All else.
    pub attributes: Attributes,
    /// Names and values of extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What there is to tell of the filesystem.
    pub notes: Notes,
}

/// Something that is wrong with a filesystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The inode that it is about.
    pub inode: Option<u32>,
    /// What is wrong.
    pub problem: String,
    /// All of it for people.
    pub text: String,
}

/// Sizes of a filesystem that has grown.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Grown {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks there were.
    pub blocks_before: u64,
    /// Blocks there are.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Inodes there are.
    pub inodes: u32,
}

/// A filesystem whose journal was replayed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Replayed {
    /// It was marked as having errors.
    pub had_errors: bool,
    /// It is not any more, or never was.
    pub is_sound: bool,
}

/// Where an archive is unpacked that has one top, whose name does not matter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Destination {
    /// A directory, or where the top is to be.
    pub path: Vec<u8>,
    /// The top's name in a directory that is there already.
    pub name: Vec<u8>,
    /// The top is a directory.
    pub is_directory: bool,
}

/// A job about a filesystem whose result comes at once.
pub type Result<T> = std::result::Result<T, CallError<Fault>>;

/// Names of a directory in order. Files: the filesystem, a pipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct List {
    path: Vec<u8>,
    long: bool,
}

/// What is said of a path, itself if it is a symbolic link. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Show {
    path: Vec<u8>,
}

/// A file's contents. Files: the filesystem, a pipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct Read {
    path: Vec<u8>,
}

/// A path as an archive, symbolic links followed. Files: the filesystem, a pipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct Export {
    path: Vec<u8>,
    /// What the archive calls it.
    name: Vec<u8>,
    xattrs: bool,
    /// Anything but a directory is refused.
    directory: bool,
}

/// Unpacks an archive. Files: the filesystem, the archive.
#[derive(Debug, Serialize, Deserialize)]
pub struct Import {
    /// Otherwise at the root, under the archive's own names.
    into: Option<Destination>,
}

/// What is wrong, as far as it is listed. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Check;

/// Replays the journal. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Replay;

/// Makes it larger. File: the filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub struct Grow {
    size: u64,
}

/// Names in the directory at `path`, in the order of their bytes.
///
/// # Errors
/// [`CallError`]; more come from reading them.
pub fn list(file: File, path: &[u8], long: bool) -> Result<Records<List, Listed>> {
    let path = path.to_vec();
    let list = List { path, long };
    Ok(Records::new(Stream::start(
        &list,
        file,
        Vec::new(),
        u64::MAX,
    )?))
}

/// What an inode says of itself.
///
/// # Errors
/// [`CallError`].
pub fn show(file: File, path: &[u8]) -> Result<Shown> {
    let path = path.to_vec();
    super::call(&Show { path }, file, Vec::new(), 0)
}

/// A file's contents, holes as zeros.
///
/// # Errors
/// [`CallError`]; more come from [`Stream::finish`].
pub fn read(file: File, path: &[u8]) -> Result<Stream<Read>> {
    let path = path.to_vec();
    Stream::start(&Read { path }, file, Vec::new(), u64::MAX)
}

/// The directory at `path` as an archive that says all there is to say.
///
/// # Errors
/// [`CallError`]; more come from [`Stream::finish`].
pub fn export(file: File, path: &[u8]) -> Result<Stream<Export>> {
    let export = Export {
        path: path.to_vec(),
        name: Vec::new(),
        xattrs: true,
        directory: true,
    };
    start_export(&export, file)
}

/// Whatever is at `path` as an archive without extended attributes, in which it is called
/// `name`.
///
/// # Errors
/// [`CallError`]; more come from [`Stream::finish`].
pub fn pack(file: File, path: &[u8], name: &[u8]) -> Result<Stream<Export>> {
    let export = Export {
        path: path.to_vec(),
        name: name.to_vec(),
        xattrs: false,
        directory: false,
    };
    start_export(&export, file)
}

fn start_export(export: &Export, file: File) -> Result<Stream<Export>> {
    // As for a sandbox's disk: what it has, and what an archive says of files.
    let size = length(&file).unwrap_or(0);
    let most = size.saturating_mul(2).saturating_add(HEADERS);
    Stream::start(export, file, Vec::new(), most)
}

/// Unpacks an archive, to the root or elsewhere: how many members, and bytes of contents.
///
/// # Errors
/// [`CallError`]: [`Fault::Disk`] is about the filesystem as a whole, [`Fault::Asked`] about
/// the archive, [`Fault::Output`] about a member that can't be unpacked.
pub fn import(file: File, archive: OwnedFd, into: Option<Destination>) -> Result<(u64, u64)> {
    let size = length(&file).unwrap_or(0);
    super::call(&Import { into }, file, vec![archive.into()], size)
}

/// What is wrong with a filesystem.
///
/// # Errors
/// [`CallError`].
pub fn findings(file: File) -> Result<Vec<Finding>> {
    super::call(&Check, file, Vec::new(), 0)
}

/// Puts what the journal has in its place, and takes a mark of errors away if nothing is wrong.
///
/// # Errors
/// [`CallError`].
pub fn replay(file: File) -> Result<Replayed> {
    let size = length(&file).unwrap_or(0);
    super::call(&Replay, file, Vec::new(), size)
}

/// Makes a filesystem `size` bytes large, which its file is already.
///
/// # Errors
/// [`CallError`].
pub fn grow(file: File, size: u64) -> Result<Grown> {
    let length = length(&file).unwrap_or(0).max(size);
    super::call(&Grow { size }, file, Vec::new(), length)
}

type Filesystem = Ext4<ReadOnly<File>>;

fn open(file: File) -> std::result::Result<Filesystem, Fault> {
    Ext4::open_read_only(ReadOnly(file), Options::default()).map_err(Fault::disk)
}

fn notes(filesystem: &Filesystem) -> Notes {
    Notes {
        damaged: filesystem.has_errors(),
        ..Notes::default()
    }
}

fn attributes(filesystem: &mut Filesystem, ino: Ino) -> std::result::Result<Attributes, Fault> {
    let stat = filesystem.stat(ino).map_err(Fault::disk)?;
    let target = match stat.kind() {
        Some(FileKind::Symlink) => Some(filesystem.read_link(ino).map_err(Fault::disk)?),
        _ => None,
    };
    let time = |time: Timestamp| (time.seconds, time.nanos);
    let Stat {
        mode,
        links,
        uid,
        gid,
        size,
        blocks,
        device,
        ..
    } = stat;
    Ok(Attributes {
        inode: ino,
        mode,
        links,
        uid,
        gid,
        size,
        blocks,
        device,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: time(stat.crtime),
        target,
    })
}

impl Call for List {
    const KIND: &'static str = "ext4-list";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Notes, Fault> {
        let mut files = Files::new(files);
        let mut filesystem = open(files.next()?)?;
        let mut output = BufWriter::new(files.next()?);
        let directory = filesystem.resolve(&self.path).map_err(Fault::disk)?;
        let mut names = filesystem.read_dir(directory).map_err(Fault::disk)?;
        names.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for entry in names {
            let attributes = match self.long {
                true => Some(attributes(&mut filesystem, entry.ino)?),
                false => None,
            };
            let name = entry.name.into_vec();
            let listed = Listed { name, attributes };
            records::write(&mut output, &listed).map_err(Fault::output)?;
        }
        output.flush().map_err(Fault::output)?;
        Ok(notes(&filesystem))
    }
}

impl Call for Show {
    const KIND: &'static str = "ext4-show";
    type Reply = Shown;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Shown, Fault> {
        let mut filesystem = open(Files::new(files).next()?)?;
        let ino = filesystem.resolve_no_follow(&self.path);
        let ino = ino.map_err(Fault::disk)?;
        let mut xattrs = Vec::new();
        for name in filesystem.xattr_names(ino).map_err(Fault::disk)? {
            let value = filesystem.xattr(ino, &name).map_err(Fault::disk)?;
            xattrs.push((name.into_vec(), value));
        }
        Ok(Shown {
            attributes: attributes(&mut filesystem, ino)?,
            xattrs,
            notes: notes(&filesystem),
        })
    }
}

impl Call for Read {
    const KIND: &'static str = "ext4-read";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Notes, Fault> {
        let mut files = Files::new(files);
        let mut filesystem = open(files.next()?)?;
        let mut output = files.next()?;
        let ino = filesystem.resolve(&self.path).map_err(Fault::disk)?;
        let mut buffer = vec![0; PIECE];
        let mut offset = 0;
        loop {
            let count = filesystem.read(ino, offset, &mut buffer);
            let count = count.map_err(Fault::disk)?;
            if count == 0 {
                return Ok(notes(&filesystem));
            }
            let piece = buffer.get(..count).unwrap_or_default();
            output.write_all(piece).map_err(Fault::output)?;
            offset += count as u64;
        }
    }
}

impl Call for Export {
    const KIND: &'static str = "ext4-export";
    type Reply = Notes;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Notes, Fault> {
        let mut files = Files::new(files);
        let mut filesystem = open(files.next()?)?;
        let output = BufWriter::with_capacity(PIECE, files.next()?);
        let ino = filesystem.resolve(&self.path).map_err(Fault::disk)?;
        if self.directory {
            let stat = filesystem.stat(ino).map_err(Fault::disk)?;
            if stat.kind() != Some(FileKind::Directory) {
                return Err(Fault::disk(micabox_ext4::Error::from(Errno::NotADirectory)));
            }
        }
        let mut export = Exporter::new(&filesystem, output);
        let xattr = |_: &[u8]| (!self.xattrs).then(Vec::new);
        export
            .tree(&mut filesystem, ino, &self.name, xattr)
            .and_then(|()| export.finish())
            .map_err(|error| match error {
                ExportError::Output(error) => Fault::output(error),
                error => Fault::asked(error),
            })
            .map(|exported| notes(&filesystem).with(exported))
    }
}

impl Call for Import {
    const KIND: &'static str = "ext4-import";
    type Reply = (u64, u64);
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<(u64, u64), Fault> {
        let mut files = Files::new(files);
        let file = files.next()?;
        let archive = BufReader::with_capacity(PIECE, files.next()?);
        let mut filesystem = Ext4::open(file, Options::default()).map_err(Fault::disk)?;
        let imported = unpack(&mut filesystem, archive, self.into.as_ref());
        // Even of a failed import, what there is must be whole.
        let closed = filesystem.close().map_err(Fault::disk);
        let imported = imported?;
        closed?;
        Ok(imported)
    }
}

fn unpack(
    filesystem: &mut Ext4<File>,
    archive: impl io::BufRead,
    into: Option<&Destination>,
) -> std::result::Result<(u64, u64), Fault> {
    let top = into.map(|into| top(filesystem, into)).transpose()?;
    let mut members = Members::new(archive, &Limits::default());
    let mut importer = Importer::new(filesystem);
    while let Some(member) = members.next_member().map_err(Fault::asked)? {
        let segments = member.segments.as_ref().map(|segments| {
            let each = segments.iter();
            each.map(|&(offset, length)| Segment { offset, length })
                .collect::<Vec<_>>()
        });
        let xattrs: Vec<_> = member
            .xattrs
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
            .collect();
        let placed = |path: &[u8]| match &top {
            Some(top) => below(top, path),
            None => path.to_vec(),
        };
        let path = placed(&member.path);
        let target = match member.kind {
            MemberKind::HardLink => placed(&member.target),
            _ => Vec::new(),
        };
        let given = Member {
            path: &path,
            kind: kind(&member, &target, segments.as_deref()),
            owner: Owner {
                permissions: member.mode,
                uid: member.uid,
                gid: member.gid,
            },
            mtime: Timestamp {
                seconds: member.mtime.0,
                nanos: member.mtime.1,
            },
            xattrs: &xattrs,
        };
        let added = importer.add(&given, &mut members.body());
        added.map_err(Fault::output)?;
    }
    let imported = importer.finish().map_err(Fault::output)?;
    Ok((imported.members, imported.bytes))
}

fn kind<'m>(
    member: &'m members::Member,
    target: &'m [u8],
    segments: Option<&'m [Segment]>,
) -> Kind<'m> {
    let (major, minor) = member.device;
    match member.kind {
        MemberKind::File => Kind::File {
            size: member.size,
            segments,
        },
        MemberKind::HardLink => Kind::HardLink(target),
        MemberKind::Symlink => Kind::Symlink(&member.target),
        MemberKind::CharDevice => Kind::CharDevice(major, minor),
        MemberKind::BlockDevice => Kind::BlockDevice(major, minor),
        MemberKind::Directory => Kind::Directory,
        MemberKind::Fifo => Kind::Fifo,
    }
}

/// Where the top of an archive goes.
fn top(filesystem: &mut Ext4<File>, into: &Destination) -> std::result::Result<Vec<u8>, Fault> {
    let Destination {
        path,
        name,
        is_directory,
    } = into;
    let is_directory_there = |filesystem: &mut Ext4<File>, ino| {
        let stat = filesystem.stat(ino).map_err(Fault::disk)?;
        Ok::<_, Fault>(stat.kind() == Some(FileKind::Directory))
    };
    if let Ok(ino) = filesystem.resolve(path)
        && is_directory_there(filesystem, ino)?
    {
        return Ok([path, &b"/"[..], name].concat());
    }
    let (parent, last) = filesystem.resolve_parent(path).map_err(Fault::disk)?;
    // A directory takes the place of no file.
    if *is_directory
        && let Ok(ino) = filesystem.lookup(parent, last)
        && !is_directory_there(filesystem, ino)?
    {
        let error = micabox_ext4::Error::from(Errno::NotADirectory);
        return Err(Fault::disk(error));
    }
    Ok(path.clone())
}

/// A member's path with another first name.
fn below(top: &[u8], path: &[u8]) -> Vec<u8> {
    match path.iter().position(|byte| *byte == b'/') {
        Some(slash) => [top, path.get(slash..).unwrap_or_default()].concat(),
        None => top.to_vec(),
    }
}

impl Call for Check {
    const KIND: &'static str = "ext4-check";
    type Reply = Vec<Finding>;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Vec<Finding>, Fault> {
        let findings = check(&Files::new(files).next()?).into_iter();
        let each = findings.map(|finding| Finding {
            text: finding.to_string(),
            inode: finding.inode,
            problem: finding.problem,
        });
        Ok(each.collect())
    }
}

impl Call for Replay {
    const KIND: &'static str = "ext4-replay";
    type Reply = Replayed;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Replayed, Fault> {
        let mut file = Files::new(files).next()?;
        let options = Options {
            despite_errors: true,
            ..Options::default()
        };
        let filesystem = Ext4::open(&mut file, options).map_err(Fault::disk)?;
        let had_errors = filesystem.has_errors();
        filesystem.close().map_err(Fault::disk)?;
        let is_sound = match had_errors {
            true => clear_errors(&mut file).map_err(Fault::disk)?.is_empty(),
            false => true,
        };
        Ok(Replayed {
            had_errors,
            is_sound,
        })
    }
}

impl Call for Grow {
    const KIND: &'static str = "ext4-grow";
    type Reply = Grown;
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> std::result::Result<Grown, Fault> {
        let mut file = Files::new(files).next()?;
        let grown = resize::grow(&mut file, self.size).map_err(Fault::disk)?;
        Ok(Grown {
            block_size: grown.block_size,
            blocks_before: grown.blocks_before,
            blocks: grown.blocks,
            free_blocks: grown.free_blocks,
            inodes: grown.inodes,
        })
    }
}
