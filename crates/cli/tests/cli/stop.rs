//! How long a stop takes, and its messages.

use std::process::Command;
use std::time::Instant;

use crate::support::{Home, PATIENCE, wait};

fn signal(pid: u32, signal: &str) {
    let pid = pid.to_string();
    let kill = Command::new("kill").args([signal, &pid]).status();
    assert!(kill.unwrap().success());
}

#[test]
#[ignore = "needs a built guest"]
fn a_guest_that_hangs_is_given_up_soon_after_its_time() {
    let home = Home::new();
    let script = "echo ready; while :; do sleep 0.05; done";
    for (name, upper) in [("memory", "tmpfs"), ("disk", "disk:64m")] {
        let run = ["run", "--name", name, "--upper", upper, "box", "sh", "-c"];
        let mut sandbox = home.start(&[&run[..], &[script]].concat());
        assert_eq!(sandbox.line(), "ready");
        let [machine] = home.machines()[..] else {
            panic!("one machine");
        };
        signal(machine, "-STOP");
        let begun = Instant::now();
        let stop = home.output(&["stop", "-t", "3", name]);
        let took = begun.elapsed();
        assert!(took < PATIENCE, "{name}: {took:?}");
        let text = stop.stderr();
        assert!(text.contains("its machine was killed"), "{text}");
        assert!(
            text.contains(name) || text.contains("not everything was written"),
            "{text}"
        );
        // The disk's data may be lost, which is a failure; the other sandbox keeps nothing.
        assert_eq!(stop.code(), i32::from(name == "disk"), "{text}");
        sandbox.wait();
    }
    home.wait_for_no_machine();
}

#[test]
#[ignore = "needs a built guest"]
fn an_owner_that_hangs_is_given_up_soon_after_its_time() {
    let home = Home::new();
    let script = "echo ready; while :; do sleep 0.05; done";
    let run = [
        "run", "--name", "it", "--upper", "disk:64m", "box", "sh", "-c", script,
    ];
    let mut sandbox = home.start(&run);
    assert_eq!(sandbox.line(), "ready");
    let owner = home.owner();
    signal(owner, "-STOP");
    let mut stopping = home.mica(&["stop", "-t", "1", "it"]).spawn().unwrap();
    home.wait_for_no_machine();
    signal(owner, "-CONT");
    wait(&mut stopping);
    sandbox.wait();
}
