//! Simple signing: GnuPG makes keys and signatures, and decides about each of them as well.

use std::fs;
use std::slice::from_ref;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_oci::Reference;
use micabox_testing::Gpg;
use micabox_trust::{Policy, Refusal, Scope, Signatures, Signer, Subject};
use serde_json::{Value, json};

use crate::forge::{DOCUMENT, Key, Message, Published, USER, packet};
use crate::judge;
use crate::{NAME, manifest};

fn statement() -> Value {
    json!({
        "critical": {
            "identity": {"docker-reference": NAME},
            "image": {"docker-manifest-digest": manifest()},
            "type": "atomic container signature",
        },
        "optional": {"creator": "a test", "timestamp": 1_700_000_000},
    })
}

pub fn document() -> Vec<u8> {
    statement().to_string().into_bytes()
}

pub fn by(keys: &[u8]) -> Value {
    json!({"type": "signedBy", "keyType": "GPGKeys", "keyData": BASE64_STANDARD.encode(keys)})
}

/// Decides with one requirement as the whole policy.
pub fn check(requirement: &Value, lookaside: &[Vec<u8>]) -> Result<Vec<Signer>, String> {
    let policy = json!({"default": [requirement]}).to_string();
    let policy = Policy::parse(policy.as_bytes()).map_err(|error| error.to_string())?;
    let reference: Reference = NAME.parse().unwrap();
    let scope = Scope::Registry(&reference);
    assert!(policy.needs(scope).lookaside && !policy.needs(scope).attached);
    let subject = Subject {
        reference: Some(&reference),
        manifests: &[manifest()],
    };
    let signatures = Signatures {
        lookaside: lookaside.to_vec(),
        ..Signatures::default()
    };
    policy
        .check(scope, subject, &signatures)
        .map_err(|refused| match refused.refusal {
            Refusal::NoGoodSignature { problem, .. } => problem,
            other => other.to_string(),
        })
}

/// Checks that a message is by a key, and that GnuPG takes it too.
pub fn signed(name: &str, keys: &[u8], message: &[u8]) -> Result<(), String> {
    let Some((fingerprint, document)) = judge::signed(keys, message) else {
        return Err(format!("{name}: GnuPG does not take it"));
    };
    assert_eq!(document, self::document(), "{name}");
    let signers = check(&by(keys), &[message.to_vec()]);
    let signers = signers.map_err(|problem| format!("{name}: {problem}"))?;
    let user = USER.to_owned();
    assert_eq!(signers, [Signer::OpenPgp { fingerprint, user }], "{name}");
    Ok(())
}

pub fn assert_signed(name: &str, keys: &[u8], message: &[u8]) {
    signed(name, keys, message).unwrap();
}

/// Whether GnuPG decides otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gnupg {
    Refuses,
    /// Mica is stricter.
    Takes,
}

pub use Gnupg::{Refuses, Takes};

/// Checks that a message is refused for a reason, and that GnuPG decides as it is said.
pub fn refused(
    name: &str,
    keys: &[u8],
    message: &[u8],
    part: &str,
    gnupg: Gnupg,
) -> Result<(), String> {
    let problem = match check(&by(keys), &[message.to_vec()]) {
        Ok(signers) => format!("it is taken: {signers:?}"),
        Err(problem) => problem,
    };
    let takes = judge::signed(keys, message).is_some();
    if problem.contains(part) && takes == (gnupg == Takes) {
        return Ok(());
    }
    Err(format!("{name}: {problem}, and GnuPG takes it: {takes}"))
}

pub fn assert_refused(name: &str, keys: &[u8], message: &[u8], part: &str, gnupg: Gnupg) {
    refused(name, keys, message, part, gnupg).unwrap();
}

/// Asserts that all of several checks succeeded.
pub fn assert_all(checks: impl IntoIterator<Item = Result<(), String>>) {
    let wrong: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn openpgp_keys_of_these_kinds_sign() {
    for kind in ["ed25519", "rsa2048", "nistp256", "nistp384"] {
        let gpg = Gpg::new();
        gpg.key(USER, kind, &[]);
        assert_signed(kind, &gpg.export(USER), &gpg.sign(&document(), &[]));
        let text = gpg.run(&["--armor", "--export", USER], b"");
        assert_signed(kind, &text, &gpg.sign(&document(), &[]));
    }
    for (kind, part) in [
        ("rsa1024", "RSA of 1024 bits, which is not supported"),
        ("nistp521", "another curve than"),
        ("brainpoolP256r1", "another curve than"),
    ] {
        let gpg = Gpg::new();
        gpg.key(USER, kind, &[]);
        let (keys, message) = (gpg.export(USER), gpg.sign(&document(), &[]));
        assert_refused(kind, &keys, &message, part, Takes);
    }
}

#[test]
fn messages_of_these_forms_are_read() {
    let gpg = Gpg::new();
    gpg.key(USER, "rsa2048", &[]);
    gpg.key("Other <other@example.com>", "ed25519", &[]);
    let keys = gpg.export(USER);
    for options in [
        &["-z", "0"][..],
        &["--compress-algo", "zip"],
        &["--compress-algo", "zlib"],
        &["--digest-algo", "SHA384"],
        &["--digest-algo", "SHA512"],
    ] {
        let options = [options, &["-u", USER]].concat();
        assert_signed(
            &format!("{options:?}"),
            &keys,
            &gpg.sign(&document(), &options),
        );
    }
    let weak = ["--digest-algo", "MD5", "--allow-weak-digest-algos"];
    for (options, part, gnupg) in [
        (&["--compress-algo", "bzip2"][..], "with bzip2", Takes),
        (&["--textmode"], "signature of text", Takes),
        (&["--armor"], "not made of packets", Takes),
        (&["--digest-algo", "SHA1"], "digest of SHA-1", Takes),
        (&["--digest-algo", "SHA224"], "digest of SHA-224", Takes),
        (&weak, "digest of MD5", Refuses),
        (
            &["-u", "Other <other@example.com>"],
            "several signatures",
            Refuses,
        ),
    ] {
        let options = [&["-u", USER], options].concat();
        let message = gpg.sign(&document(), &options);
        assert_refused(&format!("{options:?}"), &keys, &message, part, gnupg);
    }
    let detached = gpg.run(&["-u", USER, "--detach-sign"], &document());
    assert_refused(
        "detached",
        &keys,
        &detached,
        "no message of a document",
        Refuses,
    );
    let other = gpg.sign(&document(), &["-u", "Other <other@example.com>"]);
    assert_refused(
        "another's",
        &keys,
        &other,
        "which the policy does not have",
        Refuses,
    );
    // Both, as skopeo's library marks them, and not what it has for sigstore.
    let marked = [
        b"\0simple-signing\n",
        &gpg.sign(&document(), &["-u", USER])[..],
    ]
    .concat();
    check(&by(&keys), &[other.clone(), marked]).unwrap();
    for other in [&b"\0sigstore-json\n{}"[..], b"\0", b""] {
        let problem = check(&by(&keys), &[other.to_vec()]).unwrap_err();
        assert!(problem.starts_with("it"), "{problem}");
    }
}

#[test]
fn keys_that_have_expired_or_are_revoked_have_not_signed() {
    let past = ["--faked-system-time", "20200101T000000"];
    let gpg = Gpg::new();
    gpg.run(
        &[
            &past,
            &["--quick-gen-key", USER, "ed25519", "sign", "1y"][..],
        ]
        .concat(),
        b"",
    );
    let message = gpg.sign(&document(), &past);
    assert_refused(
        "expired",
        &gpg.export(USER),
        &message,
        "has expired",
        Refuses,
    );
    // Its owner says that it is valid for longer.
    let fingerprint = gpg.fingerprints(USER)[0].clone();
    gpg.run(&["--quick-set-expire", &fingerprint, "0"], b"");
    assert_signed("prolonged", &gpg.export(USER), &message);

    let sign = [
        &past[..],
        &["--default-sig-expire", "1d", "--force-v4-certs"],
    ]
    .concat();
    let message = gpg.sign(&document(), &sign);
    assert_refused(
        "old",
        &gpg.export(USER),
        &message,
        "and has expired",
        Refuses,
    );

    gpg.run(
        &["--quick-add-key", &fingerprint, "ed25519", "sign", "never"],
        b"",
    );
    let message = gpg.sign(&document(), &[]);
    assert_signed("a subkey", &gpg.export(USER), &message);

    let revocation = gpg
        .home()
        .join(format!("openpgp-revocs.d/{fingerprint}.rev"));
    let revocation = fs::read_to_string(revocation)
        .unwrap()
        .replace(":-----", "-----");
    gpg.run(&["--import"], revocation.as_bytes());
    let keys = gpg.export(USER);
    assert_refused("revoked", &keys, &message, "is revoked", Refuses);
}

#[test]
fn a_statement_is_about_the_image_and_a_name_that_is_allowed() {
    let key = Key::new(1, now() - 1000);
    let keys = Published::new(&key).bytes();
    let plan = key.plan(DOCUMENT, now() - 100);
    let of = |statement: &Value| Message::of(&key, &plan, statement.to_string().as_bytes()).bytes();
    let with = |edit: &dyn Fn(&mut Value)| {
        let mut statement = statement();
        edit(&mut statement);
        of(&statement)
    };
    for (message, part) in [
        (
            with(&|it| it["critical"]["type"] = json!("cosign container image signature")),
            "kind",
        ),
        (with(&|it| it["optional"] = Value::Null), "nothing optional"),
        (
            with(&|it| it["optional"] = json!({"timestamp": 1.5})),
            "timestamp",
        ),
        (
            with(&|it| it["critical"]["more"] = json!(1)),
            "unknown field",
        ),
        (
            with(&|it| {
                it["critical"]["image"]["docker-manifest-digest"] =
                    json!(micabox_oci::Digest::of(b"other"));
            }),
            "about another image",
        ),
        (
            with(&|it| it["critical"]["identity"]["docker-reference"] = json!("busybox")),
            "about the name docker.io/library/busybox",
        ),
        (Message::of(&key, &plan, b"x").bytes(), "no statement"),
    ] {
        let problem = check(&by(&keys), &[message]).unwrap_err();
        assert!(problem.contains(part), "{problem}");
    }
    let good = of(&statement());
    for (identity, is_allowed) in [
        (json!({"type": "matchExact"}), true),
        (json!({"type": "matchRepository"}), true),
        (
            json!({"type": "exactReference", "dockerReference": NAME}),
            true,
        ),
        (
            json!({"type": "exactReference", "dockerReference": "busybox:1"}),
            false,
        ),
        (
            json!({"type": "exactRepository", "dockerRepository": "busybox"}),
            false,
        ),
        (
            json!({"type": "remapIdentity", "prefix": "registry.example", "signedPrefix": "x.example"}),
            false,
        ),
    ] {
        let mut requirement = by(&keys);
        requirement["signedIdentity"] = identity.clone();
        let decided = check(&requirement, from_ref(&good));
        assert_eq!(decided.is_ok(), is_allowed, "{identity}: {decided:?}");
    }
    assert_eq!(
        check(&by(&keys), &[]).unwrap_err(),
        "asks for a signature, and it has none"
    );
}

#[test]
fn policies_of_openpgp_keys_that_mean_nothing_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(directory.path().join(name), bytes).unwrap();
        directory.path().join(name)
    };
    let key = Key::new(1, now() - 1000);
    let keys = Published::new(&key).bytes();
    let good = file("good.gpg", &keys);
    let empty = file("empty.gpg", b"");
    let signed = |fields: Value| {
        let mut requirement = json!({"type": "signedBy", "keyType": "GPGKeys"});
        for (name, value) in fields.as_object().unwrap() {
            requirement[name] = value.clone();
        }
        requirement
    };
    let message = Message::of(&key, &key.plan(DOCUMENT, now() - 100), &document()).bytes();
    for fields in [json!({"keyPath": good}), json!({"keyPaths": [good, good]})] {
        check(&signed(fields), from_ref(&message)).unwrap();
    }
    let mut long = packet(6, &key.body());
    long.truncate(20);
    for (requirement, part) in [
        (
            signed(json!({})),
            "it needs one of keyPath, keyPaths, keyData",
        ),
        (
            signed(json!({"keyPath": good, "keyPaths": [good]})),
            "it may have one of",
        ),
        (signed(json!({"keyPaths": []})), "keyPaths is empty"),
        (
            signed(json!({"keyPath": empty})),
            "empty.gpg has no public key of OpenPGP",
        ),
        (
            signed(json!({"keyPath": "/proc/none/key"})),
            "/proc/none/key",
        ),
        (signed(json!({"keyPath": good, "more": 1})), "unknown field"),
        (signed(json!({"keyDatas": ["AAAA"]})), "unknown field"),
        (signed(json!({"keyData": "!"})), "keyData is not base64"),
        (
            by(&long),
            "keyData is no file of OpenPGP keys: a packet ends early",
        ),
        (by(&packet(5, &key.body())), "it has a secret key"),
        (by(&packet(6, &[3, 0, 0])), "has no public key"),
        (
            signed(json!({"keyData": "AAAA", "keyType": "X"})),
            "unknown variant",
        ),
        (
            json!({"type": "signedBy", "keyPath": good}),
            "missing field `keyType`",
        ),
        (
            signed(json!({"keyPath": good, "signedIdentity": {"type": "matchAny"}})),
            "unknown variant",
        ),
    ] {
        let problem = check(&requirement, &[]).unwrap_err();
        assert!(problem.contains(part), "{requirement}: {problem}");
    }
    // A kind of key that no program knows yet.
    let other = json!({"type": "signedBy", "keyType": "X509Certificates", "keyPath": good});
    let policy = json!({"default": [other]}).to_string();
    let policy = Policy::parse(policy.as_bytes()).unwrap();
    let reference: Reference = NAME.parse().unwrap();
    let subject = Subject {
        reference: Some(&reference),
        manifests: &[],
    };
    let none = Signatures::default();
    let refused = policy.check(Scope::Registry(&reference), subject, &none);
    assert!(matches!(
        refused.unwrap_err().refusal,
        Refusal::Unsupported(_)
    ));
}

pub fn now() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u32::try_from(now.as_secs()).unwrap()
}
