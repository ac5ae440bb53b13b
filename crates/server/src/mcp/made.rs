//! How many sandboxes a session has: a model that makes one for each thought does not fill the machine.

use std::sync::{Mutex, MutexGuard};

use micabox_ground::lock;

use micabox::Sandboxes;

use micabox_creation::Held;
use micabox_program::failure::Failure;

/// Most sandboxes that one session has made and that have not ended, those that it keeps included.
const MOST: usize = 128;

/// The sandboxes that don't end with the session, and those that are being made.
#[derive(Debug, Default)]
pub struct Made(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    kept: Vec<String>,
    begun: usize,
}

/// Places for sandboxes that are being made, until they are held.
#[derive(Debug)]
pub struct Places<'a> {
    made: &'a Made,
    count: usize,
}

impl Made {
    /// Takes places for new sandboxes.
    ///
    /// # Errors
    /// If that were too many.
    pub fn reserve(
        &self,
        count: usize,
        sandboxes: &Sandboxes,
        held: &Held,
    ) -> Result<Places<'_>, Failure> {
        let mut counted = self.lock();
        counted.kept.retain(|id| {
            let found = sandboxes.get(id);
            found.is_ok_and(|sandbox| sandbox.record().status.is_live())
        });
        if counted.begun + counted.kept.len() + held.count() + count > MOST {
            return Err(Failure::new(format!(
                "this session would have more than {MOST} sandboxes"
            ))
            .hint("stop_sandbox ends one"));
        }
        counted.begun += count;
        Ok(Places { made: self, count })
    }

    /// A sandbox of the session does not end with it any more.
    pub fn keep(&self, id: &str) {
        self.lock().kept.push(id.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        lock(&self.0)
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.made.lock().begun -= self.count;
    }
}
