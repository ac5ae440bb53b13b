//! Tests machines of our own monitor, on a KVM that runs ordinary kernels.
//!
//! The program is its own worker, and in some of the machines the only program, so it has no
//! harness except the one in `main`.

#[path = "kvm_machines/mod.rs"]
mod machines;

fn main() {
    if std::process::id() == 1 {
        machines::sockets::guest();
    }
    micabox_jail::run_if_worker(&[micabox_vmm::WORKER]);
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, machines::tests()).exit();
}
