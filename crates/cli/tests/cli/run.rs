//! The inputs and outputs of a command in a sandbox.

use std::io::{Read, Write};
use std::process::Stdio;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::{Home, image};

#[test]
#[ignore = "needs a built guest"]
fn exit_codes_pass_through() {
    let home = Home::new();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let run = home.output(&["run", "--rm", "box", "sh", "-c", script]);
        assert_eq!((run.code(), run.stderr().as_str()), (code, ""), "{script}");
    }
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn commands_that_cannot_start_have_dockers_exit_codes() {
    let home = Home::new();
    for (arguments, code, word) in [
        (&["box", "no-such-program"][..], 127, "no-such-program"),
        (&["box", "/no/such/program"], 127, "/no/such/program"),
        (&["box", "/srv/run"], 126, "/srv/run"),
        (&["box", "/srv"], 126, "/srv"),
        (&["-u", "nobody-here", "box", "true"], 125, "nobody-here"),
    ] {
        let run = home.output(&[&["run", "--rm"], arguments].concat());
        assert_eq!(run.code(), code, "{arguments:?}: {}", run.stderr());
        assert!(run.stderr().starts_with("mica: "), "{}", run.stderr());
        assert!(run.stderr().contains(word), "{}", run.stderr());
    }
    home.assert_nothing_left();
}

#[test]
fn errors_of_mica_itself_exit_with_125() {
    let home = Home::new();
    for (arguments, word) in [
        (&["--pull", "never", "nothing"][..], "nothing"),
        (&["--pull", "never", "UPPER"], "UPPER"),
        (&["-w", "relative", "box", "true"], "absolute"),
        (&["-e", "=x", "box", "true"], "variable"),
        (&["--env-file", "/proc/none/file", "box"], "/proc/none/file"),
        (&["-it", "box", "sh"], "terminal"),
        (&["--bogus", "box"], "--bogus"),
        (&["--name", "a/b", "box"], "a/b"),
        (&["--entrypoint", "", "box"], "command"),
        (&[], "IMAGE"),
    ] {
        let run = home.output(&[&["run", "--rm"], arguments].concat());
        assert_eq!(run.code(), 125, "{arguments:?}: {}", run.stderr());
        assert!(
            run.stderr().contains(word),
            "{arguments:?}: {}",
            run.stderr()
        );
    }
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn megabytes_go_in_and_come_out_unchanged() {
    let home = Home::new();
    let data: Vec<u8> = (0..6_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let mut child = home
        .mica(&["run", "--rm", "-i", "box", "tee", "/dev/stderr"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let digest = Sha256::digest(&data);
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(&data).unwrap());
    let mut stderr = child.stderr.take().unwrap();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let mut stdout = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut stdout)
        .unwrap();
    assert_eq!(Sha256::digest(&stdout), digest);
    assert_eq!(Sha256::digest(reading.join().unwrap()), digest);
    writing.join().unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "needs a built guest"]
fn stdout_and_stderr_stay_apart_and_stdin_is_ours_only_if_asked() {
    let home = Home::new();
    let mut command = home.mica(&[
        "run",
        "--rm",
        "box",
        "sh",
        "-c",
        "cat; echo out; echo err >&2",
    ]);
    let run = command.stdin(Stdio::piped()).output().unwrap();
    assert_eq!(run.stdout, b"out\n");
    assert_eq!(run.stderr, b"err\n");
}

#[test]
#[ignore = "needs a built guest"]
fn a_command_that_reads_no_stdin_ends_all_the_same() {
    let home = Home::new();
    let mut child = home
        .mica(&[
            "run",
            "--rm",
            "-i",
            "box",
            "sh",
            "-c",
            "exec <&-; echo done",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Until the pipe has no reader.
    let chunk = vec![0; 1 << 20];
    while stdin.write_all(&chunk).is_ok() {}
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"done\n"[..])
    );
}

#[test]
#[ignore = "needs a built guest"]
fn environment_user_directory_and_host_name_are_set() {
    let home = Home::new();
    let file = home.path().join("env");
    std::fs::write(&file, "FROM_FILE=file\nBOTH=file\nHOST_ONLY\n").unwrap();
    let run = home
        .mica(&[
            "run",
            "--rm",
            "--hostname",
            "granite",
            "-u",
            "app",
            "-w",
            "/new/directory",
            "--env-file",
            file.to_str().unwrap(),
            "-e",
            "BOTH=flag",
            "-e",
            "HOST_ONLY",
            "box",
            "sh",
            "-c",
            "id; pwd; hostname; cat /etc/hostname; env | sort | grep -v SHLVL",
        ])
        .env("HOST_ONLY", "from the host")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stderr), "");
    assert_eq!(
        String::from_utf8_lossy(&run.stdout)
            .lines()
            .collect::<Vec<_>>(),
        [
            "uid=1000(app) gid=1000(app) groups=50(staff),1000(app)",
            "/new/directory",
            "granite",
            "granite",
            "BOTH=flag",
            "FROM_FILE=file",
            "FROM_IMAGE=yes",
            "HOME=/home/app",
            "HOSTNAME=granite",
            "HOST_ONLY=from the host",
            "PATH=/usr/bin:/bin",
            "PWD=/new/directory",
        ]
    );
}

#[test]
#[ignore = "needs a built guest"]
fn entrypoint_and_cmd_are_the_images_unless_given() {
    let home = Home::new();
    assert_eq!(home.output(&["run", "--rm", "box"]).ok(), "the default\n");
    let run = home.output(&["run", "--rm", "--entrypoint", "basename", "box", "/a/b"]);
    assert_eq!(run.ok(), "b\n");

    let other = Home::empty();
    let config = json!({"Entrypoint": ["echo", "entry"], "Cmd": ["cmd"], "User": "1000:50"});
    other.load(&image::layers(), &config);
    assert_eq!(other.output(&["run", "--rm", "box"]).ok(), "entry cmd\n");
    assert_eq!(
        other.output(&["run", "--rm", "box", "x y"]).ok(),
        "entry x y\n"
    );
    let run = other.output(&["run", "--rm", "--entrypoint", "", "box", "id", "-g"]);
    assert_eq!(run.ok(), "50\n");
}

#[test]
#[ignore = "needs a built guest"]
fn processes_and_memory_are_as_asked_for() {
    let home = Home::new();
    let script = "nproc; awk '/MemTotal/ {print ($2 > 380000 && $2 < 520000)}' /proc/meminfo; \
                  cat /proc/1/comm";
    let run = home.output(&[
        "run", "--rm", "--cpus", "1.5", "-m", "512m", "box", "sh", "-c", script,
    ]);
    // Where no control group can be had, a line on stderr says that 1.5 counts as 2.
    assert_eq!(run.code(), 0, "{}", run.stderr());
    let output = run.stdout();
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines[..2], ["2", "1"], "{output}");
    assert_ne!(lines[2], "sh");
    let run = home.output(&["run", "--rm", "--init=false", "box", "sh", "-c", "echo $$"]);
    assert_eq!(run.ok(), "1\n");
}

#[test]
#[ignore = "needs a built guest"]
fn phases_of_timing_add_up() {
    let home = Home::new();
    let run = home.output(&["run", "--rm", "--timing=json", "box"]);
    let timing: serde_json::Value = serde_json::from_str(&run.stderr()).unwrap();
    let phases = timing["phases"].as_object().unwrap();
    for phase in [
        "plan",
        "VMM start",
        "kernel",
        "agent mounts",
        "exec",
        "first output",
    ] {
        assert!(phases.contains_key(phase), "{timing}");
    }
    let sum: f64 = phases.values().map(|ms| ms.as_f64().unwrap()).sum();
    assert!(
        (sum - timing["total"].as_f64().unwrap()).abs() < 0.1,
        "{timing}"
    );
}
