//! The SDK as a program uses it: this test is its own `mica`.

mod support;

use std::io::{Read, Seek, Write};
use std::time::Duration;

use micabox::{
    Builder, Cancel, Command, Error, ErrorKind, ExecOptions, ExitStatus, Handle, Process, Restore,
    Sandbox, SandboxRef, Sandboxes, Snapshot, Status, Stdio, Upper,
};
use support::{Fixture, guest};

micabox_jail::run_if_worker_before_main!(&micabox::worker_kinds());

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
    let mut log = loop {
        if let Some(mut log) = sandbox.log().unwrap()
            && let Some(record) = log.next_record().unwrap()
        {
            assert_eq!(record.bytes, b"ready\n");
            break log;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(log.is_live().unwrap());
    let stopped = sandbox.stop(Duration::from_secs(60)).unwrap();
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
    let (snapshot, _) = found.snapshot("then").unwrap();
    assert_eq!(found.remove().unwrap_err().kind(), ErrorKind::InUse);
    sandbox.stop(Duration::from_secs(10)).unwrap();
    drop(sandbox);
    let unused = found.exec(&shell("true")).unwrap_err();
    assert_eq!(unused.kind(), ErrorKind::Disconnected, "{unused}");

    let Restore::Disk(copy) = Restore::new(sandboxes.store(), &snapshot).unwrap() else {
        panic!("a snapshot without memory boots");
    };
    let copy = copy.guest(guest()).memory_mib(512).create().unwrap();
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
