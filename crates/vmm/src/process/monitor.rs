//! A client of QEMU's monitor (QMP, `docs/interop/qmp-spec`) with one purpose: to resume a machine
//! that QEMU stopped because the host's disk is full.
//!
//! QEMU stops the whole machine and keeps the request (`werror=enospc`). When it is told to
//! continue, it retries the request, and stops again if there is still no room. A hostile guest may
//! control QEMU's messages, so they are bounded.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

/// Maximum bytes of a message.
const MAX_LINE: u64 = 64 << 10;

/// How long the machine stays stopped before a retry.
const WAIT: Duration = Duration::from_millis(500);

/// A machine that has run for this long since a retry has found room.
const RELIEF: Duration = Duration::from_secs(2);

/// Serves the monitor until it closes; sets `is_full` to whether the host's disk is full.
pub(super) fn serve(stream: &UnixStream, is_full: &AtomicBool) {
    // It ends with the machine, which the process's watcher reports.
    let _ = serve_until_it_ends(stream, is_full);
    is_full.store(false, Ordering::Relaxed);
}

fn serve_until_it_ends(stream: &UnixStream, is_full: &AtomicBool) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        let left = MAX_LINE.saturating_sub(line.len() as u64);
        match reader.by_ref().take(left).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) if line.ends_with(b"\n") => {}
            // The message is cut off, by the limit or by the end of the stream: the next read
            // returns 0.
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                is_full.store(false, Ordering::Relaxed);
                stream.set_read_timeout(None)?;
                continue;
            }
            Err(error) => return Err(error),
        }
        let message: Value = serde_json::from_slice(&line)?;
        line.clear();
        if message.get("QMP").is_some() {
            execute(stream, "qmp_capabilities")?;
        }
        match message.get("event").and_then(Value::as_str) {
            Some("BLOCK_IO_ERROR") if message["data"]["nospace"] == true => {
                is_full.store(true, Ordering::Relaxed);
            }
            Some("STOP") if is_full.load(Ordering::Relaxed) => {
                sleep(WAIT);
                execute(stream, "cont")?;
                stream.set_read_timeout(Some(RELIEF))?;
            }
            _ => {}
        }
    }
}

fn execute(mut stream: &UnixStream, command: &str) -> io::Result<()> {
    writeln!(stream, "{{\"execute\": \"{command}\"}}")
}
