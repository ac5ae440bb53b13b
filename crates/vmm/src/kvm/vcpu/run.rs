//! A processor's life.

use kvm_ioctls::{VcpuExit, VcpuFd};

use super::Pause;
use crate::kvm::bus::Bus;
use crate::kvm::ending::Ending;

/// Runs guest code until the machine ends, as processor `index`, standing still whenever
/// `pause` says so.
///
/// `on_fault` says why guest memory that the guest used may not be there.
pub(crate) fn run(
    mut vcpu: VcpuFd,
    index: usize,
    bus: &Bus,
    pause: &Pause,
    on_fault: impl Fn() -> String,
) -> Ending {
    loop {
        // An access to a device is over only when KVM has been entered again. With this it
        // comes back then, before any other instruction.
        let is_wanted = pause.is_wanted();
        vcpu.set_kvm_immediate_exit(is_wanted.into());
        match vcpu.run() {
            Ok(VcpuExit::IoOut(port, data)) => {
                if let Some(ending) = bus.write_port(port, data) {
                    return ending;
                }
            }
            Ok(VcpuExit::IoIn(port, data)) => bus.read_port(port, data),
            Ok(VcpuExit::MmioRead(address, data)) => bus.read_memory(address, data),
            Ok(VcpuExit::MmioWrite(address, data)) => bus.write_memory(address, data),
            Ok(VcpuExit::Shutdown) => return Ending::TripleFault,
            // KVM handles HLT itself; some versions come back from it all the same.
            Ok(VcpuExit::Hlt | VcpuExit::Intr) => {}
            Ok(exit) => {
                let what = match exit {
                    // What KVM could not emulate; the guest's code decides what that is.
                    VcpuExit::InternalError => "KVM gave up on an instruction".to_owned(),
                    VcpuExit::FailEntry(reason, _) => {
                        format!("the processor refused to run it (reason {reason:#x})")
                    }
                    other => format!("KVM stopped with {other:?}"),
                };
                return Ending::Failed(format!("the guest can't go on: {what}"));
            }
            Err(error) => match error.errno() {
                libc::EINTR if is_wanted => pause.rest(index, &vcpu),
                libc::EINTR | libc::EAGAIN => {}
                libc::EFAULT => return Ending::Failed(on_fault()),
                _ => return Ending::Failed(format!("running the guest: {error}")),
            },
        }
    }
}
