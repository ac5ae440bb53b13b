//! Containers on this machine's own kernel, as an asynchronous program makes them.

#[path = "../../../micabox/tests/micabox/support/mod.rs"]
mod image;

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use micabox::{BackendChoice, Builder, Network};
use micabox_async::{Command, Finished, Sandbox};
pub use micabox_testing::PATIENCE;
use micabox_testing::wait_until;

pub use image::guest;

/// A store with the image `box`. Dropping it waits until its sandboxes are gone.
pub struct Fixture(image::Fixture);

impl Fixture {
    pub fn new() -> Self {
        Self(image::Fixture::new())
    }
}

impl Deref for Fixture {
    type Target = image::Fixture;

    fn deref(&self) -> &image::Fixture {
        &self.0
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Sandboxes that were dropped before end in threads. A list removes what a killed owner leaves, once the
        // sandbox's own processes are gone.
        wait_until("its sandboxes are gone", || {
            self.is_empty() || {
                self.sandboxes().list().unwrap();
                self.is_empty()
            }
        });
    }
}

pub const KILL: i32 = 9;
pub const TERM: i32 = 15;

pub fn builder(fixture: &Fixture) -> Builder {
    fixture
        .builder()
        .backend_choice(BackendChoice::Host)
        .network(Network::None)
}

pub async fn sandbox(fixture: &Fixture) -> Sandbox {
    Sandbox::create(builder(fixture)).await.unwrap()
}

pub fn shell(script: &str) -> Command {
    Command {
        env: vec![("PATH".into(), "/bin".into())],
        ..Command::new(["sh", "-c", script])
    }
}

pub async fn run(sandbox: &Sandbox, script: &str) -> Finished {
    sandbox.commands().run(&shell(script)).await.unwrap()
}

/// Waits until something is so, for as long as a busy machine may take.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            // Sleep: the interval between questions.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "never happened: {what}");
}

/// Waits until nothing with these arguments runs in a sandbox.
pub async fn until_gone(sandbox: &Sandbox, command: &str) {
    until(command, async || {
        let processes = sandbox.commands().list().await.unwrap();
        !processes
            .iter()
            .any(|process| process.command.contains(command))
    })
    .await;
}

/// Waits until something with these arguments runs in a sandbox.
pub async fn until_there(sandbox: &Sandbox, command: &str) {
    until(command, async || {
        let processes = sandbox.commands().list().await.unwrap();
        processes
            .iter()
            .any(|process| process.command.contains(command))
    })
    .await;
}

/// Returns how many sockets a sandbox's owner has.
pub fn sockets(sandbox: &Sandbox) -> usize {
    let owner = sandbox.record().owner.unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", owner.pid)).unwrap();
    let links = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| is_socket(link)).count()
}

fn is_socket(link: &Path) -> bool {
    link.to_string_lossy().starts_with("socket:")
}
