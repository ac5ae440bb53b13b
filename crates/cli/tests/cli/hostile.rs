//! Repeats every attempt of the table in `docs/threat-model.md`.

use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "needs root, e2fsprogs and a built guest"]
fn every_attempt_of_the_threat_model_is_stopped() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new("python3")
        .arg(top.join("scripts/hostile"))
        .args(["--check", "--mica", env!("CARGO_BIN_EXE_mica")])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
}
