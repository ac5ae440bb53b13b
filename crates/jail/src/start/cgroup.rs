//! A control group (version 2) for jailed processes, where one can be had: limits that
//! hold whatever becomes of a process.
//!
//! It is made below this process's own group if that is the root of what we see, otherwise
//! beside it: a group that has processes of its own can't give controllers to others.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};

/// What groups of ours are called: this, the process that made it, a number.
const PREFIX: &str = "micabox-";

/// The controllers that we want. Without the first one there is no point.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// Microseconds that shares of the processors are counted over, the kernel's default.
const PERIOD: u64 = 100_000;

/// How long killed processes may take to go.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the processes of a group may use together.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Bytes of memory, page cache included, of which the kernel takes back what it can.
    pub memory: u64,
    /// Whole processors' worth of time.
    pub cpus: u64,
    /// Processes and threads.
    pub tasks: u64,
}

/// A group. Dropping it kills what is left in it and removes it.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    /// The directory.
    pub(super) handle: File,
    /// A process that writes to it becomes a member.
    members: File,
    /// Controllers that its place doesn't have.
    missing: Vec<&'static str>,
}

/// Where groups can be made.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    /// Those of [`CONTROLLERS`] that there are.
    pub controllers: Vec<&'static str>,
}

impl Place {
    /// Finds the place, and has it hand controllers down.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find() -> Result<Self, String> {
        let (root, own) = own_group()?;
        let parent = own.parent().filter(|_| own != root);
        let mut why = String::new();
        for directory in std::iter::once(own.as_path()).chain(parent) {
            match Self::at(directory) {
                Ok(place) => return Ok(place),
                Err(error) => why = format!("{}: {error}", directory.display()),
            }
        }
        Err(why)
    }

    fn at(directory: &Path) -> Result<Self, String> {
        for path in [directory.to_owned(), directory.join("cgroup.procs")] {
            access(&path, Access::WRITE_OK).map_err(|error| error.to_string())?;
        }
        let control = directory.join("cgroup.subtree_control");
        let enabled = || {
            let text = fs::read_to_string(&control).unwrap_or_default();
            let has = |name: &&str| text.split_whitespace().any(|word| word == *name);
            CONTROLLERS.into_iter().filter(has).collect::<Vec<_>>()
        };
        for controller in CONTROLLERS {
            if !enabled().contains(&controller) {
                // It shows afterwards.
                let _ = fs::write(&control, format!("+{controller}"));
            }
        }
        let controllers = enabled();
        match controllers.first() {
            Some(&"memory") => Ok(Self {
                directory: directory.to_owned(),
                controllers,
            }),
            _ => Err("it has no memory controller to hand down".to_owned()),
        }
    }

    /// Where it is, for people.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the groups of processes that were killed before they could.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        for entry in entries {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let owner = owner.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // One that has members stays.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

impl Cgroup {
    /// A group with these limits.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn create(limits: &Quota) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let place = Place::find()?;
        place.sweep();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let directory = place.directory.join(name);
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        Self::set_up(&directory, &place, limits).map_err(|error| {
            let _ = fs::remove_dir(&directory);
            format!("{}: {error}", directory.display())
        })
    }

    fn set_up(directory: &Path, place: &Place, limits: &Quota) -> io::Result<Self> {
        let set = |file: &str, value: String| fs::write(directory.join(file), value);
        for controller in &place.controllers {
            match *controller {
                "memory" => {
                    set("memory.max", limits.memory.to_string())?;
                    // Half a machine is none.
                    set("memory.oom.group", "1".to_owned())?;
                }
                "cpu" => {
                    let share = limits.cpus.saturating_mul(PERIOD);
                    set("cpu.max", format!("{share} {PERIOD}"))?;
                }
                _ => set("pids.max", limits.tasks.to_string())?,
            }
        }
        let members = File::options()
            .write(true)
            .open(directory.join("cgroup.procs"))?;
        Ok(Self {
            directory: directory.to_owned(),
            handle: File::open(directory)?,
            members,
            missing: CONTROLLERS
                .into_iter()
                .filter(|name| !place.controllers.contains(name))
                .collect(),
        })
    }

    /// What it does not limit, of `memory`, `cpu` and `pids`.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// Whether a process is in it.
    pub fn has(&self, pid: u32) -> bool {
        let members = fs::read_to_string(self.directory.join("cgroup.procs"));
        let pid = pid.to_string();
        members.is_ok_and(|members| members.lines().any(|member| member == pid))
    }

    /// Moves the calling process into it: a system call, and nothing else.
    pub(super) fn join(&self) -> io::Result<()> {
        (&self.members).write_all(b"0")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The jailed process goes a moment after its keeper.
        let _ = fs::write(self.directory.join("cgroup.kill"), "1");
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = fs::remove_dir(&self.directory) {
            if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() > deadline {
                // The next group's start removes it.
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The root of version 2 as far as we see it, and our own group in it.
fn own_group() -> Result<(PathBuf, PathBuf), String> {
    let read = |path| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let mounts = read("/proc/self/mountinfo")?;
    let (root, mount) = mounts
        .lines()
        .find_map(|line| {
            let (fields, kind) = line.split_once(" - ")?;
            let mut fields = fields.split(' ').skip(3);
            kind.starts_with("cgroup2 ")
                .then_some((fields.next()?, fields.next()?))
        })
        .ok_or("no cgroup2 file system is mounted")?;
    let groups = read("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.ok_or("this process is in no group of version 2")?;
    let own = Path::new(own).strip_prefix(root);
    let own = own.map_err(|_| "this process's group is out of sight")?;
    let mount = PathBuf::from(mount);
    // Without a trailing slash, which `join` of nothing would leave.
    let own = mount.components().chain(own.components()).collect();
    Ok((mount, own))
}
