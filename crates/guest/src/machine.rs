//! Properties of the machine.

use micabox_wire::{Hello, ToHost};
use rustix::time::ClockId;

/// Returns the microseconds since the kernel's clock started.
pub fn uptime_us() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds * 1_000_000 + nanos / 1000
}

/// Returns the message that describes the machine.
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
