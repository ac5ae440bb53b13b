//! The protocol between a client and the owner of a sandbox. `docs/protocol.md` describes it for
//! clients in other languages.
//!
//! Each side begins with a preamble: eight bytes `MICAOWN\n` and the protocol's [`VERSION`] as a
//! `u32`, little endian. Frames follow, both ways ([`frame`]): messages in JSON ([`message`]) and
//! bytes of streams. A request has a number of the client's choice; all replies to it have the same
//! number.
//!
//! Each stream has a window: the receiver grants bytes, and the sender sends no more than was
//! granted. A stream that is not read stops only its own sender.

use std::time::Duration;

mod command;
mod failure;
pub mod frame;
pub mod message;
mod text;

pub use failure::{Failure, Kind};
pub use frame::{Decoder, Frame, FrameError};
pub use message::{
    Attach, ConfinementChange, Exec, Info, Limit, Place, Reply, Request, Stats, Stream, Up,
};
pub use text::Text;

/// The version of the protocol. Owner and client must have the same one.
pub const VERSION: u32 = 2;

/// Bytes of a preamble.
pub const PREAMBLE: usize = 12;

/// How long a client that keeps the machine frozen may be silent: its process may be stopped.
pub const HOLD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of one output that the guest, the owner and the client may hold together, unless [`Exec::window`] says
/// otherwise: enough to keep a fast writer busy, few enough for hundreds of commands.
pub const WINDOW: u32 = 256 << 10;

/// The largest [`Exec::window`]: what is more is cut to it.
pub const MAX_WINDOW: u32 = 1 << 20;

/// Most bytes of a stream in one frame.
pub const MAX_DATA: usize = micabox_wire::MAX_DATA;

/// Most bytes of [`Exec::note`].
pub const MAX_NOTE: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"MICAOWN\n";

/// Returns the preamble of this version.
pub fn preamble() -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    let (magic, version) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(MAGIC);
    version.copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks the peer's preamble.
///
/// # Errors
/// [`FrameError::NotThis`] or [`FrameError::Version`].
pub fn check_preamble(bytes: &[u8; PREAMBLE]) -> Result<(), FrameError> {
    let version = bytes.strip_prefix(MAGIC).ok_or(FrameError::NotThis)?;
    let version = version.try_into().map_err(|_| FrameError::NotThis)?;
    match u32::from_le_bytes(version) {
        VERSION => Ok(()),
        theirs => Err(FrameError::Version { theirs }),
    }
}
