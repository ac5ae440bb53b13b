//! A control group (version 2) for jailed processes, where one is available: limits that hold
//! whatever the processes do.
//!
//! The group is made below this process's own group if that is the visible root, otherwise beside
//! it: a group with processes of its own can't enable controllers for children.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};

/// Prefix of our groups' names; the process that made the group and a number follow.
const PREFIX: &str = "micabox-";

/// The controllers to use. Without the first one a group is of no use.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// The period over which processor time is counted, in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;

/// The file of a group's limit of processor time.
const PROCESSOR_TIME: &str = "cpu.max";

/// How long processes may take to freeze: one may be in the middle of a write.
const FREEZING: Duration = Duration::from_secs(60);

/// How long killed processes may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Limits on the processes of a control group, all of them together.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Bytes of memory, including page cache, which the kernel reclaims as far as it can.
    pub memory: u64,
    /// Processor time, in thousandths of a processor.
    pub processor_time: u64,
    /// Processes and threads.
    pub tasks: u64,
}

/// A control group. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    /// The open directory.
    pub(super) handle: File,
    /// A process that writes to it becomes a member.
    members: File,
    /// Controllers that its parent doesn't have.
    missing: Vec<&'static str>,
}

/// The processor time of a control group. It does not keep the group.
#[derive(Debug)]
pub struct ProcessorTime(File);

/// The memory of a control group. It does not keep the group.
#[derive(Debug)]
pub struct GroupMemory(File);

/// What freezes a control group. It does not keep the group.
#[derive(Debug)]
pub struct Freezer {
    state: File,
    events: File,
}

/// The parent directory of new control groups.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    /// Those of [`CONTROLLERS`] that are available.
    pub controllers: Vec<&'static str>,
}

impl Place {
    /// Finds the parent directory, and enables the controllers for its children.
    ///
    /// # Errors
    /// Why none is available.
    pub fn find() -> Result<Self, String> {
        Self::find_with(Self::at)
    }

    /// Finds the parent directory of groups that limit nothing.
    fn find_any() -> Result<Self, String> {
        Self::find_with(|directory| {
            may_have_groups(directory)?;
            Ok(Self {
                directory: directory.to_owned(),
                controllers: Vec::new(),
            })
        })
    }

    fn find_with(look: impl Fn(&Path) -> Result<Self, String>) -> Result<Self, String> {
        let (root, own) = own_group()?;
        let parent = own.parent().filter(|_| own != root);
        let mut why = String::new();
        for directory in std::iter::once(own.as_path()).chain(parent) {
            match look(directory) {
                Ok(place) => return Ok(place),
                Err(error) => why = format!("{}: {error}", directory.display()),
            }
        }
        Err(why)
    }

    fn at(directory: &Path) -> Result<Self, String> {
        may_have_groups(directory)?;
        let control = directory.join("cgroup.subtree_control");
        let enabled = || {
            let text = fs::read_to_string(&control).unwrap_or_default();
            let has = |name: &&str| text.split_whitespace().any(|word| word == *name);
            CONTROLLERS.into_iter().filter(has).collect::<Vec<_>>()
        };
        let mut controllers = enabled();
        if controllers.len() < CONTROLLERS.len() {
            for controller in CONTROLLERS {
                // The list of enabled controllers shows whether it worked.
                let _ = fs::write(&control, format!("+{controller}"));
            }
            controllers = enabled();
        }
        match controllers.first() {
            Some(&"memory") => Ok(Self {
                directory: directory.to_owned(),
                controllers,
            }),
            _ => Err("it has no memory controller to hand down".to_owned()),
        }
    }

    /// The directory, to show to users.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes groups whose owners were killed before they could.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        for entry in entries {
            let name = entry.file_name();
            let owner = name
                .to_str()
                .and_then(|name| name.strip_prefix(PREFIX))
                .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // A group with members stays.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

impl Cgroup {
    /// Creates a group with these limits.
    ///
    /// # Errors
    /// Why none can be created.
    pub fn create(limits: &Quota) -> Result<Self, String> {
        Self::create_at(&Place::find()?, limits)
    }

    /// As [`Cgroup::create`], but where no controller can be had, the group has no limits: it can still be
    /// frozen, and killed as a whole.
    ///
    /// # Errors
    /// Why none can be created.
    pub fn create_available(limits: &Quota) -> Result<Self, String> {
        let place = Place::find().or_else(|_| Place::find_any())?;
        Self::create_at(&place, limits)
    }

    fn create_at(place: &Place, limits: &Quota) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        place.sweep();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let directory = place.directory.join(name);
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        Self::set_up(&directory, place, limits).map_err(|error| {
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
                    // A machine that has lost some of its processes is of no use.
                    set("memory.oom.group", "1".to_owned())?;
                }
                "cpu" => set(PROCESSOR_TIME, share(limits.processor_time))?,
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

    /// The resources that the group does not limit, of `memory`, `cpu` and `pids`.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// Opens the group's limit of processor time, so that it can be changed.
    ///
    /// # Errors
    /// Why it can't be.
    pub fn processor_time(&self) -> Result<ProcessorTime, String> {
        let path = self.directory.join(PROCESSOR_TIME);
        let file = File::options().write(true).open(&path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(ProcessorTime(file))
    }

    /// Opens the count of the group's memory; none if it has no such controller.
    pub fn memory(&self) -> Option<GroupMemory> {
        let has_controller = !self.missing.contains(&"memory");
        let file = has_controller.then(|| File::open(self.directory.join("memory.stat")));
        file?.ok().map(GroupMemory)
    }

    /// Opens what freezes the group's processes.
    ///
    /// # Errors
    /// Why it can't be.
    pub fn freezer(&self) -> Result<Freezer, String> {
        let open = |name, options: &mut fs::OpenOptions| {
            let path = self.directory.join(name);
            let file = options.open(&path);
            file.map_err(|error| format!("{}: {error}", path.display()))
        };
        Ok(Freezer {
            state: open("cgroup.freeze", File::options().write(true))?,
            events: open("cgroup.events", File::options().read(true))?,
        })
    }

    /// Returns whether a process is in the group.
    pub fn has(&self, pid: u32) -> bool {
        let members = fs::read_to_string(self.directory.join("cgroup.procs"));
        let pid = pid.to_string();
        members.is_ok_and(|members| members.lines().any(|member| member == pid))
    }

    /// Moves the calling process into the group. Makes one system call, and nothing else.
    pub(super) fn join(&self) -> io::Result<()> {
        (&self.members).write_all(b"0")
    }
}

impl Freezer {
    /// Freezes the group's processes, all of them, and waits until none runs any more.
    ///
    /// # Errors
    /// Those of the kernel, and if it takes too long; then none is frozen.
    pub fn freeze(&self) -> io::Result<()> {
        self.state.write_all_at(b"1", 0)?;
        let deadline = Instant::now() + FREEZING;
        loop {
            let mut text = [0; 64];
            let length = self.events.read_at(&mut text, 0)?;
            let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
            if text.lines().any(|line| line == "frozen 1") {
                return Ok(());
            }
            if Instant::now() > deadline {
                let _ = self.thaw();
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the group's processes run again.
    ///
    /// # Errors
    /// Those of the kernel; the group may be gone.
    pub fn thaw(&self) -> io::Result<()> {
        self.state.write_all_at(b"0", 0)
    }
}

impl GroupMemory {
    /// Returns the bytes of memory that are not of files on disks, with files in memory among them, and of those that
    /// are; none if the group is gone.
    pub fn read(&self) -> Option<(u64, u64)> {
        let mut text = vec![0; 64 << 10];
        let length = self.0.read_at(&mut text, 0).ok()?;
        split_memory(&String::from_utf8_lossy(text.get(..length)?))
    }
}

/// Reads what a group's `memory.stat` says (Documentation/admin-guide/cgroup-v2.rst): `file` has `shmem` in it.
fn split_memory(stat: &str) -> Option<(u64, u64)> {
    let number = |name: &str| -> Option<u64> {
        let mut lines = stat.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.parse().ok()
    };
    let (anonymous, files, in_memory) = (number("anon")?, number("file")?, number("shmem")?);
    Some((
        anonymous.saturating_add(in_memory),
        files.saturating_sub(in_memory),
    ))
}

impl ProcessorTime {
    /// Limits the group's processes to `thousandths` of a processor together.
    ///
    /// # Errors
    /// Those of the kernel; the group may be gone.
    pub fn set(&self, thousandths: u64) -> io::Result<()> {
        self.0.write_all_at(share(thousandths).as_bytes(), 0)
    }
}

/// Returns whether this process may make groups in a directory and move itself into them.
fn may_have_groups(directory: &Path) -> Result<(), String> {
    for path in [directory.to_owned(), directory.join("cgroup.procs")] {
        access(&path, Access::WRITE_OK).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Returns a limit of processor time in the kernel's terms.
fn share(thousandths: u64) -> String {
    let share = thousandths.saturating_mul(PERIOD) / 1000;
    format!("{share} {PERIOD}")
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The jailed process ends a moment after its keeper.
        let _ = fs::write(self.directory.join("cgroup.kill"), "1");
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = fs::remove_dir(&self.directory) {
            if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() > deadline {
                // The creation of the next group removes it.
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the visible root of version 2, and this process's group in it.
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
    let path = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or("this process is in no group of version 2")?;
    let below_root = Path::new(path)
        .strip_prefix(root)
        .map_err(|_| "this process's group is not visible here")?;
    let mount = PathBuf::from(mount);
    // Without a trailing slash, which `join` with an empty path would add.
    let own = mount.components().chain(below_root.components()).collect();
    Ok((mount, own))
}
