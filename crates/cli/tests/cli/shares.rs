//! `-v` and `--mount type=bind` on QEMU.

use std::fs;
use std::io::Write;

use crate::support::share::{Folder, edits, works};
use crate::support::{Home, wait_until};

#[test]
#[ignore = "needs a built guest"]
fn a_folder_is_inside_what_programs_expect_and_outside_the_users_own() {
    works(&Home::new(), "qemu");
}

/// What an editor does on the host is seen at once, in every way to look.
#[test]
#[ignore = "needs a built guest"]
fn changes_on_the_host_are_seen_at_once_and_a_kept_sandbox_has_the_folder_again() {
    let home = Home::new();
    let folder = Folder::new();
    let volume = format!("{}:/w", folder.path().display());
    // Answers each line with what it sees.
    let look = "while read n; do cat /w/$n 2>/dev/null || echo none; stat -c %s /w/$n 2>/dev/null; \
                ls /w | grep -c $n; echo .; done; exit 0";
    let arguments = [
        "run",
        "-i",
        "--name",
        "kept",
        "--upper",
        "disk:64m",
        "--backend",
        "qemu",
        "-v",
        &volume,
        "box",
        "sh",
        "-c",
        look,
    ];
    let mut mica = home.mica(&arguments);
    let mica = mica.stdin(std::process::Stdio::piped());
    let mut running = mica.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut to = running.stdin.take().unwrap();
    let mut from = std::io::BufReader::new(running.stdout.take().unwrap());
    let mut look = |name: &str| {
        writeln!(to, "{name}").unwrap();
        let mut seen = String::new();
        while !seen.ends_with(".\n") {
            assert_ne!(
                std::io::BufRead::read_line(&mut from, &mut seen).unwrap(),
                0
            );
        }
        seen
    };
    // A program that runs already sees a change when the share's server has: within a millisecond, or
    // what this machine takes to run it.
    let mut expect = |expected: &str| {
        wait_until("the change is seen", || {
            look("edited") == format!("{expected}.\n")
        });
    };
    let path = folder.path().join("edited");
    expect("none\n0\n");
    fs::write(&path, "one\n").unwrap();
    expect("one\n4\n1\n");
    // In place, of the same length; and by another file, as editors do it.
    fs::write(&path, "two\n").unwrap();
    expect("two\n4\n1\n");
    fs::write(folder.path().join("new"), "three\n").unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    expect("three\n6\n1\n");
    fs::remove_file(&path).unwrap();
    expect("none\n0\n");
    drop(to);
    assert!(running.wait().unwrap().success());

    // The same folder in another start; without it, a start that says so.
    fs::write(&path, "again\n").unwrap();
    let mut mica = home.mica(&["start", "-a", "-i", "kept"]);
    let mut again = mica.stdin(std::process::Stdio::piped());
    again = again.stdout(std::process::Stdio::piped());
    let mut running = again.spawn().unwrap();
    running
        .stdin
        .take()
        .unwrap()
        .write_all(b"edited\n")
        .unwrap();
    let output = running.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "again\n6\n1\n.\n");
    drop(folder);
    let gone = home.output(&["start", "-a", "kept"]);
    assert_ne!(gone.code(), 0);
    let text = gone.stderr();
    assert!(
        text.contains("cannot share") && text.contains("No such file"),
        "{text}"
    );
    home.output(&["rm", "kept"]).ok();
    home.assert_nothing_left();
}

/// As `git rebase` and editors do it; a bind mount never loses such a directory.
#[test]
#[ignore = "needs a built guest"]
fn a_working_directory_that_was_renamed_away_and_back_is_one_again() {
    let home = Home::new();
    let folder = Folder::new();
    let (there, away) = (folder.path().join("d"), folder.path().join("away"));
    fs::create_dir(&there).unwrap();
    let volume = format!("{}:/w", folder.path().display());
    // The directory may go between mkdir and rmdir, and come back with what was made.
    let look = "cd /w/d; while read n; do readlink /proc/self/cwd 2>&1; \
        if mkdir /w/d/new 2>/dev/null || test -d /w/d/new; then rmdir /w/d/new; echo there; else echo gone; fi; \
        done; exit 0";
    let flags = ["run", "-i", "--rm", "--backend", "qemu", "-v", &volume];
    let mut mica = home.mica(&[&flags[..], &["box", "sh", "-c", look]].concat());
    let mica = mica.stdin(std::process::Stdio::piped());
    let mut running = mica.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut to = running.stdin.take().unwrap();
    let mut from = std::io::BufReader::new(running.stdout.take().unwrap());
    // Where the process is, as it was before the look, and whether that is there.
    let mut look = || {
        writeln!(to, "look").unwrap();
        let [mut directory, mut is_there] = [String::new(), String::new()];
        std::io::BufRead::read_line(&mut from, &mut directory).unwrap();
        std::io::BufRead::read_line(&mut from, &mut is_there).unwrap();
        (directory, is_there)
    };
    let mut until = |expected: &str| {
        let mut directory = String::new();
        wait_until(expected, || {
            let (before, is_there) = look();
            directory = before;
            is_there.trim() == expected
        });
        directory
    };
    assert_eq!(until("there"), "/w/d\n");
    for _ in 0..3 {
        fs::rename(&there, &away).unwrap();
        until("gone");
        fs::rename(&away, &there).unwrap();
        assert_eq!(until("there"), "/w/d\n");
    }
    // Another that takes its name is another.
    fs::rename(&there, &away).unwrap();
    until("gone");
    fs::create_dir(&there).unwrap();
    until("there");
    assert_ne!(until("there"), "/w/d\n");
    drop(to);
    assert!(running.wait().unwrap().success());
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn each_of_many_quick_edits_is_seen() {
    edits(&Home::new(), "qemu", 400);
}

/// As Docker: `-v` makes a missing folder, `--mount` does not; a name without a slash is a volume.
#[test]
#[ignore = "needs a built guest"]
fn what_can_not_be_shared_is_refused_with_a_reason() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let missing = missing.to_str().unwrap();
    let socket = folder.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (flag, value, why) in [
        (
            "--mount",
            format!("type=bind,src={missing},dst=/a"),
            "cannot share",
        ),
        (
            "-v",
            format!("{}:/a", socket.display()),
            "neither a directory nor a regular file",
        ),
        (
            "-v",
            format!("{missing}:/"),
            "the root can't be mounted over",
        ),
        ("-v", format!("{missing}:a"), "not absolute"),
        ("-v", format!("{missing}:/a:x"), "expected ro, rw or cached"),
    ] {
        let run = home.output(&["run", "--rm", flag, &value, "box", "true"]);
        assert_eq!(run.code(), 125, "{value}");
        let text = run.stderr();
        assert!(text.contains(why), "{value}: {text}");
    }
    fs::remove_dir(missing).unwrap_or_default();
    let run = home.output(&[
        "run",
        "--rm",
        "--backend",
        "qemu",
        "-v",
        &format!("{missing}:/a"),
        "box",
        "touch",
        "/a/b",
    ]);
    run.ok();
    assert!(fs::exists(format!("{missing}/b")).unwrap());
    home.assert_nothing_left();
}
