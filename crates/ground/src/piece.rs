//! Reading to the end, piece by piece.

use std::io::{self, Read};

/// Reads the next bytes, as many as `buffer` has room for at most, and again if a signal interrupts it. None at the end.
///
/// # Errors
/// Those of `from`, without [`io::ErrorKind::Interrupted`].
pub fn piece<'a>(
    from: &mut (impl Read + ?Sized),
    buffer: &'a mut [u8],
) -> io::Result<Option<&'a [u8]>> {
    loop {
        match from.read(buffer) {
            Ok(0) => return Ok(None),
            Ok(count) => return Ok(buffer.get(..count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Is interrupted before each byte.
    struct Slow<'a>(&'a [u8], bool);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.0.read(&mut buffer[..1])
        }
    }

    #[test]
    fn interruptions_are_passed_over() {
        let (mut from, mut buffer, mut all) = (Slow(b"abc", false), [0; 2], Vec::new());
        while let Some(bytes) = piece(&mut from, &mut buffer).unwrap() {
            all.push(bytes.to_vec());
        }
        assert_eq!(all, [b"a", b"b", b"c"]);
    }

    #[test]
    fn other_errors_are_returned() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let error = piece(&mut Broken, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
