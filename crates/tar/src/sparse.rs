//! Parses the maps of sparse files, in the four encodings of GNU tar.

use micabox_file::Segment;

use crate::pax::decimal;
use crate::{Error, Limit, Records};

/// Checks that the segments lie in order within `size` and hold exactly `stored` bytes. Returns
/// them without empty segments.
pub(super) fn checked(
    mut segments: Vec<Segment>,
    size: u64,
    stored: u64,
) -> Result<Vec<Segment>, Error> {
    let mut end = 0;
    let mut total = 0u64;
    for segment in &segments {
        if segment.offset < end {
            return Err(Error::Sparse("its parts overlap or are out of order"));
        }
        end = segment
            .offset
            .checked_add(segment.length)
            .filter(|&end| end <= size)
            .ok_or(Error::Sparse("a part lies outside the file"))?;
        total += segment.length; // at most `size`
    }
    if total != stored {
        return Err(Error::Sparse(
            "its parts are not as long as the stored data",
        ));
    }
    // An empty segment only marks the end of the file.
    segments.retain(|segment| segment.length > 0);
    Ok(segments)
}
/// How PAX records describe a sparse file.
pub(super) enum Described {
    /// Formats 0.0 and 0.1: the records are the map.
    Map { segments: Vec<Segment>, size: u64 },
    /// Format 1.0: the map precedes the data.
    InData { size: u64 },
}

/// Returns whether and how the records describe a sparse file; `most` limits its segments.
pub(super) fn described(records: &Records, most: u64) -> Result<Option<Described>, Error> {
    let number = |key: &'static str| -> Result<Option<u64>, Error> {
        match records.get(key.as_bytes()) {
            None => Ok(None),
            Some(value) => decimal(value)
                .map(Some)
                .ok_or(Error::RecordValue { key: key.into() }),
        }
    };
    let size = |key| number(key)?.ok_or(Error::Sparse("it has no size"));

    match (number("GNU.sparse.major")?, number("GNU.sparse.minor")?) {
        (Some(1), Some(0)) => {
            return Ok(Some(Described::InData {
                size: size("GNU.sparse.realsize")?,
            }));
        }
        (None, None) | (Some(0), Some(0 | 1)) => {}
        _ => return Err(Error::Sparse("its format is newer than 1.0")),
    }
    let segments = if let Some(map) = records.get(b"GNU.sparse.map") {
        parse_map(map, most)?
    } else if records.get(b"GNU.sparse.numblocks").is_some() {
        parse_repeated(records, most)?
    } else {
        return Ok(None);
    };
    // The manual has GNU.sparse.size; some versions of GNU tar wrote realsize.
    let size = match number("GNU.sparse.size")? {
        Some(size) => size,
        None => size("GNU.sparse.realsize")?,
    };
    Ok(Some(Described::Map { segments, size }))
}

/// Parses format 0.1: `offset,length,offset,length,…`
fn parse_map(map: &[u8], most: u64) -> Result<Vec<Segment>, Error> {
    if map.is_empty() {
        return Ok(Vec::new());
    }
    let numbers = map
        .split(|&byte| byte == b',')
        .map(|number| decimal(number).ok_or(Error::Sparse("a position is not a number")));
    pair_up(numbers, most)
}

/// Parses format 0.0: the same two keys, repeated.
fn parse_repeated(records: &Records, most: u64) -> Result<Vec<Segment>, Error> {
    let mut expected: &[u8] = b"GNU.sparse.offset";
    let mut numbers = Vec::new();
    for (key, value) in records.iter() {
        let next: &[u8] = match key {
            b"GNU.sparse.offset" => b"GNU.sparse.numbytes",
            b"GNU.sparse.numbytes" => b"GNU.sparse.offset",
            _ => continue,
        };
        if key != expected {
            return Err(Error::Sparse("offsets and lengths do not alternate"));
        }
        expected = next;
        numbers.push(decimal(value).ok_or(Error::Sparse("a position is not a number")));
    }
    pair_up(numbers.into_iter(), most)
}

fn pair_up(
    mut numbers: impl Iterator<Item = Result<u64, Error>>,
    most: u64,
) -> Result<Vec<Segment>, Error> {
    let mut segments = Vec::new();
    while let Some(offset) = numbers.next() {
        if segments.len() as u64 >= most {
            return Err(Error::Limit(Limit::SparseSegments));
        }
        let length = numbers
            .next()
            .ok_or(Error::Sparse("an offset has no length"))?;
        segments.push(Segment {
            offset: offset?,
            length: length?,
        });
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(pairs: &[(&str, &str)]) -> Records {
        let mut records = Records::default();
        for (key, value) in pairs {
            records.push(key.as_bytes(), value.as_bytes());
        }
        records
    }

    fn segments(pairs: &[(&str, &str)]) -> Result<Vec<Segment>, Error> {
        match described(&records(pairs), 3)? {
            Some(Described::Map { segments, .. }) => Ok(segments),
            _ => panic!("no map"),
        }
    }

    #[test]
    fn both_formats_of_the_sparse_map_in_records_are_read() {
        let expected = vec![
            Segment {
                offset: 1,
                length: 2,
            },
            Segment {
                offset: 9,
                length: 0,
            },
        ];
        let old = [
            ("GNU.sparse.numblocks", "2"),
            ("GNU.sparse.size", "9"),
            ("GNU.sparse.offset", "1"),
            ("GNU.sparse.numbytes", "2"),
            ("GNU.sparse.offset", "9"),
            ("GNU.sparse.numbytes", "0"),
        ];
        assert_eq!(segments(&old).unwrap(), expected);
        let new = [("GNU.sparse.size", "9"), ("GNU.sparse.map", "1,2,9,0")];
        assert_eq!(segments(&new).unwrap(), expected);
        assert!(segments(&old[..5]).is_err());
        assert!(segments(&[("GNU.sparse.size", "9"), ("GNU.sparse.map", "1,2,9")]).is_err());
        assert!(matches!(
            segments(&[
                ("GNU.sparse.size", "9"),
                ("GNU.sparse.map", "0,1,1,1,2,1,3,1")
            ]),
            Err(Error::Limit(Limit::SparseSegments))
        ));
    }

    #[test]
    fn maps_must_fit_file_and_data() {
        let segment = |offset, length| Segment { offset, length };
        assert!(checked(vec![segment(0, 2), segment(4, 2), segment(9, 0)], 9, 4).is_ok());
        assert!(checked(vec![segment(4, 2), segment(0, 2)], 9, 4).is_err());
        assert!(checked(vec![segment(0, 3), segment(2, 1)], 9, 4).is_err());
        assert!(checked(vec![segment(8, 2)], 9, 2).is_err());
        assert!(checked(vec![segment(u64::MAX, 2)], 9, 2).is_err());
        assert!(checked(vec![segment(0, 2)], 9, 3).is_err());
    }
}
