//! What a sandbox on the host's kernel does not see, or can't change, of `/proc` and `/sys`: Docker's
//! `MaskedPaths` and `ReadonlyPaths`.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

use crate::mount::{Filesystem, attach, make_read_only};

/// Files and directories of `/proc` that are covered.
const PROC: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];

/// Parts of `/proc` that are read-only.
const PROC_READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Directories of `/sys` that are covered.
const SYS: [&str; 2] = ["/sys/firmware", "/sys/devices/virtual/powercap"];

/// Where the directories of processors are, and what is covered in each: how often it was too hot.
const PROCESSORS: &str = "/sys/devices/system/cpu";
const OF_PROCESSOR: &str = "thermal_throttle";

/// Covers what is the host's in the `/proc` of this mount namespace.
pub fn cover_proc() -> rustix::io::Result<()> {
    cover(&PROC)?;
    for path in PROC_READ_ONLY {
        if let Some(tree) = existing(open_tree(path))? {
            make_read_only(&tree)?;
            attach(&tree, path)?;
        }
    }
    Ok(())
}

/// Covers what is the host's in its `/sys`.
pub fn cover_sys() -> rustix::io::Result<()> {
    cover(&SYS)?;
    cover(&of_processors(Path::new(PROCESSORS)))
}

/// Returns the directories of processors that are covered, as far as there are any.
fn of_processors(all: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(all).into_iter().flatten().flatten();
    let processors = entries.filter(|entry| {
        let name = entry.file_name();
        let number = name.as_encoded_bytes().strip_prefix(b"cpu");
        number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
    });
    let directories = processors.map(|processor| processor.path().join(OF_PROCESSOR));
    directories.filter(|directory| directory.is_dir()).collect()
}

/// Mounts something empty and read-only on each path that exists: a directory, or `/dev/null`.
fn cover(paths: &[impl AsRef<Path>]) -> rustix::io::Result<()> {
    // One filesystem covers all directories.
    let mut covered: Option<&Path> = None;
    for path in paths {
        let path = path.as_ref();
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let empty = match (opened, covered) {
            (Ok(_), Some(other)) => open_tree(other)?,
            (Ok(_), None) => empty_directory()?,
            (Err(Errno::NOTDIR), _) => {
                attach(&open_tree("/dev/null")?, path)?;
                continue;
            }
            (Err(Errno::NOENT), _) => continue,
            (Err(errno), _) => return Err(errno),
        };
        attach(&empty, path)?;
        covered = Some(path);
    }
    Ok(())
}

fn empty_directory() -> rustix::io::Result<OwnedFd> {
    let empty = || {
        let tmpfs = Filesystem::new("tmpfs")?;
        tmpfs.set("size", "0")?;
        tmpfs.set("nr_inodes", "1")?;
        tmpfs.mount(MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV)
    };
    empty().map_err(|error: crate::mount::Error| error.errno)
}

fn open_tree(path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, path, flags)
}

fn existing(opened: rustix::io::Result<OwnedFd>) -> rustix::io::Result<Option<OwnedFd>> {
    match opened {
        Ok(tree) => Ok(Some(tree)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heat_of_each_processor_is_covered() {
        let all = tempfile::tempdir().unwrap();
        for name in [
            "cpu0/thermal_throttle",
            "cpu11/thermal_throttle",
            "cpu2",
            "cpufreq/thermal_throttle",
        ] {
            fs::create_dir_all(all.path().join(name)).unwrap();
        }
        let mut found = of_processors(all.path());
        found.sort();
        let expected = ["cpu0", "cpu11"].map(|name| all.path().join(name).join(OF_PROCESSOR));
        assert_eq!(found, expected);
        assert!(of_processors(Path::new("/proc/none")).is_empty());
    }
}
