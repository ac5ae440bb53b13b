//! Freezes the machines of other processes' sandboxes through their owners, and saves them if
//! requested.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_owner::Client;
use micabox_owner::protocol::{Kind, Reply, Request};
use micabox_vmm::Snapshot;
use tracing::debug;

/// Interval at which the owner is notified that its machine must stay frozen.
const BEAT: Duration = Duration::from_secs(1);

/// How long an owner may take to reply that its machine runs again.
const THAW_TIMEOUT: Duration = Duration::from_secs(30);

/// A frozen machine. It stays frozen while [`Frozen::hold`] is called often, and is soon thawed
/// otherwise, also if this process is stopped or gone.
#[derive(Debug)]
pub struct Frozen {
    client: Client,
    told: Instant,
    /// The agent's number for the first command, if the machine was saved.
    pub main: Option<u32>,
    /// The creator's description of the machine.
    pub note: serde_json::Value,
    /// What the saved memory is a delta of.
    pub base: Option<File>,
}

/// The files that a machine is saved to.
#[derive(Clone, Copy, Debug)]
pub struct SaveTo<'a> {
    pub files: &'a Snapshot,
    /// Whether the memory may be a delta.
    pub delta: bool,
}

/// Why a machine is not frozen.
#[derive(Debug)]
pub enum Problem {
    /// There is no owner, or it is about to end its sandbox. The caller may try again.
    Ending(io::Error),
    /// The owner refused: the machine can't be frozen.
    Refused(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Ending(error)
    }
}

/// Requests that the owner of the sandbox in `directory` freezes its machine, and saves it to
/// `save` if given. Waits for at most `patience`.
pub fn freeze(
    directory: &Path,
    save: Option<SaveTo<'_>>,
    patience: Duration,
) -> Result<Frozen, Problem> {
    let mut client = Client::connect(directory)?;
    let request = Request::Freeze {
        memory: save.is_some(),
        delta: save.is_some_and(|save| save.delta),
    };
    let files = save.map(|save| [save.files.state.as_fd(), save.files.memory.as_fd()]);
    client.request(1, &request, files.as_ref().map_or(&[], |files| &files[..]))?;
    match client.reply(1, Instant::now().checked_add(patience))? {
        Some(Reply::Frozen { main, note, base }) => {
            debug!(
                ?directory,
                is_saved = save.is_some(),
                is_delta = base,
                "froze the machine"
            );
            let base = match base.then(|| client.descriptor()) {
                Some(None) => return Err(Problem::Ending(io::ErrorKind::InvalidData.into())),
                base => base.flatten().map(File::from),
            };
            Ok(Frozen {
                client,
                told: Instant::now(),
                main,
                note,
                base,
            })
        }
        Some(Reply::Failed(failure)) => Err(match failure.kind {
            Kind::Ending | Kind::Lost => Problem::Ending(io::Error::other(failure.message)),
            _ => Problem::Refused(failure.message),
        }),
        Some(_) => Err(Problem::Ending(io::ErrorKind::InvalidData.into())),
        None => Err(Problem::Ending(io::ErrorKind::TimedOut.into())),
    }
}

impl Frozen {
    /// Notifies the owner that the machine must stay frozen, if that is due. Must be called often.
    pub fn hold(&mut self) {
        if self.told.elapsed() > BEAT {
            // If the owner is gone, `thaw` reports it.
            let _ = self.client.request(1, &Request::Hold, &[]);
            self.told = Instant::now();
        }
    }

    /// Thaws the machine. Returns whether it was frozen until now.
    pub fn thaw(mut self) -> bool {
        let deadline = Instant::now().checked_add(THAW_TIMEOUT);
        let was_frozen = self.client.request(1, &Request::Thaw, &[]).is_ok()
            && matches!(self.client.reply(1, deadline), Ok(Some(Reply::Thawed)));
        debug!(was_frozen, "thawed the machine");
        was_frozen
    }
}
