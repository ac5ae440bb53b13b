//! Parsers of foreign filesystems run in the jail, and their death is an error of the command.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use micabox_ext4::{Ext4, Options, Owner, ROOT};
use micabox_testing::{PATIENCE, children, exists, wait_until};
use rustix::process::{Pid, Signal, kill_process};

const MICA: &str = env!("CARGO_BIN_EXE_mica");

fn mica(words: &[&str]) -> Command {
    let mut command = Command::new(MICA);
    command.arg("ext4").args(words).stdin(Stdio::null());
    command
}

/// Makes a filesystem with a file that fills every pipe.
fn image() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let path = path.to_str().unwrap().to_owned();
    let made = mica(&["mkfs", &path, "--size", "64M"]).output().unwrap();
    assert!(made.status.success());
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut filesystem = Ext4::open(file, Options::default()).unwrap();
    let big = filesystem.create(ROOT, b"big", Owner::root(0o644)).unwrap();
    filesystem.write(big, 0, &vec![b'x'; 16 << 20]).unwrap();
    filesystem.close().unwrap();
    (directory, path)
}

/// Returns a field of `/proc/PID/status`.
fn field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Starts a command that waits for its output to be read. Returns it with the process that parses
/// for it: its keeper's child, behind the seccomp filter.
fn stalled(path: &str) -> (Child, u32) {
    let child = mica(&["cat", path, "/big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The worker is in write(2), after all other steps.
    let is_stalled = |pid: &u32| {
        let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        call.starts_with("1 ") && field(*pid, "Seccomp").as_deref() == Some("2")
    };
    let worker = || {
        let keepers = children(child.id()).into_iter();
        keepers.flat_map(children).next().filter(is_stalled)
    };
    let mut found = None;
    wait_until("there is a worker", || {
        found = worker();
        found.is_some()
    });
    (child, found.unwrap())
}

/// Returns the rest of its output, and its exit code.
fn end(child: Child) -> (Vec<u8>, String, Option<i32>) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.stdout, said, output.status.code())
}

#[test]
#[ignore = "needs root"]
fn the_process_that_parses_is_in_jail() {
    let (_directory, path) = image();
    let (child, worker) = stalled(&path);
    let status = |name| field(worker, name).unwrap();
    assert_eq!(status("NoNewPrivs"), "1");
    assert_eq!(status("CapEff"), "0000000000000000");
    assert_eq!(status("CapPrm"), "0000000000000000");
    assert_ne!(status("Uid"), "0 0 0 0");
    // Process 1 of its own namespace.
    assert!(status("NSpid").ends_with(" 1"), "{}", status("NSpid"));
    for namespace in ["user", "mnt", "net", "pid", "ipc", "uts"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_ne!(of(&worker.to_string()), of("self"), "{namespace}");
    }
    assert_eq!(
        fs::read_dir(format!("/proc/{worker}/root"))
            .unwrap()
            .count(),
        0
    );
    // The filesystem, read-only, and pipes: nothing else.
    let mut files = Vec::new();
    for entry in fs::read_dir(format!("/proc/{worker}/fd")).unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap();
        files.push(target.to_str().unwrap().to_owned());
    }
    let is_expected = |file: &String| {
        *file == path || file.starts_with("pipe:") || file == "/dev/null" || file == "/null"
    };
    assert!(files.iter().all(is_expected), "{files:?}");
    let environment = fs::read(format!("/proc/{worker}/environ")).unwrap();
    assert!(environment.is_empty(), "{}", environment.escape_ascii());
    let (stdout, said, code) = end(child);
    assert_eq!((stdout.len(), said.as_str(), code), (16 << 20, "", Some(0)));
}

#[test]
#[ignore = "needs root"]
fn a_parser_that_is_killed_is_an_error() {
    let (_directory, path) = image();
    let (child, worker) = stalled(&path);
    let pid = Pid::from_raw(worker.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let (stdout, said, code) = end(child);
    assert!(stdout.len() < 16 << 20);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("image: ") && said.contains("was killed"),
        "{said}"
    );
}

#[test]
fn a_command_that_is_killed_leaves_no_parser() {
    let (_directory, path) = image();
    let mut child = mica(&["cat", &path, "/big"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let keepers = children(child.id());
    let workers: Vec<u32> = keepers.iter().copied().flat_map(children).collect();
    assert!(!keepers.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("they are gone", || {
        let mut all = keepers.iter().chain(&workers);
        !all.any(|pid| exists(pid.to_string()))
    });
}

/// Makes a directory of 2^30 blocks that are one block, which no checksum would reveal.
fn endless(path: &str) {
    let script = format!(
        "PATH=$PATH:/usr/sbin:/sbin; mke2fs -q -t ext4 -b 4096 \
         -O ^dir_index,^resize_inode,^metadata_csum,^64bit -N 64 {path} 8M; \
         debugfs -w -R 'mkdir d' {path} 2>&1; debugfs -R 'stat /d' {path} 2>/dev/null"
    );
    let output = Command::new("bash")
        .args(["-euc", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let inode = said.split_once("Inode: ").unwrap().1;
    let inode = inode.split_whitespace().next().unwrap();
    let [directory, single, double, triple] = [2038_u32, 2037, 2036, 2035];
    let file = File::options().write(true).open(path).unwrap();
    let mut names = Vec::new();
    for number in 0..341_u32 {
        let length: u16 = if number == 340 { 16 } else { 12 };
        names.extend(12_u32.to_le_bytes());
        names.extend(length.to_le_bytes());
        names.extend([3, 1]);
        names.extend(format!("{number:03x}").bytes());
        names.resize(names.len() + usize::from(length) - 11, 0);
    }
    file.write_all_at(&names, u64::from(directory) * 4096)
        .unwrap();
    for (block, all) in [(single, directory), (double, single), (triple, double)] {
        let pointers = all.to_le_bytes().repeat(1024);
        file.write_all_at(&pointers, u64::from(block) * 4096)
            .unwrap();
    }
    let mut script = format!("sif <{inode}> flags 0\n");
    for index in 0..12 {
        script += &format!("sif <{inode}> block[{index}] {directory}\n");
    }
    script += &format!("sif <{inode}> block[IND] {single}\nsif <{inode}> block[DIND] {double}\n");
    script += &format!("sif <{inode}> block[TIND] {triple}\nsif <{inode}> size 4398046511104\n");
    let commands = format!("{path}.debugfs");
    fs::write(&commands, script).unwrap();
    let script = format!("PATH=$PATH:/usr/sbin:/sbin debugfs -w -f {commands} {path} 2>&1");
    let output = Command::new("bash")
        .args(["-euc", &script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_directory_without_an_end_costs_the_command_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let path = path.to_str().unwrap();
    endless(path);
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (out, copy) = (&at("out"), &at("copy"));
    for words in [
        &["ls", path, "/d"][..],
        &["export", path, out],
        &["cp", &format!("{path}:/d"), copy],
    ] {
        let begun = Instant::now();
        // The limit of this command; the worker has its own.
        let output = Command::new("bash")
            .args([
                "-c",
                "ulimit -S -v 1000000; exec \"$@\"",
                "bash",
                MICA,
                "ext4",
            ])
            .args(words)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(
            said.starts_with("mica: ") && said.contains("image: "),
            "{words:?}: {said}"
        );
        assert!(begun.elapsed() < PATIENCE, "{words:?}: {said}");
    }
}
