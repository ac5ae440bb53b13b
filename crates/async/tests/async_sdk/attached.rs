//! Commands of several clients, connections to ports, and pieces of outputs.

use std::time::Duration;

use super::support::{Fixture, KILL, sandbox, shell, until, until_gone};
use micabox_async::{Command, Error, ExecOptions, ExitStatus, NotedCommand, Sandbox, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

fn with_stdin(script: &str) -> Command {
    Command {
        stdin: true,
        ..shell(script)
    }
}

fn kept(note: &str) -> ExecOptions {
    ExecOptions {
        detach: true,
        note: note.to_owned(),
        ..ExecOptions::piped(true)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn commands_with_a_note_are_listed_whatever_connection_has_started_them() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    assert_eq!(commands.noted().await.unwrap(), []);
    let other = Sandbox::connect(&fixture.sandboxes(), sandbox.id()).await;
    let other = other.unwrap();
    let cat = with_stdin("cat");
    let first = commands.spawn_with(&cat, kept("first"));
    let first = first.await.unwrap();
    let other_commands = other.commands();
    let second = other_commands.spawn_with(&cat, kept("second"));
    let second = second.await.unwrap();
    let _without = commands.spawn(&shell("sleep 1000")).await.unwrap();
    let noted = |pid, note: &str| NotedCommand {
        pid,
        has_terminal: false,
        note: note.to_owned(),
    };
    let both = vec![noted(first.pid(), "first"), noted(second.pid(), "second")];
    assert_eq!(commands.noted().await.unwrap(), both);
    // It goes on when its connection ends.
    drop((second, other_commands, other));
    assert_eq!(commands.noted().await.unwrap(), both);
    first.handle().end_stdin();
    assert_eq!(first.wait().await.unwrap(), ExitStatus::Exited(0));
    assert_eq!(
        commands.noted().await.unwrap(),
        [noted(both[1].pid, "second")]
    );
    sandbox.kill().await.unwrap();
    commands.noted().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_command_waits_for_the_slowest_of_its_clients_and_its_end_comes_after_its_output() {
    const WINDOW: usize = 16 << 10;
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    let small = || ExecOptions {
        stdout: Stdio::Piped,
        window: WINDOW as u32,
        ..ExecOptions::default()
    };
    let script = "read go; head -c 1000000 /dev/zero; exit 7";
    let first = ExecOptions {
        stdin: Stdio::Piped,
        ..small()
    };
    let mut first = commands
        .spawn_with(&with_stdin(script), first)
        .await
        .unwrap();
    let mut slow = commands.attach_with(first.pid(), small()).await.unwrap();
    // For its end only.
    let last = commands.attach_with(first.pid(), ExecOptions::default());
    let last = last.await.unwrap();
    first
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"go\n")
        .await
        .unwrap();
    let mut output = first.stdout.take().unwrap();
    let read = tokio::spawn(async move {
        let mut count = 0;
        while let Some(piece) = output.next().await.transpose().unwrap() {
            assert!(piece.len() <= WINDOW, "{}", piece.len());
            count += piece.len();
        }
        count
    });
    let early = timeout(Duration::from_millis(200), last.wait()).await;
    early.unwrap_err();
    assert!(!read.is_finished());
    assert_eq!(last.handle().try_wait().unwrap(), None);
    let mut rest = Vec::new();
    let mut late = slow.stdout.take().unwrap();
    // Both ways of reading may be mixed.
    let mut beginning = [1; 100];
    late.read_exact(&mut beginning).await.unwrap();
    assert_eq!(beginning, [0; 100]);
    while let Some(piece) = late.next().await.transpose().unwrap() {
        rest.extend(piece);
    }
    assert_eq!(rest, vec![0; 1_000_000 - 100]);
    for process in [&first, &slow, &last] {
        assert_eq!(process.wait().await.unwrap(), ExitStatus::Exited(7));
        let status = process.handle().try_wait().unwrap();
        assert_eq!(status, Some(ExitStatus::Exited(7)));
    }
    assert_eq!(read.await.unwrap(), 1_000_000);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_stdin_ends_while_something_is_written_to_it() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    let script = "until [ -e /tmp/go ]; do sleep 0.05; done; cat | wc -c; sleep 1000";
    let mut process = commands.spawn(&with_stdin(script)).await.unwrap();
    let other = commands.attach_with(process.pid(), ExecOptions::piped(true));
    let other = other.await.unwrap();
    assert!(other.stdin.is_none());
    // It is not this client's to end.
    other.handle().end_stdin();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"taken").await.unwrap();
    let written = tokio::spawn(async move {
        let error = stdin.write_all(&vec![0; 64 << 20]).await.unwrap_err();
        (error, stdin)
    });
    process.handle().end_stdin();
    let (error, mut stdin) = written.await.unwrap();
    sandbox.files().write("/tmp/go", b"").await.unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    let error = stdin.write_all(b"more").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    let mut output = process.stdout.take().unwrap();
    // What was taken arrives before the end.
    assert_ne!(output.next().await.unwrap().unwrap(), b"0\n");
    process.handle().signal(KILL);
    assert_eq!(process.wait().await.unwrap(), ExitStatus::Signaled(KILL));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_connection_to_a_port_ends_when_it_is_dropped() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    match commands.connect_to(4711).await {
        Err(Error::Start(_)) => {}
        other => panic!("{other:?}"),
    }
    let script = "nc -l -p 4711 -e cat; echo over";
    let mut server = commands.spawn(&shell(script)).await.unwrap();
    let mut connection = None;
    until("a server", async || {
        connection = commands.connect_to(4711).await.ok();
        connection.is_some()
    })
    .await;
    let mut connection = connection.unwrap();
    let mut sent = connection.stdin.take().unwrap();
    sent.write_all(b"this").await.unwrap();
    let received = connection.stdout.as_mut().unwrap().next().await;
    assert_eq!(received.unwrap().unwrap(), b"this");
    drop((sent, connection));
    let said = server.stdout.as_mut().unwrap().next().await;
    assert_eq!(said.unwrap().unwrap(), b"over\n");
    let refused = commands.connect_to(4711).await.unwrap_err();
    assert!(matches!(refused, Error::Start(_)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_sandbox_knows_whether_its_connection_is_there_and_is_used() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let other = Sandbox::of(sandbox.found().clone()).await.unwrap();
    assert!(other.is_connected() && !other.is_shared());
    let process = other.commands().spawn(&shell("sleep 4711")).await.unwrap();
    assert!(other.is_shared());
    drop(process);
    assert!(!other.is_shared());
    until_gone(&sandbox, "sleep 4711").await;
    sandbox.kill().await.unwrap();
    until("an end", async || !other.is_connected()).await;
}
