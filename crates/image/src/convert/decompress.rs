//! Decompresses a layer's blob: gzip with any number of members, zstd with any number of frames,
//! or none.
//!
//! Apart from the decoders' windows, nothing here reads or allocates: the caller owns the buffers
//! for input and output.

use std::fmt;

use flate2::{Decompress, FlushDecompress, Status};
use serde::{Deserialize, Serialize};
use zstd::stream::raw::{Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

/// Compression of a blob, detected from its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A compression that layers may not have, though other archives do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // names of formats
pub enum ForeignCompression {
    Xz,
    Bzip2,
    Lz4,
}

impl fmt::Display for ForeignCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How many of a blob's first bytes [`Compression::detect`] needs.
pub(crate) const MAGIC_LENGTH: usize = 6;

impl Compression {
    /// Detects the compression from `head`, the blob's first [`MAGIC_LENGTH`] bytes or all of a
    /// shorter one.
    pub(crate) fn detect(head: &[u8]) -> Result<Self, ForeignCompression> {
        match head {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(Self::Zstd),
            // A skippable frame in front, as in RFC 8878, 3.1.2.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Err(ForeignCompression::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, ..] => Err(ForeignCompression::Bzip2),
            [0x04, 0x22, 0x4d, 0x18, ..] => Err(ForeignCompression::Lz4),
            _ => Ok(Self::None),
        }
    }
}

/// Why compressed data is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the gzip data is corrupt: {0}")]
    Gzip(String),
    #[error("the gzip data ends in the middle of member {member}")]
    GzipTruncated { member: u64 },
    #[error("{members} gzip members are followed by something else")]
    GzipTrailer { members: u64 },
    #[error("the zstd data is corrupt: {0}")]
    Zstd(std::io::Error),
    #[error("the zstd data needs more memory for its window than is allowed")]
    ZstdWindow,
    #[error("the zstd data ends in the middle of a frame")]
    ZstdTruncated,
}

/// Result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Bytes of the input that were consumed.
    pub consumed: usize,
    /// Bytes of the output that were filled.
    pub produced: usize,
}

/// A decoder for one blob.
pub(crate) enum Decoder {
    Gzip(Gzip),
    Zstd(Zstd),
}

impl Decoder {
    /// Decodes as much of `input` as fits into `output`. A step that neither consumes nor produces
    /// anything needs more input.
    pub(crate) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Error> {
        match self {
            Self::Gzip(gzip) => gzip.step(input, output),
            Self::Zstd(zstd) => zstd.step(input, output),
        }
    }

    /// Checks that the blob may end here.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        match self {
            Self::Gzip(gzip) => gzip.finish(),
            Self::Zstd(zstd) => zstd.finish(),
        }
    }
}

/// Gzip: a sequence of members (eStargz, pigz and bgzip make many), and zeros after the last one,
/// which gzip(1) ignores as a tape's padding.
pub(crate) struct Gzip {
    member: Option<Decompress>,
    /// Number of complete members.
    members: u64,
    padding: bool,
}

impl Gzip {
    pub(crate) fn new() -> Self {
        Self {
            member: None,
            members: 0,
            padding: false,
        }
    }

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Error> {
        let Some(&first) = input.first() else {
            return match &self.member {
                // Bytes that didn't fit into the last output may still be inside.
                Some(_) => self.inflate(input, output),
                None => Ok(Step {
                    consumed: 0,
                    produced: 0,
                }),
            };
        };
        if self.member.is_none() {
            if self.padding || (first == 0 && self.members > 0) {
                self.padding = true;
                if input.iter().any(|&byte| byte != 0) {
                    return Err(Error::GzipTrailer {
                        members: self.members,
                    });
                }
                return Ok(Step {
                    consumed: input.len(),
                    produced: 0,
                });
            }
            if first != 0x1f {
                return Err(Error::GzipTrailer {
                    members: self.members,
                });
            }
        }
        self.inflate(input, output)
    }

    fn inflate(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Error> {
        const WINDOW_BITS: u8 = 15;
        let member = self
            .member
            .get_or_insert_with(|| Decompress::new_gzip(WINDOW_BITS));
        let before = (member.total_in(), member.total_out());
        let status = member
            .decompress(input, output, FlushDecompress::None)
            .map_err(|error| Error::Gzip(error.to_string()))?;
        let step = Step {
            consumed: (member.total_in() - before.0) as usize,
            produced: (member.total_out() - before.1) as usize,
        };
        if status == Status::StreamEnd {
            self.member = None;
            self.members += 1;
        }
        Ok(step)
    }

    fn finish(&self) -> Result<(), Error> {
        match self.member {
            None => Ok(()),
            Some(_) => Err(Error::GzipTruncated {
                member: self.members + 1,
            }),
        }
    }
}

/// Returns the largest window of at most `window` bytes, as zstd's parameter: a power of two from
/// 10 to 31, the range of the format.
pub(crate) fn window_log(window: u64) -> u32 {
    window.max(1).ilog2().clamp(10, 31)
}

/// Returns whether zstd refused a frame because of its window. The crate passes on only the
/// library's message, so the message is compared with the one for the code.
pub(crate) fn is_window_too_large(error: &std::io::Error) -> bool {
    /// `ZSTD_error_frameParameter_windowTooLarge` of `zstd_errors.h`.
    const CODE: usize = 16;
    error.to_string() == zstd::zstd_safe::get_error_name(CODE.wrapping_neg())
}

/// Zstandard: a sequence of frames, including skippable ones (zstd:chunked has them).
pub(crate) struct Zstd {
    decoder: ZstdDecoder<'static>,
    inside_frame: bool,
}

impl Zstd {
    /// Creates a decoder that refuses frames whose window takes more than `window` bytes.
    pub(crate) fn new(window: u64) -> std::io::Result<Self> {
        let mut decoder = ZstdDecoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(window_log(window)))?;
        Ok(Self {
            decoder,
            inside_frame: false,
        })
    }

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Error> {
        if input.is_empty() && !self.inside_frame {
            return Ok(Step {
                consumed: 0,
                produced: 0,
            });
        }
        let mut input = InBuffer::around(input);
        let mut output = OutBuffer::around(output);
        let hint = self.decoder.run(&mut input, &mut output).map_err(|error| {
            if is_window_too_large(&error) {
                Error::ZstdWindow
            } else {
                Error::Zstd(error)
            }
        })?;
        let step = Step {
            consumed: input.pos(),
            produced: output.pos(),
        };
        if step.consumed > 0 || step.produced > 0 {
            self.inside_frame = hint != 0;
        }
        Ok(step)
    }

    fn finish(&self) -> Result<(), Error> {
        if self.inside_frame {
            return Err(Error::ZstdTruncated);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Decodes with tiny buffers, so that every boundary falls everywhere.
    fn decode(mut decoder: Decoder, data: &[u8], piece: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        let mut output = vec![0; piece];
        let mut pieces = data.chunks(piece);
        let mut input = pieces.next().unwrap_or_default();
        loop {
            let step = decoder.step(input, &mut output)?;
            all.extend_from_slice(&output[..step.produced]);
            input = &input[step.consumed..];
            if (step.consumed, step.produced) == (0, 0) {
                assert!(input.is_empty());
                match pieces.next() {
                    Some(next) => input = next,
                    None => return decoder.finish().map(|()| all),
                }
            }
        }
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn ungzip(data: &[u8]) -> Result<Vec<u8>, Error> {
        let results = [1, 7, 1 << 16].map(|piece| decode(Decoder::Gzip(Gzip::new()), data, piece));
        let [first, second, third] = results;
        if let (Ok(first), Ok(second), Ok(third)) = (&first, &second, &third) {
            assert!(first == second && second == third);
        }
        first
    }

    fn unzstd(data: &[u8]) -> Result<Vec<u8>, Error> {
        let decoder = || Decoder::Zstd(Zstd::new(1 << 23).unwrap());
        let first = decode(decoder(), data, 1);
        if let Ok(first) = &first {
            assert_eq!(*first, decode(decoder(), data, 1 << 16).unwrap());
        }
        first
    }

    fn sample() -> Vec<u8> {
        (0..100_000u32)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8)
            .collect()
    }

    #[test]
    fn gzip_reads_every_member_and_padding() {
        let sample = sample();
        let (a, b) = sample.split_at(70_000);
        let all = [gzip(a), gzip(b""), gzip(b), vec![0; 100]].concat();
        assert!(ungzip(&all).unwrap() == sample);
    }

    #[test]
    fn gzip_notices_cut_members_and_foreign_bytes() {
        let blob = gzip(&sample());
        assert!(matches!(
            ungzip(&blob[..blob.len() - 1]),
            Err(Error::GzipTruncated { member: 1 })
        ));
        assert!(matches!(
            ungzip(&[&blob[..], b"x"].concat()),
            Err(Error::GzipTrailer { members: 1 })
        ));
        assert!(matches!(
            ungzip(&[&blob[..], b"\0\0x"].concat()),
            Err(Error::GzipTrailer { members: 1 })
        ));
        assert!(matches!(
            ungzip(&[&blob[..], &blob[..50]].concat()),
            Err(Error::GzipTruncated { member: 2 })
        ));
        let mut corrupt = blob;
        *corrupt.last_mut().unwrap() ^= 1;
        assert!(matches!(ungzip(&corrupt), Err(Error::Gzip(_))));
    }

    #[test]
    fn zstd_reads_every_frame_and_skips_skippable_ones() {
        let sample = sample();
        let (a, b) = sample.split_at(70_000);
        let skippable = b"\x53\x2a\x4d\x18\x03\0\0\0abc".to_vec();
        let frame = |data| zstd::encode_all(data, 3).unwrap();
        let all = [
            skippable.clone(),
            frame(a),
            skippable.clone(),
            skippable.clone(),
            frame(b""),
            frame(b),
            skippable.clone(),
        ]
        .concat();
        assert!(unzstd(&all).unwrap() == sample);
        assert!(matches!(
            unzstd(&all[..all.len() - 1]),
            Err(Error::ZstdTruncated)
        ));
        let cut = &all[..skippable.len() + 1000];
        assert!(matches!(unzstd(cut), Err(Error::ZstdTruncated)));
        assert!(matches!(
            unzstd(&[&all[..], b"junk"].concat()),
            Err(Error::Zstd(_))
        ));
    }

    #[test]
    fn zstd_refuses_a_window_that_is_too_large() {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(24).unwrap();
        encoder.write_all(&sample()).unwrap();
        assert!(matches!(
            unzstd(&encoder.finish().unwrap()),
            Err(Error::ZstdWindow)
        ));
    }

    #[test]
    fn compression_is_recognised_by_the_first_bytes() {
        assert_eq!(Compression::detect(b""), Ok(Compression::None));
        assert_eq!(Compression::detect(b"\x1f"), Ok(Compression::None));
        assert_eq!(Compression::detect(b"\x1f\x8b\x08"), Ok(Compression::Gzip));
        assert_eq!(
            Compression::detect(b"\x28\xb5\x2f\xfd\0"),
            Ok(Compression::Zstd)
        );
        assert_eq!(
            Compression::detect(b"\x5e\x2a\x4d\x18\0"),
            Ok(Compression::Zstd)
        );
        assert_eq!(
            Compression::detect(b"\xfd7zXZ\0"),
            Err(ForeignCompression::Xz)
        );
    }
}
