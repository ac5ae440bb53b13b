//! `mica doctor`

use std::fs::File;
use std::path::Path;

use micabox::BackendChoice;
use micabox::{GuestFiles, PoolRecord};
use micabox_image::Store;
use micabox_transfer::Settings;
use micabox_transfer::settings::FILE_VARIABLE;
use micabox_vmm::qemu::{self, Qemu};
use micabox_vmm::{Acceleration, Backend};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use micabox_program::failure::Outcome;
use micabox_program::host_memory::HostMemory;
use micabox_program::output::{Table, print, print_json, size};

/// Show what this machine supports, and what to install for more
///
/// Exit code 1 if sandboxes can't run here.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// All is well.
    Ok,
    /// It works, but less well than it could.
    Note,
    /// Sandboxes can't run.
    Missing,
}

/// A check and its result.
#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do for a better result.
    advice: Option<String>,
}

impl Check {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self::new(what, Verdict::Ok, found, None)
    }

    fn new(
        what: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        advice: Option<String>,
    ) -> Self {
        Self {
            what,
            verdict,
            found: found.into(),
            advice,
        }
    }
}

/// Checks the host.
pub fn execute(args: &Args) -> Outcome {
    let mut checks = match null() {
        // Whatever starts a process would fail for it, and seem to be missing.
        Some(failed) => vec![failed],
        None => {
            let mut checks = machine();
            checks.push(containers());
            checks.push(jail());
            checks
        }
    };
    checks.extend(memory());
    checks.push(limits());
    checks.push(guest());
    checks.extend(store());
    checks.push(lazy_starts());
    checks.extend(lazy_memory());
    checks.extend(pools());
    checks.push(settings());
    let code = u8::from(checks.iter().any(|check| check.verdict == Verdict::Missing));
    if args.json {
        print_json(&checks)?;
        return Ok(code);
    }
    let mut table = Table::new(&["", "", ""]);
    for check in &checks {
        let mark = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Missing => "MISSING",
        };
        table.row([mark.into(), check.what.into(), check.found.clone()]);
    }
    let mut text = table.render().trim_start().to_owned();
    for advice in checks.iter().filter_map(|check| check.advice.as_ref()) {
        text.push_str(&format!("\n- {advice}\n"));
    }
    print(&text)?;
    Ok(code)
}

/// Lists the pools of machines that are kept ready.
fn pools() -> Vec<Check> {
    let store = Store::default_root().ok().filter(|root| root.exists());
    let store = store.and_then(|root| Store::open(&root).ok());
    let pools = store
        .map(|store| PoolRecord::list(&store))
        .unwrap_or_default();
    let found = pools.iter().map(|pool| {
        let pid = pool.process.map_or(0, |process| process.pid);
        format!("{} of {}, process {pid}", pool.size, pool.base)
    });
    found.map(|found| Check::ok("pool", found)).collect()
}

/// Checks what every process that is started has as a stream, if it can't be opened.
fn null() -> Option<Check> {
    const NULL: &str = "/dev/null";
    let opened = File::options().read(true).write(true).open(NULL);
    let error = opened.err()?;
    Some(Check::new(
        NULL,
        Verdict::Missing,
        format!("cannot open {NULL}: {error}; machines, containers and the jail are not checked"),
        Some(format!(
            "make it a device that everyone may open (`mknod -m 666 {NULL} c 1 3`), on a filesystem that is not \
             mounted with nodev"
        )),
    ))
}

/// Checks the emulator and acceleration.
fn machine() -> Vec<Check> {
    let qemu = match Qemu::probe() {
        Ok(qemu) => qemu,
        Err(error) => {
            let install = qemu::install_command();
            let advice = format!("install QEMU: {install}");
            let found = error.to_string();
            // Missing only if no other backend works.
            let (verdict, own) = match micabox_vmm::choose(BackendChoice::Kvm) {
                Ok(kvm) => (Verdict::Note, Check::ok("machines", kvm.describe())),
                Err(error) => {
                    let remedy = error.remedy().map(str::to_owned);
                    let own = Check::new("KVM", Verdict::Note, error.to_string(), remedy);
                    (Verdict::Missing, own)
                }
            };
            return vec![own, Check::new("QEMU", verdict, found, Some(advice))];
        }
    };
    let program = qemu.program().display();
    let version = match qemu::version(qemu.program()) {
        Ok(version) => Check::ok("QEMU", format!("{version} ({program})")),
        Err(error) => Check::new(
            "QEMU",
            Verdict::Missing,
            format!("{program} does not start: {error}"),
            Some(match rustix::fs::access(qemu.program(), Access::EXEC_OK) {
                Ok(()) => format!("install QEMU again: {}", qemu::install_command()),
                Err(_) => format!(
                    "let this user execute {program}, on a filesystem that is not mounted with noexec"
                ),
            }),
        ),
    };
    let acceleration = match qemu.acceleration() {
        Acceleration::Kvm | Acceleration::Native => Check::ok("acceleration", "KVM"),
        Acceleration::Emulated { why } => Check::new(
            "acceleration",
            Verdict::Note,
            format!("none, machines are emulated (TCG): {why}"),
            Some(format!(
                "machines are some ten times faster with KVM: {}",
                why.remedy().unwrap_or("use a host where it works")
            )),
        ),
    };
    vec![version, acceleration]
}

/// Checks whether sandboxes can share this machine's kernel.
fn containers() -> Check {
    match micabox_vmm::choose(BackendChoice::Host) {
        Ok(_) => {
            let mut found = "works (--backend host shares this machine's kernel)".to_owned();
            if let Some(why) = micabox_vmm::host::has_one_user() {
                found.push_str(&format!("; all files belong to root inside, since {why}"));
            } else if !rustix::process::geteuid().is_root() {
                found.push_str("; with this user's subordinate IDs");
            }
            let Err(lack) = micabox_vmm::host::network() else {
                return Check::ok("host backend", found);
            };
            found.push_str(&format!(", but only with --network none: it {lack}"));
            let remedy = lack.remedy().map(str::to_owned);
            Check::new("host backend", Verdict::Note, found, remedy)
        }
        Err(error) => {
            let remedy = error.remedy().map(str::to_owned);
            Check::new("host backend", Verdict::Note, error.to_string(), remedy)
        }
    }
}

/// Checks the jail of the workers that parse foreign images and disks.
fn jail() -> Check {
    let walls = match micabox_jail::probe() {
        Ok(walls) => walls,
        Err(why) => {
            return Check::new(
                "jail",
                Verdict::Missing,
                format!("no process can be jailed: {why}"),
                Some("use a Linux kernel with seccomp filters (CONFIG_SECCOMP_FILTER)".into()),
            );
        }
    };
    let found = match (&walls.namespaces, walls.landlock) {
        (Ok(()), true) => return Check::ok("jail", "namespaces, Landlock, system call filters"),
        (Ok(()), false) => {
            let found = "namespaces, system call filters; this kernel has no Landlock";
            return Check::ok("jail", found);
        }
        (Err(why), _) => format!("images and disks are parsed without namespaces: {why}"),
    };
    let advice = "system call filters and limits are left; machines on KVM refuse to start";
    Check::new("jail", Verdict::Note, found, Some(advice.into()))
}

/// Checks the memory for machines.
fn memory() -> Option<Check> {
    let memory = HostMemory::now()?;
    let (available, most) = (size(memory.available), size(memory.most));
    Some(Check::ok(
        "memory",
        format!("{available} available of {most}, swap included"),
    ))
}

/// Checks control groups.
fn limits() -> Check {
    match micabox_vmm::control_groups() {
        Ok((directory, controllers)) => {
            let controllers = controllers.join(", ");
            Check::ok(
                "limits",
                format!("{controllers}, in {}", directory.display()),
            )
        }
        Err(why) => Check::new(
            "limits",
            Verdict::Note,
            format!("no control group for machines: {why}"),
            Some(
                "machines' processes are limited in memory, processor time and number where mica \
                 may make a control group (version 2): as root on a host that has them, or in a \
                 user's session whose manager hands controllers down (systemd: \
                 `Delegate=cpu memory pids` for user@.service)"
                    .into(),
            ),
        ),
    }
}

fn guest() -> Check {
    match GuestFiles::find() {
        Ok(files) => {
            let found = format!("{}, {}", files.kernel.display(), files.initrd.display());
            Check::ok("guest", found)
        }
        Err(error) => Check::new(
            "guest",
            Verdict::Missing,
            error.to_string(),
            Some("build the guest's kernel and agent: make guest".into()),
        ),
    }
}

/// Checks the store.
fn store() -> Vec<Check> {
    let store = Store::default_root().and_then(|root| Store::open(&root));
    let store = match store {
        Ok(store) => store,
        Err(error) => {
            let advice = "name a directory in MICABOX_HOME that you may write to".to_owned();
            let found = error.to_string();
            return vec![Check::new("store", Verdict::Missing, found, Some(advice))];
        }
    };
    let root = store.root();
    if let Err(error) = can_write(root) {
        let found = format!("cannot write to {}: {error}", root.display());
        let advice = "name a directory in MICABOX_HOME that you may write to".to_owned();
        return vec![Check::new("store", Verdict::Missing, found, Some(advice))];
    }
    let mut checks = vec![match rustix::fs::statvfs(root) {
        Ok(stat) => {
            let free = size(stat.f_bavail.saturating_mul(stat.f_frsize));
            Check::ok("store", format!("{}, {free} free", root.display()))
        }
        Err(error) => Check::new("store", Verdict::Note, error.to_string(), None),
    }];
    checks.push(match reflinks(root) {
        Ok(true) => Check::ok("reflinks", "the store's filesystem shares blocks of copies"),
        Ok(false) => Check::ok(
            "reflinks",
            "the store's filesystem has none; nothing needs them yet",
        ),
        Err(error) => Check::new("reflinks", Verdict::Note, error.to_string(), None),
    });
    let is_on = Settings::load().map_or(true, |settings| settings.fs_verity);
    checks.push(Check::ok(
        "fs-verity",
        match (store.has_verity(), is_on) {
            (true, true) => "on: the kernel checks what it reads of images",
            (true, false) => "off, by the settings",
            (false, _) => "the store's filesystem has none, or it is not switched on there",
        },
    ));
    checks
}

/// Returns whether what is not all here can be read meanwhile: images that are packed or lazy, memories of snapshots.
fn lazy_starts() -> Check {
    const FUSE: &str = "/dev/fuse";
    let what = "lazy starts";
    match File::options().read(true).write(true).open(FUSE) {
        Ok(_) => Check::ok(what, "files are served by FUSE while the rest comes"),
        Err(error) => Check::new(
            what,
            Verdict::Note,
            match micabox_vmm::choose(BackendChoice::Kvm) {
                Ok(_) => format!(
                    "in machines only: for others all of an image comes before its start ({FUSE}: {error})"
                ),
                Err(_) => format!(
                    "not possible: all of an image comes before its start ({FUSE}: {error})"
                ),
            },
            Some(match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "for lazy starts load the kernel's module: `sudo modprobe fuse`; a container \
                     needs `--device /dev/fuse`"
                        .to_owned()
                }
                _ => "for lazy starts let users open FUSE's device: `sudo chmod 666 /dev/fuse`"
                    .to_owned(),
            }),
        ),
    }
}

/// Returns whether a machine's memory can be filled when it is missed. Only our own monitor's is.
fn lazy_memory() -> Option<Check> {
    micabox_vmm::choose(BackendChoice::Kvm).ok()?;
    let what = "lazy memory";
    Some(match micabox_vmm::userfaultfd() {
        Ok(()) => Check::ok(
            what,
            "userfaultfd: what machines miss of an image is mapped when it has come",
        ),
        Err(lack) => {
            let found = format!("no userfaultfd, so that FUSE or a disk serves machines: {lack}");
            let remedy = lack.remedy().map(str::to_owned);
            Check::new(what, Verdict::Note, found, remedy)
        }
    })
}

/// Makes a file without a name.
fn temporary(directory: &Path) -> rustix::io::Result<File> {
    rustix::fs::open(
        directory,
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .map(File::from)
}

/// Fails if no file can be made in `directory`.
fn can_write(directory: &Path) -> rustix::io::Result<()> {
    match temporary(directory) {
        // This filesystem has no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
            rustix::fs::accessat(CWD, directory, Access::WRITE_OK, AtFlags::EACCESS)
        }
        made => made.map(drop),
    }
}

/// Returns whether the filesystem at `directory` can share blocks between files.
fn reflinks(directory: &Path) -> std::io::Result<bool> {
    let (from, to) = (temporary(directory)?, temporary(directory)?);
    from.set_len(4096)?;
    Ok(rustix::fs::ioctl_ficlone(&to, &from).is_ok())
}

fn settings() -> Check {
    match Settings::load() {
        Ok(_) => Check::ok(
            "settings",
            match std::env::var_os(FILE_VARIABLE) {
                Some(path) => Path::new(&path).display().to_string(),
                None => {
                    "micabox/config.toml in the XDG configuration directory, or defaults".into()
                }
            },
        ),
        Err(error) => Check::new(
            "settings",
            Verdict::Missing,
            error.to_string(),
            Some("correct the settings file, or move it away".into()),
        ),
    }
}
