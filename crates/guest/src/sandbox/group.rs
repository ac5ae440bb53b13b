//! The sandbox's control group: how many processes commands may have.

use std::fs::{self, File};
use std::os::fd::OwnedFd;

use micabox_wire::BootFailed;
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags, mount_remount};

use crate::mount::attach;
use crate::step::Step;

/// Where the sandbox sees its control group.
const ROOT: &str = "/sys/fs/cgroup";

/// The group of all commands; the agent and its reaper are in the root.
const GROUP: &str = "/sys/fs/cgroup/sandbox";

/// The kernel's largest number of processes (`PID_MAX_LIMIT` of include/linux/threads.h): a limit
/// from there on is none, and `pids.max` refuses larger ones.
const ALL: u64 = 4 << 20;

/// The control group of all commands.
#[derive(Debug)]
pub struct Group {
    /// A process that writes to it joins the group.
    members: OwnedFd,
    /// `pids.max`.
    limit: OwnedFd,
}

impl Group {
    /// Moves the calling process into the group.
    pub fn join(&self) -> rustix::io::Result<()> {
        rustix::io::write(&self.members, b"0").map(drop)
    }

    /// Limits the group to so many processes and threads. Those that it has stay.
    pub fn limit(&self, processes: u64) -> rustix::io::Result<()> {
        let text = match processes {
            0..ALL => processes.to_string(),
            _ => "max".to_owned(),
        };
        match rustix::io::write(&self.limit, text.as_bytes()) {
            Ok(count) if count == text.len() => Ok(()),
            Ok(_) => Err(Errno::IO),
            Err(errno) => Err(errno),
        }
    }
}

/// Makes the group with at most `processes` processes and threads in it, and shows it to the sandbox
/// in place of the root, read-only as in Docker. Called in the sandbox's mount namespace.
pub fn make(processes: u64) -> Result<Group, BootFailed> {
    let enable = format!("{ROOT}/cgroup.subtree_control");
    fs::write(&enable, "+pids").step("limit processes", &enable)?;
    fs::create_dir(GROUP).step("make the control group", GROUP)?;
    let open = |name| {
        let path = format!("{GROUP}/{name}");
        let opened = File::options().write(true).open(&path);
        opened.map(OwnedFd::from).step("open", &path)
    };
    let group = Group {
        members: open("cgroup.procs")?,
        limit: open("pids.max")?,
    };
    group.limit(processes).step("limit processes", GROUP)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(rustix::fs::CWD, GROUP, flags)
        .and_then(|tree| attach(&tree, ROOT))
        .step("mount the control group", ROOT)?;
    let data = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    let flags = data | MountFlags::BIND | MountFlags::RDONLY;
    mount_remount(ROOT, flags, c"").step("make read-only", ROOT)?;
    Ok(group)
}
