//! The protocol between a Micabox host and its guest agent.
//!
//! The two communicate over a virtio-serial port, or a container's socketpair. The crate
//! contains no sockets and no processes: it defines the messages, their encoding on the stream and
//! the arithmetic of flow control.
//!
//! # The stream
//!
//! The guest sends first: a 12-byte [preamble] (a magic and the protocol version), so that a host
//! can distinguish "another version" from "not an agent" without decoding anything whose shape may
//! have changed. From then on both directions carry frames: a `u32` length, little endian, and that
//! many bytes of one [postcard] message, [`ToHost`] or [`ToGuest`].
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
//! All streams of all commands share one byte stream, so a sender must not send what the receiver
//! has no room for: a reader that stops would stall every other command. Each stdin, stdout and
//! stderr therefore has a window, the number of bytes that its sender may have in flight
//! ([`SendWindow`]); the receiver returns credit as it passes the bytes on ([`ReceiveWindow`]).
//! Control messages are small and need no credit.
//!
//! # Trust
//!
//! The host does not trust the guest. Decoding is total: any bytes give a message or an [`Error`],
//! a frame's length is bounded per direction before memory is allocated for it, and
//! [`ReceiveWindow::received`] detects a peer that exceeds its window.
//!
//! [postcard]: https://postcard.jamesmunns.com/wire-format

#![forbid(unsafe_code)]

mod confinement;
mod credit;
pub mod files;
mod frame;
mod message;
pub mod preamble;
mod setup;
mod text;

pub use confinement::{Confinement, DOCKERS_CAPABILITIES, Ulimit};
pub use credit::{ReceiveWindow, SendWindow, WindowError};
pub use frame::{Decoder, Error, Message, encode, encode_output, read_message, write_message};
pub use message::{
    Boot, BootFailed, BootPart, BootTimings, Device, Exec, ExitStatus, Extent, Format, Hello,
    Identity, Init, Lower, Network, OutputStream, Phase, Range, Reattach, Restore, StartFailed,
    StartFailure, ToGuest, ToHost, TtySize, Upper,
};
pub use setup::{Mount, MountSource, MountedDisk, Setup, Tmpfs};
pub use text::AsText;

/// The protocol's version. Host and guest must agree exactly: they are built and shipped together,
/// so there is nothing to negotiate.
pub const VERSION: u32 = 16;

/// The program's name for the agent's list of processes: no file's name has a NUL byte.
///
/// The command writes a line `uptime SECONDS`, and one for each process in the sandbox's `/proc` but
/// itself: PID, parent's PID, user ID, state, number of the terminal, ticks of processor time (100 a
/// second), the tick since boot at which it started, resident KiB, and its arguments or name, without
/// control characters.
pub const PROCESSES: &[u8] = b"\0processes";

/// The program's name for a connection to a TCP port of the sandbox's 127.0.0.1, which is the only
/// argument, in decimal digits.
///
/// The command starts when the connection is made, and fails to start otherwise. Its stdin is sent, with its
/// end; what is received is written to stdout, and the command ends when the other side does.
pub const CONNECT: &[u8] = b"\0connect";

/// The program's name for writing what the kernel has cached of the sandbox's root to its disk: syncfs(2).
pub const FLUSH: &[u8] = b"\0flush";

/// Maximum number of bytes of stdin or output in one message. Longer data is sent as several
/// messages, so that commands share the stream fairly.
pub const MAX_DATA: usize = 32 * 1024;
