//! The SDK as a program uses it.

use std::io::{ErrorKind as ErrorKindOfFile, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use micabox::{
    BackendChoice, Builder, Cancel, Command, Error, ErrorKind, ExecOptions, ExitStatus, FileChange,
    Handle, Network, Process, Restore, Sandbox, SandboxRef, Sandboxes, Snapshot, Status, Stdio,
    Upper,
};
use micabox_testing::{PATIENCE, wait_until};
use rustix::event::{PollFd, PollFlags, poll};

use crate::support::{Fixture, guest};

const KILL: i32 = 9;
const TERM: i32 = 15;

fn shell(script: &str) -> Command {
    Command {
        env: vec![("PATH".into(), "/bin".into())],
        ..Command::new(["sh", "-c", script])
    }
}

#[test]
#[ignore = "needs a built guest"]
fn commands_have_pipes_and_exit_codes() {
    let fixture = Fixture::new();
    let sandbox = fixture.sandbox();
    let finished = sandbox
        .exec(&shell("echo out; echo err >&2; exit 3"))
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(finished.status, ExitStatus::Exited(3));
    assert_eq!(finished.stdout, b"out\n");
    assert_eq!(finished.stderr, b"err\n");

    let mut command = shell("read line; echo got $line; cat >/dev/null");
    command.stdin = true;
    let mut process = sandbox.exec(&command).unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"this\n").unwrap();
    let mut line = [0; 9];
    process
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"got this\n");
    assert_eq!(process.handle().wait_timeout(Duration::ZERO).unwrap(), None);
    drop(stdin);
    assert_eq!(process.wait().unwrap(), ExitStatus::Exited(0));

    match sandbox.exec(&Command::new(["/nope"])) {
        Err(Error::Start(failed)) => assert_eq!(failed.exit_code(), 127),
        other => panic!("{other:?}"),
    }
    sandbox.end().unwrap();
    drop(sandbox);
    assert!(fixture.is_empty());
}

#[test]
#[ignore = "needs a built guest"]
fn many_commands_run_at_once_and_each_ends_by_itself() {
    let fixture = Fixture::new();
    let sandbox = fixture.sandbox();
    std::thread::scope(|scope| {
        for number in 0..20 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let script = format!("head -c 300000 /dev/zero; echo {number} >&2; exit {number}");
                let finished = sandbox.exec(&shell(&script)).unwrap().finish().unwrap();
                assert_eq!(finished.status, ExitStatus::Exited(number));
                assert_eq!(finished.stdout.len(), 300_000);
                assert_eq!(finished.stderr, format!("{number}\n").as_bytes());
            });
        }
    });
    // Several threads wait for one.
    let process = sandbox.exec(&shell("exec sleep 1000")).unwrap();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let handle = process.handle();
                scope.spawn(move || handle.wait().unwrap())
            })
            .collect();
        process.handle().signal(TERM);
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), ExitStatus::Signaled(TERM));
        }
    });
}

#[test]
#[ignore = "needs a built guest"]
fn a_stream_can_be_any_descriptor() {
    let fixture = Fixture::new();
    let sandbox = fixture.sandbox();
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(&b"line\n".repeat(100_000)).unwrap();
    input.rewind().unwrap();
    let mut output = tempfile::tempfile().unwrap();
    let options = ExecOptions {
        stdin: Stdio::Descriptor(input.into()),
        stdout: Stdio::Descriptor(output.try_clone().unwrap().into()),
        ..ExecOptions::default()
    };
    let mut command = shell("wc -l; echo end");
    command.stdin = true;
    let process = sandbox.exec_with(&command, options).unwrap();
    assert_eq!(process.wait().unwrap(), ExitStatus::Exited(0));
    let mut text = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text, "100000\nend\n");
}

#[test]
#[ignore = "needs a built guest"]
fn files_of_a_running_sandbox_are_used_from_outside() {
    let fixture = Fixture::new();
    let sandbox = fixture.sandbox();
    let files = sandbox.files();
    let inside = |script: &str| {
        let finished = sandbox.exec(&shell(script)).unwrap().finish().unwrap();
        String::from_utf8(finished.stdout).unwrap()
    };
    let kind = |result: Result<(), Error>| match result {
        Err(Error::File { source, .. }) => source.kind(),
        other => panic!("{other:?}"),
    };
    // The sandbox's process 1 is its first command: before it, nothing can run.
    inside("true");

    // On the overlay, and on filesystems that only the sandbox sees.
    for path in ["/a file", "/tmp/file", "/dev/shm/file"] {
        files.write(path, b"one\n").unwrap();
        files.append(path, b"two\n").unwrap();
        assert_eq!(inside(&format!("cat '{path}'")), "one\ntwo\n");
    }
    assert_eq!(files.read("/proc/1/comm").unwrap().last(), Some(&b'\n'));
    let many = vec![7; 5 << 20];
    files.write("/many", &many).unwrap();
    assert_eq!(inside("wc -c </many").trim(), many.len().to_string());
    assert!(files.read("/many").unwrap() == many);
    let stat = files.stat("/many").unwrap();
    assert_eq!((stat.size, stat.mode, stat.uid), (5 << 20, 0o644, 0));
    inside("rm /many");
    assert!(!files.exists("/many").unwrap());

    // What another user may, and what no user may.
    let user = files.clone().as_user("1000:1000");
    user.write("/tmp/theirs", b"").unwrap();
    assert_eq!(inside("stat -c %u:%g /tmp/theirs"), "1000:1000\n");
    assert_eq!(
        kind(user.write("/mine", b"")),
        ErrorKindOfFile::PermissionDenied
    );
    assert_eq!(
        kind(files.write("/tmp", b"")),
        ErrorKindOfFile::IsADirectory
    );
    assert_eq!(
        kind(files.write("/a file/x", b"")),
        ErrorKindOfFile::NotADirectory
    );
    assert_eq!(
        kind(files.make_directory("/tmp", false)),
        ErrorKindOfFile::AlreadyExists
    );
    assert_eq!(
        kind(files.write("/dev/full", b"x")),
        ErrorKindOfFile::StorageFull
    );
    let missing = files.read("/no/such").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(
        missing.to_string(),
        "reading `/no/such` in the sandbox: No such file or directory (os error 2)"
    );

    // A path is the sandbox's, however it is written and whatever links are there.
    inside("ln -s / /up; ln -s /etc/hostname /dev/shm/host");
    assert_eq!(
        files.read("../../up/../dev/shm/host").unwrap(),
        files.read("/etc/hostname").unwrap()
    );

    files.make_directory("/tree/below", true).unwrap();
    files.symlink("below", "/tree/link").unwrap();
    let listed: Vec<_> = files
        .list("/tree", 2)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let paths: Vec<_> = listed
        .iter()
        .map(|entry| entry.path.to_str().unwrap())
        .collect();
    assert_eq!(paths, ["below", "link"]);
    assert_eq!(listed[1].target.as_deref(), Some("below".as_ref()));
    files.set_mode("/tree", 0o700).unwrap();
    files.set_owner("/tree", 5, 6).unwrap();
    let moment = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 1);
    files.set_times("/tree", moment, moment).unwrap();
    assert_eq!(
        inside("stat -c '%a %u:%g %Y' /tree"),
        "700 5:6 1000000000\n"
    );
    files.rename("/tree", "/moved", false).unwrap();
    files.remove("/moved", true).unwrap();
    assert_eq!(inside("ls -d /tree /moved 2>/dev/null"), "");

    // Changes by programs inside and from outside.
    files.make_directory("/watched", false).unwrap();
    let mut watch = files.watch("/watched", true).unwrap();
    assert_eq!(watch.next_within(Duration::ZERO).unwrap(), None);
    files.write("/watched/first", b"x").unwrap();
    let so_far: Vec<_> = watch.so_far().unwrap();
    let so_far: Vec<_> = so_far.iter().map(|event| event.change).collect();
    // How often it is modified in between is the kernel's affair.
    assert_eq!(so_far.first(), Some(&FileChange::Created), "{so_far:?}");
    assert_eq!(so_far.last(), Some(&FileChange::Written), "{so_far:?}");
    let mut until = |change, path: &str| {
        let found = watch.by_ref().map(Result::unwrap);
        let found = found
            .into_iter()
            .find(|event| event.change == change && event.path == Path::new(path));
        found.unwrap()
    };
    // What comes before the watch of its directory is reported as created only.
    inside("mkdir -p /watched/a/b");
    until(FileChange::Created, "a/b");
    inside("echo x > /watched/a/b/file");
    until(FileChange::Written, "a/b/file");
    files.remove("/watched", true).unwrap();
    until(FileChange::Removed, "a/b");
    until(FileChange::Removed, "");
    assert!(watch.next().is_none());
    // A reader that is dropped ends what it read.
    let mut zeros = files.open("/dev/zero").unwrap();
    zeros.read_exact(&mut [1; 100_000]).unwrap();
    drop(zeros);

    // As any process of the user.
    let found = fixture.sandboxes().get(&sandbox.record().id).unwrap();
    assert_eq!(found.files().read("/a file").unwrap(), b"one\ntwo\n");
    sandbox.kill();
    assert!(found.files().read("/a file").is_err());
}

#[test]
#[ignore = "needs a built guest"]
fn a_detached_sandbox_outlives_its_creator() {
    let fixture = Fixture::new();
    let sandbox = fixture.builder().name("it").keep_record().create().unwrap();
    let options = ExecOptions {
        stdout: Stdio::Log,
        lifetime: true,
        detach: true,
        ..ExecOptions::default()
    };
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    drop(sandbox.exec_with(&shell(script), options).unwrap());
    sandbox.detach().unwrap();
    let sandbox = fixture.sandboxes().get("it").unwrap();
    let (mut log, mut first) = (None, None);
    wait_until("its log has a record", || {
        log = sandbox.log().unwrap();
        first = log.as_mut().and_then(|log| log.next_record().unwrap());
        first.is_some()
    });
    assert_eq!(first.unwrap().bytes, b"ready\n");
    let mut log = log.unwrap();
    assert!(log.is_live().unwrap());
    let stopped = sandbox.stop(PATIENCE).unwrap();
    assert_eq!(stopped.killed, None);
    assert!(log.next_record().unwrap().is_none());
    assert!(sandbox.wait_timeout(Duration::ZERO));
    let status = sandbox.reload().unwrap().record().status.clone();
    assert!(
        matches!(status, Status::Exited { code: 7, .. }),
        "{status:?}"
    );
    sandbox.remove().unwrap();
    assert!(fixture.is_empty());
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_sandbox_that_ends_before_it_is_detached_is_no_error() {
    let fixture = Fixture::new();
    let options = || ExecOptions {
        lifetime: true,
        detach: true,
        ..ExecOptions::default()
    };
    for owner_is_gone in [false, true] {
        let builder = fixture.builder().backend_choice(BackendChoice::Host);
        let builder = builder.network(Network::None).name("it").keep_record();
        let sandbox = builder.create().unwrap();
        let process = sandbox.exec_with(&shell("exit 3"), options()).unwrap();
        let found = fixture.sandboxes().get("it").unwrap();
        assert_eq!(found.wait().unwrap(), 3);
        if owner_is_gone {
            // Its end of the creator's connection closes last.
            let mut fds = [PollFd::new(&sandbox, PollFlags::empty())];
            poll(&mut fds, None).unwrap();
        }
        sandbox.detach().unwrap();
        assert_eq!(process.wait().unwrap(), ExitStatus::Exited(3));
        assert!(found.wait_timeout(PATIENCE));
        found.remove().unwrap();
    }
    assert!(fixture.sandboxes().list().unwrap().is_empty());
}

#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_is_used_by_its_name_and_its_disk_is_started_from_again() {
    let fixture = Fixture::new();
    let disk = Upper::Disk { size: 64 << 20 };
    let first = shell("echo one >/kept; exec sleep 1000");
    let builder = fixture.builder().name("it").keep_record().upper(disk);
    let sandbox = builder.command(&first).create().unwrap();
    let process = sandbox.exec(&shell("echo one >/kept; sync")).unwrap();
    assert_eq!(process.wait().unwrap(), ExitStatus::Exited(0));

    // Another client of the same owner.
    let sandboxes = fixture.sandboxes();
    let found = sandboxes.get("it").unwrap();
    let finished = found.exec(&shell("cat /kept; exit 4")).unwrap().finish();
    let finished = finished.unwrap();
    assert_eq!(finished.status, ExitStatus::Exited(4));
    assert_eq!(finished.stdout, b"one\n");
    let mut changed = Vec::new();
    let told = found.diff(|change| {
        changed.push(change.path.to_vec());
        Ok(())
    });
    told.unwrap();
    assert_eq!(changed, [b"/kept"]);
    // The copy of a running sandbox's disk has no name, and is in the store's own scratch.
    let frozen = found.frozen_disk().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut files = open.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    let scratch = fixture.store.root().join("tmp");
    assert!(files.any(|file| file.starts_with(&scratch)));
    drop(frozen);
    let (snapshot, _) = found.snapshot("then").unwrap();
    assert_eq!(found.remove().unwrap_err().kind(), ErrorKind::InUse);
    sandbox.stop(Duration::from_secs(10)).unwrap();
    drop(sandbox);
    let unused = found.exec(&shell("true")).unwrap_err();
    assert_eq!(unused.kind(), ErrorKind::NotRunning, "{unused}");

    let Restore::Disk(copy) = Restore::new(sandboxes.store(), &snapshot).unwrap() else {
        panic!("a snapshot without memory boots");
    };
    let copy = copy.guest(guest()).memory_mib(512).cold();
    let copy = copy.create().unwrap();
    assert!(copy.record().spec.cold);
    let finished = copy.exec(&shell("cat /kept")).unwrap().finish().unwrap();
    assert_eq!(finished.stdout, b"one\n");
    drop(copy);

    let again = found.restart().unwrap().guest(guest()).create().unwrap();
    assert_eq!(again.record().id, found.id());
    let finished = again.exec(&shell("cat /kept")).unwrap().finish().unwrap();
    assert_eq!(finished.stdout, b"one\n");
    again.end().unwrap();
    drop(again);
    found.remove().unwrap();
    assert_eq!(found.reload().unwrap_err().kind(), ErrorKind::NotFound);
    sandboxes.remove_snapshot("then").unwrap();
    assert!(fixture.is_empty());
}

#[test]
#[ignore = "needs a built guest"]
fn any_process_attaches_to_the_first_command_signals_it_and_waits_for_it() {
    let fixture = Fixture::new();
    let first = Command {
        user: "app".into(),
        stdin: true,
        ..shell("while read line; do echo got $line; done")
    };
    let builder = fixture.builder().name("it").keep_record();
    let sandbox = builder.command(&first).create().unwrap();
    let options = ExecOptions {
        stdin: Stdio::Idle,
        stdout: Stdio::Log,
        lifetime: true,
        detach: true,
        ..ExecOptions::default()
    };
    drop(sandbox.exec_with(&first, options).unwrap());
    sandbox.detach().unwrap();
    let sandbox = fixture.sandboxes().get("it").unwrap();
    let overrides = micabox::Overrides {
        args: vec!["id".into(), "-un".into()],
        ..micabox::Overrides::default()
    };
    let command = sandbox.command(&overrides).unwrap();
    let finished = sandbox.exec(&command).unwrap().finish().unwrap();
    assert_eq!(finished.stdout, b"app\n");

    let piped = || ExecOptions {
        stdin: Stdio::Piped,
        stdout: Stdio::Piped,
        ..ExecOptions::default()
    };
    for _ in 0..2 {
        let mut process = sandbox.attach(piped()).unwrap();
        assert!(!process.has_terminal());
        let stdin = process.stdin.as_mut().unwrap();
        stdin.write_all(b"this\n").unwrap();
        let mut line = [0; 9];
        let stdout = process.stdout.as_mut().unwrap();
        stdout.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"got this\n");
        // Dropping it leaves the command as it is.
    }
    let waiting = std::thread::spawn({
        let sandbox = sandbox.clone();
        move || sandbox.wait().unwrap()
    });
    let process = sandbox.attach(piped()).unwrap();
    sandbox.signal(TERM).unwrap();
    assert_eq!(process.wait().unwrap(), ExitStatus::Signaled(TERM));
    assert_eq!(waiting.join().unwrap(), 143);
    assert_eq!(sandbox.wait().unwrap(), 143);
    let errors = [
        sandbox.attach(piped()).unwrap_err(),
        sandbox.signal(TERM).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NotRunning, "{error}");
    }
    sandbox.remove().unwrap();
    assert_eq!(sandbox.wait().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(fixture.is_empty());
}

#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_that_ends_takes_its_commands_with_it() {
    let fixture = Fixture::new();
    let sandbox = fixture.sandbox();
    let process = sandbox.exec(&shell("exec sleep 1000")).unwrap();
    let handle = process.handle();
    sandbox.kill();
    assert!(matches!(handle.wait(), Err(Error::Lost(_))));
    assert!(matches!(sandbox.exec(&shell("true")), Err(Error::Lost(_))));
    assert!(sandbox.wait_until(None).unwrap().is_some());
    drop(sandbox);
    assert!(fixture.is_empty());

    // One that is dropped, too.
    let sandbox = fixture.sandbox();
    let process = sandbox.exec(&shell("exec sleep 1000")).unwrap();
    drop(sandbox);
    assert!(process.wait().is_err());
    assert!(fixture.is_empty());
}

#[test]
#[ignore = "needs a built guest"]
fn a_killed_owner_is_a_named_error() {
    let fixture = Fixture::new();
    let sandbox = fixture.sandbox();
    let found = fixture.sandboxes().get(&sandbox.record().id).unwrap();
    let pid = found.record().owner.unwrap().pid.to_string();
    let kill = std::process::Command::new("kill")
        .args([&format!("-{KILL}"), &pid])
        .status();
    assert!(kill.unwrap().success());
    let error = sandbox.wait_until(None).unwrap_err();
    assert!(matches!(error, Error::OwnerGone), "{error}");
}

#[test]
fn public_types_are_send_and_sync() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Builder>();
    is_shared::<Cancel>();
    is_shared::<Error>();
    is_shared::<Restore>();
    is_shared::<Sandbox>();
    is_shared::<SandboxRef>();
    is_shared::<Sandboxes>();
    is_shared::<Snapshot>();
    is_shared::<Handle>();
    is_shared::<Process>();
}
