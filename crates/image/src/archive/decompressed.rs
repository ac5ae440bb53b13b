//! An archive as a stream, whatever it is compressed with.

use std::io::{self, BufReader, Read};

use crate::convert::decompress::{Compression, MAGIC_LENGTH};

const BUFFER: usize = 256 << 10;

/// Returns the bytes of an archive without the compression that its first bytes tell: gzip, zstd or none.
///
/// # Errors
/// Those of `from`; [`io::ErrorKind::Unsupported`] for another compression, by its name.
pub fn decompressed<'a>(mut from: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::with_capacity(MAGIC_LENGTH);
    (&mut from)
        .take(MAGIC_LENGTH as u64)
        .read_to_end(&mut head)?;
    let compression = Compression::detect(&head);
    let whole = BufReader::with_capacity(BUFFER, io::Cursor::new(head).chain(from));
    match compression {
        Ok(Compression::None) => Ok(Box::new(whole)),
        Ok(Compression::Gzip) => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(whole))),
        Ok(Compression::Zstd) => Ok(Box::new(zstd::stream::read::Decoder::with_buffer(whole)?)),
        Err(name) => {
            let what = format!("it is compressed with {name}: decompress it first");
            Err(io::Error::new(io::ErrorKind::Unsupported, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_archive_is_decompressed_as_its_first_bytes_say() {
        let text = b"an archive".repeat(1000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(&*text, 1).unwrap();
        let two = [&gzip[..], &gzip].concat();
        for (packed, times) in [(&text, 1), (&gzip, 1), (&zstd, 1), (&two, 2)] {
            let mut read = Vec::new();
            decompressed(&packed[..])
                .unwrap()
                .read_to_end(&mut read)
                .unwrap();
            assert_eq!(read, text.repeat(times));
        }
        let refused = decompressed(&b"\xfd7zXZ\0rest"[..]);
        assert!(refused.err().unwrap().to_string().contains("xz"));
        let mut cut = decompressed(&gzip[..gzip.len() / 2]).unwrap();
        cut.read_to_end(&mut Vec::new()).unwrap_err();
    }
}
