//! What `mica doctor` says of a machine.

use super::*;

#[test]
fn doctor_does_not_call_a_backend_well_that_does_not_work() {
    let home = Home::empty();
    let mica = home.mica(&["doctor", "--json"]);
    let mut inside = Command::new("unshare");
    // Root of a user namespace can't start containers.
    inside.arg("--map-root-user");
    inside.arg(mica.get_program()).args(mica.get_args());
    inside.env("MICABOX_HOME", home.store());
    let checks = Finished::of(inside).stdout();
    let checks: serde_json::Value = serde_json::from_str(&checks).unwrap();
    let checks = checks.as_array().unwrap();
    let backend = checks.iter().find(|check| check["what"] == "host backend");
    let backend = backend.unwrap();
    assert_eq!(backend["verdict"], "note", "{backend}");
    for check in checks.iter().filter(|check| check["verdict"] == "ok") {
        let found = check["found"].as_str().unwrap();
        assert!(!found.contains("not work"), "{check}");
    }
}

#[test]
#[ignore = "needs root"]
fn doctor_names_the_cause_and_not_what_follows_from_it() {
    let home = Home::new();
    let checks = |script: &str| {
        let finished = in_namespace(&home, script, &["doctor", "--json"]);
        assert_eq!(finished.code(), 1, "{}", finished.stderr());
        let checks: Vec<serde_json::Value> = serde_json::from_str(&finished.stdout()).unwrap();
        checks
    };
    let of = |checks: &[serde_json::Value], what: &str| {
        checks.iter().find(|check| check["what"] == what).cloned()
    };
    // A device can't be opened on a filesystem without devices.
    let without = "mount --bind /dev/null /dev/null; mount -o remount,bind,nodev /dev/null";
    let found = checks(without);
    let null = of(&found, "/dev/null").unwrap();
    assert_eq!(null["verdict"], "missing");
    for blamed in ["QEMU", "jail", "host backend"] {
        assert_eq!(of(&found, blamed), None);
    }
    let read_only = "mount --bind \"$STORE\" \"$STORE\"; mount -o remount,ro,bind \"$STORE\"";
    let store = of(&checks(read_only), "store").unwrap();
    assert_eq!(store["verdict"], "missing");
    let said = store["found"].as_str().unwrap();
    assert!(said.contains("Read-only file system"), "{said}");
}
