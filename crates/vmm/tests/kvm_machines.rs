//! Machines of our own monitor, on a KVM that runs ordinary kernels.
//!
//! The program is its own worker, so it has no harness but the one in `main`.

#[path = "kvm_machines/mod.rs"]
mod machines;

fn main() {
    micabox_vmm::run_if_worker();
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, machines::tests()).exit();
}
