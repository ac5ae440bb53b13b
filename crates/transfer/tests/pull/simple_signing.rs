//! Images that skopeo has signed with GnuPG, and where their signatures are. Skopeo decides about each of them too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_image::{Digest, Reference};
use micabox_testing::{DockerRegistry, Gpg};
use serde_json::{Value, json};

use crate::Puller;
use crate::image::{TestImage, TestLayer};
use crate::real::layout;
use crate::server::{Registry, Reply};

const USER: &str = "Release <release@example.com>";

/// A registry with images, one of which is signed: `team/app:1`, by `USER`.
struct Signed {
    directory: tempfile::TempDir,
    gpg: Gpg,
    fingerprint: String,
    registry: DockerRegistry,
}

impl Signed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        let gpg = Gpg::new();
        let fingerprint = gpg.key(USER, "rsa2048", &[]);
        fs::write(directory.path().join("ours.gpg"), gpg.export(USER)).unwrap();
        gpg.key("Other <other@example.com>", "rsa2048", &[]);
        let other = gpg.export("Other <other@example.com>");
        fs::write(directory.path().join("other.gpg"), other).unwrap();
        let signed = Self {
            directory,
            gpg,
            fingerprint,
            registry,
        };
        signed.keep_signatures_at(&format!("file://{}", signed.path("signatures").display()));
        signed.push(1, "team/app:1", true);
        signed.push(1, "team/app:2", false);
        signed.push(2, "team/unsigned:1", false);
        signed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Sets where signatures of the registry's images are.
    fn keep_signatures_at(&self, address: &str) {
        fs::create_dir_all(self.path("registries.d")).unwrap();
        let text = format!(
            "docker:\n  {}:\n    lookaside: {address}\n",
            self.registry.host()
        );
        fs::write(self.path("registries.d/test.yaml"), text).unwrap();
    }

    fn skopeo(&self, arguments: &[&str]) -> (bool, String) {
        let output = Command::new("skopeo")
            .arg("--registries.d")
            .arg(self.path("registries.d"))
            .args(arguments)
            .env("GNUPGHOME", self.gpg.home())
            .output()
            .expect("skopeo is installed; run scripts/setup");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    }

    /// Pushes an image, which the seed makes.
    fn push(&self, seed: u64, name: &str, is_signed: bool) -> Digest {
        let image = TestImage::new(vec![TestLayer::noise(seed, 1000)]);
        let source = self.path(&format!("layout{seed}"));
        layout(&source, &[image.entry(None)], &[&image]);
        let (from, to) = (format!("oci:{}", source.display()), self.named(name));
        let to = format!("docker://{to}");
        let mut arguments = vec!["--insecure-policy", "copy", "--dest-tls-verify=false"];
        arguments.push("--preserve-digests");
        if is_signed {
            arguments.extend(["--sign-by", &self.fingerprint]);
        }
        arguments.extend([&*from, &*to]);
        let (is_done, said) = self.skopeo(&arguments);
        assert!(is_done, "{said}");
        image.digest()
    }

    fn named(&self, rest: &str) -> Reference {
        format!("{}/{rest}", self.registry.host()).parse().unwrap()
    }

    /// Writes a policy whose default are these requirements.
    fn policy(&self, requirements: &Value) -> PathBuf {
        let path = self.path("policy.json");
        fs::write(&path, json!({"default": requirements}).to_string()).unwrap();
        path
    }

    fn puller(&self, policy: &Path) -> Puller {
        Puller::new().edit_settings(|settings| {
            settings.policy = Some(policy.to_owned());
            settings.registries_d = Some(self.path("registries.d"));
        })
    }

    /// Asserts that skopeo, and the newer library if it is there, take an image or do not.
    fn assert_oracles(&self, policy: &Path, image: &Reference, takes: bool) {
        let text = fs::read_to_string(policy).unwrap();
        let to = tempfile::tempdir().unwrap();
        let (from, to) = (
            format!("docker://{image}"),
            format!("dir:{}", to.path().display()),
        );
        let policy_path = policy.display().to_string();
        let copy = [
            "--policy",
            &policy_path,
            "copy",
            "--src-tls-verify=false",
            &from,
            &to,
        ];
        let (is_taken, said) = self.skopeo(&copy);
        assert_eq!(is_taken, takes, "{text} {image}: {said}");
        let Some(oracle) = std::env::var_os("MICABOX_CONTAINERS_IMAGE") else {
            return;
        };
        let decided = Command::new(oracle)
            .arg("verify")
            .arg(policy)
            .arg(self.path("registries.d"))
            .arg(image.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&decided.stderr);
        assert_eq!(decided.status.success(), takes, "{text} {image}: {said}");
    }
}

#[test]
fn simple_signing_decides_as_skopeo_does() {
    let signed = Signed::new();
    let key = |name: &str| signed.path(name).display().to_string();
    let by = |name: &str| json!({"type": "signedBy", "keyType": "GPGKeys", "keyPath": key(name)});
    let with_identity = |identity: Value| {
        let mut requirement = by("ours.gpg");
        requirement["signedIdentity"] = identity;
        json!([requirement])
    };
    let host = signed.registry.host();
    let data = BASE64_STANDARD.encode(fs::read(signed.path("ours.gpg")).unwrap());
    let good = json!([by("ours.gpg")]);
    let digest = signed.push(1, "team/app:1", false);
    let by_digest = format!("team/app@{digest}");
    for (requirements, image, refusal) in [
        (good.clone(), "team/app:1", None),
        (good.clone(), &*by_digest, None),
        (
            json!([{"type": "signedBy", "keyType": "GPGKeys", "keyData": data}]),
            "team/app:1",
            None,
        ),
        (good.clone(), "team/unsigned:1", Some("it has none")),
        (
            json!([by("other.gpg")]),
            "team/app:1",
            Some("which the policy does not have"),
        ),
        // A name that was not signed for the same image.
        (good.clone(), "team/app:2", Some("about the name")),
        (
            with_identity(json!({"type": "matchExact"})),
            "team/app:1",
            None,
        ),
        (
            with_identity(json!({"type": "matchExact"})),
            &by_digest,
            Some("about the name"),
        ),
        (
            with_identity(json!({"type": "matchRepository"})),
            "team/app:2",
            None,
        ),
        (
            with_identity(json!({
                "type": "exactReference", "dockerReference": format!("{host}/team/app:1"),
            })),
            "team/app:2",
            None,
        ),
        (
            with_identity(json!({
                "type": "exactRepository", "dockerRepository": format!("{host}/team/other"),
            })),
            "team/app:1",
            Some("about the name"),
        ),
        (
            with_identity(json!({
                "type": "remapIdentity", "prefix": host, "signedPrefix": "other.example",
            })),
            "team/app:1",
            Some("about the name"),
        ),
        (
            json!([by("ours.gpg"), by("other.gpg")]),
            "team/app:1",
            Some("which the policy"),
        ),
        (
            json!([by("ours.gpg"), {"type": "insecureAcceptAnything"}]),
            "team/app:1",
            None,
        ),
        (
            json!([by("ours.gpg"), {"type": "reject"}]),
            "team/app:1",
            Some("rejects it"),
        ),
    ] {
        let policy = signed.policy(&requirements);
        let image = signed.named(image);
        let puller = signed.puller(&policy);
        match refusal {
            None => {
                puller.pull(&image);
                let signers = puller.store.signers(&image).unwrap();
                assert_eq!(
                    signers,
                    [format!("OpenPGP key {} ({USER})", signed.fingerprint)]
                );
            }
            Some(part) => {
                let message = puller.refusal(&image);
                assert!(message.contains(part), "{requirements} {image}: {message}");
                assert!(message.contains(&image.to_string()), "{message}");
            }
        }
        signed.assert_oracles(&policy, &image, refusal.is_none());
    }
}

#[test]
fn signatures_are_fetched_from_a_server() {
    let signed = Signed::new();
    let server = Registry::new();
    signed.keep_signatures_at(&format!("{}/below", server.url()));
    let image = signed.named("team/app:1");
    let key = signed.path("ours.gpg");
    let policy = json!([{"type": "signedBy", "keyType": "GPGKeys", "keyPath": key}]);
    let policy = signed.policy(&policy);
    let message = signed.puller(&policy).refusal(&image);
    assert!(message.contains("it has none"), "{message}");
    signed.assert_oracles(&policy, &image, false);

    let directory = fs::read_dir(signed.path("signatures/team")).unwrap();
    let directory = directory.map(|entry| entry.unwrap().path()).next().unwrap();
    let signature = fs::read(directory.join("signature-1")).unwrap();
    let name = directory.file_name().unwrap().to_str().unwrap();
    let at = |number: usize| format!("/below/team/{name}/signature-{number}");
    let put = |number: usize, bytes: &[u8]| {
        server.put(&at(number), "application/octet-stream", bytes.to_vec());
    };
    // The first is damaged, and the second is the one.
    put(1, &signature[..signature.len() - 1]);
    put(2, &signature);
    signed.puller(&policy).pull(&image);
    signed.assert_oracles(&policy, &image, true);
    let asked = server.requests();
    assert!(
        asked
            .iter()
            .all(|request| request.header("authorization").is_none())
    );
    assert!(asked.iter().any(|request| request.path() == at(3)));

    for number in 1..=128 {
        put(number, &signature);
    }
    let message = signed.puller(&policy).refusal(&image);
    assert!(
        message.contains("it has over 128 signatures at"),
        "{message}"
    );

    put(1, &vec![0; (64 << 10) + 1]);
    let message = signed.puller(&policy).refusal(&image);
    assert!(message.contains("larger than 65536 bytes"), "{message}");

    let first = at(1);
    server.rule(move |request| (request.path() == first).then(|| Reply::error(403, "no")));
    let message = signed.puller(&policy).refusal(&image);
    assert!(
        message.contains("signature-1") && message.contains("no"),
        "{message}"
    );
    signed.assert_oracles(&policy, &image, false);
}

#[test]
fn nothing_is_pulled_where_it_cant_be_told_where_signatures_are() {
    let signed = Signed::new();
    let image = signed.named("team/app:1");
    let key = signed.path("ours.gpg");
    let policy = json!([{"type": "signedBy", "keyType": "GPGKeys", "keyPath": key}]);
    let policy = signed.policy(&policy);
    for (text, part) in [
        ("docker: [", "test.yaml is wrong"),
        ("docker: {}\ndocker: {}", "there twice"),
        (
            "default-docker: {lookaside: 'ftp://a.example'}",
            "neither file: nor https:",
        ),
        ("default-docker: {lookaside: relative}", "is no address"),
    ] {
        fs::write(signed.path("registries.d/test.yaml"), text).unwrap();
        let message = signed.puller(&policy).refusal(&image);
        assert!(message.contains(part), "{text}: {message}");
        signed.assert_oracles(&policy, &image, false);
    }
    // A signature that can't be read is not one that is missing.
    let below = signed.path("signatures");
    signed.keep_signatures_at(&format!("file://{}", below.display()));
    let team = fs::read_dir(below.join("team")).unwrap();
    let file = team
        .map(|entry| entry.unwrap().path().join("signature-1"))
        .next()
        .unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let message = signed.puller(&policy).refusal(&image);
    assert!(message.contains("signature-1"), "{message}");
    signed.assert_oracles(&policy, &image, false);
}
