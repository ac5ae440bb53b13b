//! Sandboxes of an asynchronous program: how they begin, what they are asked for, and how they end.

use std::time::Duration;

use super::support::{Fixture, KILL, PATIENCE, builder, run, sandbox, shell, until, until_there};
use micabox::{Expiry, Reference, Restore, Status, Upper};
use micabox_async::{Error, ErrorKind, Sandbox, blocking};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_create_that_is_dropped_leaves_no_sandbox() {
    let fixture = Fixture::new();
    let begun = std::time::Instant::now();
    sandbox(&fixture).await.kill().await.unwrap();
    let whole = begun.elapsed();
    for part in 0..=10 {
        let create = Sandbox::create(builder(&fixture));
        let created = timeout(whole * part / 10, create).await;
        // The last ones may have been in time.
        drop(created);
        until("no sandbox is left", async || fixture.is_empty()).await;
    }
    // The last step: it was made, and nothing has it.
    drop(sandbox(&fixture).await);
    until("no sandbox is left", async || fixture.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_killed_owner_disconnects_all_that_waits() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let commands = sandbox.commands();
    let sleep = shell("exec sleep 1000");
    let mut process = commands.spawn(&sleep).await.unwrap();
    let mut stdout = process.stdout.take().unwrap();
    let mut watch = sandbox.files().watch("/tmp", false).await.unwrap();
    let mut file = sandbox.files().open("/dev/zero").await.unwrap();
    let waiting = async {
        tokio::join!(
            commands.run(&sleep),
            process.wait(),
            sandbox.wait(),
            watch.next(),
            stdout.read_u8(),
            async {
                let mut sink = tokio::io::sink();
                tokio::io::copy(&mut file, &mut sink).await
            }
        )
    };
    let kill = async {
        until_there(&sandbox, "sleep 1000").await;
        let owner = sandbox.record().owner.unwrap();
        owner.kill();
    };
    let ((run, wait, over, event, byte, copied), ()) = tokio::join!(waiting, kill);
    let errors = [
        run.unwrap_err(),
        wait.unwrap_err(),
        over.unwrap_err(),
        event.unwrap().unwrap_err(),
        copied.unwrap_err().downcast().unwrap(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    }
    assert_eq!(byte.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    for error in [
        commands.run(&sleep).await.unwrap_err(),
        sandbox.stats().await.unwrap_err(),
        sandbox.files().read("/etc/passwd").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotRunning, "{error}");
    }
    assert!(!sandbox.is_running().await);
    sandbox.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_detached_sandbox_is_found_by_its_name_and_stopped() {
    let fixture = Fixture::new();
    let sandboxes = fixture.sandboxes();
    let made = Sandbox::create(builder(&fixture).name("it").keep_record())
        .await
        .unwrap();
    made.detach().await.unwrap();
    assert_eq!(made.detach().await.unwrap_err().kind(), ErrorKind::Invalid);
    run(&made, "echo kept > /tmp/it").await;
    drop(made);

    let sandbox = Sandbox::connect(&sandboxes, "it").await.unwrap();
    assert!(sandbox.is_running().await);
    assert_eq!(run(&sandbox, "cat /tmp/it").await.stdout, b"kept\n");
    let mut waiting = std::pin::pin!(sandbox.wait());
    // What is asked for next comes after it.
    assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
    let lifetime = micabox_async::ExecOptions {
        lifetime: true,
        ..micabox_async::ExecOptions::piped(false)
    };
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let first = sandbox
        .commands()
        .spawn_with(&shell(script), lifetime)
        .await;
    let mut first = first.unwrap();
    first.stdout.as_mut().unwrap().read_u8().await.unwrap();
    let stopped = sandbox.stop(PATIENCE).await.unwrap();
    assert_eq!(stopped.killed, None);
    assert_eq!(waiting.await.unwrap(), Some(7));
    let status = sandbox.found().reload().unwrap().record().status.clone();
    assert!(
        matches!(status, Status::Exited { code: 7, .. }),
        "{status:?}"
    );
    let error = Sandbox::connect(&sandboxes, "it").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRunning, "{error}");
    let found = sandbox.found().clone();
    blocking(move || found.remove()).await.unwrap();
    until("no sandbox is left", async || fixture.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_sandbox_is_paused_renamed_measured_and_given_an_end() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let stats = sandbox.stats().await.unwrap();
    // Where no control group counts it, nothing does.
    let is_counted = stats.own_memory.is_some_and(|bytes| bytes > 0);
    assert_eq!(is_counted, stats.memory_limited, "{stats:?}");
    sandbox.rename("another").await.unwrap();
    let found = Sandbox::connect(&fixture.sandboxes(), "another")
        .await
        .unwrap();
    assert_eq!(found.id(), sandbox.id());

    sandbox.pause().await.unwrap();
    let error = sandbox.commands().run(&shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRunning, "{error}");
    assert!(matches!(sandbox.pause().await, Err(Error::Paused)));
    sandbox.resume().await.unwrap();
    assert_eq!(run(&sandbox, "echo again").await.stdout, b"again\n");

    let hour = Duration::from_secs(3600);
    let expiry = Expiry {
        idle_timeout: Some(hour),
        max_life: None,
    };
    let set = sandbox.expire(expiry).await.unwrap();
    assert_eq!(set.idle_timeout, Some(hour));
    let set = sandbox.set_timeout(hour).await.unwrap();
    assert!(
        set.max_life
            .is_some_and(|life| life >= hour && life < 2 * hour)
    );
    let set = sandbox.set_timeout(Duration::ZERO).await.unwrap();
    assert_eq!(set.max_life, Some(Duration::ZERO));
    // All clients of a sandbox see its end. This one's owner has its request before that comes.
    let mut ended = std::pin::pin!(found.wait());
    assert!(timeout(Duration::ZERO, &mut ended).await.is_err());
    found.stats().await.unwrap();
    sandbox.set_timeout(Duration::from_secs(1)).await.unwrap();
    assert_eq!(ended.await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_snapshot_and_an_image_are_made_of_a_disk() {
    let fixture = Fixture::new();
    // In a machine: a container has no disk.
    let disk = Upper::Disk { size: 64 << 20 };
    let sandbox = Sandbox::create(fixture.builder().upper(disk))
        .await
        .unwrap();
    sandbox.files().write("/made", b"here\n").await.unwrap();
    run(&sandbox, "sync").await;
    let (snapshot, _) = sandbox.snapshot("then").await.unwrap();
    let name: Reference = "made:1".parse().unwrap();
    let made = sandbox
        .commit(micabox::ImageEdit::default(), vec![name])
        .await;
    let (image, _) = made.unwrap();
    sandbox.kill().await.unwrap();

    let again = micabox::Sandbox::builder(&fixture.store, &image)
        .guest(super::support::guest())
        .backend_choice(micabox::BackendChoice::Host)
        .network(micabox::Network::None);
    let again = Sandbox::create(again).await.unwrap();
    assert_eq!(again.files().read("/made").await.unwrap(), b"here\n");
    let error = again.snapshot("it").await.unwrap_err();
    assert!(matches!(error, Error::NoDiskOnHost(_)), "{error}");
    again.kill().await.unwrap();

    let Restore::Disk(copy) = Restore::new(&fixture.store, &snapshot).unwrap() else {
        panic!("a snapshot without memory boots");
    };
    let copy = Sandbox::create(copy.guest(super::support::guest()))
        .await
        .unwrap();
    assert_eq!(copy.files().read("/made").await.unwrap(), b"here\n");
    fixture.sandboxes().remove_snapshot("then").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn signals_reach_the_first_command() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let error = sandbox.signal(KILL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let lifetime = micabox_async::ExecOptions {
        lifetime: true,
        ..micabox_async::ExecOptions::default()
    };
    let (commands, sleep) = (sandbox.commands(), shell("exec sleep 1000"));
    let first = commands.spawn_with(&sleep, lifetime).await.unwrap();
    sandbox.signal(KILL).await.unwrap();
    let status = first.wait().await.unwrap();
    assert_eq!(status, micabox_async::ExitStatus::Signaled(KILL));
}

#[test]
fn public_types_are_send_and_sync() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Sandbox>();
    is_shared::<micabox_async::Commands>();
    is_shared::<micabox_async::Files>();
    is_shared::<micabox_async::Handle>();
    is_shared::<micabox_async::Output>();
    is_shared::<micabox_async::Process>();
    is_shared::<micabox_async::Stdin>();
}
