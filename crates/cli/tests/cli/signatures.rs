//! Policies of signatures, as users meet them.

use std::fs;
use std::path::Path;
use std::process::Command;

use micabox_image::Digest;
use micabox_testing::cosign::Cosign;
use micabox_testing::{DockerRegistry, Gpg};
use serde_json::{Value, json};

use crate::support::artifact::{self, filesystem};
use crate::support::host::with_mount;
use crate::support::{Finished, Home, image};

/// Runs `mica` with settings that name a policy.
pub fn with_policy(home: &Home, policy: &str, arguments: &[&str]) -> Finished {
    let settings = home.path().join("settings.toml");
    fs::write(&settings, "policy = \"policy.json\"").unwrap();
    fs::write(home.path().join("policy.json"), policy).unwrap();
    let mut mica = home.mica(arguments);
    mica.env("MICABOX_CONFIG", settings);
    Finished::of(mica)
}

/// Returns a policy that asks for a signature by a key, of the image's own name or of another one.
pub fn signed_by(key: &Path, name: Option<&str>) -> String {
    let mut requirement = json!({"type": "sigstoreSigned", "keyPath": key});
    if let Some(name) = name {
        requirement["signedIdentity"] = json!({"type": "exactReference", "dockerReference": name});
    }
    json!({"default": [requirement]}).to_string()
}

/// Fails unless an image was refused because it has no signature.
#[track_caller]
pub fn assert_unsigned(refused: &Finished) {
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(
        said.contains("asks for a signature, and it has none"),
        "{said}"
    );
}

/// A registry with the image `box:1`, which the store has no more.
struct Remote {
    registry: DockerRegistry,
    _directory: tempfile::TempDir,
    home: Home,
    name: String,
}

impl Remote {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        let home = Home::new();
        let name = format!("{}/box:1", registry.host());
        home.output(&["push", "-q", "box", &name]).ok();
        home.output(&["rmi", "box"]).ok();
        Self {
            registry,
            _directory: directory,
            home,
            name,
        }
    }

    /// Returns what `mica inspect` shows of the image's signers.
    fn signers(&self) -> Value {
        self.home.output(&["inspect", &self.name]).json()[0]["image"]["signers"].clone()
    }
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
    let remote = Remote::new();
    let (home, name) = (&remote.home, &*remote.name);
    let cosign = Cosign::new();
    let signed = signed_by(&cosign.key(), None);
    assert_unsigned(&with_policy(home, &signed, &["pull", "-q", name]));
    let refused = with_policy(home, &signed, &["run", "-q", name]);
    assert_eq!(refused.code(), 125);
    assert!(
        refused.stderr().contains("it has none"),
        "{}",
        refused.stderr()
    );
    assert_eq!(home.output(&["images", "-q"]).ok(), "");
    let anything = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    with_policy(home, anything, &["pull", "-q", name]).ok();
    assert_eq!(remote.signers(), json!({}));

    let pulled = home.output(&["inspect", name]).json()[0]["image"].clone();
    let digest = pulled["manifest_digest"].as_str().unwrap();
    cosign.sign(&remote.registry, "box:1", digest);
    let other = Cosign::new();
    let asks = signed_by(&other.key(), None);
    let refused = with_policy(home, &asks, &["pull", "-q", name]);
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(said.contains("it is not by the policy's key"), "{said}");
    with_policy(home, &signed, &["pull", "-q", name]).ok();
    let signer = format!("key {}", cosign.key().display());
    assert_eq!(remote.signers(), json!({name: [signer]}));
}

/// A user with an OpenPGP key, whose signatures are in a directory of the store's user.
struct Release {
    gpg: Gpg,
    fingerprint: String,
}

impl Release {
    const USER: &str = "Release <release@example.com>";

    fn new(home: &Home) -> Self {
        let gpg = Gpg::new();
        let fingerprint = gpg.key(Self::USER, "ed25519", &[]);
        fs::write(home.path().join("ours.gpg"), gpg.export(Self::USER)).unwrap();
        let registries = home.path().join("registries.d");
        fs::create_dir(&registries).unwrap();
        let at = home.path().join("signatures");
        let lookaside = format!("default-docker:\n  lookaside: file://{}\n", at.display());
        fs::write(registries.join("ours.yaml"), lookaside).unwrap();
        Self::name_settings(home);
        Self { gpg, fingerprint }
    }

    /// Writes the settings that name the policy and where signatures are.
    fn name_settings(home: &Home) {
        let settings = "policy = \"policy.json\"\nregistries-d = \"registries.d\"";
        fs::write(home.path().join("settings.toml"), settings).unwrap();
    }

    fn signer(&self) -> String {
        format!("OpenPGP key {} ({})", self.fingerprint, Self::USER)
    }

    fn skopeo(&self, arguments: &[&str]) -> Vec<u8> {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(arguments).env("GNUPGHOME", self.gpg.home());
        let output = skopeo
            .output()
            .expect("skopeo is installed; run scripts/setup");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        output.stdout
    }

    /// Signs what a registry has under `at`, as `name`. Returns the digest of its manifest.
    fn sign(&self, home: &Home, at: &str, name: &str) -> Digest {
        let image = format!("docker://{at}");
        let manifest = self.skopeo(&["inspect", "--raw", "--tls-verify=false", &image]);
        let digest = Digest::of(&manifest);
        let (_, repository) = name.rsplit_once(':').unwrap().0.split_once('/').unwrap();
        let below = home.path().join("signatures");
        let below = below.join(format!("{repository}@sha256={}", digest.hex()));
        fs::create_dir_all(&below).unwrap();
        fs::write(home.path().join("manifest"), &manifest).unwrap();
        let (manifest, signature) = (home.path().join("manifest"), below.join("signature-1"));
        let (manifest, signature) = (
            manifest.display().to_string(),
            signature.display().to_string(),
        );
        self.skopeo(&[
            "standalone-sign",
            &manifest,
            name,
            &self.fingerprint,
            "-o",
            &signature,
        ]);
        digest
    }

    /// Runs `mica` with a policy that asks for signatures by a key.
    fn asked_for(home: &Home, key: &str, arguments: &[&str]) -> Finished {
        let key = home.path().join(key);
        let policy = json!({"default": [
            {"type": "signedBy", "keyType": "GPGKeys", "keyPath": key},
        ]});
        fs::write(home.path().join("policy.json"), policy.to_string()).unwrap();
        let mut mica = home.mica(arguments);
        mica.env("MICABOX_CONFIG", home.path().join("settings.toml"));
        Finished::of(mica)
    }
}

#[test]
fn inspect_says_which_openpgp_key_has_signed() {
    let remote = Remote::new();
    let (home, name) = (&remote.home, &*remote.name);
    let release = Release::new(home);
    release.sign(home, name, name);

    let pull = |key: &str| Release::asked_for(home, key, &["pull", "-q", name]);
    release.gpg.key("Other <other@example.com>", "ed25519", &[]);
    let other = release.gpg.export("Other <other@example.com>");
    fs::write(home.path().join("other.gpg"), other).unwrap();
    let refused = pull("other.gpg");
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    for part in [
        name,
        "`default`",
        &*release.fingerprint,
        "which the policy does not have",
    ] {
        assert!(said.contains(part), "{said}");
    }
    pull("ours.gpg").ok();
    assert_eq!(remote.signers(), json!({name: [release.signer()]}));
}

#[test]
fn a_snapshot_and_its_image_need_signatures_and_inspect_says_whose() {
    let remote = artifact::Remote::new();
    remote.import("monday", &filesystem(&remote.origin));
    remote.push("monday", "team/work:1");
    let name = remote.name("team/work:1");
    let home = &remote.home;
    let release = Release::new(home);
    let pull = || Release::asked_for(home, "ours.gpg", &["pull", "-q", &name]);
    assert_unsigned(&pull());

    // Its image is another manifest, and needs another signature.
    let manifest = release.sign(home, &name, &name);
    assert_unsigned(&pull());
    assert_eq!(home.output(&["snapshot", "ls", "-q"]).ok(), "");
    let config = remote.blob(&remote.manifest("team/work:1")["config"]["digest"]);
    let config: Value = serde_json::from_slice(&config).unwrap();
    let image = config["snapshot"]["image"]["digest"].as_str().unwrap();
    let repository = name.strip_suffix(":1").unwrap();
    release.sign(home, &format!("{repository}@{image}"), &name);
    pull().ok();

    let inspected = home.output(&["inspect", "work-1"]).json()[0]["snapshot"].clone();
    let place = json!({
        "reference": name, "manifest": manifest, "pulled": true, "signers": [release.signer()],
    });
    assert_eq!(inspected["places"], json!([place]));

    // Under a policy that asks for nothing nothing is known of who signed it.
    let anything = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    with_policy(home, anything, &["pull", "-q", &name]).ok();
    let inspected = || home.output(&["inspect", "work-1"]).json()[0]["snapshot"].clone();
    assert_eq!(inspected()["places"][0].get("signers"), None);
    Release::name_settings(home);
    pull().ok();
    assert_eq!(inspected()["places"], json!([place]));
}

#[test]
fn the_policy_is_podmans_where_the_settings_name_none() {
    let home = Home::empty();
    let archive = home.path().join("box.tar");
    image::write_archive(&archive, &image::layers(), &image::config());
    let user = home.path().join("user");
    let policy = user.join(".config/containers/policy.json");
    fs::create_dir_all(policy.parent().unwrap()).unwrap();
    fs::write(&policy, r#"{"default": [{"type": "reject"}]}"#).unwrap();
    let load = |settings: &str| {
        let file = home.path().join("settings.toml");
        fs::write(&file, settings).unwrap();
        let mut mica = home.mica(&["load", "-q", archive.to_str().unwrap()]);
        mica.env("HOME", &user).env("MICABOX_CONFIG", file);
        Finished::of(mica)
    };
    let refused = load("");
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(said.contains("scope `default` rejects it"), "{said}");
    assert!(said.contains("~/.config/containers/policy.json"), "{said}");
    // One that is named is used in its place.
    let other = home.path().join("policy.json");
    fs::write(
        other,
        r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
    )
    .unwrap();
    load("policy = \"policy.json\"").ok();
    // And one that can't be read lets nothing be loaded.
    fs::write(&policy, "{").unwrap();
    let broken = load("");
    assert_eq!(broken.code(), 1);
    assert!(
        broken.stderr().contains("policy.json is wrong"),
        "{}",
        broken.stderr()
    );
}

#[test]
#[ignore = "needs root: mounts a directory over /etc/containers"]
fn the_systems_policy_counts_where_a_user_has_none() {
    let home = Home::empty();
    let archive = home.path().join("box.tar");
    image::write_archive(&archive, &image::layers(), &image::config());
    let (system, user) = (home.path().join("system"), home.path().join("user"));
    fs::create_dir_all(&system).unwrap();
    fs::create_dir_all(&user).unwrap();
    fs::write(
        system.join("policy.json"),
        r#"{"default": [{"type": "reject"}]}"#,
    )
    .unwrap();
    let mica = home.mica(&["load", "-q", archive.to_str().unwrap()]);
    let mut inside = with_mount(&mica, &system, "/etc/containers");
    let settings = home.path().join("settings.toml");
    fs::write(&settings, "").unwrap();
    inside.env("HOME", &user).env("MICABOX_CONFIG", settings);
    let refused = Finished::of(inside);
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(said.contains("scope `default` rejects it"), "{said}");
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
