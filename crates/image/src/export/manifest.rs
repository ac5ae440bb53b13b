//! Rewrites manifests for images whose layers were packed anew.

use super::Compression;
use crate::manifest::{Document, ManifestError, digest_of, fsmeta_of};
use crate::{Descriptor, Digest, printable};
use micabox_oci::json::{self, Json};

/// Media type of an image's manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// Returns the manifest of an image with these blobs for layers, bottom first: the bytes and their
/// media type.
///
/// The manifest is `original`, byte for byte, if that names the same blobs. Otherwise it is OCI's,
/// even if the image's own was Docker's (the config is valid for both); annotations of the image
/// stay, those of its layers are dropped with the old blobs.
///
/// # Errors
///
/// [`ManifestError`]: `original` is not an image's manifest.
pub fn rewrite(
    original: &[u8],
    config: &[u8],
    layers: &[Descriptor],
) -> Result<(Vec<u8>, String), ManifestError> {
    let malformed = |message: String| ManifestError::Malformed {
        document: "manifest",
        message,
    };
    let Document::Manifest(parsed) = Document::parse(original, None)? else {
        return Err(malformed("it is an index".to_owned()));
    };
    if fsmeta_of(&parsed)?.is_some() {
        return Err(ManifestError::NoArchives);
    }
    if parsed.layers.len() != layers.len() {
        return Err(ManifestError::LeftOut);
    }
    let mut same = true;
    for (old, new) in parsed.layers.iter().zip(layers) {
        let digest = digest_of(old, "manifest", "layer")?;
        same &= (digest, old.size) == (new.digest, Some(new.size));
    }
    let own_type = match parsed.media_type.as_str() {
        "" => MANIFEST_TYPE,
        own => own,
    };
    if same {
        return Ok((original.to_vec(), own_type.to_owned()));
    }
    let old: Json =
        json::from_slice(original).map_err(|error| malformed(printable(&error.to_string())))?;
    let fields = match old {
        fields @ Json::Object(_) if own_type == MANIFEST_TYPE => fields,
        _ => Json::Object(Vec::new()),
    };
    Ok((write(fields, config, layers)?, MANIFEST_TYPE.to_owned()))
}

/// Returns a minimal manifest of an image with this config and these layers.
pub(crate) fn fresh(config: &[u8], layers: &[Descriptor]) -> Result<Vec<u8>, ManifestError> {
    write(Json::Object(Vec::new()), config, layers)
}

fn write(
    mut manifest: Json,
    config: &[u8],
    layers: &[Descriptor],
) -> Result<Vec<u8>, ManifestError> {
    let malformed = |error: json::Error| ManifestError::Malformed {
        document: "manifest",
        message: error.to_string(),
    };
    let layers: Vec<_> = layers
        .iter()
        .map(|blob| Descriptor {
            media_type: oci_type(&blob.media_type).to_owned(),
            ..blob.clone()
        })
        .collect();
    let config = config_descriptor(config);
    for (name, value) in [
        ("schemaVersion", Json::of(&2)),
        ("mediaType", Json::of(&MANIFEST_TYPE)),
        ("config", Json::of(&config)),
        ("layers", Json::of(&layers)),
    ] {
        manifest.set_field(name, value.map_err(malformed)?);
    }
    serde_json::to_vec(&manifest).map_err(malformed)
}

/// Returns the descriptor of an image's config.
#[must_use]
pub fn config_descriptor(config: &[u8]) -> Descriptor {
    Descriptor {
        media_type: CONFIG_TYPE.to_owned(),
        digest: Digest::of(config),
        size: config.len() as u64,
    }
}

/// Returns OCI's name of a layer's media type.
fn oci_type(media_type: &str) -> &str {
    match media_type {
        "application/vnd.docker.image.rootfs.diff.tar.gzip"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => {
            Compression::Gzip.media_type()
        }
        "application/vnd.docker.image.rootfs.diff.tar"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar" => Compression::None.media_type(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn blob(text: &str) -> Descriptor {
        Descriptor {
            digest: Digest::of(text.as_bytes()),
            size: text.len() as u64,
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
        }
    }

    fn manifest(media_type: &str, layer: &Descriptor) -> Vec<u8> {
        let manifest = json!({
            "schemaVersion": 2, "mediaType": media_type, "annotations": {"a": "b"},
            "config": {"mediaType": CONFIG_TYPE, "digest": Digest::of(b"{}"), "size": 2},
            "layers": [{
                "mediaType": layer.media_type, "digest": layer.digest, "size": layer.size,
                "annotations": {"of": "the blob"},
            }],
        });
        serde_json::to_vec_pretty(&manifest).unwrap()
    }

    #[test]
    fn the_same_blobs_are_the_same_manifest() {
        for media_type in [
            MANIFEST_TYPE,
            "application/vnd.docker.distribution.manifest.v2+json",
        ] {
            let original = manifest(media_type, &blob("x"));
            let (bytes, own_type) = rewrite(&original, b"{}", &[blob("x")]).unwrap();
            assert_eq!((bytes, own_type.as_str()), (original, media_type));
        }
    }

    #[test]
    fn other_blobs_are_an_oci_manifest() {
        let original = manifest(MANIFEST_TYPE, &blob("x"));
        let (bytes, media_type) = rewrite(&original, b"{}", &[blob("yy")]).unwrap();
        let new: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(media_type, MANIFEST_TYPE);
        assert_eq!(new["layers"][0]["digest"], blob("yy").digest.to_string());
        assert_eq!(new["layers"][0]["annotations"], Value::Null);
        assert_eq!(new["annotations"]["a"], "b");

        let docker = manifest(
            "application/vnd.docker.distribution.manifest.v2+json",
            &blob("x"),
        );
        let (bytes, media_type) = rewrite(&docker, b"{}", &[blob("yy")]).unwrap();
        let new: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(
            (media_type.as_str(), &new["mediaType"]),
            (MANIFEST_TYPE, &json!(MANIFEST_TYPE))
        );
        assert_eq!(new["annotations"], Value::Null);
    }
}
