//! Rebuilds an archive from a recipe.

use std::io::{self, BufRead, BufReader, Read};

use micabox_erofs::{BLOCK_SIZE, ReadAt};
use zstd::stream::read::Decoder;

use super::{END, IMAGE, LITERAL, MAGIC, WINDOW_LOG, ZEROS};

/// An archive that is rebuilt from a recipe and an image, to be read once from front to back.
///
/// Both may contain any bytes: reading ends with an error or returns some bytes, never more than
/// the announced size.
pub(crate) struct Recipe<R: BufRead, I> {
    steps: BufReader<Decoder<'static, R>>,
    image: I,
    /// Length of the image in bytes.
    image_size: u64,
    step: Step,
    /// End of the last bytes of the image that a step referred to.
    image_end: u64,
    /// Bytes that may still come.
    left: u64,
}

/// The rest of the current step.
enum Step {
    Literal(u64),
    Zeros(u64),
    Image { at: u64, length: u64 },
    End,
}

fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl<R: BufRead, I: ReadAt> Recipe<R, I> {
    /// Opens the recipe in `steps` and checks its beginning. The archive has `size` bytes.
    pub fn open(steps: R, image: I, size: u64) -> io::Result<Self> {
        let mut decoder = Decoder::with_buffer(steps)?;
        decoder.window_log_max(WINDOW_LOG)?;
        let mut steps = BufReader::new(decoder.single_frame());
        let mut magic = [0; MAGIC.len()];
        steps.read_exact(&mut magic)?;
        if magic != MAGIC {
            return Err(invalid("it isn't one, or one of another version"));
        }
        Ok(Self {
            steps,
            image_size: image.size()?,
            image,
            step: Step::Literal(0),
            image_end: 0,
            left: size,
        })
    }

    /// Passes over so many bytes of the archive. Those of the image are not read.
    pub fn skip(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let passed = match &mut self.step {
                Step::Literal(left) => {
                    let passed = count.min(*left);
                    let mut bytes = self.steps.by_ref().take(passed);
                    if io::copy(&mut bytes, &mut io::sink())? < passed {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    *left -= passed;
                    passed
                }
                Step::Zeros(left) => {
                    let passed = count.min(*left);
                    *left -= passed;
                    passed
                }
                Step::Image { at, length } => {
                    let passed = count.min(*length);
                    *at += passed;
                    *length -= passed;
                    passed
                }
                Step::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            count -= passed;
            if passed == 0 {
                self.step = self.next_step()?;
            }
        }
        Ok(())
    }

    fn next_step(&mut self) -> io::Result<Step> {
        let kind = self.byte()?;
        if kind == END {
            return match self.left {
                0 => Ok(Step::End),
                _ => Err(invalid("it ends before the archive does")),
            };
        }
        let length = self.number()?;
        if length == 0 {
            // Otherwise a few bytes could make the reader loop for very long.
            return Err(invalid("it has a step without bytes"));
        }
        self.left = self
            .left
            .checked_sub(length)
            .ok_or_else(|| invalid("it continues after the archive's end"))?;
        match kind {
            LITERAL => Ok(Step::Literal(length)),
            ZEROS => Ok(Step::Zeros(length)),
            IMAGE => {
                let zigzag = self.number()?;
                let distance = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
                let outside = || invalid("it names bytes outside of the image");
                let expected = self.image_end.checked_next_multiple_of(BLOCK_SIZE);
                let at = expected
                    .and_then(|expected| expected.checked_add_signed(distance))
                    .ok_or_else(outside)?;
                let end = at.checked_add(length).ok_or_else(outside)?;
                if end > self.image_size {
                    return Err(outside());
                }
                self.image_end = end;
                Ok(Step::Image { at, length })
            }
            _ => Err(invalid("it has a step of an unknown kind")),
        }
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.steps.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Reads a LEB128 number.
    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(invalid("it has a number that is too large"))
    }
}

impl<R: BufRead, I: ReadAt> Read for Recipe<R, I> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let left = match &self.step {
                Step::Literal(left) | Step::Zeros(left) => *left,
                Step::Image { length, .. } => *length,
                Step::End => return Ok(0),
            };
            if left == 0 {
                self.step = self.next_step()?;
                continue;
            }
            let count = left.min(buffer.len() as u64) as usize;
            let buffer = &mut buffer[..count];
            match &mut self.step {
                Step::Literal(left) => {
                    self.steps.read_exact(buffer)?;
                    *left -= count as u64;
                }
                Step::Zeros(left) => {
                    buffer.fill(0);
                    *left -= count as u64;
                }
                Step::Image { at, length } => {
                    self.image.read_exact_at(buffer, *at)?;
                    *at += count as u64;
                    *length -= count as u64;
                }
                Step::End => return Ok(0),
            }
            return Ok(count);
        }
    }
}
