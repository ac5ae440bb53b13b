//! Processes that are kept for operations on files, as an agent on this machine keeps them.

use std::fs;
use std::path::Path;

use micabox_testing::wait_until;
use micabox_wire::files::{FILES, FileReply, FileRequest};
use micabox_wire::{Confinement, Decoder, Exec, ExitStatus, MAX_DATA, PROCESSES, ToGuest, ToHost};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::host::{Host, Run, command};

fn operation(request: &FileRequest) -> Exec {
    Exec {
        argv: vec![FILES.to_vec(), request.encode()],
        ..command(&["-"])
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

fn stat(path: &Path) -> Exec {
    operation(&FileRequest::Stat {
        path: bytes(path),
        follow: true,
    })
}

/// Looks at a file, and returns the process that did it.
#[track_caller]
fn looked_by(host: &mut Host, spec: Exec) -> u32 {
    let run = host.run(spec);
    assert_eq!(run.status(), ExitStatus::Exited(0), "{run:?}");
    assert!(matches!(&*replies(&run), [FileReply::Stat(_)]), "{run:?}");
    run.pid
}

fn replies(run: &Run) -> Vec<FileReply> {
    let mut decoder = Decoder::new();
    decoder.push(&run.stdout);
    std::iter::from_fn(|| decoder.next_message().unwrap()).collect()
}

/// Looks at a file until a process has done it twice: on a busy machine, a second may pass between two operations.
/// Returns the process.
#[track_caller]
fn kept(host: &mut Host, spec: &Exec) -> u32 {
    let mut last = looked_by(host, spec.clone());
    wait_until("a process to be kept", || {
        let before = std::mem::replace(&mut last, looked_by(host, spec.clone()));
        before == last
    });
    last
}

fn send(pid: u32, signal: Signal) {
    // One that waited for long enough has ended.
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Begins to remove a directory. Returns the process, which is stopped before it is done.
fn removing(host: &mut Host, id: u32, place: &Path) -> u32 {
    let tree = place.join(id.to_string());
    loop {
        fs::create_dir_all(&tree).unwrap();
        for number in 0..10_000 {
            fs::write(tree.join(number.to_string()), "").unwrap();
        }
        let request = FileRequest::Remove {
            path: bytes(&tree),
            recursive: true,
        };
        host.exec(id, operation(&request));
        let pid = host.started(id);
        send(pid, Signal::STOP);
        wait_until("the process to stop", || {
            matches!(state(pid), Some('T') | None)
        });
        if tree.exists() {
            return pid;
        }
        // It was done first, and may have been stopped before it could report that.
        send(pid, Signal::CONT);
        ended(host, id);
    }
}

#[track_caller]
fn ended(host: &mut Host, of: u32) -> ExitStatus {
    match host.receive() {
        ToHost::Exited { id, status } if id == of => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_performs_many_operations_and_ends_when_there_are_none() {
    let root = stat(Path::new("/"));
    let mut host = Host::new();
    let first = kept(&mut host, &root);
    let missing = host.run(stat(Path::new("/proc/none")));
    assert_eq!(missing.failure().errno, libc::ENOENT);
    wait_until("the process to end", || state(first).is_none());
    assert_ne!(looked_by(&mut host, root), first);
}

#[test]
fn an_operation_does_without_a_process_that_was_killed_or_stopped() {
    let root = stat(Path::new("/"));
    let mut host = Host::new();
    // The request often reaches a process that is about to die or to stop.
    for _ in 0..20 {
        let killed = looked_by(&mut host, root.clone());
        send(killed, Signal::KILL);
        let stopped = looked_by(&mut host, root.clone());
        assert_ne!(stopped, killed);
        send(stopped, Signal::STOP);
        let last = looked_by(&mut host, root.clone());
        assert!(![killed, stopped].contains(&last));
        wait_until("the stopped process to end", || state(stopped).is_none());
    }
}

#[test]
fn a_process_with_other_limits_is_not_used() {
    let root = stat(Path::new("/"));
    let mut host = Host::new();
    // A limit that nothing else of the operation meets.
    let lower = Rlimit {
        current: Some(1 << 20),
        maximum: Some(1 << 20),
    };
    let limited = loop {
        let kept = kept(&mut host, &root);
        match prlimit(Pid::from_raw(kept.cast_signed()), Resource::Fsize, lower) {
            Ok(_) => break kept,
            // It waited for long enough, and has ended.
            Err(Errno::SRCH) => {}
            Err(errno) => panic!("{errno}"),
        }
    };
    assert_ne!(looked_by(&mut host, root), limited);
}

#[test]
fn what_was_begun_is_not_begun_again() {
    let place = tempfile::tempdir().unwrap();
    let mut host = Host::new();
    kept(&mut host, &stat(place.path()));
    let pid = removing(&mut host, 1, place.path());
    send(pid, Signal::KILL);
    assert_eq!(ended(&mut host, 1), ExitStatus::Signaled(libc::SIGKILL));
    assert!(place.path().join("1").exists());
    assert_ne!(looked_by(&mut host, stat(place.path())), pid);
    // What the host wants of an operation is meant for that, whatever process has it.
    removing(&mut host, 2, place.path());
    host.send(ToGuest::SignalGroup { id: 2, signal: 9 });
    assert_eq!(ended(&mut host, 2), ExitStatus::Signaled(libc::SIGKILL));
}

#[test]
fn a_long_operation_is_in_the_way_of_no_other() {
    let place = tempfile::tempdir().unwrap();
    let mut host = Host::new();
    let removing = removing(&mut host, 1, place.path());
    host.exec(2, stat(place.path()));
    let looked = host.follow(&[2], 64 << 10, None).remove(&2).unwrap();
    assert_eq!(looked.status(), ExitStatus::Exited(0));
    assert_ne!(looked.pid, removing);
    send(removing, Signal::CONT);
    assert_eq!(ended(&mut host, 1), ExitStatus::Exited(0));
    assert!(!place.path().join("1").exists());
}

#[test]
fn few_processes_are_kept() {
    let mut host = Host::new();
    let as_member = |group: u32| Exec {
        confinement: Confinement {
            groups: vec![group.to_string()],
            ..Confinement::default()
        },
        ..stat(Path::new("/"))
    };
    let pids: Vec<u32> = (0..5)
        .map(|group| looked_by(&mut host, as_member(group)))
        .collect();
    wait_until("the first one to end", || state(pids[0]).is_none());
    let last = kept(&mut host, &as_member(4));
    let list = host.run(Exec {
        argv: vec![PROCESSES.to_vec()],
        ..command(&["-"])
    });
    assert!(list.text().starts_with("uptime "));
    let is_listed = |line: &str| line.starts_with(&format!("{last} "));
    assert!(!list.text().lines().any(is_listed), "{}", list.text());
}

#[test]
fn a_long_list_has_all_entries() {
    let place = tempfile::tempdir().unwrap();
    for number in 0..1000 {
        fs::write(place.path().join(number.to_string()), "").unwrap();
    }
    let list = operation(&FileRequest::List {
        path: bytes(place.path()),
        depth: 1,
    });
    let mut host = Host::new();
    let kept = kept(&mut host, &stat(place.path()));
    let run = host.run(list);
    assert_eq!(run.status(), ExitStatus::Exited(0));
    assert_eq!(replies(&run).len(), 1000);
    assert_ne!(run.pid, kept);
}

#[test]
fn a_small_file_is_read_by_a_kept_process() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let read = |path: &Path, offset, length| {
        operation(&FileRequest::Read {
            path: bytes(path),
            offset,
            length,
        })
    };
    let long: Vec<u8> = (0..MAX_DATA).map(|at| (at % 251) as u8).collect();
    fs::write(path("small"), "0123456789").unwrap();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("long"), &long).unwrap();
    fs::write(path("most"), &long[..24 << 10]).unwrap();
    fs::write(path("more"), &long[..(24 << 10) + 1]).unwrap();
    let mut host = Host::new();
    for (name, offset, length, expected) in [
        ("small", 0, None, &b"0123456789"[..]),
        ("small", 2, Some(3), b"234"),
        ("small", 0, Some(0), b""),
        ("small", 20, None, b""),
        ("most", 0, None, &long[..24 << 10]),
        ("long", 1000, Some(500), &long[1000..1500]),
    ] {
        // On a busy machine, a second may pass between two operations.
        wait_until("a process to look and to read", || {
            let kept = kept(&mut host, &stat(place.path()));
            let run = host.run(read(&path(name), offset, length));
            assert_eq!(run.status(), ExitStatus::Exited(0));
            assert_eq!(run.stdout, expected, "{name}");
            run.pid == kept
        });
    }
    // Where a read has no known end, or a long one, another process streams it.
    let status = Path::new("/proc/self/status").to_owned();
    for (path, is_expected) in [
        (
            path("empty"),
            &(|output: &[u8]| output.is_empty()) as &dyn Fn(&[u8]) -> bool,
        ),
        (path("long"), &|output| output == long),
        (path("more"), &|output| output == &long[..(24 << 10) + 1]),
        (status, &|output| output.starts_with(b"Name:")),
    ] {
        let kept = kept(&mut host, &stat(place.path()));
        let run = host.run(read(&path, 0, None));
        assert_eq!(run.status(), ExitStatus::Exited(0));
        assert!(is_expected(&run.stdout), "{}", path.display());
        assert_ne!(run.pid, kept);
    }
    let missing = host.run(read(&path("none"), 0, None));
    assert_eq!(missing.failure().errno, libc::ENOENT);
}
