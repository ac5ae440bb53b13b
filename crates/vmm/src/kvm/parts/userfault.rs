//! userfaultfd(2): a thread is told of memory that other threads miss, the kernel for a processor included.
//!
//! What has been registered reads as zeros once the last descriptor is closed, so it stays open as long as the process.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::Lack;

/// The device that gives unrestricted ones (Linux 6.1) to all who may open it.
const DEVICE: &str = "/dev/userfaultfd";

/// Whether the system call does so for all.
const SETTING: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// Requests (`linux/userfaultfd.h`): to the device for a descriptor, and to a descriptor.
const NEW: u32 = 0xaa00;
const API: u32 = 0xc018_aa3f;
const REGISTER: u32 = 0xc020_aa00;
pub(crate) const WAKE: u32 = 0x8010_aa02;

/// All of them.
pub(crate) const REQUESTS: [u32; 4] = [NEW, API, REGISTER, WAKE];

/// The version of the interface (`UFFD_API`).
const VERSION: u64 = 0xaa;

/// Memory that is missing (`UFFDIO_REGISTER_MODE_MISSING`).
const MISSING: u64 = 1;

/// A message that memory is missing (`UFFD_EVENT_PAGEFAULT`), and where it has the address.
const FAULT: u8 = 0x12;
const MESSAGE: usize = 32;
const ADDRESS: usize = 16;

/// Messages that are read at once.
const AT_ONCE: usize = 16;

const FLAGS: libc::c_int = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// A way to a userfaultfd that counts faults of the kernel: those of a processor are.
#[derive(Debug)]
pub(crate) enum Access {
    Device(OwnedFd),
    Call,
}

/// Returns the way that this process has.
///
/// # Errors
/// What is lacking.
pub(crate) fn find() -> Result<Access, Lack> {
    let error = match File::options().read(true).write(true).open(DEVICE) {
        Ok(device) => return Ok(Access::Device(device.into())),
        Err(error) => error,
    };
    let setting = std::fs::read_to_string(SETTING);
    if setting.is_ok_and(|setting| setting.trim_end() == "1") {
        return Ok(Access::Call);
    }
    let lack = Lack::new(format!("{DEVICE}: {error}"));
    Err(lack.remedy_is(match error.kind() {
        io::ErrorKind::NotFound => {
            "use a kernel with userfaultfd (CONFIG_USERFAULTFD), 6.1 or later; a container needs \
             `--device /dev/userfaultfd`; an older kernel has `sudo sysctl vm.unprivileged_userfaultfd=1`"
        }
        _ => {
            "let a group open it: `sudo chgrp kvm /dev/userfaultfd` and `sudo chmod 660 /dev/userfaultfd`; for good, the \
             udev rule `KERNEL==\"userfaultfd\", GROUP=\"kvm\", MODE=\"0660\"`"
        }
    }))
}

/// A userfaultfd of this process.
#[derive(Debug)]
pub(crate) struct Userfault(OwnedFd);

impl Userfault {
    /// Makes one.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(access: Access) -> io::Result<Self> {
        let number = match access {
            // SAFETY: takes a descriptor and a number, and returns a descriptor.
            Access::Device(device) => unsafe {
                libc::ioctl(device.as_raw_fd(), NEW as libc::Ioctl, FLAGS)
            },
            // SAFETY: takes a number, and returns a descriptor.
            Access::Call => unsafe { libc::syscall(libc::SYS_userfaultfd, FLAGS) as libc::c_int },
        };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is new, so that nothing else owns it.
        let faults = Self(unsafe { OwnedFd::from_raw_fd(number) });
        // Version, features that are wanted, and requests that the kernel knows.
        faults.request(API, &mut [VERSION, 0, 0])?;
        Ok(faults)
    }

    /// Has faults of missing memory in this range announced. The memory is private, anonymous and not written to.
    pub(crate) fn register(&self, start: usize, length: u64) -> io::Result<()> {
        // A range, the kind of faults, and requests that the range allows.
        self.request(REGISTER, &mut [start as u64, length, MISSING, 0])
    }

    /// Has the threads go on that wait for memory in this range.
    pub(crate) fn wake(&self, start: usize, length: u64) -> io::Result<()> {
        self.request(WAKE, &mut [start as u64, length])
    }

    /// Returns the addresses of faults; none if there are none now. There may be more.
    pub(crate) fn read(&self) -> io::Result<Vec<usize>> {
        let mut messages = [[0; MESSAGE]; AT_ONCE];
        let read = match rustix::io::read(&self.0, messages.as_flattened_mut()) {
            // Interrupted, it is there the next time.
            Err(Errno::AGAIN | Errno::INTR) => 0,
            read => read?,
        };
        let addresses = messages.iter().take(read / MESSAGE).filter_map(|message| {
            let address = message.get(ADDRESS..).and_then(<[u8]>::first_chunk);
            let is_fault = message.first() == Some(&FAULT);
            let address = u64::from_ne_bytes(*address?) as usize;
            is_fault.then_some(address)
        });
        Ok(addresses.collect())
    }

    fn request<const N: usize>(&self, request: u32, fields: &mut [u64; N]) -> io::Result<()> {
        // SAFETY: each request reads and writes a structure of so many fields of 64 bits, which lives.
        let done = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                request as libc::Ioctl,
                fields.as_mut_ptr(),
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
