//! Commands that need no machine.

mod support;

use support::Home;

#[test]
fn an_image_can_be_listed_inspected_and_removed() {
    let home = Home::new();
    let images = home.output(&["images", "--json"]).json();
    let digest = images[0]["manifest_digest"].as_str().unwrap().to_owned();
    assert_eq!(images[0]["layers"], 3);
    let table = home.output(&["images"]).ok();
    assert!(
        table.starts_with("IMAGE ") && table.contains("box:latest"),
        "{table}"
    );
    assert_eq!(home.output(&["images", "-q"]).ok(), format!("{digest}\n"));

    let inspected = home.output(&["inspect", "box"]).json();
    let image = &inspected[0]["image"];
    assert_eq!(image["manifest_digest"], *digest);
    assert_eq!(image["references"][0], "docker.io/library/box:latest");
    assert_eq!(image["config"]["config"]["WorkingDir"], "/srv");
    assert_eq!(image["layers"].as_array().unwrap().len(), 3);
    let missing = home.output(&["inspect", "nothing"]);
    assert_eq!(missing.code(), 1);
    assert!(missing.stderr().contains("nothing"), "{}", missing.stderr());

    let usage = home.output(&["store", "df", "--json"]).json();
    assert_eq!(usage["layers"], 3);
    assert!(home.output(&["store", "df"]).ok().contains("box:latest"));

    assert!(home.output(&["rmi", "box"]).ok().contains("freed"));
    assert_eq!(home.output(&["rmi", "box"]).code(), 1);
    assert_eq!(
        home.output(&["images", "--json"]).json(),
        serde_json::json!([])
    );
}

#[test]
fn the_store_is_checked_and_pruned() {
    let home = Home::new();
    assert!(home.output(&["store", "fsck"]).ok().contains("all well"));
    let pruned = home
        .output(&["store", "prune", "--all", "--dry-run", "--json"])
        .json();
    assert_eq!(pruned["layers"].as_array().unwrap().len(), 3);
    home.output(&["store", "prune"]).ok();
    assert_eq!(home.output(&["images", "--json"]).json()[0]["layers"], 3);
    home.output(&["store", "prune", "--all"]).ok();
    assert_eq!(home.output(&["images", "-q"]).ok(), "");

    // An empty store has no problems.
    let empty = Home::empty();
    assert_eq!(
        empty.output(&["ps", "-a", "--json"]).json(),
        serde_json::json!([])
    );
    assert!(empty.output(&["store", "fsck"]).ok().contains("all well"));
}

#[test]
fn help_and_version_are_printed_and_mistakes_are_named() {
    let home = Home::empty();
    assert!(home.output(&["--version"]).ok().starts_with("mica "));
    let help = home.output(&["--help"]).ok();
    for command in ["run", "pull", "store", "doctor"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    assert!(home.output(&["run", "--help"]).ok().contains("Exit codes"));
    assert_eq!(home.output(&["bogus"]).code(), 2);
    assert_eq!(home.output(&["stop", "nobody"]).code(), 1);
}

#[test]
fn the_doctor_names_what_it_looked_at() {
    let home = Home::empty();
    let checks = home.output(&["doctor", "--json"]);
    let checks: serde_json::Value = serde_json::from_str(&checks.stdout()).unwrap();
    let names: Vec<_> = checks
        .as_array()
        .unwrap()
        .iter()
        .map(|check| &check["what"])
        .collect();
    for name in [
        "QEMU",
        "acceleration",
        "memory",
        "guest",
        "store",
        "settings",
    ] {
        assert!(names.contains(&&serde_json::json!(name)), "{names:?}");
    }
    let mut command = home.mica(&["doctor"]);
    let run = command.env("MICABOX_QEMU", "/nowhere").output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stdout).contains("install"));
}
