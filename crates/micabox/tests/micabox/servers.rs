//! The processes that serve files of a store.

use std::fs;
use std::path::Path;

use micabox_testing::wait_until;
use rustix::process::{Pid, Signal, kill_process};

/// Returns the processes of this name that have files of a store open: those of other tests have other files.
pub fn servers(name: &[u8], store: &Path) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let process = entry.ok()?.path();
        let line = fs::read(process.join("cmdline")).ok()?;
        if line.split(|byte| *byte == 0).next()? != name {
            return None;
        }
        let open = fs::read_dir(process.join("fd")).ok()?.flatten();
        let mut files = open.filter_map(|link| fs::read_link(link.path()).ok());
        files.find(|file| file.starts_with(store))?;
        Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?)
    });
    processes.collect()
}

/// Kills them, and waits until they are gone; others may be in their place by then.
pub fn kill_servers(name: &[u8], store: &Path) {
    for server in servers(name, store) {
        let _ = kill_process(server, Signal::KILL);
        wait_until("the server is gone", || {
            !servers(name, store).contains(&server)
        });
    }
}
