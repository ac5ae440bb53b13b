//! Filesystems in files: what is in memory is saved as an archive or an EROFS image, and loaded from one.
//!
//! Both ways go through the members of an archive, which hold all that either format can say: names,
//! kinds, contents with their holes, owners, permissions, the time of the last change, extended
//! attributes. Sockets are left out, as in any archive.

mod image;
mod load;
mod save;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use micabox_memfs::{Errno, Filesystem};
use micabox_tar::{Limits, Members, Writer};

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

/// Writes all of a filesystem to a new file: an EROFS image if its name ends in `.erofs`, otherwise an
/// archive (tar). The file is complete, or is not there.
///
/// # Errors
/// [`KeepError`]; also that what is there can't be replaced ([`check_save`]).
pub fn save(files: &Filesystem, path: &Path) -> Result<(), KeepError> {
    check_save(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let is_image = path
        .extension()
        .is_some_and(|extension| extension == "erofs");
    let written = File::create_new(&part)
        .map_err(KeepError::from)
        .and_then(|file| {
            if is_image {
                image::write(files, &file)?;
            } else {
                let output = BufWriter::with_capacity(BUFFER, &file);
                let mut archive = save::Archive(Writer::new(output));
                save::walk(files, &mut archive)?;
                archive.0.finish()?.flush()?;
            }
            file.sync_all()?;
            std::fs::rename(&part, path)?;
            Ok(())
        });
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// Checks that a file may get this path: that nothing else than a regular file has it.
///
/// # Errors
/// [`KeepError::Output`].
pub fn check_save(path: &Path) -> Result<(), KeepError> {
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let what = "it is there, and no regular file";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what).into());
    }
    Ok(())
}

/// Adds what is in an archive (tar) or an EROFS image to a filesystem.
///
/// # Errors
/// [`KeepError`]; a part may be there then.
pub fn load(files: &Filesystem, path: &Path) -> Result<(), KeepError> {
    let mut file = File::open(path)?;
    let mut loader = load::Loader::new(files);
    if is_image(&mut file)? {
        image::read(file, &mut loader)?;
    } else {
        let mut members = Members::new(BufReader::with_capacity(BUFFER, file), Limits::default());
        while let Some(member) = members.next_member()? {
            loader.add(&member, &mut members.body())?;
        }
    }
    loader.finish()
}

/// Returns whether a file begins as an EROFS image does.
fn is_image(file: &mut File) -> std::io::Result<bool> {
    let mut magic = Vec::new();
    file.seek(SeekFrom::Start(MAGIC_AT))?;
    file.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    file.rewind()?;
    Ok(magic == MAGIC)
}
