//! Bytes with descriptors over Unix sockets, and frames on streams.
//!
//! Each call here is one `sendmsg` or `recvmsg`, `read` or `write`, repeated after a signal: jailed processes
//! may make no others.

#![forbid(unsafe_code)]

mod frame;
mod message;
mod stream;

pub use frame::{Frames, TooLong, read_frame, write_frame};
pub use message::{
    MOST_DESCRIPTORS, Received, receive, receive_now, receive_what_fits, send, send_now,
};
pub use stream::{read_before, receive_all, receive_descriptors, send_all, send_descriptors};
