//! Finds out whether the host's KVM works.
//!
//! `/dev/kvm` alone proves little: inside some virtual machines it exists without
//! hardware virtualisation behind it, and an ordinary kernel started on it hangs or
//! ends in an internal error after seconds.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::channel;

use crate::Lack;
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
/// Why KVM does not work.
pub(crate) fn probe(flags: &Flags) -> Result<(), Lack> {
    let (result, made) = channel();
    let flags = *flags;
    std::thread::spawn(move || {
        forget_descriptors();
        let machine = look(&flags).and_then(|kvm| {
            let machine = kvm.create_vm();
            machine
                .map_err(|error| Lack::new(format!("{DEVICE} creates no virtual machine: {error}")))
        });
        let _ = result.send(machine.as_ref().map(drop).map_err(Lack::clone));
    });
    made.recv()
        .unwrap_or_else(|_| Err(Lack::new(format!("{DEVICE}: its test failed"))))
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
pub(crate) fn look(flags: &Flags) -> Result<kvm_ioctls::Kvm, Lack> {
    let opened = open().map(drop).map_err(|error| error.kind());
    let metadata = std::fs::metadata(DEVICE).ok();
    let access = metadata.map(|metadata| (metadata.mode(), group(metadata.gid())));
    if let Some(lack) = lack(opened, access, flags) {
        return Err(lack);
    }
    let failed = |error| Lack::new(format!("{DEVICE}: {error}"));
    let kvm = kvm_ioctls::Kvm::new().map_err(failed)?;
    let version = kvm.get_api_version();
    if version != API_VERSION {
        return Err(Lack::new(format!(
            "{DEVICE} speaks version {version}, not {API_VERSION}"
        )));
    }
    Ok(kvm)
}

/// Returns what keeps KVM from working: the processor first, since no right to a device changes that. `access`
/// is the device's mode and the name of its group, if that is not root's.
fn lack(
    opened: Result<(), ErrorKind>,
    access: Option<(u32, Option<String>)>,
    flags: &Flags,
) -> Option<Lack> {
    /// Read and written by the group.
    const GROUP: u32 = 0o060;
    if cfg!(target_arch = "x86_64") && !flags.virtualises {
        let lack = Lack::new(format!(
            "the processor shows neither vmx nor svm, so {DEVICE} can't run ordinary kernels"
        ));
        return Some(lack.remedy_is(if flags.is_virtual {
            "this is a virtual machine: its host has to switch nested virtualisation on"
        } else {
            "switch hardware virtualisation (VT-x, AMD-V) on in this machine's firmware"
        }));
    }
    let remedy = match opened {
        Ok(()) => return None,
        Err(ErrorKind::NotFound) => {
            return Some(Lack::new(format!("there is no {DEVICE}")).remedy_is(
                "load the kernel's module: `sudo modprobe kvm_intel`, or kvm_amd; a container \
                     needs the device from its host",
            ));
        }
        Err(ErrorKind::PermissionDenied) => match access {
            Some((mode, Some(group))) if mode & GROUP == GROUP => format!(
                "add yourself to its group, and log in again: `sudo usermod -aG {group} $USER`"
            ),
            _ => format!(
                "it is root's alone: run mica as root, or give it to a group that you are in, as \
                 with `sudo chgrp kvm {DEVICE}` and `sudo chmod 660 {DEVICE}`"
            ),
        },
        Err(kind) => return Some(Lack::new(format!("{DEVICE}: {kind}"))),
    };
    Some(Lack::new(format!("no permission for {DEVICE}")).remedy_is(remedy))
}

/// Returns the name of a group, or its number; none for root's.
fn group(number: u32) -> Option<String> {
    if number == 0 {
        return None;
    }
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    Some(name.unwrap_or_else(|| number.to_string()))
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
            assert!(why.to_string().contains("/dev/kvm"), "{why}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_remedy_for_a_kvm_that_does_not_work_is_that_of_its_cause() {
        let flags = |virtualises, is_virtual| Flags {
            virtualises,
            is_virtual,
            counts_evenly: true,
        };
        let denied = Err(ErrorKind::PermissionDenied);
        let missing = Err(ErrorKind::NotFound);
        let group = |mode| Some((mode, Some("kvm".to_owned())));
        for (opened, access, flags, why, remedy) in [
            (missing, None, flags(false, true), "vmx", "its host"),
            (denied, group(0o660), flags(false, true), "vmx", "its host"),
            (Ok(()), group(0o660), flags(false, false), "vmx", "firmware"),
            (missing, None, flags(true, false), "no /dev/kvm", "modprobe"),
            (
                denied,
                group(0o660),
                flags(true, false),
                "permission",
                "usermod -aG kvm",
            ),
            (
                denied,
                group(0o600),
                flags(true, false),
                "permission",
                "root's alone",
            ),
            (
                denied,
                Some((0o660, None)),
                flags(true, true),
                "permission",
                "root's alone",
            ),
        ] {
            let lack = lack(opened, access, &flags).unwrap();
            let found = (lack.to_string(), lack.remedy().unwrap_or_default());
            assert!(
                found.0.contains(why) && found.1.contains(remedy),
                "{found:?}"
            );
        }
        let works = lack(Ok(()), group(0o660), &flags(true, false));
        assert_eq!(works, None);
    }
}
