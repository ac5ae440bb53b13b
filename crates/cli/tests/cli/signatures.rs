//! Policies of signatures, as users meet them.

use std::fs;
use std::path::Path;

use micabox_image::store::Origin;
use micabox_image::{Reference, Store};
use micabox_testing::DockerRegistry;
use serde_json::json;

use crate::support::{Finished, Home, image};

/// Runs `mica` with settings that name a policy.
fn with_policy(home: &Home, policy: &str, arguments: &[&str]) -> Finished {
    let settings = home.path().join("settings.toml");
    fs::write(&settings, "policy = \"policy.json\"").unwrap();
    fs::write(home.path().join("policy.json"), policy).unwrap();
    let mut mica = home.mica(arguments);
    mica.env("MICABOX_CONFIG", settings);
    Finished::of(mica)
}

#[test]
fn a_policy_says_what_is_loaded() {
    let home = Home::empty();
    let archive = home.path().join("box.tar");
    image::write_archive(&archive, &image::layers(), &image::config());
    let archive = archive.display().to_string();
    let reject = r#"{"default": [{"type": "reject"}]}"#;
    let refused = with_policy(&home, reject, &["load", "-q", &archive]);
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(said.contains("scope `default` rejects it"), "{said}");
    assert!(said.contains("`policy` in mica's settings"), "{said}");
    assert_eq!(home.output(&["images", "-q"]).ok(), "");

    let from = Path::new(&archive).canonicalize().unwrap();
    let directory = from.parent().unwrap();
    let scopes = |transport: &str| {
        let scope = match transport {
            "docker-archive" => "",
            _ => directory.to_str().unwrap(),
        };
        json!({
            "default": [{"type": "reject"}],
            "transports": {transport: {scope: [{"type": "insecureAcceptAnything"}]}},
        })
        .to_string()
    };
    let other = with_policy(&home, &scopes("oci-archive"), &["load", "-q", &archive]);
    assert_eq!(other.code(), 1, "it is what Docker saves");
    with_policy(&home, &scopes("docker-archive"), &["load", "-q", &archive]).ok();

    // Where a file is that has no name any more, no scope can say.
    let gone = fs::File::open(&archive).unwrap();
    fs::remove_file(&archive).unwrap();
    let mut mica = home.mica(&["load", "-q"]);
    mica.env("MICABOX_CONFIG", home.path().join("settings.toml"));
    mica.stdin(gone);
    let unknown = Finished::of(mica);
    assert_eq!(unknown.code(), 1);
    let said = unknown.stderr();
    assert!(said.contains("the policy has to know"), "{said}");

    let broken = with_policy(&home, "{", &["load", "-q", &archive]);
    assert_eq!(broken.code(), 1);
    let said = broken.stderr();
    assert!(said.contains("policy.json is wrong"), "{said}");
}

#[test]
fn a_policy_says_what_is_pulled_and_inspect_who_signed() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let home = Home::new();
    let name = format!("{}/box:1", registry.host());
    home.output(&["push", "-q", "box", &name]).ok();
    home.output(&["rmi", "box"]).ok();
    let key = "-----BEGIN PUBLIC KEY-----\n\
               MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEpAMqBWXWEODfAxG7F48pt7Qp6ccv\n\
               DxkmivThXG5jYU4HmQtST5PCEMhaadUZd4nPvjMgaWZPpDrj5TQfgofgDA==\n\
               -----END PUBLIC KEY-----\n";
    fs::write(home.path().join("key.pub"), key).unwrap();
    let key = home.path().join("key.pub");
    let signed = json!({"default": [{"type": "sigstoreSigned", "keyPath": key}]}).to_string();
    for command in ["pull", "run"] {
        let refused = with_policy(&home, &signed, &[command, "-q", &name]);
        assert_eq!(refused.code(), if command == "run" { 125 } else { 1 });
        let said = refused.stderr();
        assert!(
            said.contains("asks for a signature, and it has none"),
            "{said}"
        );
    }
    assert_eq!(home.output(&["images", "-q"]).ok(), "");
    let anything = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    with_policy(&home, anything, &["pull", "-q", &name]).ok();
    let inspected = || home.output(&["inspect", &name]).json()[0]["image"].clone();
    assert_eq!(inspected()["signers"], json!({}));

    // What a pull notes of one that is signed.
    let store = Store::open(&home.store()).unwrap();
    let reference: Reference = name.parse().unwrap();
    let digest = store.image(&name).unwrap().manifest_digest;
    let origin = Origin {
        signers: vec!["key /etc/pki/ours.pub".to_owned()],
        ..Origin::from(&digest)
    };
    store.tag_resolved(&reference, &digest, &origin).unwrap();
    assert_eq!(
        inspected()["signers"],
        json!({name.clone(): ["key /etc/pki/ours.pub"]})
    );
}

#[test]
fn a_conversion_is_checked_under_the_name_that_was_said() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let home = Home::new();
    let name = format!("{}/box:1", registry.host());
    home.output(&["convert", "-q", "box", &name]).ok();
    let other = Home::empty();
    let repository = name.strip_suffix(":1").unwrap();
    let policy = json!({
        "default": [{"type": "reject"}],
        "transports": {"docker": {
            repository: [{"type": "insecureAcceptAnything"}],
            name.clone(): [{"type": "reject"}],
        }},
    })
    .to_string();
    for arguments in [
        ["convert", "-q", "--verify", &name],
        ["pull", "-q", "--verify-conversion", &name],
    ] {
        let refused = with_policy(&other, &policy, &arguments);
        assert_eq!(refused.code(), 1);
        let said = refused.stderr();
        assert!(said.contains("box:1` rejects it"), "{said}");
        assert_eq!(other.output(&["images", "-q"]).ok(), "");
    }
    let anything = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    with_policy(&other, anything, &["convert", "-q", "--verify", &name]).ok();
}
