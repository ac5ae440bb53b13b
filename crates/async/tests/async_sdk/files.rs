//! Files of a running sandbox, in an asynchronous program.

use std::io::ErrorKind as Kind;
use std::path::Path;
use std::time::Duration;

use super::support::{Fixture, PATIENCE, run, sandbox, until};
use micabox::{Existing, FileChange, FileKind};
use micabox_async::{Error, ErrorKind, Files, WriteOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> Kind {
    match result {
        Err(Error::File { source, .. }) => source.kind(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn files_are_read_and_written_whole_and_as_streams() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let files = sandbox.files();
    files.write("/a file", b"one\n").await.unwrap();
    files.append("/a file", b"two\n").await.unwrap();
    assert_eq!(run(&sandbox, "cat '/a file'").await.stdout, b"one\ntwo\n");
    let mut range = files.open_range("/a file", 2, Some(4)).await.unwrap();
    let mut text = String::new();
    range.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "e\ntw");

    // More than all windows, both ways.
    let many: Vec<u8> = (0..=250).cycle().take(20 << 20).collect();
    let options = WriteOptions {
        parents: true,
        mode: 0o600,
        ..WriteOptions::default()
    };
    let mut writer = files.create("/new/dir/many", options).await.unwrap();
    tokio::io::copy(&mut &many[..], &mut writer).await.unwrap();
    writer.shutdown().await.unwrap();
    let stat = files.stat("/new/dir/many").await.unwrap();
    assert_eq!((stat.size, stat.mode, stat.uid), (20 << 20, 0o600, 0));
    let mut reader = files.open("/new/dir/many").await.unwrap();
    let mut back = Vec::new();
    reader.read_to_end(&mut back).await.unwrap();
    assert!(back == many);
    assert!(files.read("/new/dir/many").await.unwrap() == many);

    // A reader that is dropped ends what it read, and a future that is dropped, what it did.
    let count = async || sandbox.commands().list().await.unwrap().len();
    let before = count().await;
    let mut zeros = files.open("/dev/zero").await.unwrap();
    zeros.read_exact(&mut vec![1; 1_000_000]).await.unwrap();
    assert!(count().await > before);
    drop(zeros);
    let endless = timeout(Duration::from_millis(100), files.read("/dev/zero")).await;
    assert!(endless.is_err());
    until("the operations end", async || count().await == before).await;

    assert_eq!(kind(files.read("/no/such").await), Kind::NotFound);
    assert_eq!(kind(files.read("/tmp").await), Kind::IsADirectory);
    assert_eq!(
        kind(files.write("/dev/full", b"x").await),
        Kind::StorageFull
    );
    let refuse = WriteOptions {
        existing: Existing::Refuse,
        ..WriteOptions::default()
    };
    assert_eq!(
        kind(files.write_with("/a file", b"", refuse).await),
        Kind::AlreadyExists
    );
    // A failure in a stream is the SDK's error inside, with the system's kind.
    let mut full = files
        .create("/dev/full", WriteOptions::default())
        .await
        .unwrap();
    let _ = full.write_all(&many).await;
    let error = full.shutdown().await.unwrap_err();
    assert_eq!(error.kind(), Kind::StorageFull);
    let error: Error = error.downcast().unwrap();
    assert_eq!(error.kind(), ErrorKind::Full);
    let user = files.clone().as_user("1000:1000");
    user.write("/tmp/theirs", b"").await.unwrap();
    assert_eq!(files.stat("/tmp/theirs").await.unwrap().uid, 1000);
    assert_eq!(kind(user.write("/mine", b"").await), Kind::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn trees_are_made_listed_renamed_and_removed() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let files = sandbox.files();
    files.make_directory("/tree/below", true).await.unwrap();
    files.symlink("below", "/tree/link").await.unwrap();
    files.write("/tree/below/file", b"123").await.unwrap();
    files
        .hard_link("/tree/below/file", "/tree/second")
        .await
        .unwrap();
    let listed = files.list("/tree", 2).await.unwrap();
    let paths: Vec<_> = listed
        .iter()
        .map(|entry| entry.path.to_str().unwrap())
        .collect();
    assert_eq!(paths, ["below", "below/file", "link", "second"]);
    assert_eq!(listed[2].target.as_deref(), Some("below".as_ref()));
    assert_eq!((listed[3].stat.size, listed[3].stat.links), (3, 2));
    assert_eq!(
        files.read_link("/tree/link").await.unwrap(),
        Path::new("below")
    );
    let link = files.stat_link("/tree/link").await.unwrap();
    assert_eq!(link.kind, FileKind::Symlink);
    let mode = micabox::Attributes {
        mode: Some(0o700),
        ..micabox::Attributes::default()
    };
    files.set("/tree", mode).await.unwrap();
    assert_eq!(files.stat("/tree").await.unwrap().mode, 0o700);

    // Many entries, one by one.
    run(&sandbox, "mkdir /many; cd /many; seq 5000 | xargs touch").await;
    let mut entries = files.entries("/many", 1).await.unwrap();
    let mut count = 0;
    while let Some(entry) = entries.next().await {
        entry.unwrap();
        count += 1;
    }
    assert_eq!(count, 5000);
    assert!(entries.next().await.is_none());

    files.rename("/tree", "/moved", false).await.unwrap();
    assert!(!files.exists("/tree").await.unwrap());
    assert!(files.exists("/moved/link/file").await.unwrap());
    assert_eq!(
        kind(files.remove("/moved", false).await),
        Kind::DirectoryNotEmpty
    );
    files.remove("/moved", true).await.unwrap();
    assert!(!files.exists("/moved").await.unwrap());
    assert_eq!(kind(files.list("/moved", 1).await), Kind::NotFound);
}

/// Waits for a change.
async fn next(watch: &mut micabox_async::Watch, change: FileChange, path: &str) {
    let found = async {
        loop {
            let event = watch.next().await.unwrap().unwrap();
            if event.change == change && event.path == Path::new(path) {
                return;
            }
        }
    };
    let found = timeout(PATIENCE, found).await;
    found.unwrap_or_else(|_| panic!("never: {change:?} {path}"));
}

async fn make(files: &Files, path: &str) {
    files.make_directory(path, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a built guest"]
async fn a_watch_is_a_stream_of_changes() {
    let fixture = Fixture::new();
    let sandbox = sandbox(&fixture).await;
    let files = sandbox.files();
    make(&files, "/watched").await;
    let mut watch = files.watch("/watched", true).await.unwrap();
    // Nothing is lost by waiting in vain.
    let none = timeout(Duration::from_millis(50), watch.next()).await;
    assert!(none.is_err(), "{none:?}");
    make(&files, "/watched/a").await;
    next(&mut watch, FileChange::Created, "a").await;
    run(&sandbox, "echo x > /watched/a/file").await;
    next(&mut watch, FileChange::Written, "a/file").await;
    // What has changed is told when it is asked for.
    files.write("/watched/b", b"x").await.unwrap();
    let so_far = watch.so_far().await.unwrap();
    let written = so_far.last().unwrap();
    assert_eq!(
        (written.change, &*written.path),
        (FileChange::Written, Path::new("b"))
    );
    files.remove("/watched", true).await.unwrap();
    next(&mut watch, FileChange::Removed, "").await;
    assert!(watch.next().await.is_none());

    let missing = files.watch("/watched", true).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let mut watch = files.watch("/tmp", false).await.unwrap();
    sandbox.kill().await.unwrap();
    let lost = watch.next().await.unwrap().unwrap_err();
    assert!(matches!(lost, Error::Lost(_)), "{lost}");
    assert!(watch.next().await.is_none());
}
