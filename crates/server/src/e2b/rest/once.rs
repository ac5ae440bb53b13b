//! Requests that make one sandbox, however often they are sent: their clients send a key with them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use hyper::HeaderMap;
use micabox_ground::lock;

use crate::e2b::http::header;
use crate::e2b::problem::{Kind, Problem};

/// The header.
const HEADER: &str = "idempotency-key";

/// Most characters of a key.
const MOST: usize = 255;

/// The keys of requests that are under way.
#[derive(Debug, Default)]
pub struct Keys(Arc<Mutex<HashSet<String>>>);

/// A request with a key, until it is answered.
#[derive(Debug)]
pub struct Once {
    pub key: String,
    all: Arc<Mutex<HashSet<String>>>,
}

impl Keys {
    /// Begins a request; None if it has no key.
    pub fn begin(&self, headers: &HeaderMap) -> Result<Option<Once>, Problem> {
        if !headers.contains_key(HEADER) {
            return Ok(None);
        }
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let key = header(headers, HEADER).unwrap_or_default();
        if key.is_empty() || key.len() > MOST || !key.chars().all(is_plain) {
            return Err(Problem::invalid(format!(
                "{HEADER} is not 1 to {MOST} lower-case letters, digits and hyphens"
            )));
        }
        let mut all = lock(&self.0);
        if !all.insert(key.to_owned()) {
            let message = format!("a request with this {HEADER} is not answered yet");
            return Err(Problem::new(Kind::Conflict, message));
        }
        Ok(Some(Once {
            key: key.to_owned(),
            all: Arc::clone(&self.0),
        }))
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        all.remove(&self.key);
    }
}
