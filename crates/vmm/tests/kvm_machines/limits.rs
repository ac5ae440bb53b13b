//! Tests the control group of a machine's processes, as root with control groups of version 2: the
//! nested machine's root has them, and a real host's may.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};
use micabox_vmm::{Backend, Kvm, MachineConfig};

use super::{config, greeting};

pub fn tests() -> Vec<Trial> {
    vec![
        Trial::test("a_machine_has_a_group_with_limits", limited),
        Trial::test("a_dead_owners_group_goes_at_the_next_start", swept),
    ]
}

/// Returns the directory of a process's group.
fn group(pid: u32) -> Result<PathBuf, Failed> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(Path::new("/sys/fs/cgroup").join(path.ok_or("no group of version 2")?))
}

/// Returns where groups can be made; not every host with KVM has one.
fn place() -> Option<PathBuf> {
    match micabox_vmm::control_groups() {
        Ok((directory, controllers)) => {
            assert_eq!(controllers, ["memory", "cpu", "pids"]);
            Some(directory)
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            assert!(
                std::process::id() > 1 && !Path::new("/guest").exists(),
                "{why}"
            );
            None
        }
    }
}

fn limited() -> Result<(), Failed> {
    let Some(place) = place() else {
        return Ok(());
    };
    let machine = Kvm::probe()?.start(&MachineConfig {
        machine: micabox_spec::Machine {
            cpus: Some(2),
            ..config().machine
        },
        ..config()
    })?;
    greeting(&*machine)?;
    let group = group(machine.pid())?;
    assert_eq!(group.parent(), Some(&*place));
    assert_ne!(group, self::group(std::process::id())?);
    let read = |file| fs::read_to_string(group.join(file)).map(|text| text.trim().to_owned());
    // 128 MiB of RAM and 256 more.
    assert_eq!(read("memory.max")?, (384_u64 << 20).to_string());
    assert_eq!(read("memory.oom.group")?, "1");
    assert_eq!(read("cpu.max")?, "300000 100000");
    assert_eq!(read("pids.max")?, "11");
    // The worker and its keeper are in the group (and threads of KVM's own), and the guest's memory
    // is counted there.
    assert!(read("cgroup.procs")?.lines().count() >= 2);
    assert!(read("memory.current")?.parse::<u64>()? > 16 << 20);
    drop(machine);
    assert!(!group.exists(), "{}", group.display());
    Ok(())
}

fn swept() -> Result<(), Failed> {
    let Some(place) = place() else {
        return Ok(());
    };
    // A group that a killed owner left: no process has such a number (`PID_MAX_LIMIT`). A group of
    // another program must stay.
    let left = place.join("micabox-4194305-0");
    let other = place.join("micabox-other");
    for group in [&left, &other] {
        fs::create_dir(group)?;
    }
    let machine = Kvm::probe()?.start(&config())?;
    assert!(!left.exists());
    assert!(other.exists());
    fs::remove_dir(other)?;
    drop(machine);
    Ok(())
}
