//! The first bytes that the guest sends: they identify the agent and its protocol version.
//!
//! Eight bytes of magic, then [`VERSION`] as a `u32`, little endian. This format stays the same in
//! every version of the protocol.

use std::io::Read;

use crate::frame::read_full;
use crate::{Error, VERSION};

/// Bytes of a preamble.
pub const LENGTH: usize = 12;

const MAGIC: &[u8; 8] = b"MICABOX\n";

/// Returns the preamble of this version.
pub fn encode() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let (magic, version) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(MAGIC);
    version.copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks that the peer that sent `bytes` is an agent of this version.
///
/// # Errors
/// [`Error::NotAnAgent`] or [`Error::Version`].
pub fn check(bytes: &[u8; LENGTH]) -> Result<(), Error> {
    let version = bytes.strip_prefix(MAGIC).ok_or(Error::NotAnAgent)?;
    let version = version.try_into().map_err(|_| Error::NotAnAgent)?;
    match u32::from_le_bytes(version) {
        VERSION => Ok(()),
        theirs => Err(Error::Version {
            theirs,
            ours: VERSION,
        }),
    }
}

/// Reads the peer's preamble and checks it.
///
/// # Errors
/// As [`check`]; [`Error::Truncated`] if the stream ends first, [`Error::Io`] if it
/// fails.
pub fn read(reader: &mut impl Read) -> Result<(), Error> {
    let mut bytes = [0; LENGTH];
    if read_full(reader, &mut bytes)? != LENGTH {
        return Err(Error::Truncated);
    }
    check(&bytes)
}
