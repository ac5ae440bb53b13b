//! The kernel's log. Filesystems explain their errors only there, and the agent's own lines reach
//! the console through it.

#![expect(
    clippy::disallowed_methods,
    reason = "standard error is the console here"
)]

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Writes a line to the console, for the host to see when there is no other channel.
///
/// The line goes through the kernel's log: the kernel has written it when this returns, while
/// output to the console's terminal waits for interrupts that a machine about to end does not see
/// any more. Errors are ignored, as nothing can be done about them.
pub fn write(text: impl Display) {
    /// The level of a critical condition: shown even if the kernel is configured to be quiet.
    const CRITICAL: &str = "<2>";
    let line = format!("mica-guest: {text}\n");
    let logged = File::options()
        .write(true)
        .open("/dev/kmsg")
        .and_then(|mut log| log.write_all(format!("{CRITICAL}{line}").as_bytes()));
    if logged.is_err() {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Maximum number of lines passed on; the last ones are the most useful.
const LINES: usize = 10;

/// The kernel's log from some moment on.
#[derive(Debug)]
pub struct KernelLog(Option<File>);

impl KernelLog {
    /// Opens the log at its end. Without access to the log this has no lines, which is not an
    /// error.
    pub fn from_now() -> Self {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/kmsg")
            .and_then(|mut file| file.seek(SeekFrom::End(0)).map(|_| file));
        Self(file.ok())
    }

    /// Returns the last few warnings and errors since this was opened.
    pub fn complaints(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        // Each read gives one record, and EPIPE once if some were overwritten.
        let mut buffer = [0; 8192];
        while let Some(file) = &mut self.0 {
            match file.read(&mut buffer) {
                Ok(count @ 1..) => {
                    lines.extend(buffer.get(..count).and_then(complaint));
                }
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                _ => break,
            }
        }
        lines.split_off(lines.len().saturating_sub(LINES))
    }
}

/// Returns the text of a `/dev/kmsg` record (`priority,sequence,time,flags;text`, then properties
/// on separate lines) if it is a warning of the kernel's or worse.
fn complaint(record: &[u8]) -> Option<String> {
    /// The severity is the priority's low three bits; the bits above identify the writer.
    const WARNING: u32 = 4;
    let record = String::from_utf8_lossy(record);
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let text = text.split('\n').next()?.trim();
    (priority <= WARNING && !text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn only_the_kernels_warnings_are_passed_on() {
        for (record, wanted) in [
            (
                "3,812,5140900,-;erofs: (device pmem0): bad magic\n SUBSYSTEM=x\n",
                Some("erofs: (device pmem0): bad magic"),
            ),
            ("4,1,1,-;overlayfs: careful\n", Some("overlayfs: careful")),
            ("6,1,1,-;erofs: mounted\n", None),
            ("12,1,1,-;from user space\n", None),
            ("3,1,1,-;\n", None),
            ("x,1;y\n", None),
            ("no record", None),
        ] {
            assert_eq!(
                complaint(record.as_bytes()).as_deref(),
                wanted,
                "{record:?}"
            );
        }
    }
}
