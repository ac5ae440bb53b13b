//! Operations on files, as an agent on this machine performs them.

mod watches;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use micabox_file::{FileKind, Timestamp};
use micabox_wire::files::{
    Existing, FILES, FileEntry, FilePiece, FileReply, FileRequest, FileStat,
};
use micabox_wire::{Decoder, Exec, ExitStatus, StartFailure};
use rustix::io::Errno;

use crate::host::{Host, Run, command};

fn operation(request: &FileRequest) -> Exec {
    Exec {
        argv: vec![FILES.to_vec(), request.encode()],
        ..command(&["-"])
    }
}

fn run(request: &FileRequest) -> Run {
    Host::new().run(operation(request))
}

#[track_caller]
fn perform(request: FileRequest) -> Vec<u8> {
    let run = run(&request);
    assert!(run.stderr.is_empty(), "{:?}", replies(&run.stderr));
    assert_eq!(run.status(), ExitStatus::Exited(0), "{request:?}");
    run.stdout
}

#[track_caller]
fn refused(request: FileRequest) -> Errno {
    let run = run(&request);
    let failure = run.failure();
    assert_eq!(failure.reason, StartFailure::File, "{failure:?}");
    Errno::from_raw_os_error(failure.errno)
}

fn replies(bytes: &[u8]) -> Vec<FileReply> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let replies = std::iter::from_fn(|| decoder.next_message().unwrap()).collect();
    assert!(decoder.at_boundary());
    replies
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

fn read(path: &Path) -> FileRequest {
    FileRequest::Read {
        path: bytes(path),
        offset: 0,
        length: None,
    }
}

fn write(path: &Path, existing: Existing) -> FileRequest {
    FileRequest::Write {
        path: bytes(path),
        existing,
        mode: 0o640,
        parents: false,
    }
}

fn remove(path: &Path, recursive: bool) -> FileRequest {
    FileRequest::Remove {
        path: bytes(path),
        recursive,
    }
}

fn stat(path: &Path) -> FileStat {
    let request = FileRequest::Stat {
        path: bytes(path),
        follow: false,
    };
    match &*replies(&perform(request)) {
        [FileReply::Stat(stat)] => *stat,
        other => panic!("{other:?}"),
    }
}

fn entries(path: &Path, depth: u32) -> Vec<FileEntry> {
    let request = FileRequest::List {
        path: bytes(path),
        depth,
    };
    let entry = |reply| match reply {
        FileReply::Entry(entry) => entry,
        other => panic!("{other:?}"),
    };
    replies(&perform(request)).into_iter().map(entry).collect()
}

#[test]
fn files_are_read_and_written_in_any_way() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    let contents: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let write_in = |existing, input: &[u8]| {
        let run = Host::new().run_with(operation(&write(&file, existing)), input);
        assert_eq!(run.status(), ExitStatus::Exited(0), "{run:?}");
    };
    write_in(Existing::Refuse, &contents);
    assert_eq!(fs::read(&file).unwrap(), contents);
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o7777,
        0o640
    );
    assert_eq!(perform(read(&file)), contents);
    let part = FileRequest::Read {
        path: bytes(&file),
        offset: 1_000_003,
        length: Some(70_001),
    };
    assert_eq!(perform(part), contents[1_000_003..][..70_001]);
    assert_eq!(refused(write(&file, Existing::Refuse)), Errno::EXIST);

    write_in(Existing::Truncate, b"12345678");
    write_in(Existing::Append, b"9");
    write_in(Existing::At(2), b"xx");
    assert_eq!(fs::read(&file).unwrap(), b"12xx56789");
    let below = place.path().join("a/b/c");
    assert_eq!(refused(write(&below, Existing::Truncate)), Errno::NOENT);
    let request = FileRequest::Write {
        path: bytes(&below),
        existing: Existing::Truncate,
        mode: 0o600,
        parents: true,
    };
    Host::new().run_with(operation(&request), b"deep");
    assert_eq!(fs::read(&below).unwrap(), b"deep");

    // What has no size says what it has, and what would wait is refused.
    assert!(perform(read(Path::new("/proc/self/status"))).starts_with(b"Name:"));
    let fifo = place.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(refused(read(&fifo)), Errno::INVAL);
    assert_eq!(refused(write(&fifo, Existing::Append)), Errno::NXIO);
    assert_eq!(refused(read(place.path())), Errno::ISDIR);
    assert_eq!(refused(write(place.path(), Existing::Append)), Errno::ISDIR);
    assert_eq!(refused(read(&file.join("x"))), Errno::NOTDIR);
    assert_eq!(refused(read(Path::new("/proc/self/exe"))), Errno::LOOP);
    assert_eq!(refused(read(Path::new("a\0b"))), Errno::INVAL);
    let long = "x/".repeat(5000);
    assert_eq!(refused(read(Path::new(&long))), Errno::NAMETOOLONG);

    // A failure in the middle names its reason.
    let full = Host::new().run_with(
        operation(&write(Path::new("/dev/full"), Existing::Append)),
        &contents,
    );
    assert_eq!(full.status(), ExitStatus::Exited(1));
    match &*replies(&full.stderr) {
        [FileReply::Failed(failed)] => assert_eq!(failed.errno, Errno::NOSPC.raw_os_error()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_files_are_written_by_one_operation() {
    let place = tempfile::tempdir().unwrap();
    let request = FileRequest::WriteMany {
        existing: Existing::Truncate,
        mode: 0o640,
        parents: true,
    };
    let mut input = Vec::new();
    let mut add = |path: &str, data: &[u8], continues| {
        let piece = FilePiece {
            path: bytes(&place.path().join(path)),
            size: data.len() as u64,
            continues,
        };
        micabox_wire::encode(&piece, &mut input).unwrap();
        input.extend_from_slice(data);
    };
    let big = vec![7; 300_000];
    for n in 0..500 {
        add(
            &format!("deep/{}/{n}", n % 7),
            n.to_string().as_bytes(),
            false,
        );
    }
    add("big", &big, false);
    add("", &big, true);
    add("empty", b"", false);
    add("deep/0/0", b"last", false);
    let run = Host::new().run_with(operation(&request), &input);
    assert_eq!(run.status(), ExitStatus::Exited(0), "{run:?}");
    let read = |path: &str| fs::read(place.path().join(path)).unwrap();
    assert_eq!(read("deep/2/499"), b"499");
    assert_eq!(read("deep/0/0"), b"last");
    assert_eq!(read("big").len(), 600_000);
    assert_eq!(read("empty"), b"");
    let mode = fs::metadata(place.path().join("empty"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o640);

    // It ends at the first that fails, and names it.
    let mut input = Vec::new();
    for path in ["before", "before/below", "after"] {
        let path = bytes(&place.path().join(path));
        let piece = FilePiece {
            path,
            size: 1,
            continues: false,
        };
        micabox_wire::encode(&piece, &mut input).unwrap();
        input.push(b'x');
    }
    let run = Host::new().run_with(operation(&request), &input);
    assert_eq!(run.status(), ExitStatus::Exited(1));
    match &*replies(&run.stderr) {
        [FileReply::Failed(failed)] => {
            assert_eq!(failed.errno, Errno::NOTDIR.raw_os_error());
            assert!(failed.path.ends_with(b"before/below"), "{failed:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(read("before"), b"x");
    assert!(!place.path().join("after").exists());
    for input in [&b"\x05\0\0\0hello"[..], b"\x05\0", b"\xff\xff\xff\xff"] {
        let run = Host::new().run_with(operation(&request), input);
        assert_eq!(run.status(), ExitStatus::Exited(1), "{input:?}");
    }
}

#[test]
fn files_are_described_and_listed_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir_all(at("d/e")).unwrap();
    fs::write(at("d/e/file"), "12345").unwrap();
    symlink("nowhere", at("d/link")).unwrap();
    fs::write(at("z"), "").unwrap();
    let listed = |depth| -> Vec<String> {
        let path = |entry: &FileEntry| String::from_utf8(entry.path.clone()).unwrap();
        entries(place.path(), depth).iter().map(path).collect()
    };
    assert_eq!(listed(0), [""; 0]);
    assert_eq!(listed(1), ["d", "z"]);
    assert_eq!(listed(2), ["d", "d/e", "d/link", "z"]);
    assert_eq!(listed(9), ["d", "d/e", "d/e/file", "d/link", "z"]);
    let link = &entries(&at("d"), 1)[1];
    assert_eq!(
        (link.stat.kind, &*link.target),
        (FileKind::Symlink, &b"nowhere"[..])
    );

    let ours = fs::metadata(at("d/e/file")).unwrap();
    let theirs = stat(&at("d/e/file"));
    assert_eq!(theirs.kind, FileKind::File);
    assert_eq!(u32::from(theirs.mode), ours.mode() & 0o7777);
    assert_eq!((theirs.uid, theirs.gid), (ours.uid(), ours.gid()));
    assert_eq!((theirs.size, theirs.allocated), (5, ours.blocks() * 512));
    assert_eq!(
        (theirs.inode, u64::from(theirs.links)),
        (ours.ino(), ours.nlink())
    );
    assert_eq!(theirs.modified.system(), Some(ours.modified().unwrap()));
    assert_eq!(
        theirs.created.and_then(Timestamp::system),
        ours.created().ok()
    );
    let null = stat(Path::new("/dev/null"));
    assert_eq!((null.kind, null.device), (FileKind::CharDevice, (1, 3)));
    let missing = FileRequest::Stat {
        path: bytes(&at("d/link")),
        follow: true,
    };
    assert_eq!(refused(missing), Errno::NOENT);
}

#[test]
fn names_are_made_moved_and_removed() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let make = |name: &str, parents| FileRequest::MakeDirectory {
        path: bytes(&at(name)),
        mode: 0o1777,
        parents,
    };
    perform(make("d", false));
    assert_eq!(fs::metadata(at("d")).unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(refused(make("d", false)), Errno::EXIST);
    assert_eq!(refused(make("x/y", false)), Errno::NOENT);
    perform(make("d/x/y", true));
    perform(make("d/x/y", true));
    fs::write(at("d/x/y/f"), "f").unwrap();
    assert_eq!(refused(make("d/x/y/f", true)), Errno::NOTDIR);

    let link = |target: &str, name: &str| FileRequest::Symlink {
        target: target.into(),
        path: bytes(&at(name)),
    };
    perform(link("d/x/y/f", "link"));
    assert_eq!(fs::read(at("link")).unwrap(), b"f");
    assert_eq!(refused(link("x", "link")), Errno::EXIST);
    let read_link = |name: &str| FileRequest::ReadLink {
        path: bytes(&at(name)),
    };
    let target = FileReply::Target {
        target: b"d/x/y/f".to_vec(),
    };
    assert_eq!(replies(&perform(read_link("link"))), [target]);
    assert_eq!(refused(read_link("d")), Errno::INVAL);
    perform(FileRequest::HardLink {
        file: bytes(&at("d/x/y/f")),
        path: bytes(&at("hard")),
    });
    assert_eq!(fs::metadata(at("hard")).unwrap().nlink(), 2);

    let rename = |from: &str, to: &str, replace| FileRequest::Rename {
        from: bytes(&at(from)),
        to: bytes(&at(to)),
        replace,
    };
    assert_eq!(refused(rename("hard", "link", false)), Errno::EXIST);
    perform(rename("hard", "link", true));
    assert!(fs::symlink_metadata(at("link")).unwrap().is_file());

    // A link to a directory is removed, and not what it leads to.
    fs::create_dir(at("kept")).unwrap();
    fs::write(at("kept/file"), "").unwrap();
    symlink(at("kept"), at("d/x/to-kept")).unwrap();
    assert_eq!(refused(remove(&at("d"), false)), Errno::NOTEMPTY);
    let deep = (0..200).fold(at("d"), |path, _| path.join("deep"));
    fs::create_dir_all(&deep).unwrap();
    perform(remove(&at("d"), true));
    perform(remove(&at("link"), true));
    assert!(at("kept/file").exists() && !at("d").exists());
    assert_eq!(refused(remove(&at("d"), true)), Errno::NOENT);
    assert_eq!(refused(remove(Path::new("/"), true)), Errno::BUSY);
}

#[test]
fn attributes_are_set_and_those_of_links_only_if_asked() {
    let place = tempfile::tempdir().unwrap();
    let (file, link) = (place.path().join("file"), place.path().join("link"));
    fs::write(&file, "").unwrap();
    symlink("file", &link).unwrap();
    let set = |follow, mode, modified| FileRequest::Set {
        path: bytes(&link),
        follow,
        mode,
        uid: None,
        gid: None,
        accessed: None,
        modified,
    };
    let time = |seconds, nanos| Some(Timestamp { seconds, nanos });
    perform(set(true, Some(0o4711), time(-5, 123_456_789)));
    perform(set(false, None, time(7, 1)));
    let (ours, theirs) = (stat(&file), stat(&link));
    assert_eq!(ours.mode, 0o4711);
    assert_eq!(Some(ours.modified), time(-5, 123_456_789));
    assert_eq!(Some(theirs.modified), time(7, 1));
    assert_eq!(refused(set(false, Some(0o777), None)), Errno::OPNOTSUPP);
    assert_eq!(fs::metadata(&file).unwrap().mtime(), -5);
}

#[test]
fn nonsense_is_no_operation() {
    for argv in [
        vec![FILES.to_vec()],
        vec![FILES.to_vec(), Vec::new()],
        vec![FILES.to_vec(), vec![0xff; 40]],
        vec![
            FILES.to_vec(),
            [read(Path::new("/")).encode(), vec![0]].concat(),
        ],
    ] {
        let spec = Exec {
            argv,
            ..command(&["-"])
        };
        let run = Host::new().run(spec);
        assert_eq!(run.failure().errno, Errno::INVAL.raw_os_error());
    }
    let spec = Exec {
        user: "nobody-at-all".to_owned(),
        ..operation(&read(Path::new("/etc/passwd")))
    };
    let run = Host::new().run(spec);
    assert_eq!(run.failure().reason, StartFailure::NoSuchUser);
}
