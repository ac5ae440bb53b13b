//! Has a running sandbox write what its kernel has cached to its disk, before the disk is copied.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_owner::Client;
use micabox_owner::protocol::{Exec, Reply, Request, Text};
use micabox_wire::FLUSH;
use tracing::debug;

/// How long a guest may take. After that the disk is copied as after a power cut.
const PATIENCE: Duration = Duration::from_secs(10);

/// Flushes the disk of the sandbox in `directory`. A guest that is paused or hangs does not.
pub fn flush(directory: &Path) {
    let is_flushed = ask(directory);
    debug!(?directory, ?is_flushed, "flushed the disk");
}

fn ask(directory: &Path) -> io::Result<bool> {
    let deadline = Instant::now().checked_add(PATIENCE);
    let mut client = Client::connect(directory)?;
    let exec = Exec {
        argv: vec![Text(FLUSH.to_vec())],
        ..Exec::default()
    };
    client.request(1, &Request::Exec(Box::new(exec)), &[])?;
    loop {
        match client.reply(1, deadline)? {
            Some(Reply::Started { .. }) => {}
            Some(Reply::Exited { status, .. }) => return Ok(status.code() == 0),
            _ => return Ok(false),
        }
    }
}
