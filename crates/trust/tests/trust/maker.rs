//! Makes keys, certificates, signatures and notes of a log, with openssl.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use micabox_oci::Digest;
use micabox_trust::Signature;
use serde_json::{Value, json};

pub const EMAIL: &str = "dev@example.com";
pub const ISSUER: &str = "https://issuer.example";

pub struct Maker(tempfile::TempDir);

impl Maker {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With an authority, `ca`, and a log.
    pub fn with_authority() -> Self {
        let maker = Self::new();
        maker.authority("ca");
        maker.key("P-256", "log");
        maker
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn now(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap().as_secs()
    }

    fn openssl(&self, arguments: &[&str]) {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(&self.0)
            .output()
            .expect("openssl is needed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }

    /// Makes a key pair. Returns the path of the public key.
    pub fn key(&self, kind: &str, name: &str) -> PathBuf {
        let (private, public) = (format!("{name}.key"), format!("{name}.pub"));
        let curve = format!("ec_paramgen_curve:{kind}");
        let options: &[&str] = match kind {
            "ed25519" => &["-algorithm", "ed25519"],
            "RSA" => &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
            _ => &["-algorithm", "EC", "-pkeyopt", &curve],
        };
        self.openssl(&[&["genpkey", "-out", &private], options].concat());
        self.openssl(&["pkey", "-in", &private, "-pubout", "-out", &public]);
        self.path(&public)
    }

    fn sign(&self, message: &[u8], key: &str) -> Vec<u8> {
        fs::write(self.path("message"), message).unwrap();
        let private = format!("{key}.key");
        let to = ["-inkey", &private, "-in", "message", "-out", "signed"];
        let mut arguments = vec!["pkeyutl", "-sign", "-rawin"];
        if key != "ed25519" {
            arguments.extend(["-digest", "sha256"]);
        }
        arguments.extend(to);
        self.openssl(&arguments);
        fs::read(self.path("signed")).unwrap()
    }

    pub fn signature(&self, payload: &str, key: &str) -> Signature {
        Signature {
            payload: payload.into(),
            signature: BASE64_STANDARD.encode(self.sign(payload.as_bytes(), key)),
            certificate: None,
            chain: None,
            bundle: None,
        }
    }

    /// Adds the note of the log about a signature by a key or certificate, in PEM.
    pub fn noted(&self, signature: Signature, by: &str, time: u64) -> Signature {
        let digest = Digest::of(&signature.payload);
        let body = json!({
            "apiVersion": "0.0.1",
            "kind": "hashedrekord",
            "spec": {
                "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
                "signature": {
                    "content": signature.signature,
                    "publicKey": {"content": BASE64_STANDARD.encode(by)},
                },
            },
        });
        let payload = json!({
            "body": BASE64_STANDARD.encode(body.to_string()),
            "integratedTime": time,
            "logID": "00",
            "logIndex": 7,
        });
        Signature {
            bundle: Some(self.bundle(&payload)),
            ..signature
        }
    }

    /// Returns what the log says of an entry.
    pub fn bundle(&self, payload: &Value) -> String {
        let timestamp = self.sign(payload.to_string().as_bytes(), "log");
        json!({
            "SignedEntryTimestamp": BASE64_STANDARD.encode(timestamp),
            "Payload": payload,
        })
        .to_string()
    }

    /// Makes a bundle as cosign 3 does: a statement that `key` has signed, with its certificate in PEM if it has one, and
    /// with the log's note of it, if it has noted it at a time.
    pub fn bundled(
        &self,
        statement: &Value,
        key: &str,
        certificate: Option<&str>,
        noted: Option<u64>,
    ) -> Value {
        const KIND: &str = "application/vnd.in-toto+json";
        let statement = statement.to_string();
        let message = format!(
            "DSSEv1 {} {KIND} {} {statement}",
            KIND.len(),
            statement.len()
        );
        let signature = BASE64_STANDARD.encode(self.sign(message.as_bytes(), key));
        let envelope = json!({
            "payload": BASE64_STANDARD.encode(&statement),
            "payloadType": KIND,
            "signatures": [{"sig": signature}],
        });
        let public = fs::read_to_string(self.path(&format!("{key}.pub")));
        let by = certificate.map_or_else(|| public.unwrap(), str::to_owned);
        let mut material = match certificate {
            Some(pem) => {
                let der: String = pem.lines().filter(|line| !line.contains('-')).collect();
                json!({"certificate": {"rawBytes": der}})
            }
            None => json!({"publicKey": {"hint": "ours"}}),
        };
        if let Some(time) = noted {
            let hash = |text: &str| {
                let digest = Digest::of(text.as_bytes()).hex();
                json!({"algorithm": "sha256", "value": digest})
            };
            let body = json!({
                "apiVersion": "0.0.1",
                "kind": "dsse",
                "spec": {
                    "envelopeHash": hash(&envelope.to_string()),
                    "payloadHash": hash(&statement),
                    "signatures": [{
                        "signature": signature, "verifier": BASE64_STANDARD.encode(&by),
                    }],
                },
            });
            material["tlogEntries"] = json!([self.log_entry(&body.to_string(), time)]);
        }
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": material,
            "dsseEnvelope": envelope,
        })
    }

    /// Returns what a log that has one entry says of it, with the proof that it has it.
    fn log_entry(&self, body: &str, time: u64) -> Value {
        self.openssl(&[
            "pkey", "-pubin", "-in", "log.pub", "-outform", "DER", "-out", "log.der",
        ]);
        let id = Digest::of(&fs::read(self.path("log.der")).unwrap());
        let body_in_base64 = BASE64_STANDARD.encode(body);
        let entry = json!({
            "body": body_in_base64, "integratedTime": time, "logID": id.hex(), "logIndex": 0,
        });
        let timestamp = self.sign(entry.to_string().as_bytes(), "log");
        let root = Digest::of(&[&[0], body.as_bytes()].concat());
        let root = BASE64_STANDARD.encode(root.as_bytes());
        let head = format!("log.example - 7\n1\n{root}\n");
        let by = [&id.as_bytes()[..4], &self.sign(head.as_bytes(), "log")].concat();
        let checkpoint = format!(
            "{head}\n\u{2014} log.example {}\n",
            BASE64_STANDARD.encode(by)
        );
        json!({
            "logIndex": "0",
            "logId": {"keyId": BASE64_STANDARD.encode(id.as_bytes())},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": time.to_string(),
            "inclusionPromise": {"signedEntryTimestamp": BASE64_STANDARD.encode(timestamp)},
            "inclusionProof": {
                "logIndex": "0", "rootHash": root, "treeSize": "1", "hashes": [],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": body_in_base64,
        })
    }

    /// Makes an authority, valid for ten days from now.
    pub fn authority(&self, name: &str) {
        let limits = [
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,keyCertSign",
        ];
        self.authority_with(name, &limits);
    }

    /// Makes an authority with these extensions.
    pub fn authority_with(&self, name: &str, extensions: &[&str]) {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        let config = format!(
            "[req]\ndistinguished_name=name\nx509_extensions=own\n[name]\n[own]\n{}\n",
            extensions.join("\n")
        );
        fs::write(self.path("authority.cnf"), config).unwrap();
        self.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "10",
            "-subj",
            &format!("/CN={name}"),
            "-config",
            "authority.cnf",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ]);
    }

    /// Makes a key with a certificate of an authority, valid for a day from now. Returns the certificate.
    pub fn certificate(
        &self,
        name: &str,
        ca: &str,
        email: &str,
        issuer: &str,
        usage: &str,
    ) -> String {
        let mut extensions = format!(
            "keyUsage=critical,digitalSignature\nextendedKeyUsage={usage}\n\
             subjectAltName=critical,email:{email}\n"
        );
        if !issuer.is_empty() {
            extensions += &format!("1.3.6.1.4.1.57264.1.8=ASN1:UTF8String:{issuer}\n");
            let hex: String = issuer.bytes().map(|byte| format!("{byte:02x}")).collect();
            extensions += &format!("1.3.6.1.4.1.57264.1.1=DER:{hex}\n");
        }
        self.issue(name, ca, "/", &extensions, 1)
    }

    /// Makes a key with a certificate of an authority. Returns the certificate.
    pub fn issue(
        &self,
        name: &str,
        ca: &str,
        subject: &str,
        extensions: &str,
        days: u32,
    ) -> String {
        self.key("P-256", name);
        fs::write(self.path("extensions"), extensions).unwrap();
        let file = |suffix: &str| format!("{name}.{suffix}");
        let (key, request, certificate) = (file("key"), file("csr"), file("crt"));
        self.openssl(&[
            "req", "-new", "-key", &key, "-subj", subject, "-out", &request,
        ]);
        let (authority, its_key) = (format!("{ca}.pem"), format!("{ca}.key"));
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            &authority,
            "-CAkey",
            &its_key,
            "-days",
            &days.to_string(),
            "-extfile",
            "extensions",
            "-out",
            &certificate,
        ]);
        fs::read_to_string(self.path(&certificate)).unwrap()
    }
}
