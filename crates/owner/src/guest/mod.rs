//! The connection to the agent in the guest: the stream, and the queue of messages to send.

mod link;
mod outbox;

pub(crate) use link::{Broken, Link};
