//! Commands of an asynchronous program: their streams, their ends, and many at once.

use std::io::{Read, Seek};
use std::time::Duration;

use super::support::{
    Fixture, KILL, PATIENCE, TERM, run, sandbox, shell, sockets, until, until_gone, until_there,
};
use micabox::{CommandError, Lost, StartFailure};
use micabox_async::{
    Command, Commands, Error, ErrorKind, ExecOptions, ExitStatus, Process, Sandbox, Stdio, TtySize,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

fn with_stdin(script: &str) -> Command {
    Command {
        stdin: true,
        ..shell(script)
    }
}

async fn line(process: &mut Process) -> String {
    let mut line = String::new();
    let stdout = process.stdout.as_mut().unwrap();
    // One byte at a time: a buffer would keep what follows.
    while !line.ends_with('\n') {
        line.push(char::from(stdout.read_u8().await.unwrap()));
    }
    line.trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn commands_have_streams_and_exit_codes() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    let finished = run(&sandbox, "echo out; echo err >&2; exit 3").await;
    assert_eq!(finished.status, ExitStatus::Exited(3));
    assert_eq!(finished.stdout, b"out\n");
    assert_eq!(finished.stderr, b"err\n");

    let script = "read line; echo got $line; cat >/dev/null; exit 5";
    let mut process = commands.spawn(&with_stdin(script)).await.unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"this\n").await.unwrap();
    assert_eq!(line(&mut process).await, "got this");
    let waiting = timeout(Duration::from_millis(50), process.wait()).await;
    assert!(waiting.is_err(), "{waiting:?}");
    // Several tasks wait for one command.
    let handles = [(); 3].map(|()| process.handle());
    let waiting = handles.map(|handle| tokio::spawn(async move { handle.wait().await.unwrap() }));
    stdin.shutdown().await.unwrap();
    for task in waiting {
        assert_eq!(task.await.unwrap(), ExitStatus::Exited(5));
    }
    assert_eq!(process.wait().await.unwrap(), ExitStatus::Exited(5));
    let late = stdin.write_all(b"more").await.unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::BrokenPipe);

    // Nothing reads it any more.
    let mut process = commands
        .spawn(&with_stdin("exec <&-; sleep 1000"))
        .await
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    until("a write is refused", async || {
        stdin.write_all(&[0; 65536]).await.is_err()
    })
    .await;
    process.handle().signal(TERM);
    assert_eq!(process.wait().await.unwrap(), ExitStatus::Signaled(TERM));

    match commands.run(&Command::new(["/nope"])).await {
        Err(Error::Start(failed)) => assert_eq!(failed.reason, StartFailure::NotFound),
        other => panic!("{other:?}"),
    }
    match commands.run(&Command::new([""; 0])).await {
        Err(Error::Command(CommandError::Nothing)) => {}
        other => panic!("{other:?}"),
    }
    let user = micabox::Overrides {
        args: vec![
            "sh".into(),
            "-c".into(),
            "id -un; pwd; echo $FROM_IMAGE".into(),
        ],
        user: Some("app".into()),
        ..micabox::Overrides::default()
    };
    let finished = commands
        .run(&sandbox.command(&user).unwrap())
        .await
        .unwrap();
    assert_eq!(finished.stdout, b"app\n/srv\nyes\n");
    sandbox.kill().await.unwrap();
    // The holder of its image may take a moment longer.
    until("no sandbox is left", async || fixture.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_hundred_commands_share_one_connection() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    run(&sandbox, "true").await;
    let before = sockets(&sandbox);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100_u8 {
        let sandbox = sandbox.clone();
        tasks.spawn(async move {
            // More than a window of output, and a line of input that all wait for.
            let script = format!("read l; head -c 300000 /dev/zero; echo $l >&2; exit {number}");
            let spawned = sandbox.commands().spawn(&with_stdin(&script)).await;
            let mut process = spawned.unwrap();
            let sockets = sockets(&sandbox);
            let stdin = process.stdin.as_mut().unwrap();
            let line = format!("{number}\n");
            stdin.write_all(line.as_bytes()).await.unwrap();
            let finished = process.finish().await.unwrap();
            assert_eq!(finished.status, ExitStatus::Exited(i32::from(number)));
            assert_eq!(finished.stdout.len(), 300_000);
            assert_eq!(finished.stderr, line.as_bytes());
            sockets
        });
    }
    while let Some(sockets) = tasks.join_next().await {
        assert_eq!(sockets.unwrap(), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_stream_that_is_not_read_holds_a_window_and_stops_only_its_command() {
    const ALL: usize = 64 << 20;
    // Both windows of a stream, pipes in the guest, and what the owner has under way.
    const HELD: usize = 4 << 20;
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let mut process = sandbox
        .commands()
        .spawn(&with_stdin("exec cat"))
        .await
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let mut stdout = process.stdout.take().unwrap();
    let written = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&written);
    let writing = tokio::spawn(async move {
        let piece: Vec<u8> = (0..=250).cycle().take(1 << 16).collect();
        for _ in 0..ALL / piece.len() {
            stdin.write_all(&piece).await.unwrap();
            counted.fetch_add(piece.len(), std::sync::atomic::Ordering::Relaxed);
        }
        stdin.shutdown().await.unwrap();
    });
    let count = || written.load(std::sync::atomic::Ordering::Relaxed);
    // Others run meanwhile, and it stays where it is.
    until("writing stops", async || {
        let before = count();
        let other = run(&sandbox, "echo others run").await;
        assert_eq!(other.stdout, b"others run\n");
        before == count() && before > 0
    })
    .await;

    let piece: Vec<u8> = (0..=250).cycle().take(1 << 16).collect();
    let mut read = vec![0; 1 << 16];
    for number in 0..ALL / piece.len() {
        let ahead = count().saturating_sub(number * piece.len());
        assert!(ahead < HELD, "{ahead} bytes ahead");
        stdout.read_exact(&mut read).await.unwrap();
        assert!(read == piece);
    }
    assert_eq!(stdout.read(&mut read).await.unwrap(), 0);
    writing.await.unwrap();
    assert_eq!(process.wait().await.unwrap(), ExitStatus::Exited(0));

    // An output that is dropped is discarded, as it comes.
    let mut process = sandbox
        .commands()
        .spawn(&shell("head -c 50000000 /dev/zero"))
        .await
        .unwrap();
    process.stdout.as_mut().unwrap().read_u8().await.unwrap();
    process.stdout = None;
    let status = timeout(PATIENCE, process.wait()).await;
    assert_eq!(status.unwrap().unwrap(), ExitStatus::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn what_is_dropped_is_killed() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    let sleep = shell("sleep 4711 & sleep 4711; true");
    {
        let run = commands.run(&sleep);
        tokio::pin!(run);
        tokio::select! {
            finished = &mut run => panic!("{finished:?}"),
            () = until_there(&sandbox, "sleep 4711") => {}
        }
    }
    until_gone(&sandbox, "sleep 4711").await;

    // Requested, and not started yet.
    for _ in 0..20 {
        let spawn = timeout(Duration::ZERO, commands.spawn(&sleep)).await;
        drop(spawn);
    }
    until_gone(&sandbox, "sleep 4711").await;

    let mut process = commands.spawn(&sleep).await.unwrap();
    let stdout = process.stdout.take();
    let handle = process.handle();
    drop(process);
    drop(handle);
    until_there(&sandbox, "sleep 4711").await;
    drop(stdout);
    until_gone(&sandbox, "sleep 4711").await;
}

/// Attaches once the client before has let go of the stdin.
async fn with_its_stdin(commands: &Commands, pid: u32) -> Process {
    loop {
        let process = commands.attach(pid).await.unwrap();
        if process.stdin.is_some() {
            return process;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_command_that_is_left_is_attached_to_again() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    let echo = with_stdin("while read line; do echo got $line; done");
    let detached = ExecOptions {
        detach: true,
        ..ExecOptions::piped(true)
    };
    let detached = commands.spawn_with(&echo, detached).await.unwrap();
    let left = commands.spawn(&echo).await.unwrap();
    let pids = [detached.pid(), left.pid()];
    drop(detached);
    left.leave();
    // On a connection of its own, as another program's.
    let sandboxes = fixture.sandboxes();
    let other = Sandbox::connect(&sandboxes, sandbox.id()).await.unwrap();
    for pid in pids {
        for commands in [sandbox.commands(), other.commands()] {
            let mut process = with_its_stdin(&commands, pid).await;
            assert_eq!(process.pid(), pid);
            assert!(!process.has_terminal());
            let stdin = process.stdin.as_mut().unwrap();
            stdin.write_all(b"this\n").await.unwrap();
            assert_eq!(line(&mut process).await, "got this");
            // Dropping it leaves the command as it is.
        }
        let mut process = with_its_stdin(&commands, pid).await;
        process.stdin.as_mut().unwrap().shutdown().await.unwrap();
        assert_eq!(process.wait().await.unwrap(), ExitStatus::Exited(0));
    }
    let error = commands.attach(pids[0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_terminal_has_a_size_that_changes() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let command = Command {
        tty: Some(TtySize {
            rows: 33,
            columns: 44,
        }),
        ..with_stdin("stty -echo; stty size; read x; stty size; echo $x")
    };
    let mut process = sandbox.commands().spawn(&command).await.unwrap();
    assert!(process.has_terminal());
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "33 44");
    process.handle().resize(TtySize {
        rows: 55,
        columns: 66,
    });
    let stdin = process.stdin.as_mut().unwrap();
    stdin.write_all(b"typed\n").await.unwrap();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "55 66");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "typed");
    assert_eq!(lines.next_line().await.unwrap(), None);
    assert_eq!(process.wait().await.unwrap(), ExitStatus::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_stream_can_be_any_descriptor() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let mut output = tempfile::tempfile().unwrap();
    let options = ExecOptions {
        stdin: Stdio::Descriptor(std::fs::File::open("/proc/self/cmdline").unwrap().into()),
        stdout: Stdio::Descriptor(output.try_clone().unwrap().into()),
        stderr: Stdio::Piped,
        ..ExecOptions::default()
    };
    let commands = sandbox.commands();
    let command = with_stdin("cat; echo err >&2");
    let process = commands.spawn_with(&command, options).await.unwrap();
    let finished = process.finish().await.unwrap();
    assert_eq!(
        (finished.stdout, finished.stderr),
        (vec![], b"err\n".to_vec())
    );
    let mut text = Vec::new();
    output.rewind().unwrap();
    output.read_to_end(&mut text).unwrap();
    assert_eq!(text, std::fs::read("/proc/self/cmdline").unwrap());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_command_whose_time_is_over_is_ended() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let after = |millis| ExecOptions {
        timeout: Some(Duration::from_millis(millis)),
        grace: Duration::from_secs(30),
        ..ExecOptions::piped(false)
    };
    let commands = sandbox.commands();
    let error = commands
        .run_with(&shell("sleep 1000"), after(100))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let finished = commands
        .run_with(&shell("echo in time"), after(60_000))
        .await;
    assert_eq!(finished.unwrap().stdout, b"in time\n");
    let process = commands
        .spawn_with(&shell("exec sleep 1000"), after(100))
        .await
        .unwrap();
    let handle = process.handle();
    assert!(handle.timed_out().await.unwrap());
    assert_eq!(handle.wait().await.unwrap(), ExitStatus::Signaled(TERM));

    let killed = commands.spawn(&shell("exec sleep 1000")).await.unwrap();
    killed.handle().kill();
    assert_eq!(killed.wait().await.unwrap(), ExitStatus::Signaled(KILL));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_runtime_that_ends_ends_what_waits_on_another() {
    let fixture = Fixture::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let builder = super::support::builder(&fixture);
    let sandbox = runtime
        .spawn(Sandbox::create(builder))
        .await
        .unwrap()
        .unwrap();
    let commands = sandbox.commands();
    let process = commands.spawn(&shell("sleep 1000")).await.unwrap();
    runtime.shutdown_background();
    let error = process.wait().await.unwrap_err();
    let is_closed = matches!(&error, Error::Lost(lost) if *lost == Lost::closed());
    assert!(is_closed, "{error}");
    let error = commands.run(&shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRunning, "{error}");
}
