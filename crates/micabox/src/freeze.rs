//! Machines of other processes' sandboxes that are frozen, and perhaps saved.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_owner::Client;
use micabox_owner::protocol::{Kind, Reply, Request};
use micabox_vmm::Snapshot;

/// How often the owner is told that its machine must stay frozen.
const BEAT: Duration = Duration::from_secs(1);

/// How long an owner may take to say that its machine runs again.
const THAW_TIMEOUT: Duration = Duration::from_secs(30);

/// A machine that is frozen for as long as [`Frozen::hold`] is called, and not for much longer
/// otherwise; nor if this process is stopped or gone.
#[derive(Debug)]
pub(crate) struct Frozen {
    client: Client,
    told: Instant,
    /// The agent's number for the first command; of a machine that is saved.
    pub(crate) main: Option<u32>,
    /// What its creator wants to be known of it.
    pub(crate) note: serde_json::Value,
}

/// Why a machine is not frozen.
#[derive(Debug)]
pub(crate) enum Problem {
    /// There is no owner, or it is about to end its sandbox: this may be tried again.
    Ending(io::Error),
    /// It can't be.
    Refused(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Ending(error)
    }
}

/// Has the owner of the sandbox in `directory` freeze its machine, and save it to `memory` if
/// there is one; waits for that for at most `patience`.
pub(crate) fn freeze(
    directory: &Path,
    memory: Option<&Snapshot>,
    patience: Duration,
) -> Result<Frozen, Problem> {
    let mut client = Client::connect(directory)?;
    let request = Request::Freeze {
        memory: memory.is_some(),
    };
    let files = memory.map(|memory| [memory.state.as_fd(), memory.memory.as_fd()]);
    client.request(1, &request, files.as_ref().map_or(&[], |files| &files[..]))?;
    match client.reply(1, Instant::now().checked_add(patience))? {
        Some(Reply::Frozen { main, note }) => Ok(Frozen {
            client,
            told: Instant::now(),
            main,
            note,
        }),
        Some(Reply::Failed(failure)) => Err(match failure.kind {
            Kind::Ending | Kind::Lost => Problem::Ending(io::Error::other(failure.message)),
            _ => Problem::Refused(failure.message),
        }),
        Some(_) => Err(Problem::Ending(io::ErrorKind::InvalidData.into())),
        None => Err(Problem::Ending(io::ErrorKind::TimedOut.into())),
    }
}

impl Frozen {
    /// Says that it must stay frozen, if it is time to. To be called often.
    pub(crate) fn hold(&mut self) {
        if self.told.elapsed() > BEAT {
            // If it is not heard, the end will tell.
            let _ = self.client.request(1, &Request::Hold, &[]);
            self.told = Instant::now();
        }
    }

    /// Has the machine run again: whether it was frozen until now.
    pub(crate) fn thaw(mut self) -> bool {
        let deadline = Instant::now().checked_add(THAW_TIMEOUT);
        self.client.request(1, &Request::Thaw, &[]).is_ok()
            && matches!(self.client.reply(1, deadline), Ok(Some(Reply::Thawed)))
    }
}
