//! Sends values of one type through a pipe. Each is a frame with the value in `postcard`'s format.

use std::io::{self, Read, Write};

use micabox_socket::{read_frame, write_frame};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of a record.
const SIZE_MAX: usize = 1 << 20;

/// Writes a record.
pub fn write(output: &mut impl Write, record: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_allocvec(record).map_err(io::Error::other)?;
    if bytes.len() > SIZE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    write_frame(output, &bytes)
}

/// Reads the next record; none at the end.
pub fn read<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let Some(bytes) = read_frame(input, SIZE_MAX)? else {
        return Ok(None);
    };
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_malformed_ones_are_refused() {
        let mut written = Vec::new();
        for record in [(1_u32, "one"), (2, "")] {
            write(&mut written, &record).unwrap();
        }
        let whole = written.clone();
        let mut input = &*whole;
        let mut next = || read::<(u32, String)>(&mut input).unwrap();
        assert_eq!(next(), Some((1, "one".into())));
        assert_eq!(next(), Some((2, String::new())));
        assert_eq!(next(), None);
        // Cut short, longer than the input, longer than allowed, and of another type.
        for bytes in [
            &whole[..2],
            &whole[..5],
            b"\xff\xff\xff\xff",
            b"\x01\0\0\0\xff",
        ] {
            read::<(u32, String)>(&mut &*bytes).unwrap_err();
        }
        write(&mut written, &vec![0_u8; 2 << 20]).unwrap_err();
    }
}
