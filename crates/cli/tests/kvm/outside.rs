//! A sandbox's resources outside of its machine's process, on our own monitor: the socket for its
//! vsock (`--vsock`), and a control group. `scripts/test-kvm` runs this.
//!
//! A test whose conditions are not met fails: `--skip NAME` leaves it out, and the harness counts it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Finished, Home, wait_until};

/// Connects to a port of the sandbox and returns what it sends.
fn ask(path: &Path, port: u32) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream
        .write_all(format!("CONNECT {port}\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the control group of this owner's machine, if there can be one.
fn group(owner: u32) -> Option<PathBuf> {
    let (place, _) = micabox_vmm::control_groups().ok()?;
    Some(place.join(format!("micabox-{owner}-0")))
}

#[test]
fn a_vsock_path_exists_while_the_sandbox_runs() {
    let home = Home::new();
    let path = home.path().join("sockets");
    // Programs can write to the console, too.
    let script = "test -c /dev/vsock && echo heard >/dev/console && echo ready; exec sleep 1000";
    let start = ["run", "--rm", "--backend", "kvm", "--vsock"];
    let rest = ["box", "sh", "-c", script];
    let arguments = [&start[..], &[path.to_str().unwrap()], &rest].concat();

    let mut sandbox = home.start(&arguments);
    assert_eq!(sandbox.line(), "ready");
    // No program listens, which only the guest's kernel knows.
    assert_eq!(ask(&path, 1), "");
    let taken = home.output(&arguments);
    assert_eq!(taken.code(), 125);
    assert!(
        taken.stderr().contains("exists already"),
        "{}",
        taken.stderr()
    );
    // A killed owner can't clean up; the next one does.
    let killed = group(home.owner());
    let members = |group: &PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap();
    // The machine, and its keeper.
    assert!(
        killed
            .iter()
            .all(|group| members(group).lines().count() == 2)
    );
    home.kill_owner();
    assert_eq!(sandbox.wait(), 125);
    assert!(path.exists());
    // The machine ends a moment later.
    wait_until("its machine is gone", || {
        killed.iter().all(|group| members(group).is_empty())
    });
    let mut sandbox = home.start(&arguments);
    assert_eq!(sandbox.line(), "ready");
    assert_eq!(ask(&path, 1), "");
    assert!(killed.iter().all(|group| !group.exists()));
    let ended = group(home.owner());
    assert!(ended.iter().all(|group| group.exists()));
    sandbox.signal(15);
    sandbox.wait();
    assert!(!path.exists());
    assert!(ended.iter().all(|group| !group.exists()));
}

/// Runs a shell command as a member of the group, as a machine that was taken over would be.
/// Returns whether it succeeded.
fn inside(group: &Path, command: &str) -> bool {
    let script = format!("echo 0 >{}/cgroup.procs && {command}", group.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stderr(Stdio::null());
    shell.status().unwrap().success()
}

#[test]
fn a_machines_limits_hold() {
    let home = Home::new();
    let script = "echo ready; exec sleep 1000";
    let start = ["run", "--rm", "--backend", "kvm", "--memory", "128m"];
    let rest = ["box", "sh", "-c", script];
    let mut sandbox = home.start(&[&start[..], &rest].concat());
    assert_eq!(sandbox.line(), "ready");
    let group = group(home.owner()).expect("a host with control groups for us (or --skip)");
    assert!(inside(&group, "sleep 0"));
    let processes = "for n in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done";
    assert!(!inside(&group, processes), "ten processes");
    // Too much memory kills all of the machine, and its user gets the reason.
    assert!(!inside(
        &group,
        "dd if=/dev/zero of=/dev/null bs=1000M count=1"
    ));
    assert_eq!(sandbox.wait(), 125);
    assert!(!group.exists());
}

/// A user of the host without privileges.
const USER: u32 = 1000;

/// A control group that is delegated to the user, with this process in it until it is dropped.
struct Delegated {
    home: PathBuf,
    place: PathBuf,
}

impl Delegated {
    /// Delegates a group as a session manager does. None if no control group is available.
    fn new() -> Option<Self> {
        let (home, _) = micabox_vmm::control_groups().ok()?;
        let place = home.join("user-without-privileges");
        fs::create_dir_all(place.join("session")).unwrap();
        let owned = ["", "cgroup.procs", "cgroup.subtree_control", "session"];
        for path in owned.map(|name| place.join(name)) {
            chown(path, Some(USER), None).unwrap();
        }
        chown(place.join("session/cgroup.procs"), Some(USER), None).unwrap();
        fs::write(place.join("session/cgroup.procs"), "0").unwrap();
        Some(Self { home, place })
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let _ = fs::write(self.home.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(self.place.join("session"));
        let _ = fs::remove_dir(&self.place);
    }
}

/// Makes the user the owner of everything in the group.
fn give_to_user(home: &Home) {
    let mut change = Command::new("chown");
    let owner = format!("{USER}:{USER}");
    change.args(["-R", &owner]).arg(home.path());
    assert!(change.status().unwrap().success());
}

#[test]
fn an_unprivileged_user_can_run_a_sandbox() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "only root can become another user (or --skip)");
    let reads = |path: &Path| {
        let mut test = Command::new("test");
        test.arg("-r").arg(path).uid(USER).gid(USER);
        test.status().unwrap().success()
    };
    let guest = PathBuf::from(std::env::var_os("MICABOX_GUEST").unwrap());
    for needed in [
        Path::new(env!("CARGO_BIN_EXE_mica")),
        &guest.join("vmlinux"),
    ] {
        let readable = reads(needed);
        assert!(
            readable,
            "only root may read {} (or --skip)",
            needed.display()
        );
    }
    let home = Home::new();
    give_to_user(&home);
    let group = fs::metadata("/dev/kvm").unwrap().gid();
    let delegated = Delegated::new();
    let mica = |arguments: &[&str]| {
        let mut command = home.mica(arguments);
        command.uid(USER).gid(group);
        command
    };
    let output = |arguments: &[&str]| Finished::of(mica(arguments));

    let run = ["run", "--rm", "--backend", "kvm", "box", "id", "-u"];
    // By a boot, and from a template.
    for _ in 0..2 {
        assert_eq!(output(&run).ok(), "0\n");
    }
    let base = ["run", "-d", "--rm", "--name", "base", "--backend", "kvm"];
    let rest = ["--upper", "disk:64m", "box", "sleep", "1000"];
    output(&[&base[..], &rest].concat()).ok();
    output(&["fork", "base"]).ok();
    if let Some(Delegated { place, .. }) = &delegated {
        let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap());
        let ours = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with("micabox-")
        };
        let groups: Vec<PathBuf> = entries.filter(ours).map(|entry| entry.path()).collect();
        assert_eq!(groups.len(), 2, "{groups:?}");
        for group in &groups {
            assert_ne!(
                fs::read_to_string(group.join("memory.max")).unwrap(),
                "max\n"
            );
            let members = fs::read_to_string(group.join("cgroup.procs")).unwrap();
            assert_eq!(members.lines().count(), 2);
            for member in members.lines() {
                let status = fs::read_to_string(format!("/proc/{member}/status")).unwrap();
                assert!(
                    status.contains(&format!("Uid:\t{USER}\t{USER}\t")),
                    "{status}"
                );
            }
        }
    }
    for id in output(&["ps", "-q"]).ok().lines() {
        output(&["stop", "-t", "0", id]).ok();
    }
    home.assert_nothing_left();
}

#[test]
fn missing_host_features_are_named_in_one_line() {
    const NAMESPACES: &str = "/proc/sys/user/max_user_namespaces";
    // This test removes /dev/kvm. On a real machine `scripts/test-kvm` leaves it out.
    let emulated = Path::new("/guest").exists();
    assert!(emulated, "only for an emulated machine (or --skip)");
    let home = Home::new();
    let run = ["run", "--rm", "--backend", "kvm", "box", "true"];
    let refused = |run: Command, words: &str| {
        let finished = Finished::of(run);
        let text = finished.stderr();
        assert_eq!(finished.code(), 125, "{text}");
        let first = text.lines().next().unwrap_or_default();
        assert!(first.contains(words), "{text}");
    };
    give_to_user(&home);
    let mut stranger = home.mica(&run);
    stranger.uid(USER).gid(USER);
    refused(stranger, "no permission for /dev/kvm");

    let before = fs::read_to_string(NAMESPACES).unwrap();
    fs::write(NAMESPACES, "0").unwrap();
    refused(home.mica(&run), "allow user namespaces");
    fs::write(NAMESPACES, before).unwrap();

    fs::rename("/dev/kvm", "/dev/kvm-elsewhere").unwrap();
    refused(home.mica(&run), "/dev/kvm");
    fs::rename("/dev/kvm-elsewhere", "/dev/kvm").unwrap();
    home.output(&run).ok();
}
