//! Signatures in a registry, as cosign attaches them.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{DockerRegistry, shell};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A signer with a key of their own, as files.
pub struct Cosign(tempfile::TempDir);

impl Default for Cosign {
    fn default() -> Self {
        Self::new()
    }
}

impl Cosign {
    /// Makes a key, with openssl.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        shell(
            directory.path(),
            "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key; \
             openssl pkey -in key -pubout -out key.pub",
        );
        Self(directory)
    }

    /// Returns the file with the public key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.0.path().join("key.pub")
    }

    /// Signs that a manifest has the name `REPOSITORY:TAG` of a registry, and attaches that to the manifest there.
    ///
    /// # Panics
    /// If openssl or skopeo fails.
    pub fn sign(&self, registry: &DockerRegistry, name: &str, manifest: &str) {
        let payload = payload(&format!("{}/{name}", registry.host()), manifest);
        fs::write(self.0.path().join("payload"), &payload).unwrap();
        let signature = shell(
            self.0.path(),
            "openssl pkeyutl -sign -rawin -digest sha256 -inkey key -in payload -out signature; \
             openssl base64 -A -in signature",
        );
        let annotations = json!({"dev.cosignproject.cosign/signature": signature});
        let (repository, _) = name.rsplit_once(':').unwrap();
        attach(
            registry,
            repository,
            manifest,
            payload.as_bytes(),
            &annotations,
        );
    }
}

/// Returns the statement that a manifest has a name.
#[must_use]
pub fn payload(name: &str, manifest: &str) -> String {
    json!({
        "critical": {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": manifest},
            "type": "cosign container image signature",
        },
        "optional": {"creator": "a test", "timestamp": 1_700_000_000},
    })
    .to_string()
}

/// Attaches a signature of a statement to a manifest. The annotations have the signature, and what belongs to it.
///
/// # Panics
/// If skopeo fails.
pub fn attach(
    registry: &DockerRegistry,
    repository: &str,
    manifest: &str,
    payload: &[u8],
    annotations: &Value,
) {
    let layout = tempfile::tempdir().unwrap();
    let blobs = layout.path().join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    for (name, bytes) in signature_blobs(payload, annotations) {
        fs::write(blobs.join(name.strip_prefix("sha256:").unwrap()), &bytes).unwrap();
        // The last one is the manifest.
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": MANIFEST, "digest": name, "size": bytes.len(),
        }]});
        fs::write(layout.path().join("index.json"), index.to_string()).unwrap();
    }
    let version = json!({"imageLayoutVersion": "1.0.0"}).to_string();
    fs::write(layout.path().join("oci-layout"), version).unwrap();
    let to = format!("{repository}:{}.sig", manifest.replace(':', "-"));
    registry.push(layout.path(), &to, &["--dest-tls-verify=false"]);
}

/// Returns the blobs of a signature with their digests, its manifest last.
#[must_use]
pub fn signature_blobs(payload: &[u8], annotations: &Value) -> [(String, Vec<u8>); 3] {
    let named = |bytes: Vec<u8>| {
        let hex: String = Sha256::digest(&bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        (format!("sha256:{hex}"), bytes)
    };
    let payload = named(payload.to_vec());
    let config = json!({"architecture": "", "os": "", "config": {}, "rootfs": {
        "type": "layers", "diff_ids": [payload.0],
    }});
    let config = named(config.to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config.0, "size": config.1.len(),
        },
        "layers": [{
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            "digest": payload.0, "size": payload.1.len(),
            "annotations": annotations,
        }],
    });
    let manifest = named(manifest.to_string().into_bytes());
    [payload, config, manifest]
}
