//! Policies, and signatures in a real registry. Where `MICABOX_CONTAINERS_IMAGE` names the program that
//! `scripts/oracle/containers-image/build` makes, the library of skopeo and podman decides too, and has to decide the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_image::{Digest, Reference};
use micabox_testing::{DockerRegistry, cosign};
use micabox_trust::Signature;
use serde_json::{Value, json};

use crate::image::{TestImage, TestLayer};
use crate::real::layout;
use crate::server::{Registry, Reply};
use crate::{PullPolicy, Puller};

use crate::maker::{EMAIL, ISSUER, Maker};

const PLAIN: &str = "--dest-tls-verify=false";

/// A registry with images, one of which is signed: `team/app:1`, by the key `ours`.
struct Signed {
    maker: Maker,
    registry: DockerRegistry,
}

impl Signed {
    fn new() -> Self {
        let maker = Maker::with_authority();
        let registry = DockerRegistry::start(&maker.path(""), "");
        let signed = Self { maker, registry };
        fs::create_dir(signed.path("registries.d")).unwrap();
        fs::write(
            signed.path("registries.d/all.yaml"),
            "default-docker:\n  use-sigstore-attachments: true\n",
        )
        .unwrap();
        signed.maker.key("P-256", "ours");
        signed.maker.key("P-256", "other");
        let digest = signed.push(1, "team/app:1");
        signed.push(1, "team/app:2");
        signed.push(2, "team/unsigned:1");
        let signature = signed.sign("team/app:1", digest, "ours");
        signed.attach("team/app", digest, &signature);
        signed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.maker.path(name)
    }

    /// Pushes an image, which the seed makes.
    fn push(&self, seed: u64, name: &str) -> Digest {
        let image = TestImage::new(vec![TestLayer::noise(seed, 1000)]);
        let source = self.path(&format!("layout{seed}"));
        layout(&source, &[image.entry(None)], &[&image]);
        self.registry.push(&source, name, &[PLAIN]);
        image.digest()
    }

    /// Signs that a manifest has a name.
    fn sign(&self, name: &str, digest: Digest, key: &str) -> Signature {
        let payload = cosign::payload(&self.named(name).to_string(), &digest.to_string());
        self.maker.signature(&payload, key)
    }

    /// Attaches a signature to a manifest, as cosign does.
    fn attach(&self, repository: &str, digest: Digest, signature: &Signature) {
        let mut annotations = json!({"dev.cosignproject.cosign/signature": signature.signature});
        for (name, value) in [
            ("dev.sigstore.cosign/certificate", &signature.certificate),
            ("dev.sigstore.cosign/chain", &signature.chain),
            ("dev.sigstore.cosign/bundle", &signature.bundle),
        ] {
            if let Some(value) = value {
                annotations[name] = value.as_str().into();
            }
        }
        let (manifest, payload) = (digest.to_string(), &signature.payload);
        cosign::attach(&self.registry, repository, &manifest, payload, &annotations);
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

    /// Asserts that the oracle, if there is one, takes an image or does not.
    fn assert_oracle(&self, policy: &Path, image: &Reference, takes: bool) {
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
        let text = fs::read_to_string(policy).unwrap();
        assert_eq!(decided.status.success(), takes, "{text} {image}: {said}");
    }
}

#[test]
fn a_policy_decides_as_the_library_of_skopeo_does() {
    let signed = Signed::new();
    let key = |name: &str| signed.path(name).display().to_string();
    let by = |name: &str| json!({"type": "sigstoreSigned", "keyPath": key(name)});
    let with_identity = |identity: Value| {
        let mut requirement = by("ours.pub");
        requirement["signedIdentity"] = identity;
        json!([requirement])
    };
    let digest = Puller::new()
        .pull(&signed.named("team/app:1"))
        .manifest_digest;
    let by_digest = format!("team/app@{digest}");
    let exact = json!({"type": "matchExact"});
    let repository = json!({"type": "matchRepository"});
    let other_name = format!("{}/team/app:3", signed.registry.host());
    let reference = json!({"type": "exactReference", "dockerReference": other_name});
    let data = BASE64_STANDARD.encode(fs::read(signed.path("ours.pub")).unwrap());
    let good = json!([by("ours.pub")]);
    for (requirements, image, refusal) in [
        (
            json!([{"type": "insecureAcceptAnything"}]),
            "team/unsigned:1",
            None,
        ),
        (
            json!([{"type": "reject"}]),
            "team/app:1",
            Some("`default` rejects it"),
        ),
        (good.clone(), "team/app:1", None),
        (
            json!([{"type": "sigstoreSigned", "keyData": data}]),
            "team/app:1",
            None,
        ),
        (good.clone(), "team/unsigned:1", Some("it has none")),
        (
            json!([by("other.pub")]),
            "team/app:1",
            Some("not by the policy's key"),
        ),
        // A name that was not signed for the same image.
        (good.clone(), "team/app:2", Some("about the name")),
        (good, &by_digest, None),
        (with_identity(exact.clone()), "team/app:1", None),
        (with_identity(exact), &by_digest, Some("about the name")),
        (with_identity(repository), "team/app:2", None),
        (
            with_identity(reference),
            "team/app:1",
            Some("about the name"),
        ),
        (
            json!([by("ours.pub"), by("other.pub")]),
            "team/app:1",
            Some("not by"),
        ),
        (
            json!([by("ours.pub"), {"type": "insecureAcceptAnything"}]),
            "team/app:1",
            None,
        ),
    ] {
        let policy = signed.policy(&requirements);
        let image = signed.named(image);
        let puller = Puller::new().edit_settings(|settings| settings.policy = Some(policy.clone()));
        match refusal {
            None => {
                puller.pull(&image);
            }
            Some(part) => {
                let message = puller.refusal(&image);
                assert!(message.contains(part), "{requirements} {image}: {message}");
            }
        }
        signed.assert_oracle(&policy, &image, refusal.is_none());
    }
}

#[test]
fn certificates_and_logs_decide_as_the_library_of_skopeo_does() {
    let signed = Signed::new();
    let maker = &signed.maker;
    let requirement = |email: &str, issuer: &str| {
        json!([{
            "type": "sigstoreSigned",
            "fulcio": {
                "caPath": signed.path("ca.pem"), "oidcIssuer": issuer, "subjectEmail": email,
            },
            "rekorPublicKeyPath": signed.path("log.pub"),
        }])
    };
    let good = requirement(EMAIL, ISSUER);
    for (seed, name, time, requirement, refusal) in [
        (3, "team/good:1", 60, &good, None),
        (
            4,
            "team/late:1",
            200_000,
            &good,
            Some("not by the policy's authority"),
        ),
        (
            5,
            "team/other:1",
            60,
            &requirement("eve@example.com", ISSUER),
            Some("not of eve"),
        ),
        (
            6,
            "team/issuer:1",
            60,
            &requirement(EMAIL, "https://x.example"),
            Some("issuer is"),
        ),
    ] {
        let digest = signed.push(seed, name);
        let certificate = maker.certificate("short", "ca", EMAIL, ISSUER, "codeSigning");
        let signature = Signature {
            certificate: Some(certificate.clone()),
            ..signed.sign(name, digest, "short")
        };
        let signature = maker.noted(signature, &certificate, maker.now() + time);
        let image = signed.named(name);
        signed.attach(image.repository(), digest, &signature);
        let policy = signed.policy(requirement);
        let puller = Puller::new().edit_settings(|settings| settings.policy = Some(policy.clone()));
        match refusal {
            None => {
                puller.pull(&image);
                let signers = puller.store.signers(&image).unwrap();
                assert_eq!(signers, [format!("{EMAIL} ({ISSUER})")]);
            }
            Some(part) => {
                let message = puller.refusal(&image);
                assert!(message.contains(part), "{name}: {message}");
            }
        }
        signed.assert_oracle(&policy, &image, refusal.is_none());
    }
}

#[test]
fn who_signed_is_kept_with_the_name() {
    let signed = Signed::new();
    let key = signed.path("ours.pub").display().to_string();
    let policy = signed.policy(&json!([{"type": "sigstoreSigned", "keyPath": key}]));
    let image = signed.named("team/app:1");
    let puller = Puller::new();
    puller.pull(&image);
    assert!(puller.store.signers(&image).unwrap().is_empty());
    // The store has the image, and the name is given anew.
    let puller = puller
        .policy(PullPolicy::Always)
        .edit_settings(|settings| settings.policy = Some(policy));
    puller.pull(&image);
    assert_eq!(
        puller.store.signers(&image).unwrap(),
        [format!("key {key}")]
    );

    // One that is not signed keeps neither the name nor what it was.
    signed.push(2, "team/app:1");
    let message = puller.try_pull(&image).unwrap_err().to_string();
    assert!(message.contains("it has none"), "{message}");
    assert_eq!(
        puller.store.signers(&image).unwrap(),
        [format!("key {key}")]
    );
}

#[test]
fn a_policy_that_cant_be_used_lets_nothing_be_pulled() {
    let signed = Signed::new();
    let image = signed.named("team/app:1");
    for (policy, part) in [
        ("{}", "missing field `default`"),
        (r#"{"default": []}"#, "no requirements"),
        (r#"{"default": [{"type": "trust"}]}"#, "unknown variant"),
        (
            r#"{"default": [{"type": "reject"}], "default": [{"type": "insecureAcceptAnything"}]}"#,
            "duplicate field",
        ),
        (
            r#"{"default": [{"type": "insecureAcceptAnything", "more": 1}]}"#,
            "unknown field",
        ),
        (
            r#"{"default": [{"type": "reject"}], "transports": {"docker": {"x": [{"type": "reject"}], "x": []}}}"#,
            "`x` is there twice",
        ),
        (
            r#"{"default": [{"type": "sigstoreSigned", "keyPath": "/proc/none/key"}]}"#,
            "/proc/none/key",
        ),
        (
            r#"{"default": [{"type": "sigstoreSigned", "keyPath": "relative"}]}"#,
            "not an absolute path",
        ),
        (
            r#"{"default": [{"type": "sigstoreSigned"}]}"#,
            "one of keyPath",
        ),
        (
            r#"{"default": [{"type": "sigstoreSigned", "keyData": "AAAA"}]}"#,
            "no PUBLIC KEY",
        ),
        ("not json", "line 1"),
    ] {
        let path = signed.path("policy.json");
        fs::write(&path, policy).unwrap();
        let puller = Puller::new().edit_settings(|settings| settings.policy = Some(path.clone()));
        let message = puller.refusal(&image);
        assert!(message.contains(part), "{policy}: {message}");
        assert!(message.contains("policy.json"), "{message}");
        if !policy.contains("relative") {
            signed.assert_oracle(&path, &image, false);
        }
    }
    let missing = signed.path("missing.json");
    let puller = Puller::new().edit_settings(|settings| settings.policy = Some(missing));
    assert!(puller.refusal(&image).contains("missing.json"));
}

#[test]
fn a_signature_that_can_not_be_fetched_is_no_obstacle_where_another_will_do() {
    let maker = Maker::new();
    for key in ["ours", "other"] {
        maker.key("P-256", key);
    }
    let image = TestImage::new(vec![TestLayer::noise(1, 1000)]);
    let registry = Registry::with(&image);
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [image.entry(None)],
    });
    let index = index.to_string().into_bytes();
    registry.put_manifest("x", "1", index.clone());
    let name = registry.reference("x:1");
    // Without a policy no signature is asked for.
    Puller::new().pull(&name);
    let asked = registry.requests();
    assert!(!asked.iter().any(|request| request.path().ends_with(".sig")));

    let index = Digest::of(&index);
    let payload = cosign::payload(&name.to_string(), &index.to_string());
    let signature = maker.signature(&payload, "ours");
    let annotations = json!({"dev.cosignproject.cosign/signature": signature.signature});
    let [payload, config, (_, manifest)] =
        cosign::signature_blobs(&signature.payload, &annotations);
    for (digest, bytes) in [payload, config] {
        let path = format!("/v2/x/blobs/{digest}");
        registry.put(&path, "application/octet-stream", bytes);
    }
    registry.put_manifest("x", &format!("sha256-{}.sig", index.hex()), manifest);
    let unknown = format!("/v2/x/manifests/sha256-{}.sig", image.digest().hex());
    registry.rule(move |request| {
        (request.path() == unknown).then(|| Reply::error(502, "its registry is gone"))
    });
    let puller = |key: &str| {
        let by = json!({"type": "sigstoreSigned", "keyPath": maker.path(key)});
        let policy = maker.path("policy.json");
        fs::write(&policy, json!({"default": [by]}).to_string()).unwrap();
        Puller::new().edit_settings(|settings| settings.policy = Some(policy))
    };
    puller("ours.pub").pull(&name);
    // Where none will do, the one that is not known might.
    let message = puller("other.pub").refusal(&name);
    assert!(message.contains("its registry is gone"), "{message}");
}
