//! Policies, and what is attached to images as their signatures.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_image::Digest;
use micabox_trust::fuzzing::{is_about, is_about_bundle, is_of, payload, signed_document, states};
use micabox_trust::{
    Policy, Scope, Signature, Signatures, Subject, bundle_of, bundles_of, signatures_of,
};

const EMAIL: &str = "dev@example.com";
const ISSUER: &str = "https://issuer.example";

/// Parses what the first byte says.
///
/// # Panics
///
/// If a manifest has more signatures than are looked at, or what no key has signed is taken.
pub fn signature(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 11 {
        0 => {
            if let Ok(signatures) = signatures_of(rest) {
                assert!(signatures.len() <= 64);
                assert!(
                    signatures
                        .iter()
                        .all(|(payload, _)| payload.size <= 64 << 10)
                );
            }
        }
        1 => policy(rest),
        2 => {
            if let Some((digest, name)) = payload(rest) {
                assert!(digest.starts_with("sha256:"));
                assert!(!name.is_empty());
            }
        }
        3 => {
            is_of(rest, EMAIL, ISSUER);
        }
        4 => assert!(!is_about(rest, b"payload", b"", b"no key")),
        5 => taken(rest),
        6 => {
            if let Some(document) = signed_document(&decoded(KEY), rest) {
                assert_eq!(document, DOCUMENT);
            }
        }
        7 => {
            signed_document(rest, &decoded(MESSAGE));
        }
        8 => assert!(!states(rest, &Digest::of(b"of no statement"))),
        9 => assert!(!is_about_bundle(rest, BUNDLE.as_bytes(), b"no key")),
        _ => {
            let bundles = bundles_of(rest);
            assert!(bundles.len() <= 64);
            assert!(bundle_of(rest).is_none_or(|bundle| bundle.size <= 256 << 10));
        }
    }
}

/// Decides with a policy that names no files.
fn policy(text: &[u8]) {
    if text.windows(4).any(|part| part == b"Path") {
        return;
    }
    let Ok(policy) = Policy::parse(text) else {
        return;
    };
    for name in ["busybox", "a.b.example:5000/x/y:1"] {
        let reference = name.parse().expect("a reference");
        let subject = Subject {
            reference: Some(&reference),
            manifests: &[],
        };
        let scope = Scope::Registry(&reference);
        let decided = policy.check(scope, subject, &Signatures::default());
        // Without signatures nobody has signed.
        let needs = policy.needs(scope);
        assert!(decided.is_err() || !needs.attached && !needs.lookaside);
    }
}

/// Decides about a signature whose parts are the input's lines.
fn taken(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let mut lines = text.split('\n');
    let mut line = || lines.next().map(|line| line.replace('\r', "\n"));
    let signature = Signature {
        payload: line().unwrap_or_default().into_bytes(),
        signature: line().unwrap_or_default(),
        certificate: line(),
        chain: line(),
        bundle: line(),
    };
    let policy = Policy::parse(POLICY.as_bytes()).expect("a policy");
    let reference = "busybox".parse().expect("a reference");
    let subject = Subject {
        reference: Some(&reference),
        manifests: &[],
    };
    let signatures = Signatures {
        attached: vec![signature],
        ..Signatures::default()
    };
    let decided = policy.check(Scope::Registry(&reference), subject, &signatures);
    // No manifest is the right one.
    assert!(decided.is_err());
}

/// A policy of a key that is in the tests of nothing else.
const POLICY: &str = r#"{"default": [{"type": "sigstoreSigned", "keyData":
"LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KTUZrd0V3WUhLb1pJemowQ0FRWUlLb1pJemowREFRY0RRZ0FFcEFNcUJXWFdFT0RmQXhHN0Y0OHB0N1FwNmNjdgpEeGttaXZUaFhHNWpZVTRIbVF0U1Q1UENFTWhhYWRVWmQ0blB2ak1nYVdaUHBEcmo1VFFmZ29mZ0RBPT0KLS0tLS1FTkQgUFVCTElDIEtFWS0tLS0tCg=="
}]}"#;

/// A bundle that is one, whose signature is none.
const BUNDLE: &str = r#"{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
"verificationMaterial": {"publicKey": {"hint": "x"}, "tlogEntries": []},
"dsseEnvelope": {"payloadType": "application/vnd.in-toto+json", "payload": "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEifQ==",
"signatures": [{"sig": "MEUC"}]}}"#;

/// A key of OpenPGP with a subkey, and what that has signed.
const KEY: &str = "mDMEZZIAgBYJKwYBBAHaRw8BAQdASCSmJ4Emakkqv8oqufx9nE/O+Uw5Xlb9lrz4YQpp6D+0FURldiA8ZGV2QGV4YW1wbGUuY29tPoiQ\
BBMWCAA4FiEEXtUpVemlj079mBxIrwFnrlSKMtAFAmWSAIACGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQrwFnrlSKMtCWGwD/TLjow11G5uj0\
ClP++WPb72IVdBJO1kBHNwWMWkhrIJgA/iVOdcXdTfVm28mtu6rZte841avDQhphX0s1WuMeW+oMuDMEZZIAgBYJKwYBBAHaRw8BAQdALqaz2ioje3bO\
BFbl6eNMH/puDc2oH+UK4Q8Sg7wFHiyI7wQYFggAIBYhBF7VKVXppY9O/ZgcSK8BZ65UijLQBQJlkgCAAhsCAIEJEK8BZ65UijLQdiAEGRYIAB0WIQT+\
jtZtZz9oNyPqFf9FHcCJ7R34PgUCZZIAgAAKCRBFHcCJ7R34PkpOAQCXVjSDxkLiHKKpUpsfwewPWkSIRN/ZF9dSKS4jigmrvQEAlS7i9+znhzLP4axr\
tkCG3GVAIKJ5n55FZGdqWM4soQ/7PwEA1iFI+sAdDf65lc8Dw8dZsgwSXrDjhsTfs0QB619uf9QA/RfOMyAK+jc7K0BsPtKvU6/3dOHgcRg4lu/f1xOg\
xYwD";
const MESSAGE: &str = "owGbwMvMwCHmKnug863sDzvGNRJJzCn5ydm8u65UKyUXZZZkJifmKFlV19Z2lLIwiHEwyIopsvzru5abbp9hrvxK9D9MJysTSA8DF6cATOS8\
KyPDzK+5rB6vS97nnPmfvrlRuKX8pc+TmGtNT0UVN32ymKFtwMgwa9bv+rfLVrXcDH137f5Lzn3zBJM/+q5L38GbZ18QKVjPAQA=";
const DOCUMENT: &[u8] = br#"{"critical":{}}"#;

fn decoded(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).expect("base64")
}

/// A document of each kind.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let seed = |kind: u8, text: &str| [&[kind], text.as_bytes()].concat();
    let digest = "sha256:".to_owned() + &"0".repeat(64);
    let manifest = format!(
        r#"{{"layers": [{{"mediaType": "{}", "digest": "{digest}", "size": 9,
        "annotations": {{"dev.cosignproject.cosign/signature": "eA=="}}}}]}}"#,
        micabox_trust::MEDIA_TYPE
    );
    let statement = format!(
        r#"{{"critical": {{"identity": {{"docker-reference": "busybox"}}, "image":
        {{"docker-manifest-digest": "{digest}"}}, "type": "cosign container image signature"}},
        "optional": null}}"#
    );
    let entry = r#"{"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": {"data": {"hash":
        {"algorithm": "sha256", "value": "00"}}, "signature": {"content": "",
        "publicKey": {"content": ""}}}}"#;
    let bundle = r#"{"SignedEntryTimestamp": "", "Payload": {"body": "", "integratedTime": 1, "logID": "", "logIndex": 1}}"#;
    let binary = |kind: u8, text: &str| [&[kind], &decoded(text)[..]].concat();
    vec![
        ("openpgp-message", binary(6, MESSAGE)),
        ("openpgp-key", binary(7, KEY)),
        ("manifest", seed(0, &manifest)),
        ("policy", seed(1, POLICY)),
        (
            "scopes",
            seed(
                1,
                r#"{"default": [{"type": "reject"}], "transports": {"docker": {"*.example": [{"type": "insecureAcceptAnything"}]}}}"#,
            ),
        ),
        ("statement", seed(2, &statement)),
        ("bundle", seed(8, BUNDLE)),
        (
            "bundle-entry",
            seed(
                9,
                r#"{"apiVersion": "0.0.1", "kind": "dsse", "spec": {"payloadHash": {"algorithm": "sha256",
                "value": "00"}, "signatures": [{"signature": "MEUC", "verifier": ""}]}}"#,
            ),
        ),
        (
            "referrers",
            seed(10, &manifest.replace("layers", "manifests")),
        ),
        ("entry", seed(4, entry)),
        (
            "signature",
            seed(
                5,
                &format!("{statement}\neA==\n-----BEGIN CERTIFICATE-----\n\n{bundle}"),
            ),
        ),
    ]
}
