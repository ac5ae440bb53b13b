//! The machine itself: what it is, and what about it the host decides.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use micabox_wire::{Boot, BootFailed, Hello, ToHost};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};

use crate::boot::Step;
use crate::network;

/// Microseconds since the kernel began to count.
pub fn uptime_us() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds * 1_000_000 + nanos / 1000
}

/// The machine from inside.
pub fn hello(init_uptime_us: u64) -> ToHost {
    let memory = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion)] // Its type depends on the architecture.
    let memory_bytes = u64::from(memory.totalram).saturating_mul(u64::from(memory.mem_unit));
    let cpus = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    ToHost::Hello(Hello {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        init_uptime_us,
        memory_bytes,
        cpus,
    })
}

/// Makes the machine what the host wants: its name, time, randomness and network.
pub fn set_up(boot: &Boot) -> Result<(), BootFailed> {
    add_entropy(&boot.entropy).step("seed the random number generator", "/dev/urandom")?;
    let (seconds, nanos) = boot.wall_clock;
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanos.into(),
    };
    rustix::time::clock_settime(ClockId::Realtime, time)
        .step("set the clock", format!("{seconds}.{nanos:09}"))?;
    rustix::system::sethostname(boot.hostname.as_bytes())
        .step("set the host name", &boot.hostname)?;
    network::start(boot.network.as_ref())?;
    for (path, value) in [
        // As Docker has them: ports need no privilege in a network of one's own,
        // nor does ping.
        ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
        ("/proc/sys/net/ipv4/ping_group_range", "0 2147483647"),
    ] {
        fs::write(path, value).step("set the kernel's parameter", path)?;
    }
    raise_own_limits().step("raise the agent's limit", "open files")
}

/// Adds bytes that nobody else knows to the kernel's random number generator, and
/// has it count them.
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
    let generator = File::options().write(true).open("/dev/urandom")?;
    let pool = Pool {
        entropy_bits: 256,
        size_bytes: 32,
        bytes: *bytes,
    };
    // SAFETY: the kernel reads `pool`, which holds as many bytes as it says.
    let result = unsafe { libc::ioctl(generator.as_raw_fd(), ADD_ENTROPY, &raw const pool) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Each command costs the agent a few descriptors.
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
