//! Replies that are long lists in JSON: each item is written when it is known, and the text has its room.

use std::sync::Arc;

use serde::Serialize;

use super::call::Call;
use super::http::{Response, json_text};
use super::places::SMALL;
use super::problem::{Kind, Problem};

/// Most items, and most bytes.
const ITEMS: usize = 100_000;
const BYTES: usize = 32 << 20;

/// Bytes of a list that needs no more than some room.
const SOME: usize = 1 << 20;

/// A list that is being written.
#[derive(Debug)]
pub struct List {
    text: Vec<u8>,
    count: usize,
    room: usize,
    call: Arc<Call>,
}

impl List {
    /// Begins the reply of a request.
    pub fn new(begin: &str, call: &Arc<Call>) -> Self {
        Self {
            text: begin.as_bytes().to_vec(),
            count: 0,
            room: SMALL,
            call: Arc::clone(call),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an item. Fails if it is one too many.
    pub async fn add(&mut self, item: &impl Serialize) -> Result<(), Problem> {
        if self.count == ITEMS || self.text.len() > BYTES {
            let message = format!(
                "there are more than {ITEMS} files, or {} MiB of names",
                BYTES >> 20
            );
            return Err(Problem::new(Kind::TooLarge, message));
        }
        if self.text.len() > self.room {
            self.room = if self.room < SOME { SOME } else { usize::MAX };
            self.call.make_room(self.room.min(BYTES)).await?;
        }
        if self.count > 0 {
            self.text.push(b',');
        }
        // Writing into memory does not fail.
        let _ = serde_json::to_writer(&mut self.text, item);
        self.count += 1;
        Ok(())
    }

    pub fn finish(mut self, end: &str) -> Response {
        self.text.extend_from_slice(end.as_bytes());
        json_text(self.text)
    }
}
