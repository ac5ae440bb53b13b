//! The owner's side: it starts servers and connects to them, which the worker can't.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use micabox_ground::chain;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::line::{LONGEST_NAME, LONGEST_REASON};
use crate::{MachineConfig, MachineFile, PartServers};

/// Returns the names of the servers that a machine's files have.
pub(crate) fn names(config: &MachineConfig) -> BTreeSet<String> {
    let mapped = config.pmem.iter().flat_map(|region| &region.files);
    let files = mapped.chain(config.disks.iter().flat_map(|disk| &disk.files));
    let parts = files.filter_map(MachineFile::part);
    parts.map(|part| part.server.clone()).collect()
}

/// Connects a worker to these servers whenever it asks. Returns its end of the line.
pub(crate) fn open(servers: Arc<dyn PartServers>, names: BTreeSet<String>) -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, line) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    std::thread::Builder::new()
        .name("parts".into())
        .spawn(move || serve(&ours, &*servers, &names))?;
    Ok(line)
}

/// Serves the worker's requests until it is gone.
fn serve(worker: &OwnedFd, servers: &dyn PartServers, names: &BTreeSet<String>) {
    let mut name = [0; LONGEST_NAME];
    loop {
        let name = match micabox_socket::receive(worker, &mut name, 0) {
            Ok(received) if received.bytes > 0 => name.get(..received.bytes),
            // The worker has ended, or breaks the protocol because a guest took it over.
            _ => return,
        };
        let name = std::str::from_utf8(name.unwrap_or_default()).unwrap_or_default();
        // The worker chooses among its own only.
        if !names.contains(name) {
            return;
        }
        let answered = match servers.connect(name) {
            Ok(connection) => micabox_socket::send(worker, &[0], &[connection.as_fd()]),
            Err(error) => {
                let mut reason = chain(&error).into_bytes();
                reason.truncate(LONGEST_REASON);
                reason.push(b'\n');
                micabox_socket::send(worker, &reason, &[])
            }
        };
        if answered.is_err() {
            return;
        }
    }
}
