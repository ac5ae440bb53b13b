//! Signatures that openssl makes, and what is wrong with others.

mod bundles;
mod forge;
mod judge;
mod lies;
mod maker;
mod openpgp;

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use maker::{EMAIL, ISSUER, Maker};
use micabox_oci::{Digest, Reference};
use micabox_trust::{
    Policy, Refusal, Scope, Signature, Signatures, Signer, Subject, signatures_of,
};
use serde_json::{Value, json};

const NAME: &str = "registry.example/team/app:1";

fn manifest() -> Digest {
    Digest::of(b"a manifest")
}

fn payload() -> Value {
    json!({
        "critical": {
            "identity": {"docker-reference": NAME},
            "image": {"docker-manifest-digest": manifest()},
            "type": "cosign container image signature",
        },
        "optional": null,
    })
}

/// Decides with one requirement as the whole policy.
fn check(requirement: &Value, signatures: &[Signature]) -> Result<Vec<Signer>, Refusal> {
    let policy = json!({"default": [requirement]}).to_string();
    let policy = Policy::parse(policy.as_bytes()).unwrap();
    let reference: Reference = NAME.parse().unwrap();
    let scope = Scope::Registry(&reference);
    assert!(policy.needs(scope).attached && !policy.needs(scope).lookaside);
    let subject = Subject {
        reference: Some(&reference),
        manifests: &[manifest()],
    };
    let signatures = Signatures {
        attached: signatures.to_vec(),
        ..Signatures::default()
    };
    policy
        .check(scope, subject, &signatures)
        .map_err(|refused| refused.refusal)
}

/// Returns what is wrong with the only signature.
fn problem(requirement: &Value, signature: Signature) -> String {
    match check(requirement, &[signature]) {
        Err(Refusal::NoGoodSignature { count: 1, problem }) => problem,
        other => panic!("{other:?}"),
    }
}

fn by_key(path: &Path) -> Value {
    json!({"type": "sigstoreSigned", "keyPath": path})
}

#[test]
fn keys_of_every_kind_sign() {
    let maker = Maker::new();
    let payload = payload().to_string();
    for kind in ["P-256", "P-384", "ed25519", "RSA"] {
        let key = maker.key(kind, kind);
        let signature = maker.signature(&payload, kind);
        let signers = check(&by_key(&key), &[signature]).unwrap();
        assert_eq!(signers, [Signer::Key(key.display().to_string())]);
    }
    let several = json!({
        "type": "sigstoreSigned",
        "keyPaths": [maker.path("P-384.pub"), maker.path("P-256.pub")],
    });
    check(&several, &[maker.signature(&payload, "P-256")]).unwrap();
    // A kind of key that nothing of sigstore's signs with.
    let weak = maker.key("secp256k1", "weak");
    let policy = json!({"default": [by_key(&weak)]}).to_string();
    let refused = Policy::parse(policy.as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("is no key of ECDSA"), "{refused}");
}

#[test]
fn what_is_not_signed_as_it_has_to_be_is_refused() {
    let maker = Maker::new();
    let requirement = by_key(&maker.key("P-256", "ours"));
    maker.key("P-256", "theirs");
    let good = || maker.signature(&payload().to_string(), "ours");
    assert_eq!(check(&requirement, &[]), Err(Refusal::NoSignature));
    let theirs = maker.signature(&payload().to_string(), "theirs");
    assert_eq!(
        problem(&requirement, theirs.clone()),
        "it is not by the policy's key"
    );
    // A good one beside others is enough, wherever it is.
    check(&requirement, &[theirs.clone(), good()]).unwrap();
    check(&requirement, &[good(), theirs]).unwrap();

    let with = |edit: &dyn Fn(&mut Value)| {
        let mut payload = payload();
        edit(&mut payload);
        maker.signature(&payload.to_string(), "ours")
    };
    let critical = |name: &'static str, value: Value| {
        with(&move |payload| payload["critical"][name] = value.clone())
    };
    let other = Digest::of(b"another manifest");
    for (signature, part) in [
        (
            critical("image", json!({"docker-manifest-digest": other})),
            "about another image",
        ),
        (
            critical(
                "identity",
                json!({"docker-reference": "registry.example/team/app:2"}),
            ),
            "about the name registry.example/team/app:2",
        ),
        (
            critical(
                "identity",
                json!({"docker-reference": "registry.example/team/app"}),
            ),
            "about the name registry.example/team/app",
        ),
        (
            critical("type", json!("atomic container signature")),
            "of the kind",
        ),
        (critical("image", json!({})), "no statement about an image"),
        (critical("more", json!(1)), "unknown field"),
        (with(&|payload| payload["more"] = json!(1)), "unknown field"),
        (with(&|payload| *payload = json!([])), "no statement"),
        (
            with(&|payload| payload["optional"] = json!(5)),
            "no statement",
        ),
        (
            with(&|payload| payload["optional"] = json!({"creator": 5})),
            "creator",
        ),
        (maker.signature("not json", "ours"), "no statement"),
        (
            Signature {
                signature: "!".to_owned(),
                ..good()
            },
            "not base64",
        ),
        (
            Signature {
                signature: String::new(),
                ..good()
            },
            "not by the policy's key",
        ),
        (
            Signature {
                payload: payload().to_string().replace("team", "teem").into_bytes(),
                ..good()
            },
            "not by the policy's key",
        ),
    ] {
        let problem = problem(&requirement, signature);
        assert!(problem.contains(part), "{problem}");
    }
    let twice = payload()
        .to_string()
        .replace("\"optional\"", "\"critical\":{},\"optional\"");
    let problem = problem(&requirement, maker.signature(&twice, "ours"));
    assert!(problem.contains("duplicate field"), "{problem}");
}

#[test]
fn a_log_is_asked_for_beside_a_key() {
    let maker = Maker::new();
    let key = maker.key("P-256", "ours");
    let log = maker.key("P-256", "log");
    let requirement = json!({"type": "sigstoreSigned", "keyPath": key, "rekorPublicKeyPath": log});
    let signature = maker.signature(&payload().to_string(), "ours");
    assert_eq!(problem(&requirement, signature.clone()), "it is in no log");
    let public = std::fs::read_to_string(&key).unwrap();
    let noted = maker.noted(signature.clone(), &public, maker.now());
    check(&requirement, &[noted]).unwrap();
    let other = std::fs::read_to_string(&log).unwrap();
    let noted = maker.noted(signature, &other, maker.now());
    assert_eq!(
        problem(&requirement, noted),
        "the log's note is about another signature"
    );
}

/// A policy of signatures by certificates.
fn by_certificate(maker: &Maker) -> Value {
    json!({
        "type": "sigstoreSigned",
        "fulcio": {
            "caPath": maker.path("ca.pem"),
            "oidcIssuer": ISSUER,
            "subjectEmail": EMAIL,
        },
        "rekorPublicKeyPath": maker.path("log.pub"),
    })
}

/// Returns bundles that differ from a good one in a field: as somebody else changes it, or signed by the log.
fn lies(maker: &Maker, bundle: &str) -> Vec<String> {
    let good: Value = serde_json::from_str(bundle).unwrap();
    let payload = good["Payload"].clone();
    let mut lies = Vec::new();
    for (field, value) in [
        ("body", json!("AAAA")),
        (
            "integratedTime",
            json!(payload["integratedTime"].as_u64().unwrap() - 1),
        ),
        ("logID", json!("01")),
        ("logIndex", json!(8)),
        ("more", json!(1)),
    ] {
        let mut lie = good.clone();
        lie["Payload"][field] = value;
        lies.push(lie.to_string());
    }
    let decoded = BASE64_STANDARD.decode(payload["body"].as_str().unwrap());
    let body: Value = serde_json::from_slice(&decoded.unwrap()).unwrap();
    for (field, value) in [
        ("/kind", json!("intoto")),
        ("/apiVersion", json!("0.0.2")),
        ("/spec/data/hash/algorithm", json!("sha512")),
        ("/spec/data/hash/value", json!("00")),
        (
            "/spec/signature/content",
            json!(BASE64_STANDARD.encode("x")),
        ),
        (
            "/spec/signature/publicKey/content",
            json!(BASE64_STANDARD.encode("x")),
        ),
        ("/spec", json!(null)),
    ] {
        let mut body = body.clone();
        *body.pointer_mut(field).unwrap() = value;
        let mut payload = payload.clone();
        payload["body"] = BASE64_STANDARD.encode(body.to_string()).into();
        lies.push(maker.bundle(&payload));
    }
    lies.push("{}".to_owned());
    lies
}

#[test]
fn a_certificate_and_a_log_stand_for_a_key() {
    let maker = Maker::with_authority();
    let requirement = by_certificate(&maker);
    let keyless = |name: &str, time| {
        let certificate = maker.certificate(name, "ca", EMAIL, ISSUER, "codeSigning");
        let signature = maker.signature(&payload().to_string(), name);
        maker.noted(
            Signature {
                certificate: Some(certificate.clone()),
                ..signature
            },
            &certificate,
            time,
        )
    };
    // Its certificate is made after that is computed.
    let good = keyless("short", maker.now() + 60);
    let signer = Signer::Identity {
        email: EMAIL.to_owned(),
        issuer: ISSUER.to_owned(),
    };
    assert_eq!(signer.to_string(), format!("{EMAIL} ({ISSUER})"));
    assert_eq!(
        check(&requirement, std::slice::from_ref(&good)),
        Ok(vec![signer])
    );

    // Before the certificate's time, and after it.
    for time in [maker.now() - 90_000, maker.now() + 90_000 * 2] {
        let problem = problem(&requirement, keyless("short", time));
        assert!(
            problem.contains("not by the policy's authority"),
            "{problem}"
        );
    }
    let with = |certificate: String| {
        maker.noted(
            Signature {
                certificate: Some(certificate.clone()),
                ..good.clone()
            },
            &certificate,
            maker.now(),
        )
    };
    let certificate = |ca: &str, email: &str, issuer: &str, usage: &str| {
        with(maker.certificate("other", ca, email, issuer, usage))
    };
    maker.authority("others");
    for (signature, part) in [
        (
            certificate("others", EMAIL, ISSUER, "codeSigning"),
            "not by the policy's authority",
        ),
        (
            certificate("ca", EMAIL, ISSUER, "serverAuth"),
            "not by the policy's authority",
        ),
        (
            certificate("ca", "eve@example.com", ISSUER, "codeSigning"),
            "not of dev@example.com",
        ),
        (
            certificate("ca", EMAIL, "https://other.example", "codeSigning"),
            "issuer is `https://other.example`",
        ),
        (
            certificate("ca", EMAIL, "", "codeSigning"),
            "names no issuer",
        ),
        // Everything fits, but another key has signed.
        (
            certificate("ca", EMAIL, ISSUER, "codeSigning"),
            "not by the key of its certificate",
        ),
        (
            Signature {
                certificate: None,
                ..good.clone()
            },
            "no certificate",
        ),
        (
            Signature {
                bundle: None,
                ..good.clone()
            },
            "in no log",
        ),
        (with("garbage".to_owned()), "no CERTIFICATE"),
    ] {
        let problem = problem(&requirement, signature);
        assert!(problem.contains(part), "{part}: {problem}");
    }
    for edit in lies(&maker, good.bundle.as_deref().unwrap()) {
        let lie = Signature {
            bundle: Some(edit.clone()),
            ..good.clone()
        };
        let problem = problem(&requirement, lie);
        assert!(problem.contains("the log's note"), "{edit}: {problem}");
    }
}

#[test]
fn manifests_of_signatures_are_read_within_bounds() {
    let layer = |size: u64, kind: &str, annotations: Value| json!({"mediaType": kind, "digest": manifest(), "size": size, "annotations": annotations});
    let signed = json!({"dev.cosignproject.cosign/signature": BASE64_STANDARD.encode("x")});
    let good = layer(10, micabox_trust::MEDIA_TYPE, signed.clone());
    let read = |layers: Vec<Value>| {
        let manifest = json!({"schemaVersion": 2, "layers": layers}).to_string();
        signatures_of(manifest.as_bytes()).map(|signatures| signatures.len())
    };
    assert_eq!(read(vec![good.clone()]), Ok(1));
    let mut many = vec![good.clone(); 100];
    many.push(layer(7, micabox_trust::MEDIA_TYPE, signed.clone()));
    let manifest_of_many = json!({"layers": many}).to_string();
    let last = signatures_of(manifest_of_many.as_bytes()).unwrap();
    // cosign adds new ones at the end.
    assert_eq!((last.len(), last[63].0.size), (64, 7));
    assert_eq!(
        read(vec![
            layer(1 << 20, micabox_trust::MEDIA_TYPE, signed.clone()),
            layer(10, "application/json", signed),
            layer(10, micabox_trust::MEDIA_TYPE, json!({})),
            json!({}),
            json!({"mediaType": micabox_trust::MEDIA_TYPE, "digest": "sha512:00", "size": 1}),
            good,
        ]),
        Ok(1)
    );
    for garbage in ["", "{}", "[]", "[[]]", r#"{"layers": {}}"#] {
        signatures_of(garbage.as_bytes()).unwrap_err();
    }
}

#[test]
fn an_authority_vouches_within_its_limits() {
    let maker = Maker::with_authority();
    let identity = format!(
        "keyUsage=critical,digitalSignature\nextendedKeyUsage=codeSigning\n\
         subjectAltName=critical,email:{EMAIL}\n1.3.6.1.4.1.57264.1.8=ASN1:UTF8String:{ISSUER}\n"
    );
    let between = "basicConstraints=critical,CA:TRUE\nextendedKeyUsage=codeSigning\n";
    let signs = "keyUsage=critical,keyCertSign\n";
    let ca = "basicConstraints=critical,CA:TRUE";
    let sign = "keyUsage=critical,keyCertSign";
    maker.authority_with("plain", &[ca, sign]);
    maker.authority_with(
        "alone",
        &["basicConstraints=critical,CA:TRUE,pathlen:0", sign],
    );
    maker.authority_with(
        "one",
        &["basicConstraints=critical,CA:TRUE,pathlen:1", sign],
    );
    maker.authority_with("servers", &[ca, sign, "extendedKeyUsage=serverAuth"]);
    let day = 86_400;
    let decide = |root: &str, chain: Option<&str>, days: u64| {
        let (by, chain) = match chain {
            Some(extensions) => {
                let chain = maker.issue("between", root, "/CN=between", extensions, 30);
                std::fs::write(maker.path("between.pem"), &chain).unwrap();
                // cosign keeps the authority's own certificate as well.
                let root = std::fs::read_to_string(maker.path(&format!("{root}.pem"))).unwrap();
                ("between", Some(chain + &root))
            }
            None => (root, None),
        };
        let certificate = maker.issue("leaf", by, "/", &identity, 30);
        let signature = Signature {
            certificate: Some(certificate.clone()),
            chain,
            ..maker.signature(&payload().to_string(), "leaf")
        };
        let noted = maker.noted(signature, &certificate, maker.now() + 60 + days * day);
        let mut requirement = by_certificate(&maker);
        requirement["fulcio"]["caPath"] = maker.path(&format!("{root}.pem")).to_str().into();
        check(&requirement, &[noted])
    };
    let above = format!("{between}{signs}");
    decide("plain", None, 0).unwrap();
    decide("plain", Some(&above), 0).unwrap();
    decide("one", Some(&above), 0).unwrap();
    decide("alone", None, 0).unwrap();
    for refused in [
        decide("alone", Some(&above), 0),
        decide("servers", None, 0),
        // The certificate lasts longer than who has issued it.
        decide("plain", None, 15),
        decide(
            "plain",
            Some(&format!("{between}keyUsage=critical,digitalSignature\n")),
            0,
        ),
    ] {
        assert!(
            matches!(refused, Err(Refusal::NoGoodSignature { .. })),
            "{refused:?}"
        );
    }
    for (name, extensions) in [
        ("leaf", &["basicConstraints=critical,CA:FALSE", sign][..]),
        ("nothing", &[ca, "keyUsage=critical,digitalSignature"]),
    ] {
        maker.authority_with(name, extensions);
        let mut requirement = by_certificate(&maker);
        requirement["fulcio"]["caPath"] = maker.path(&format!("{name}.pem")).to_str().into();
        let policy = json!({"default": [requirement]}).to_string();
        let refused = Policy::parse(policy.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("fulcio's authority"), "{refused}");
    }
}

#[test]
fn what_other_readers_refuse_is_no_policy() {
    let maker = Maker::new();
    let key = maker.key("P-256", "ours");
    let rsa = maker.key("RSA", "rsa");
    let fake =
        BASE64_STANDARD.encode("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n");
    let signed = |more: Value| {
        let mut requirement = by_key(&key);
        for (name, value) in more.as_object().unwrap() {
            requirement[name] = value.clone();
        }
        json!({"default": [requirement]})
    };
    let scoped = |transport: &str, scope: &str| {
        json!({
            "default": [{"type": "insecureAcceptAnything"}],
            "transports": {transport: {scope: [{"type": "reject"}]}},
        })
    };
    for policy in [
        json!([[{"type": "insecureAcceptAnything"}]]),
        json!({"default": [["insecureAcceptAnything"]]}),
        signed(json!({"signedIdentity": ["matchRepository"]})),
        signed(json!({"signedIdentity": null})),
        signed(json!({"fulcio": null})),
        signed(json!({"pki": null})),
        signed(json!({"rekorPublicKeyPath": null})),
        signed(json!({"rekorPublicKeyPath": rsa})),
        json!({"default": [{"type": "sigstoreSigned", "keyData": fake}]}),
        scoped("oci", "/images/"),
        scoped("oci", "images"),
        scoped("oci-archive", "/"),
        scoped("oci-archive", "/a/../b"),
        scoped("docker-archive", "/images"),
    ] {
        let read = Policy::parse(policy.to_string().as_bytes());
        assert!(read.is_err(), "{policy}");
    }
    Policy::parse(scoped("oci", "/images").to_string().as_bytes()).unwrap();
    Policy::parse(signed(json!({})).to_string().as_bytes()).unwrap();
}
