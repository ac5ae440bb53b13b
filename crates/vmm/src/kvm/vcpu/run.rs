//! Runs a virtual processor.

use kvm_ioctls::{VcpuExit, VcpuFd};

use super::Pause;
use crate::kvm::bus::Bus;
use crate::kvm::ending::Ending;

/// Runs guest code as processor `index` until the machine ends, and pauses whenever `pause`
/// requires it.
///
/// `on_fault` returns why guest memory that the guest used may not exist.
pub(crate) fn run(
    mut vcpu: VcpuFd,
    index: usize,
    bus: &Bus,
    pause: &Pause,
    on_fault: impl Fn() -> String,
) -> Ending {
    loop {
        // An access to a device is complete only when KVM has been entered again. With this flag
        // KVM then returns before any other instruction.
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
            // KVM handles HLT itself; some versions return from it anyway.
            Ok(VcpuExit::Hlt | VcpuExit::Intr) => {}
            Ok(exit) => {
                let what = match exit {
                    // KVM could not emulate an instruction, which the guest's code chooses.
                    VcpuExit::InternalError => "KVM gave up on an instruction".to_owned(),
                    VcpuExit::FailEntry(reason, _) => {
                        format!("the processor refused to run it (reason {reason:#x})")
                    }
                    other => format!("KVM stopped with {other:?}"),
                };
                return Ending::Failed(format!("the guest can't continue: {what}"));
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
