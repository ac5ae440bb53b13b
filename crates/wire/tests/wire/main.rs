//! Messages, whole and mutated.

mod messages;
mod mutations;
mod stream;
