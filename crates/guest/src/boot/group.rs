//! The sandbox's control group: how many processes commands may have.

use std::fs::{self, File};
use std::os::fd::OwnedFd;

use micabox_wire::BootFailed;
use rustix::mount::{MountFlags, OpenTreeFlags, mount_remount};

use super::Step;
use crate::mount::attach;

/// Where the sandbox sees its control group.
const ROOT: &str = "/sys/fs/cgroup";

/// The group of all commands; the agent and its reaper are in the root.
const GROUP: &str = "/sys/fs/cgroup/sandbox";

/// Makes the group with at most `processes` processes and threads in it, and shows it to the sandbox
/// in place of the root, read-only as in Docker. Returns the file that a process joins it by.
/// Called in the sandbox's mount namespace.
pub fn make(processes: u64) -> Result<OwnedFd, BootFailed> {
    let enable = format!("{ROOT}/cgroup.subtree_control");
    fs::write(&enable, "+pids").step("limit processes", &enable)?;
    fs::create_dir(GROUP).step("make the control group", GROUP)?;
    let limit = format!("{GROUP}/pids.max");
    fs::write(&limit, processes.to_string()).step("limit processes", &limit)?;
    let members = format!("{GROUP}/cgroup.procs");
    let members = File::options()
        .write(true)
        .open(&members)
        .step("open", &members)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(rustix::fs::CWD, GROUP, flags)
        .and_then(|group| attach(&group, ROOT))
        .step("mount the control group", ROOT)?;
    let data = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    let flags = data | MountFlags::BIND | MountFlags::RDONLY;
    mount_remount(ROOT, flags, c"").step("make read-only", ROOT)?;
    Ok(members.into())
}
