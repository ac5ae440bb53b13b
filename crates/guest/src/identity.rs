//! The properties that distinguish this machine from others: its name, time, randomness and
//! network. Set at boot, and again in every copy.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use micabox_wire::{BootFailed, Identity};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};

use crate::boot::files;
use crate::kernel::{Kernel, has_one_user};
use crate::network::{self, Interface};
use crate::sandbox::{Place, Sandbox};
use crate::step::Step;

/// Gives the machine its identity, and returns the network interface if there is one.
pub fn set_up(identity: &Identity, kernel: Kernel) -> Result<Option<Interface>, BootFailed> {
    let groups = match kernel {
        Kernel::Own => {
            set_kernel(identity.wall_clock, &identity.entropy)?;
            "0 2147483647"
        }
        // Those of the user namespace. Clock and randomness are the host's.
        Kernel::Hosts if has_one_user() => "0 0",
        Kernel::Hosts => "0 65535",
    };
    set_name(&identity.hostname)?;
    let interface = network::start(identity.network.as_ref())?;
    for (path, value) in [
        // As in Docker: in a network of the sandbox's own, neither ports nor ping need privileges.
        ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
        ("/proc/sys/net/ipv4/ping_group_range", groups),
    ] {
        fs::write(path, value).step("set the kernel's parameter", path)?;
    }
    match raise_own_limits() {
        // A container's limit is what its keeper may have.
        Err(Errno::PERM) if kernel == Kernel::Hosts => {}
        result => result.step("raise the agent's limit", "open files")?,
    }
    Ok(interface)
}

/// Gives a restored copy of a machine a new identity.
pub fn assume(identity: &Identity, sandbox: &mut Sandbox) -> Result<(), BootFailed> {
    sandbox.hostname.clone_from(&identity.hostname);
    if matches!(sandbox.place, Place::Here) {
        return Ok(());
    }
    set_kernel(identity.wall_clock, &identity.entropy)?;
    set_name(&identity.hostname)?;
    files::write(identity)?;
    match (&mut sandbox.interface, &identity.network) {
        (Some(interface), Some(network)) => interface.change(network),
        (None, Some(_)) => Err(Errno::NODEV).step("start the network", "the original has none"),
        (_, None) => Ok(()),
    }
}

/// Renews the original's clock and randomness, so that it differs from its copies.
pub fn renew(
    wall_clock: (i64, u32),
    entropy: &[u8; 32],
    sandbox: &Sandbox,
) -> Result<(), BootFailed> {
    match sandbox.place {
        Place::Here => Ok(()),
        Place::Namespace { .. } => set_kernel(wall_clock, entropy),
    }
}

/// Sets the kernel's own state; randomness first, before it is used.
fn set_kernel(wall_clock: (i64, u32), entropy: &[u8; 32]) -> Result<(), BootFailed> {
    add_entropy(entropy).step("seed the random number generator", "/dev/urandom")?;
    let (seconds, nanos) = wall_clock;
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanos.into(),
    };
    rustix::time::clock_settime(ClockId::Realtime, time)
        .step("set the clock", format!("{seconds}.{nanos:09}"))
}

fn set_name(hostname: &str) -> Result<(), BootFailed> {
    rustix::system::sethostname(hostname.as_bytes()).step("set the host name", hostname)
}

/// Adds secret bytes to the kernel's random number generator, credits their entropy, and reseeds it
/// so that all later output depends on them.
fn add_entropy(bytes: &[u8; 32]) -> std::io::Result<()> {
    /// `struct rand_pool_info` of linux/random.h with 32 bytes.
    #[repr(C)]
    struct Pool {
        entropy_bits: i32,
        size_bytes: i32,
        bytes: [u8; 32],
    }
    /// `RNDADDENTROPY`, `_IOW('R', 3, int[2])`.
    const ADD_ENTROPY: libc::c_ulong = 0x4008_5203;
    /// `RNDRESEEDCRNG`, `_IO('R', 7)`.
    const RESEED: libc::c_ulong = 0x5207;
    let generator = File::options().write(true).open("/dev/urandom")?;
    let pool = Pool {
        entropy_bits: 256,
        size_bytes: 32,
        bytes: *bytes,
    };
    // SAFETY: the kernel reads `pool`, which has the size that its field says; the second request
    // takes no argument.
    let result = unsafe {
        match libc::ioctl(generator.as_raw_fd(), ADD_ENTROPY, &raw const pool) {
            0 => libc::ioctl(generator.as_raw_fd(), RESEED),
            error => error,
        }
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Raises the agent's limit of open files: each command needs a few descriptors.
fn raise_own_limits() -> Result<(), Errno> {
    use rustix::process::{Resource, Rlimit, setrlimit};

    let most = Some(524_288);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: most,
        },
    )
}
