//! Runs the program with command lines that are not served.

use std::process::Command;

#[test]
fn a_command_that_is_not_served_is_refused_in_the_name_of_mica() {
    for (words, what) in [
        (&["run", "box"][..], "unrecognized subcommand 'run'"),
        (&["serve"], "--stdio|--e2b"),
        (&[], "Usage: mica"),
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mica-server"));
        let output = program.args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(what), "{text}");
        assert!(output.stdout.is_empty());
    }
}
