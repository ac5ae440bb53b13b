//! Bundles, as cosign 3 attaches them, and what is wrong with others.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_oci::{Digest, Reference};
use micabox_trust::{
    BUNDLE_TYPE, Policy, Refusal, Scope, Signatures, Signer, Subject, bundle_of, bundles_of,
};
use serde_json::{Value, json};

use crate::maker::{EMAIL, ISSUER, Maker};
use crate::{NAME, by_key, manifest};

fn statement() -> Value {
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": manifest().hex()}}],
        "predicateType": "https://sigstore.dev/cosign/sign/v1",
        "predicate": {},
    })
}

/// Decides with one requirement as the whole policy, which takes bundles or not.
fn decide(requirement: &Value, bundles: &[Value], takes: bool) -> Result<Vec<Signer>, Refusal> {
    let policy = json!({"default": [requirement]}).to_string();
    let policy = Policy::parse(policy.as_bytes())
        .unwrap()
        .with_bundles(takes);
    let reference: Reference = NAME.parse().unwrap();
    let scope = Scope::Registry(&reference);
    assert_eq!(policy.needs(scope).bundles, takes);
    let subject = Subject {
        reference: Some(&reference),
        manifests: &[manifest()],
    };
    let bundles = bundles.iter().map(|bundle| bundle.to_string().into_bytes());
    let signatures = Signatures {
        bundles: bundles.collect(),
        ..Signatures::default()
    };
    let decided = policy.check(scope, subject, &signatures);
    decided.map_err(|refused| refused.refusal)
}

fn check(requirement: &Value, bundle: Value) -> Result<Vec<Signer>, Refusal> {
    decide(requirement, &[bundle], true)
}

fn problem(requirement: &Value, bundle: Value) -> String {
    match check(requirement, bundle) {
        Err(Refusal::NoGoodSignature { count: 1, problem }) => problem,
        other => panic!("{other:?}"),
    }
}

fn with_log(mut requirement: Value, log: &Path) -> Value {
    requirement["rekorPublicKeyPath"] = json!(log);
    requirement
}

#[test]
fn keys_of_every_kind_sign_statements() {
    let maker = Maker::new();
    for kind in ["P-256", "P-384", "ed25519", "RSA"] {
        let key = maker.key(kind, kind);
        let bundle = maker.bundled(&statement(), kind, None, None);
        let signers = check(&by_key(&key), bundle.clone()).unwrap();
        assert_eq!(signers, [Signer::Key(key.display().to_string())]);
        // Only where that is asked for: no name is compared.
        let refused = decide(&by_key(&key), &[bundle], false);
        assert_eq!(refused, Err(Refusal::NoSignature));
    }
}

#[test]
fn what_is_not_a_signed_statement_about_the_image_is_refused() {
    let maker = Maker::new();
    let requirement = by_key(&maker.key("P-256", "ours"));
    maker.key("P-256", "theirs");
    let stated = |edit: &dyn Fn(&mut Value)| {
        let mut statement = statement();
        edit(&mut statement);
        maker.bundled(&statement, "ours", None, None)
    };
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut bundle = maker.bundled(&statement(), "ours", None, None);
        edit(&mut bundle);
        bundle
    };
    let theirs = maker.bundled(&statement(), "theirs", None, None);
    let other = Digest::of(b"another manifest").hex();
    let other = json!([{"digest": {"sha256": other}}]);
    let provenance = "https://slsa.dev/provenance/v1";
    for (bundle, part) in [
        (theirs.clone(), "not by the policy's key"),
        (stated(&|it| it["subject"] = other.clone()), "another image"),
        (
            stated(&|it| it["subject"] = json!([{"digest": {"sha512": manifest().hex()}}])),
            "another image",
        ),
        (stated(&|it| it["subject"] = json!([])), "another image"),
        (
            stated(&|it| it["predicateType"] = json!(provenance)),
            "of the kind `https://slsa.dev/provenance/v1`",
        ),
        (stated(&|it| it["_type"] = json!("x")), "of the kind"),
        (stated(&|it| *it = json!([])), "no statement about an image"),
        (
            edited(&|it| it["mediaType"] = json!("text/plain")),
            "of the kind `text/plain`",
        ),
        (
            edited(&|it| it["dsseEnvelope"]["payloadType"] = json!("text/plain")),
            "something else than a statement",
        ),
        (
            edited(&|it| it["dsseEnvelope"]["signatures"] = json!([])),
            "not one signature",
        ),
        (
            edited(&|it| {
                let signature = it["dsseEnvelope"]["signatures"][0].clone();
                it["dsseEnvelope"]["signatures"] = json!([signature, signature]);
            }),
            "not one signature",
        ),
        (
            edited(&|it| {
                let payload = statement()
                    .to_string()
                    .replace(&manifest().hex(), &"0".repeat(64));
                it["dsseEnvelope"]["payload"] = json!(BASE64_STANDARD.encode(payload));
            }),
            "not by the policy's key",
        ),
        (
            edited(&|it| it["dsseEnvelope"]["payload"] = json!("!")),
            "not base64",
        ),
        (
            edited(&|it| {
                let envelope = it.as_object_mut().unwrap().remove("dsseEnvelope");
                it["messageSignature"] = envelope.unwrap();
            }),
            "no statement about an image",
        ),
        (edited(&|it| *it = json!([])), "can't be read"),
    ] {
        let problem = problem(&requirement, bundle);
        assert!(problem.contains(part), "{part}: {problem}");
    }
    // A good one beside others is enough, wherever it is.
    let good = edited(&|_| ());
    for bundles in [[good.clone(), theirs.clone()], [theirs, good]] {
        decide(&requirement, &bundles, true).unwrap();
    }
}

#[test]
fn a_log_has_noted_a_statement_where_the_policy_asks_for_it() {
    let maker = Maker::with_authority();
    let requirement = with_log(by_key(&maker.key("P-256", "ours")), &maker.path("log.pub"));
    maker.key("P-256", "theirs");
    let bundle = |noted| maker.bundled(&statement(), "ours", None, noted);
    assert_eq!(problem(&requirement, bundle(None)), "it is in no log");
    check(&requirement, bundle(Some(maker.now()))).unwrap();

    type Edit<'a> = &'a dyn Fn(&mut Value, &Value);
    let theirs = maker.bundled(&statement(), "theirs", None, Some(maker.now()));
    let edits: [(Edit<'_>, &str); 5] = [
        (
            &|note, _| note["integratedTime"] = json!("1"),
            "not by the policy's log",
        ),
        (
            &|note, _| note["logIndex"] = json!(1),
            "not by the policy's log",
        ),
        (
            &|note, _| note["inclusionPromise"] = json!({"signedEntryTimestamp": ""}),
            "not by the policy's log",
        ),
        (
            &|note, _| drop(note.as_object_mut().unwrap().remove("inclusionPromise")),
            "no signed time",
        ),
        (&|note, other| *note = other.clone(), "another signature"),
    ];
    for (edit, part) in edits {
        let mut bundle = bundle(Some(maker.now()));
        let note = |of: &Value| of["verificationMaterial"]["tlogEntries"][0].clone();
        let (mut edited, other) = (note(&bundle), note(&theirs));
        edit(&mut edited, &other);
        bundle["verificationMaterial"]["tlogEntries"] = json!([edited]);
        let problem = problem(&requirement, bundle);
        assert!(problem.contains(part), "{part}: {problem}");
    }
}

#[test]
fn a_certificate_and_a_log_stand_for_a_key() {
    let maker = Maker::with_authority();
    let requirement = |email: &str| {
        let fulcio = json!({
            "caPath": maker.path("ca.pem"), "oidcIssuer": ISSUER, "subjectEmail": email,
        });
        let requirement = json!({"type": "sigstoreSigned", "fulcio": fulcio});
        with_log(requirement, &maker.path("log.pub"))
    };
    let certificate = maker.certificate("short", "ca", EMAIL, ISSUER, "codeSigning");
    let bundle = |noted| maker.bundled(&statement(), "short", Some(&certificate), noted);
    let good = bundle(Some(maker.now() + 60));
    let signers = check(&requirement(EMAIL), good.clone()).unwrap();
    let (email, issuer) = (EMAIL.to_owned(), ISSUER.to_owned());
    assert_eq!(signers, [Signer::Identity { email, issuer }]);

    maker.key("P-256", "theirs");
    let theirs = maker.bundled(
        &statement(),
        "theirs",
        Some(&certificate),
        Some(maker.now() + 60),
    );
    let mut without = good.clone();
    let material = &mut without["verificationMaterial"];
    drop(material.as_object_mut().unwrap().remove("certificate"));
    for (email, bundle, part) in [
        ("eve@example.com", good, "not of eve"),
        (EMAIL, bundle(None), "it is in no log"),
        (EMAIL, bundle(Some(maker.now() + 200_000)), "it had expired"),
        (EMAIL, theirs, "not by the key of its certificate"),
        (EMAIL, without, "it has no certificate"),
    ] {
        let problem = problem(&requirement(email), bundle);
        assert!(problem.contains(part), "{part}: {problem}");
    }
}

#[test]
fn lists_of_what_refers_to_an_image_have_bundles_and_others() {
    let entry = |kind: &str, number: usize| {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": kind,
            "digest": Digest::of(&number.to_le_bytes()),
            "size": number,
        })
    };
    let many: Vec<Value> = (0..100).map(|number| entry(BUNDLE_TYPE, number)).collect();
    let found = bundles_of(json!({"manifests": many}).to_string().as_bytes());
    let sizes: Vec<u64> = found.iter().map(|bundle| bundle.size).collect();
    assert_eq!(sizes, (36..100).collect::<Vec<_>>());
    // In lists that cosign 3.0 makes, a bundle has the type of its empty config.
    let mut without = entry("", 2);
    drop(without.as_object_mut().unwrap().remove("artifactType"));
    let may_be = [entry("application/vnd.oci.empty.v1+json", 1), without];
    let found = bundles_of(json!({"manifests": may_be}).to_string().as_bytes());
    let sizes: Vec<u64> = found.iter().map(|bundle| bundle.size).collect();
    assert_eq!(sizes, [1, 2]);
    let other = [entry("application/spdx+json", 1), json!(5), json!({})];
    for index in [json!({"manifests": other}), json!({}), json!([])] {
        assert_eq!(bundles_of(index.to_string().as_bytes()), []);
    }
    let layer = |size: u64| {
        let digest = Digest::of(b"");
        json!({"layers": [{"mediaType": BUNDLE_TYPE, "digest": digest, "size": size}]}).to_string()
    };
    assert_eq!(bundle_of(layer(5).as_bytes()).unwrap().size, 5);
    assert_eq!(bundle_of(layer(1 << 20).as_bytes()), None);
    assert_eq!(bundle_of(b"{}"), None);
}

/// A bundle that sigstore's library for JavaScript has made (`@sigstore/sign` 4), of this statement and with this key.
#[test]
fn what_sigstores_own_library_has_signed_is_taken() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sigstore-js");
    let bundle = fs::read(directory.join("bundle.json")).unwrap();
    let bundle: Value = serde_json::from_slice(&bundle).unwrap();
    let key = directory.join("key.pub");
    let signers = check(&by_key(&key), bundle.clone()).unwrap();
    assert_eq!(signers, [Signer::Key(key.display().to_string())]);
    let maker = Maker::new();
    let problem = problem(&by_key(&maker.key("P-256", "other")), bundle);
    assert_eq!(problem, "it is not by the policy's key");
}
