//! `mica run --vsock` on our own monitor. `scripts/test-kvm` runs this.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use support::Home;

/// What a port of the sandbox's has to say.
fn ask(path: &Path, port: u32) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream
        .write_all(format!("CONNECT {port}\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_path_leads_to_the_sandbox_while_it_runs() {
    let home = Home::new();
    let path = home.path().join("sockets");
    // Its console is one that programs can write to, too.
    let script = "test -c /dev/vsock && echo heard >/dev/console && echo ready; exec sleep 1000";
    let start = ["run", "--rm", "--backend", "kvm", "--vsock"];
    let rest = ["box", "sh", "-c", script];
    let arguments = [&start[..], &[path.to_str().unwrap()], &rest].concat();

    let mut sandbox = home.start(&arguments);
    assert_eq!(sandbox.line(), "ready");
    // Nobody listens, which only the guest's kernel knows.
    assert_eq!(ask(&path, 1), "");
    let taken = home.output(&arguments);
    assert_eq!(taken.code(), 125);
    assert!(
        taken.stderr().contains("exists already"),
        "{}",
        taken.stderr()
    );
    // A killed mica can't clean up; the next one takes its place.
    sandbox.signal(9);
    sandbox.wait();
    assert!(path.exists());
    let mut sandbox = home.start(&arguments);
    assert_eq!(sandbox.line(), "ready");
    assert_eq!(ask(&path, 1), "");
    sandbox.signal(15);
    sandbox.wait();
    assert!(!path.exists());
}
