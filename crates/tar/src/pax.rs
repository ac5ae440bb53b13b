//! PAX extended header records: `<length> <key>=<value>\n`, the length in decimal and including
//! itself.

use std::ops::Range;

use micabox_file::Timestamp;

use crate::Error;

/// The records of one extended header, in their order: GNU's sparse format 0.0 repeats keys. They
/// include extended attributes in encoded form: see [`Records::xattrs`].
#[derive(Debug, Default, Clone)]
pub struct Records {
    bytes: Vec<u8>,
    /// Ranges of key and value within `bytes`.
    spans: Vec<(Range<usize>, Range<usize>)>,
}

impl Records {
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let mut spans = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let space = rest
                .iter()
                .take(20)
                .position(|&byte| byte == b' ')
                .ok_or(Error::Record)?;
            let length = decimal(&rest[..space])
                .and_then(|length| usize::try_from(length).ok())
                .filter(|length| (space + 1..=rest.len()).contains(length))
                .ok_or(Error::Record)?;
            let record = rest[space + 1..length]
                .strip_suffix(b"\n")
                .ok_or(Error::Record)?;
            let equals = record
                .iter()
                .position(|&byte| byte == b'=')
                .ok_or(Error::Record)?;
            if equals == 0 {
                return Err(Error::Record);
            }
            let key = at + space + 1;
            spans.push((key..key + equals, key + equals + 1..key + record.len()));
            at += length;
        }
        Ok(Self { bytes, spans })
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.spans
            .iter()
            .map(|(key, value)| (&self.bytes[key.clone()], &self.bytes[value.clone()]))
    }

    /// Returns the last value given for `key`. An empty value cancels earlier ones.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let (_, value) = self.iter().rev().find(|(k, _)| *k == key)?;
        (!value.is_empty()).then_some(value)
    }

    /// Returns a value that overrides a number of the header.
    pub(super) fn number(&self, key: &'static str) -> Result<Option<u64>, Error> {
        match self.get(key.as_bytes()) {
            None => Ok(None),
            Some(value) => decimal(value)
                .map(Some)
                .ok_or(Error::RecordValue { key: key.into() }),
        }
    }

    /// Returns a value that overrides a time of the header.
    pub(super) fn time(&self, key: &'static str) -> Result<Option<Timestamp>, Error> {
        match self.get(key.as_bytes()) {
            None => Ok(None),
            Some(value) => time(value)
                .map(Some)
                .ok_or(Error::RecordValue { key: key.into() }),
        }
    }

    #[cfg(test)]
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend([key, value].concat());
        let middle = at + key.len();
        self.spans.push((at..middle, middle..self.bytes.len()));
    }
}

/// Parses decimal digits, at least one.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Parses seconds since 1970 with a fraction of any length, cut to nanoseconds: `-1.25` is 1.25
/// seconds before 1970.
fn time(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let mut parts = text.splitn(2, |&byte| byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nanos = 0;
    if let Some(fraction) = parts.next() {
        let mut unit = 100_000_000;
        for digit in fraction {
            if !digit.is_ascii_digit() {
                return None;
            }
            nanos += u32::from(digit - b'0') * unit;
            unit /= 10;
        }
    }
    // `Timestamp`'s nanoseconds count forwards.
    Some(match (negative, nanos) {
        (false, _) => Timestamp { seconds, nanos },
        (true, 0) => Timestamp {
            seconds: -seconds,
            nanos,
        },
        (true, _) => Timestamp {
            seconds: -seconds - 1,
            nanos: 1_000_000_000 - nanos,
        },
    })
}

/// Adds a record of an extended header; it starts with its own length in decimal.
pub(super) fn put(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3; // blank, `=`, newline
    let mut length = rest;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    records.extend_from_slice(length.to_string().as_bytes());
    for part in [b" ", key, b"=", value, b"\n"] {
        records.extend_from_slice(part);
    }
}

/// Formats seconds as a decimal fraction, including negative times.
pub(super) fn seconds(time: Timestamp) -> String {
    let nanos = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let (whole, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let text = format!("{sign}{whole}.{fraction:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_order_and_bytes() {
        let records =
            Records::parse(b"11 path=a\xff\n5 k=\n9 k=a=\nb\n10 path=\n\n".to_vec()).unwrap();
        assert_eq!(
            records.iter().collect::<Vec<_>>(),
            [
                (&b"path"[..], &b"a\xff"[..]),
                (b"k", b""),
                (b"k", b"a=\nb"),
                (b"path", b"\n"),
            ]
        );
    }

    #[test]
    fn malformed_records_are_an_error() {
        for bad in [
            &b"x"[..],
            b"5",
            b"5 a=",
            b"99 a=b\n",
            b"6 a=bc",
            b"5 =b\n",
            b"5 abc\n",
            b"0 \n",
            b"-6 a=b\n",
            b"6  a=b\n",
            b"00000000000000000000000000006 a=b\n",
            b"3 \n",
            b"6 a=b\n\0\0",
        ] {
            assert!(
                Records::parse(bad.to_vec()).is_err(),
                "{}",
                bad.escape_ascii()
            );
        }
    }

    #[test]
    fn an_empty_value_takes_an_override_back() {
        let records = Records::parse(b"7 a=23\n5 a=\n".to_vec()).unwrap();
        assert_eq!(records.get(b"a"), None);
    }

    #[test]
    fn times_are_read_with_their_fractions() {
        let at = |seconds, nanos| Some(Timestamp { seconds, nanos });
        assert_eq!(time(b"0"), at(0, 0));
        assert_eq!(
            time(b"1700000000.123456789123"),
            at(1_700_000_000, 123_456_789)
        );
        assert_eq!(time(b"1."), at(1, 0));
        assert_eq!(time(b"-1"), at(-1, 0));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"-0.5"), at(-1, 500_000_000));
        for bad in [
            &b""[..],
            b".5",
            b"-",
            b"1.x",
            b"1e3",
            b"99999999999999999999",
            b"+1",
        ] {
            assert_eq!(time(bad), None);
        }
    }

    #[test]
    fn times_are_decimal_fractions() {
        for (seconds, nanos, text) in [
            (0, 0, "0"),
            (1, 500_000_000, "1.5"),
            (-1, 0, "-1"),
            (-2, 500_000_000, "-1.5"),
            (-1, 999_999_999, "-0.000000001"),
            (100, 1, "100.000000001"),
        ] {
            let moment = Timestamp { seconds, nanos };
            assert_eq!(super::seconds(moment), text);
            assert_eq!(time(text.as_bytes()), Some(moment));
        }
    }

    #[test]
    fn records_count_their_own_length() {
        for length in 0..2000 {
            let mut records = Vec::new();
            put(&mut records, b"key", &vec![b'v'; length]);
            let text = String::from_utf8(records).unwrap();
            let (claimed, _) = text.split_once(' ').unwrap();
            assert_eq!(claimed.parse::<usize>().unwrap(), text.len());
        }
    }
}
