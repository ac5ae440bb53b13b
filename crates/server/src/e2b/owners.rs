//! Connections to the owners of sandboxes: one for all that a sandbox's clients ask for, kept between their requests.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use micabox::SandboxRef;
use micabox_async::Sandbox;
use micabox_ground::lock;
use tokio::time::{Instant, sleep};

use super::http::thread;
use super::problem::Problem;

/// How long a connection that nothing uses is kept. A sandbox with one is in use: its idle time begins later by this.
const KEPT_FOR: Duration = Duration::from_secs(2);

/// Most connections that are kept though nothing uses them. Those in use are as many as commands and requests.
const MOST: usize = 256;

/// The connections, by the sandboxes' IDs.
#[derive(Debug, Default)]
struct Owners {
    all: HashMap<String, Arc<Kept>>,
    /// A task looks for those that nothing uses.
    is_attended: bool,
}

static OWNERS: LazyLock<Mutex<Owners>> = LazyLock::new(Mutex::default);

/// The connection to a sandbox's owner.
#[derive(Debug)]
struct Kept {
    /// None before the first request has connected. Requests that come meanwhile wait here.
    sandbox: tokio::sync::Mutex<Option<Sandbox>>,
    used: Mutex<Instant>,
}

impl Kept {
    fn new() -> Self {
        Self {
            sandbox: tokio::sync::Mutex::default(),
            used: Mutex::new(Instant::now()),
        }
    }

    /// Returns whether anything uses it, or has a moment ago.
    fn is_used(&self, since: Duration) -> bool {
        if lock(&self.used).elapsed() < since {
            return true;
        }
        // What connects, or a request that has it.
        let Ok(sandbox) = self.sandbox.try_lock() else {
            return true;
        };
        let mut there = sandbox.iter().filter(|sandbox| sandbox.is_connected());
        there.any(Sandbox::is_shared)
    }
}

/// Returns a sandbox with the connection to its owner, which is made if there is none.
pub async fn connect(found: &SandboxRef) -> Result<Sandbox, Problem> {
    let kept = kept(found.id());
    let mut sandbox = kept.sandbox.lock().await;
    if let Some(sandbox) = sandbox.as_ref().filter(|sandbox| sandbox.is_connected()) {
        return Ok(sandbox.clone());
    }
    let place = thread(found.id()).await?;
    let connected = Sandbox::of(found.clone()).await;
    drop(place);
    Ok(sandbox.insert(connected?).clone())
}

/// Lets go of the connection to a sandbox that is gone.
pub fn forget(id: &str) {
    owners().all.remove(id);
}

fn kept(id: &str) -> Arc<Kept> {
    let mut owners = owners();
    if let Some(kept) = owners.all.get(id) {
        *lock(&kept.used) = Instant::now();
        return Arc::clone(kept);
    }
    if owners.all.len() >= MOST {
        owners.all.retain(|_, kept| kept.is_used(Duration::ZERO));
    }
    if !std::mem::replace(&mut owners.is_attended, true) {
        tokio::spawn(attend());
    }
    let kept = owners.all.entry(id.to_owned());
    Arc::clone(kept.or_insert_with(|| Arc::new(Kept::new())))
}

/// Lets go of connections that nothing uses, until there are none.
async fn attend() {
    loop {
        sleep(KEPT_FOR).await;
        let mut owners = owners();
        owners.all.retain(|_, kept| kept.is_used(KEPT_FOR));
        if owners.all.is_empty() {
            owners.is_attended = false;
            return;
        }
    }
}

fn owners() -> MutexGuard<'static, Owners> {
    lock(&OWNERS)
}
