//! The processes in a running sandbox, as its agent lists them.

use std::io::Read;

use micabox_error::Error;
use micabox_operations::{ExecOptions, GuestProcess};

use crate::SandboxRef;
use crate::process::{Begin, Process};

impl SandboxRef {
    /// Lists the processes in the sandbox. No program of the image is needed for it.
    ///
    /// # Errors
    /// As [`SandboxRef::exec`]; [`Error::BadList`] if the guest sends something else.
    pub fn processes(&self) -> Result<Vec<GuestProcess>, Error> {
        let mut process = Process::start(
            self.connect()?,
            Begin::Exec(GuestProcess::request()),
            ExecOptions::piped(false),
        )?;
        let mut list = Vec::new();
        if let Some(output) = process.stdout.take() {
            let read = output
                .take(GuestProcess::MAX_LIST + 1)
                .read_to_end(&mut list);
            read.map_err(|source| Error::System {
                what: "reading the list of processes",
                source,
            })?;
        }
        if list.len() as u64 > GuestProcess::MAX_LIST {
            return Err(Error::BadList);
        }
        // A sandbox that ended has the better reason.
        let status = process.wait()?;
        GuestProcess::parse_list(&list)
            .filter(|_| status.code() == 0)
            .ok_or(Error::BadList)
    }
}
