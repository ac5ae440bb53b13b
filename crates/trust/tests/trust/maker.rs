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
