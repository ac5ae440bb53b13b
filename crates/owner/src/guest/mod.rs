//! The conversation with the agent in the guest: the stream, and what waits to be sent.

mod link;
mod outbox;

pub(crate) use link::{Broken, Link};
