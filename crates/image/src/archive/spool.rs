//! Makes an archive seekable: a compressed archive or a pipe is copied to an unnamed file first,
//! which disappears with its last descriptor, also on a crash.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use micabox_ground::piece;

use super::Problem;
use crate::Limits;
use crate::convert::decompress::{Compression, MAGIC_LENGTH, is_window_too_large, window_log};
use crate::limits::Limit;

const BUFFER: usize = 256 << 10;

/// Returns `file` itself if it is seekable and isn't compressed, else a copy in `tmp`.
pub(super) fn seekable(
    mut file: File,
    is_regular: bool,
    tmp: &Path,
    limits: &Limits,
) -> Result<File, Problem> {
    let mut head = Vec::with_capacity(MAGIC_LENGTH);
    if is_regular {
        head.resize(MAGIC_LENGTH, 0);
        let count = file.read_at(&mut head, 0).map_err(Problem::Open)?;
        head.truncate(count);
    } else {
        let mut start = (&mut file).take(MAGIC_LENGTH as u64);
        start.read_to_end(&mut head).map_err(Problem::Open)?;
    }
    let compression = Compression::detect(&head).map_err(Problem::Compression)?;
    if is_regular && compression == Compression::None {
        return Ok(file);
    }

    // A regular file is still at its beginning; a pipe's head is in memory.
    let start = if is_regular { Vec::new() } else { head };
    let packed = Counter {
        inner: io::Cursor::new(start).chain(file),
        count: 0,
    };
    let mut copy = tempfile::tempfile_in(tmp).map_err(Problem::Copy)?;
    let mut packed = BufReader::with_capacity(BUFFER, packed);
    match compression {
        Compression::Gzip => {
            let mut decoder = flate2::bufread::MultiGzDecoder::new(packed);
            bounded_copy(
                &mut decoder,
                |d| d.get_ref().get_ref().count,
                &mut copy,
                limits,
            )?;
        }
        Compression::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(packed).map_err(Problem::Open)?;
            decoder
                .window_log_max(window_log(limits.zstd_window))
                .map_err(Problem::Open)?;
            let copied = bounded_copy(
                &mut decoder,
                |d| d.get_ref().get_ref().count,
                &mut copy,
                limits,
            );
            copied.map_err(|problem| match problem {
                Problem::Read { source, .. } if is_window_too_large(&source) => Problem::Window {
                    limit: limits.zstd_window,
                },
                problem => problem,
            })?;
        }
        Compression::None => {
            bounded_copy(&mut packed, |p| p.get_ref().count, &mut copy, limits)?;
        }
    }
    Ok(copy)
}

/// Copies all of `from`. `read` returns how many bytes of the archive were read so far.
fn bounded_copy<R: Read>(
    from: &mut R,
    read: impl Fn(&R) -> u64,
    to: &mut File,
    limits: &Limits,
) -> Result<(), Problem> {
    let mut buffer = vec![0; BUFFER];
    let mut written = 0u64;
    let failed = |source| {
        let name = "the compressed archive".to_owned();
        Problem::Read { name, source }
    };
    while let Some(bytes) = piece(from, &mut buffer).map_err(failed)? {
        written += bytes.len() as u64;
        let bomb = |setting, limit| Err(Problem::Bomb { setting, limit });
        if written > limits.layer_size {
            return bomb(Limit::LayerSize, limits.layer_size);
        }
        let ratio = limits.compression_ratio;
        if written > limits.compression_ratio_from && written / ratio.max(1) > read(from) {
            return bomb(Limit::CompressionRatio, ratio);
        }
        to.write_all(bytes).map_err(Problem::Copy)?;
    }
    Ok(())
}

struct Counter<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counter<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count += count as u64;
        Ok(count)
    }
}
