//! Finds out whether the host's KVM works.
//!
//! `/dev/kvm` alone proves little: inside some virtual machines it exists without
//! hardware virtualisation behind it, and an ordinary kernel started on it hangs or
//! ends in an internal error after seconds.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;

use crate::cpu::Flags;

/// The device of KVM.
const DEVICE: &str = "/dev/kvm";

/// The only version of KVM's stable interface.
const API_VERSION: i32 = 12;

/// Checks that KVM works here: makes a machine.
///
/// The kernel takes tens of milliseconds to remove a machine, waiting for other processors, and
/// the process that closes its last descriptor waits. So a thread makes and removes it, with descriptors of
/// its own: otherwise a process that is started meanwhile inherits one, and its execution waits.
///
/// # Errors
/// Why KVM does not work, in a few words, with a remedy where there is one.
pub(crate) fn probe(flags: &Flags) -> Result<(), String> {
    let (result, made) = channel();
    let flags = *flags;
    std::thread::spawn(move || {
        forget_descriptors();
        let machine = look(&flags).and_then(|kvm| {
            let machine = kvm.create_vm();
            machine.map_err(|error| format!("{DEVICE} creates no virtual machine: {error}"))
        });
        let _ = result.send(machine.as_ref().map(drop).map_err(String::clone));
    });
    made.recv()
        .unwrap_or_else(|_| Err(format!("{DEVICE}: its test failed")))
}

/// Gives this thread a table of descriptors of its own, without those of the process but the
/// standard streams. Before Linux 5.9, the thread keeps the process's table.
#[allow(unsafe_code)]
fn forget_descriptors() {
    // SAFETY: closes descriptors in this thread's own table, and the thread uses none of them.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            u32::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
}

/// Checks that there is a KVM for ordinary kernels here.
///
/// # Errors
/// As [`probe`].
pub(crate) fn look(flags: &Flags) -> Result<kvm_ioctls::Kvm, String> {
    open().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("there is no {DEVICE} (no kvm module, or a VM without nested virtualisation)")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!(
                "no permission for {DEVICE} (add yourself to its group: sudo usermod -aG kvm $USER)"
            )
        }
        _ => format!("{DEVICE}: {error}"),
    })?;
    if cfg!(target_arch = "x86_64") && !flags.virtualises {
        return Err(format!(
            "the processor shows neither vmx nor svm, so {DEVICE} can't run ordinary kernels"
        ));
    }
    let kvm = kvm_ioctls::Kvm::new().map_err(|error| format!("{DEVICE}: {error}"))?;
    let version = kvm.get_api_version();
    if version != API_VERSION {
        return Err(format!(
            "{DEVICE} speaks version {version}, not {API_VERSION}"
        ));
    }
    Ok(kvm)
}

/// Opens the device.
pub(crate) fn open() -> std::io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open(DEVICE)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_probe_of_kvm_has_a_reason() {
        if let Err(why) = probe(&Flags::read()) {
            assert!(why.contains("/dev/kvm"), "{why}");
        }
    }
}
