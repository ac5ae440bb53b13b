//! A request, and what is kept until its reply is sent.

use std::sync::{Arc, Mutex, OnceLock};

use micabox_ground::lock;
use micabox_listen::Connection;

use super::places::{Account, Permit};
use super::problem::Problem;

/// A request, until its reply is sent, and what is kept for it.
#[derive(Debug)]
pub struct Call {
    connection: Arc<Connection>,
    account: OnceLock<Account>,
    held: Mutex<Vec<Permit>>,
}

impl Call {
    pub fn new(connection: &Arc<Connection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            account: OnceLock::new(),
            held: Mutex::default(),
        }
    }

    /// Notes that the client may do what it asks for.
    pub fn let_in(&self) {
        self.connection.set_used(true);
    }

    /// Sets on whose account it is.
    pub fn charge(&self, account: Account) {
        // It is one sandbox's.
        let _ = self.account.set(account);
    }

    /// Keeps room for so many bytes of it.
    pub async fn make_room(&self, bytes: usize) -> Result<(), Problem> {
        if let Some(permit) = self.room(bytes).await? {
            self.keep(permit);
        }
        Ok(())
    }

    /// Waits for room for so many bytes that are kept for less long than it; None if they need none.
    pub async fn room(&self, bytes: usize) -> Result<Option<Permit>, Problem> {
        match self.account.get() {
            Some(account) => account.room(bytes).await,
            None => Ok(None),
        }
    }

    /// Keeps a permit until the reply is sent.
    pub fn keep(&self, permit: Permit) {
        let mut held = lock(&self.held);
        held.push(permit);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.connection.set_used(false);
    }
}
