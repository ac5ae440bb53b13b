//! Filesystems in files: what is in memory is saved as an archive or an EROFS image, and loaded from one.
//!
//! Both ways go through the members of an archive, which hold all that either format can say: names,
//! kinds, contents with their holes, owners, permissions, the time of the last change, extended
//! attributes. Sockets are left out, as in any archive.

mod image;
mod jailed;
mod load;
mod save;
mod sent;

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use micabox_jail::CallError;
use micabox_memfs::{Errno, Filesystem};
use micabox_overlay::host::WholeFile;
use micabox_tar::{Kind, Writer};
use rustix::fs::OFlags;

pub use jailed::{LOADER, Refusal};
pub(crate) use sent::{Received, Sender};

/// Bytes that are read and written at a time.
const BUFFER: usize = 256 << 10;

/// Place and value of an EROFS image's magic number.
const MAGIC_AT: u64 = 1024;
const MAGIC: [u8; 4] = 0xe0f5_e1e2_u32.to_le_bytes();

/// Fills a buffer with a file's bytes from an offset on.
type ReadAt<'a, E> = dyn FnMut(u64, &mut [u8]) -> Result<(), E> + 'a;

/// Why a filesystem can't be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The file can't be opened, read or written.
    #[error(transparent)]
    Output(#[from] std::io::Error),
    /// The archive is not valid.
    #[error(transparent)]
    Archive(#[from] micabox_tar::MembersError),
    /// The image is not valid, or can't hold a file.
    #[error(transparent)]
    Image(#[from] micabox_erofs::Error),
    /// The worker that reads a file refuses it, or died.
    #[error(transparent)]
    Worker(#[from] CallError<Refusal>),
    /// A member's names and attributes are too long.
    #[error("\"{}\": its names and attributes are too long", .0.escape_ascii())]
    TooMuch(Vec<u8>),
    /// The worker sent less than it announced.
    #[error("the worker that reads it sent only a part")]
    CutOff,
    /// The worker sent what can't be.
    #[error("the worker that reads it sent nonsense")]
    Nonsense,
    /// A member leads out of the tree.
    #[error("`..` in the path \"{}\"", .0.escape_ascii())]
    Outside(Vec<u8>),
    /// A file can't be made or read.
    #[error("\"{}\": {source}", path.escape_ascii())]
    File {
        /// Its path.
        path: Vec<u8>,
        /// The reason.
        source: Errno,
    },
}

impl KeepError {
    fn file(path: &[u8], source: Errno) -> Self {
        Self::File {
            path: path.to_vec(),
            source,
        }
    }
}

/// Writes all of a filesystem to a file: as an EROFS image if its name ends in `.erofs`, otherwise as an archive
/// (tar). The file is complete, or as it was.
///
/// # Errors
/// [`KeepError`].
pub fn save(files: &Filesystem, output: WholeFile) -> Result<(), KeepError> {
    let extension = output.path().extension();
    if extension.is_some_and(|extension| extension == "erofs") {
        image::write(files, output.file())?;
    } else {
        let buffered = BufWriter::with_capacity(BUFFER, output.file());
        let mut archive = save::Archive(Writer::new(buffered));
        save::walk(files, &mut archive)?;
        archive.0.finish()?.flush()?;
    }
    Ok(output.publish()?)
}

/// Adds what is in an archive (tar) or an EROFS image to a filesystem. A worker in the jail ([`LOADER`]) reads it.
///
/// # Errors
/// [`KeepError`]; a part may be there then.
pub fn load(files: &Filesystem, path: &Path) -> Result<(), KeepError> {
    let mut loading = jailed::Loading::start(open(path)?)?;
    let read = receive(files, &mut loading.received);
    loading.finish(read)
}

/// Fills a filesystem with the members that arrive.
pub(crate) fn receive(
    files: &Filesystem,
    received: &mut Received<impl Read>,
) -> Result<(), KeepError> {
    let mut loader = load::Loader::new(files);
    while let Some(member) = received.next_member()? {
        let number = loader.add(&member)?;
        if matches!(member.kind, Kind::File { .. }) {
            loader.fill(number, &member, received)?;
        }
    }
    loader.finish()
}

/// Opens a file that can be read from any place.
fn open(path: &Path) -> io::Result<File> {
    // A FIFO would wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(file);
    }
    let what = "neither a regular file nor a block device";
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// Returns whether a file begins as an EROFS image does.
fn is_image(file: &mut File) -> std::io::Result<bool> {
    let mut magic = Vec::new();
    file.seek(SeekFrom::Start(MAGIC_AT))?;
    file.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    file.rewind()?;
    Ok(magic == MAGIC)
}
