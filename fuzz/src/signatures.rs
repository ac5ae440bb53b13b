//! Policies, and what is attached to images as their signatures.

use micabox_trust::fuzzing::{is_about, is_of, payload};
use micabox_trust::{Policy, Scope, Signature, Subject, signatures_of};

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
    match kind % 6 {
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
        _ => taken(rest),
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
        let decided = policy.check(scope, subject, &[]);
        // Without signatures nobody has signed.
        assert!(decided.is_err() || !policy.needs_signatures(scope));
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
    let decided = policy.check(Scope::Registry(&reference), subject, &[signature]);
    // No manifest is the right one.
    assert!(decided.is_err());
}

/// A policy of a key that is in the tests of nothing else.
const POLICY: &str = r#"{"default": [{"type": "sigstoreSigned", "keyData":
"LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KTUZrd0V3WUhLb1pJemowQ0FRWUlLb1pJemowREFRY0RRZ0FFcEFNcUJXWFdFT0RmQXhHN0Y0OHB0N1FwNmNjdgpEeGttaXZUaFhHNWpZVTRIbVF0U1Q1UENFTWhhYWRVWmQ0blB2ak1nYVdaUHBEcmo1VFFmZ29mZ0RBPT0KLS0tLS1FTkQgUFVCTElDIEtFWS0tLS0tCg=="
}]}"#;

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
    vec![
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
