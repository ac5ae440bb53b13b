//! Documents as registries serve them, and damaged ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Limits;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn document(value: Value, content_type: Option<&str>) -> Result<Document, ManifestError> {
    Document::parse(value.to_string().as_bytes(), content_type)
}

fn descriptor(kind: &str) -> Value {
    json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": DIGEST, "size": 7})
}

fn manifest(layers: Value) -> Manifest {
    let value =
        json!({"schemaVersion": 2, "config": descriptor("config.v1+json"), "layers": layers});
    match document(value, None) {
        Ok(Document::Manifest(manifest)) => *manifest,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_document_is_what_its_type_says_or_else_its_shape() {
    let index = json!({"schemaVersion": 2, "manifests": []});
    let oci_index = Some("application/vnd.oci.image.index.v1+json; charset=utf-8");
    for content_type in [
        None,
        Some("text/plain"),
        Some("application/json"),
        oci_index,
    ] {
        assert!(matches!(
            document(index.clone(), content_type),
            Ok(Document::Index(_))
        ));
    }
    let manifest =
        json!({"schemaVersion": 2, "config": descriptor("config.v1+json"), "layers": null});
    let docker = Some("application/vnd.docker.distribution.manifest.v2+json");
    for content_type in [None, docker] {
        assert!(matches!(
            document(manifest.clone(), content_type),
            Ok(Document::Manifest(_))
        ));
    }
    // The document's own type takes precedence over the server's.
    let mut own = index.clone();
    own["mediaType"] = json!("application/vnd.docker.distribution.manifest.list.v2+json");
    assert!(matches!(document(own, docker), Ok(Document::Index(_))));
}

#[test]
fn documents_that_are_not_images_are_refused_by_name() {
    let schema1 = json!({"schemaVersion": 1, "name": "x", "tag": "y", "fsLayers": []});
    assert_eq!(document(schema1, None).unwrap_err(), ManifestError::Schema1);
    let signed = Some("application/vnd.docker.distribution.manifest.v1+prettyjws");
    assert_eq!(
        document(json!({}), signed).unwrap_err(),
        ManifestError::Schema1
    );
    let both = json!({"schemaVersion": 2, "manifests": [], "layers": [], "config": {}});
    assert_eq!(document(both, None).unwrap_err(), ManifestError::Ambiguous);
    let html = document(json!({}), Some("text/html")).unwrap_err();
    assert_eq!(html, ManifestError::UnknownType("text/html".into()));
    for bad in [
        "",
        "[]",
        "\"x\"",
        "{",
        "{}",
        r#"{"schemaVersion":2,"layers":[{}]}"#,
        r#"{"schemaVersion":2,"manifests":{}}"#,
        r#"{"schemaVersion":"2","manifests":[]}"#,
    ] {
        let error = Document::parse(bad.as_bytes(), None).unwrap_err();
        assert!(
            matches!(error, ManifestError::Malformed { .. }),
            "{bad}: {error:?}"
        );
    }
    let nested = "[".repeat(100_000);
    assert!(Document::parse(nested.as_bytes(), None).is_err());

    let mut chart = manifest(json!([]));
    assert!(config_of(&chart).is_ok());
    chart.config.media_type = "application/vnd.cncf.helm.config.v1+json".into();
    let error = config_of(&chart).unwrap_err().to_string();
    assert!(error.contains("helm"), "{error}");
}

#[test]
fn entries_of_an_index_are_read_each_by_itself() {
    let entries =
        json!([{"size": -1}, descriptor("manifest.v1+json"), "x", {"platform": []}, null]);
    let index = document(json!({"schemaVersion": 2, "manifests": entries}), None);
    let Ok(Document::Index(index)) = index else {
        panic!("{index:?}");
    };
    assert_eq!(index.entries.len(), 2);
    assert_eq!(index.entries[0].digest, DIGEST);
    assert!(index.unreadable.unwrap().contains("-1"));
}

#[test]
fn a_config_may_leave_out_what_goes_without_saying() {
    for text in [
        "{}",
        r#"{"rootfs": null}"#,
        r#"{"rootfs": {"type": "layers"}}"#,
        r#"{"rootfs": {"type": "layers", "diff_ids": null}, "os": "", "architecture": null}"#,
    ] {
        let config = parse_config(text.as_bytes()).unwrap();
        assert!(config.rootfs().diff_ids().is_empty());
        let host = Platform::host();
        let baseline = Platform::new(host.os(), host.architecture(), "");
        assert_eq!(platform_of(&config), baseline);
    }
    for bad in [
        "",
        "[]",
        "3",
        r#"{"rootfs": 3}"#,
        r#"{"rootfs": {"type": "layers", "diff_ids": [3]}}"#,
    ] {
        assert!(parse_config(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn layers_are_paired_with_their_diff_ids() {
    let config = |diff_ids: Value| {
        parse_config(
            json!({"rootfs": {"type": "layers", "diff_ids": diff_ids}})
                .to_string()
                .as_bytes(),
        )
        .unwrap()
    };
    let limits = Limits {
        layer_size: 100,
        ..Limits::default()
    };
    let layers =
        |layers: Value, diff_ids: Value| layers_of(&manifest(layers), &config(diff_ids), &limits);
    assert_eq!(layers(json!([]), json!([])).unwrap(), []);
    let plain = json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": DIGEST, "size": 7,
        "urls": ["https://internal.example.com/"]});
    let pair = layers(json!([plain]), json!([DIGEST])).unwrap();
    assert_eq!(pair[0].diff_id.to_string(), DIGEST);
    assert!(pair[0].urls.is_empty());
    let mut foreign = plain.clone();
    foreign["mediaType"] = json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
    assert_eq!(
        layers(json!([foreign]), json!([DIGEST])).unwrap()[0]
            .urls
            .len(),
        1
    );

    assert!(matches!(
        layers(json!([plain]), json!([])),
        Err(ManifestError::LayerCount { .. })
    ));
    assert!(matches!(
        layers(json!([plain]), json!(["md5:abc"])),
        Err(ManifestError::Digest { .. })
    ));
    let mut large = plain.clone();
    large["size"] = json!(101);
    assert!(matches!(
        layers(json!([large]), json!([DIGEST])),
        Err(ManifestError::LayerSize { .. })
    ));
}

/// One of several documents, with bytes replaced, removed and repeated.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let entry = |platform: Value| {
        let mut entry = descriptor("manifest.v1+json");
        entry["platform"] = platform;
        entry
    };
    let documents = [
        json!({"schemaVersion": 2, "config": descriptor("config.v1+json"),
            "layers": [descriptor("layer.v1.tar+gzip"), descriptor("layer.v1.tar")]}),
        json!({"schemaVersion": 2, "manifests": [
            entry(json!({"os": "linux", "architecture": "amd64"})),
            entry(json!({"os": "linux", "architecture": "arm", "variant": "v7"}))]}),
        json!({"os": "linux", "architecture": "amd64", "config": {"Env": ["A=B"], "Cmd": null},
            "rootfs": {"type": "layers", "diff_ids": [DIGEST, DIGEST]}, "history": [{}]}),
    ];
    let documents = documents.map(|document| document.to_string().into_bytes());
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0..3u8);
    let edits = prop::collection::vec(edit, 0..4);
    (prop::sample::select(documents.to_vec()), edits).prop_map(|(mut bytes, edits)| {
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..(at + usize::from(byte)).min(bytes.len() - 1))),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn damaged_documents_are_an_error_or_harmless(bytes in damaged(), others in damaged()) {
        let config = parse_config(&others);
        let mut search = Search::new(Platform::host());
        match Document::parse(&bytes, None) {
            Ok(Document::Manifest(manifest)) => if let Ok(config) = config {
                let _ = config_of(&manifest);
                let _ = layers_of(&manifest, &config, &Limits::default());
                search.image(&config);
            },
            Ok(Document::Index(index)) => while search.index(&index).is_ok() {
                if let Err(error) = search.next_document() {
                    prop_assert!(!error.to_string().contains('\n'));
                    break;
                }
            },
            Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
        }
    }
}
