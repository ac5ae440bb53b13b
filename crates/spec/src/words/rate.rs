//! Rates: sizes a second, with names where directions differ.

use std::str::FromStr;

use super::{Size, WordError};
use crate::DiskRate;
use crate::network::Rate;

/// Reads a rate for reading and for writing, or `read=`, `write=` and `iops=` with commas between.
impl FromStr for DiskRate {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let mut rate = Self::default();
        for part in text.split(',') {
            match part.split_once('=') {
                None => (rate.read, rate.write) = (Some(size(part)?), Some(size(part)?)),
                Some(("read", value)) => rate.read = Some(size(value)?),
                Some(("write", value)) => rate.write = Some(size(value)?),
                Some(("iops", value)) => rate.operations = Some(count(value)?),
                Some(_) => {
                    return Err(format!("`{part}`: expected SIZE, read=, write= or iops=").into());
                }
            }
        }
        Ok(rate)
    }
}

/// Reads a rate for both directions, or `in=` and `out=` with a comma between.
impl FromStr for Rate {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let mut rate = Self::default();
        for part in text.split(',') {
            match part.split_once('=') {
                None => (rate.incoming, rate.outgoing) = (Some(size(part)?), Some(size(part)?)),
                Some(("in", value)) => rate.incoming = Some(size(value)?),
                Some(("out", value)) => rate.outgoing = Some(size(value)?),
                Some(_) => return Err(format!("`{part}`: expected SIZE, in= or out=").into()),
            }
        }
        Ok(rate)
    }
}

fn size(text: &str) -> Result<u64, WordError> {
    text.parse::<Size>().map(|size| size.0)
}

fn count(text: &str) -> Result<u64, WordError> {
    let number = text.parse();
    let number = number.ok().filter(|number| (1..=1 << 40).contains(number));
    number.ok_or_else(|| format!("`{text}`: expected a number of requests a second").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_directions() {
        let disk = |read, write, operations| {
            Ok(DiskRate {
                read,
                write,
                operations,
            })
        };
        let disk_rate = |text: &str| text.parse::<DiskRate>();
        assert_eq!(disk_rate("1m"), disk(Some(1 << 20), Some(1 << 20), None));
        assert_eq!(disk_rate("read=1k,iops=9"), disk(Some(1024), None, Some(9)));
        assert_eq!(disk_rate("2k,write=1k"), disk(Some(2048), Some(1024), None));
        for bad in ["", "0", "read=", "iops=0", "iops=1m", "reads=1", "1m,"] {
            disk_rate(bad).unwrap_err();
        }
        let net = |incoming, outgoing| Ok(Rate { incoming, outgoing });
        let net_rate = |text: &str| text.parse::<Rate>();
        assert_eq!(net_rate("1m"), net(Some(1 << 20), Some(1 << 20)));
        assert_eq!(net_rate("in=1k"), net(Some(1024), None));
        assert_eq!(net_rate("out=2k,in=1k"), net(Some(1024), Some(2048)));
        for bad in ["", "in", "out=0", "up=1"] {
            net_rate(bad).unwrap_err();
        }
    }
}
