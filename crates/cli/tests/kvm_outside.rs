//! What a sandbox has outside of its machine's process, on our own monitor: the path to its
//! sockets (`--vsock`), and a control group. `scripts/test-kvm` runs this.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Home, wait_until};

/// What a port of the sandbox's has to say.
fn ask(path: &Path, port: u32) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream
        .write_all(format!("CONNECT {port}\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Where the control group of this mica's machine is, if there can be one.
fn group(mica: u32) -> Option<PathBuf> {
    let (place, _) = micabox_vmm::control_groups().ok()?;
    Some(place.join(format!("micabox-{mica}-0")))
}

#[test]
fn it_is_there_while_the_sandbox_runs_and_no_longer() {
    let home = Home::new();
    let path = home.path().join("sockets");
    // Its console is one that programs can write to, too.
    let script = "test -c /dev/vsock && echo heard >/dev/console && echo ready; exec sleep 1000";
    let start = ["run", "--rm", "--backend", "kvm", "--vsock"];
    let rest = ["box", "sh", "-c", script];
    let arguments = [&start[..], &[path.to_str().unwrap()], &rest].concat();

    let mut sandbox = home.start(&arguments);
    assert_eq!(sandbox.line(), "ready");
    // Nobody listens, which only the guest's kernel knows.
    assert_eq!(ask(&path, 1), "");
    let taken = home.output(&arguments);
    assert_eq!(taken.code(), 125);
    assert!(
        taken.stderr().contains("exists already"),
        "{}",
        taken.stderr()
    );
    // A killed mica can't clean up; the next one does.
    let killed = group(sandbox.pid());
    let members = |group: &PathBuf| std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    // The machine, and who waits for it.
    assert!(
        killed
            .iter()
            .all(|group| members(group).lines().count() == 2)
    );
    sandbox.signal(9);
    sandbox.wait();
    assert!(path.exists());
    // Its machine goes a moment later.
    wait_until("its machine is gone", || {
        killed.iter().all(|group| members(group).is_empty())
    });
    let mut sandbox = home.start(&arguments);
    assert_eq!(sandbox.line(), "ready");
    assert_eq!(ask(&path, 1), "");
    assert!(killed.iter().all(|group| !group.exists()));
    let ended = group(sandbox.pid());
    assert!(ended.iter().all(|group| group.exists()));
    sandbox.signal(15);
    sandbox.wait();
    assert!(!path.exists());
    assert!(ended.iter().all(|group| !group.exists()));
}

/// Runs a shell command as a member of the group, which a machine that was taken over is:
/// whether it went well.
fn inside(group: &Path, command: &str) -> bool {
    let script = format!("echo 0 >{}/cgroup.procs && {command}", group.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stderr(Stdio::null());
    shell.status().unwrap().success()
}

#[test]
fn its_limits_hold() {
    let home = Home::new();
    let script = "echo ready; exec sleep 1000";
    let start = ["run", "--rm", "--backend", "kvm", "--memory", "128m"];
    let rest = ["box", "sh", "-c", script];
    let mut sandbox = home.start(&[&start[..], &rest].concat());
    assert_eq!(sandbox.line(), "ready");
    let Some(group) = group(sandbox.pid()) else {
        println!("no control group can be had here");
        sandbox.signal(15);
        sandbox.wait();
        return;
    };
    assert!(inside(&group, "sleep 0"));
    let processes = "for n in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done";
    assert!(!inside(&group, processes), "ten processes");
    // With what takes too much goes all of the machine, and its user hears why.
    assert!(!inside(
        &group,
        "dd if=/dev/zero of=/dev/null bs=1000M count=1"
    ));
    assert_eq!(sandbox.wait(), 125);
    assert!(!group.exists());
}
