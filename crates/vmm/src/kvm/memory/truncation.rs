//! Handles mapped files that shrink, or can't be read.
//!
//! Layers must not change, but a process on the host can truncate one, and a disk or a server can fail to
//! read one. Such a page does not exist: a virtual processor that reads it stops with EFAULT, a device gets
//! SIGBUS, or EFAULT where a system call reads the page for it. All of these end the machine, with the
//! file's name in the message where it is known: the kernel tells no address of a processor's.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Start address in this process.
    pub(crate) start: usize,
    pub(crate) length: u64,
    /// Offset of the mapped part in the file.
    pub(crate) offset: u64,
    pub(crate) file: Arc<File>,
    pub(crate) name: String,
    /// Whether it is RAM, and no layer.
    pub(crate) is_ram: bool,
}

static FILES: OnceLock<Vec<Mapped>> = OnceLock::new();

/// Which of them a process serves by FUSE, each file once.
static SERVED: OnceLock<Vec<usize>> = OnceLock::new();

/// The type of such filesystems (`FUSE_SUPER_MAGIC` of `linux/magic.h`).
const FUSE: i64 = 0x6573_5546;

/// Makes the process end with a message when one of `files` turns out to be truncated. Can be
/// called once in a process.
pub(crate) fn watch(files: Vec<Mapped>) -> io::Result<()> {
    let mut served: Vec<usize> = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let is_new = !served.iter().any(|other| {
            let other = files.get(*other);
            other.is_some_and(|other| Arc::ptr_eq(&other.file, &file.file))
        });
        // One that has no answer to this is served as well.
        let is_served = || match rustix::fs::fstatfs(&file.file) {
            Ok(system) => system.f_type == FUSE,
            Err(_) => true,
        };
        if is_new && is_served() {
            served.push(number);
        }
    }
    let _ = SERVED.set(served);
    let _ = FILES.set(files);
    let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) =
        on_bus_error;
    // SAFETY: plain data, valid when zero: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler makes only calls that a signal handler may make.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns why memory that a processor used does not exist.
pub(crate) fn reason() -> String {
    let files = FILES.get().map(Vec::as_slice).unwrap_or_default();
    if let Some(file) = files.iter().find(|file| file.is_truncated()) {
        return format!("{} {TRUNCATED}", file.name);
    }
    let ram = match files.iter().find(|file| file.is_ram) {
        Some(ram) => format!("{} can't be read ({}), ", ram.name, ram.causes()),
        None => String::new(),
    };
    format!(
        "{NO_PAGE}: {ram}a layer of its image can't be read ({CAUSES}), or the host has none left"
    )
}

/// Returns whether a process serves one of the files.
pub(crate) fn has_served() -> bool {
    SERVED.get().is_some_and(|served| !served.is_empty())
}

/// Returns why a file that a process serves can't be read any more, if that is so. The process says it when it is asked
/// where data is, which the kernel does not cache.
pub(crate) fn served_problem() -> Option<String> {
    let served = SERVED.get()?.iter();
    let mut files = served.filter_map(|number| FILES.get()?.get(*number));
    let failed = files.find(|file| {
        let found = rustix::fs::seek(&file.file, SeekFrom::Data(0));
        // There may be none.
        !matches!(found, Ok(_) | Err(Errno::NXIO))
    })?;
    Some(format!(
        "{} can't be read: {}",
        failed.name,
        failed.causes()
    ))
}

impl Mapped {
    /// Returns why it can't be read.
    fn causes(&self) -> &'static str {
        if self.is_ram { RAM_CAUSES } else { CAUSES }
    }

    fn is_truncated(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| {
            u64::try_from(stat.st_size).unwrap_or_default()
                < self.offset.saturating_add(self.length)
        })
    }
}

/// Ends the process because memory that a device used does not exist.
pub(crate) fn end_machine() -> ! {
    eprintln!("{}", reason());
    std::process::exit(FAILED)
}

/// The exit code.
const FAILED: i32 = 1;

const TRUNCATED: &str = "was truncated while the machine ran";

const NO_PAGE: &str = "the guest used memory that the host can't provide";

/// Why a layer can't be read.
const CAUSES: &str =
    "it is damaged, which `mica store fsck` finds, or its server, mica-layers, has ended";

/// Why a snapshot's memory can't be read.
const RAM_CAUSES: &str = "what is not here of it can't be fetched, for the reason that `mica events` has, or its \
                          server, mica-memory, has ended";

extern "C" fn on_bus_error(
    _signal: libc::c_int,
    info: *const libc::siginfo_t,
    _context: *const libc::c_void,
) {
    // SAFETY: the kernel passes a valid structure, whose address field SIGBUS fills.
    let address = unsafe { (*info).si_addr() } as usize;
    let files = FILES.get().map(Vec::as_slice).unwrap_or_default();
    let file = files.iter().find(|file| {
        address
            .checked_sub(file.start)
            .is_some_and(|offset| (offset as u64) < file.length)
    });
    let parts = match file {
        Some(file) if file.is_truncated() => [&*file.name, " ", TRUNCATED, "\n"],
        Some(file) => [&*file.name, " can't be read: ", file.causes(), "\n"],
        None => [NO_PAGE, "", "", "\n"],
    };
    for part in parts {
        // SAFETY: writes bytes that live.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: ends the process immediately, as a signal handler may.
    unsafe { libc::_exit(FAILED) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::virtio::console::Console;
    use crate::kvm::virtio::driver::{Driver, PMEM, READ};
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    /// Set in the process that the test expects to end.
    const DOOMED: &str = "MICABOX_TEST_DOOMED";

    /// A guest may make a device read from a mapped file: the console, here. The file is truncated
    /// before the device reads it.
    #[test]
    fn a_device_that_reads_a_truncated_layer_ends_the_machine_by_name() {
        /// The port's transmit queue, which the kernel reads, and the queue of control messages
        /// from the driver, which the device reads.
        const QUEUES: [&str; 2] = ["1", "3"];
        let Some(queue) = std::env::var_os(DOOMED) else {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            for queue in QUEUES {
                let mut again = Command::new(std::env::current_exe().unwrap());
                let doomed = again
                    .args(["--exact", &name, "--nocapture"])
                    .env(DOOMED, queue);
                let output = doomed.output().unwrap();
                let words = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(FAILED), "{words}");
                assert!(words.contains("layer 7 was truncated while"), "{words}");
            }
            return;
        };
        let (_host, guest) = UnixStream::pair().unwrap();
        let mut driver = Driver::new(Box::new(Console::new("port", guest).unwrap()));
        let region = driver.memory.regions().next().unwrap();
        let mapped = Mapped {
            start: region.as_ptr() as usize,
            offset: 0,
            length: vm_memory::GuestMemoryRegion::len(region),
            file: Arc::new(driver.pmem.try_clone().unwrap()),
            name: "layer 7".to_owned(),
            is_ram: false,
        };
        watch(vec![mapped]).unwrap();
        driver.pmem.set_len(0).unwrap();
        let queue = queue.to_str().unwrap().parse().unwrap();
        driver.add(queue, &[(PMEM, 8, READ)]);
        driver.run(queue);
        // The device has read it without an error: the test fails.
        std::process::exit(0);
    }
}
