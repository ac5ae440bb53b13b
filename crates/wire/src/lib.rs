//! What a Micabox host and its guest agent say to each other.
//!
//! The two talk over any reliable byte stream; a virtio-serial port today. The
//! crate knows neither sockets nor processes: it defines the messages, how they
//! lie on the stream and the arithmetic of flow control.
//!
//! # The stream
//!
//! The guest speaks first. It sends a 12 byte [preamble] (a magic and the
//! protocol version), so that a host can tell "another version" from "not an
//! agent" without decoding anything whose shape may have changed. From then on
//! both directions carry frames: a `u32` length, little endian, and that many
//! bytes of one [postcard] message, [`ToHost`] or [`ToGuest`].
//!
//! ```text
//! guest -> host   preamble, Hello
//! host -> guest   Boot
//! guest -> host   Booted                       or BootFailed, and the guest stops
//! host -> guest   Exec{id}                     any number, concurrently
//! guest -> host   Started{id}, Output{id}..., Exited{id}      or StartFailed{id}
//! host -> guest   Quiesce
//! guest -> host   Quiesced                     here a copy of the machine may be made
//! host -> guest   Thaw                         to the original
//! host -> guest   Restore                      to a copy; its host begins with this
//! guest -> host   Restored                     or BootFailed, and the guest stops
//! host -> guest   Shutdown
//! guest -> host   ShutdownDone, then the machine ends, by a reset
//! ```
//!
//! # Flow control
//!
//! All streams of all commands share one byte stream, so nobody may send what
//! the receiver has no room for: a reader that stops would stall every other
//! command. Each stdin, stdout and stderr therefore has a window of bytes that
//! its sender may have under way ([`SendWindow`]); the receiver returns credit as
//! it hands the bytes on ([`ReceiveWindow`]). Control messages are small and need
//! no credit.
//!
//! # Trust
//!
//! The host trusts nothing that a guest says. Decoding is total: any bytes give
//! a message or an [`Error`], a frame's length is bounded per direction before
//! anything is allocated for it, and a peer that exceeds its window is found out
//! by [`ReceiveWindow::received`].
//!
//! [postcard]: https://postcard.jamesmunns.com/wire-format

#![forbid(unsafe_code)]

mod credit;
mod frame;
mod message;
pub mod preamble;

pub use credit::{ReceiveWindow, SendWindow, WindowError};
pub use frame::{Decoder, Error, Message, encode, read_message, write_message};
pub use message::{
    Boot, BootFailed, BootTimings, Device, Exec, ExitStatus, Extent, Format, Hello, Identity, Init,
    Lower, Network, OutputStream, Phase, Range, Reattach, Restore, StartFailed, StartFailure,
    ToGuest, ToHost, TtySize, Upper,
};

/// Version of everything in this crate. Host and guest must agree exactly: they
/// are built and shipped together, so there is nothing to negotiate.
pub const VERSION: u32 = 4;

/// Most bytes of stdin or output in one message. Longer data is sent as several,
/// so that commands share the stream fairly.
pub const MAX_DATA: usize = 32 * 1024;
