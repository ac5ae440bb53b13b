//! Sends values of one type through a pipe. Each is its length in bytes (`u32`, little endian) and
//! the value in `postcard`'s format.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of a record.
const SIZE_MAX: u32 = 1 << 20;

/// Writes a record.
pub(crate) fn write(output: &mut impl Write, record: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_allocvec(record).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len())
        .ok()
        .filter(|length| *length <= SIZE_MAX);
    let length = length.ok_or(io::ErrorKind::InvalidData)?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(&bytes)
}

/// Reads the next record; none at the end.
pub(crate) fn read<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = Vec::new();
    input.by_ref().take(4).read_to_end(&mut length)?;
    if length.is_empty() {
        return Ok(None);
    }
    let length = length.try_into().map(u32::from_le_bytes);
    let length = length.map_err(|_| io::ErrorKind::UnexpectedEof)?;
    if length > SIZE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_malformed_ones_are_refused() {
        let mut told = Vec::new();
        for record in [(1_u32, "one"), (2, "")] {
            write(&mut told, &record).unwrap();
        }
        let whole = told.clone();
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
        write(&mut told, &vec![0_u8; 2 << 20]).unwrap_err();
    }
}
