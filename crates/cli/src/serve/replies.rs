//! What is sent to the client, by all threads.

use std::io::Write;
use std::sync::Mutex;

use micabox_ground::lock;
use micabox_owner::protocol::frame::{self, Pipe};
use micabox_owner::protocol::preamble;
use serde::Serialize;

use micabox_program::output::raw;

/// stdout, a frame at a time. That the client is gone shows at the end of stdin: errors are ignored here.
#[derive(Debug, Default)]
pub struct Replies(Mutex<()>);

impl Replies {
    /// Sends the preamble.
    pub fn begin() -> Self {
        let replies = Self::default();
        replies.write(&preamble());
        replies
    }

    /// Sends a message about the request of this number: a [`Reply`](super::message::Reply), or a
    /// [`Report`](micabox_program::progress::Report).
    pub fn send(&self, number: u32, reply: &impl Serialize) {
        let mut bytes = Vec::new();
        frame::encode(number, reply, &mut bytes);
        self.write(&bytes);
    }

    /// Sends bytes of a command's output.
    pub fn send_data(&self, number: u32, pipe: Pipe, data: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode_data(number, pipe, data, &mut bytes);
        self.write(&bytes);
    }

    /// Sends the end of a command's output.
    pub fn send_end(&self, number: u32, pipe: Pipe) {
        let mut bytes = Vec::new();
        frame::encode_end(number, pipe, &mut bytes);
        self.write(&bytes);
    }

    /// Writes whole frames.
    pub fn write(&self, bytes: &[u8]) {
        let _turn = lock(&self.0);
        let mut stdout = raw::stdout();
        let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
    }
}
