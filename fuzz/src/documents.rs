//! A registry's documents about an image, and image references.

use micabox_image::{Digest, Limits, Reference, fuzzing};

/// Separates two documents.
const NEXT: u8 = 0;
/// Maximum number of requests to a registry to find one image: documents and their configs.
const MOST_DOCUMENTS: usize = 2 * 65;

/// Resolves an image from documents that a registry returns one after the other, the last one
/// repeatedly. A line before a document is its media type.
pub fn manifest(bytes: &[u8]) {
    let answers: Vec<&[u8]> = bytes.split(|byte| *byte == NEXT).collect();
    let mut asked = 0;
    let limits = Limits {
        layer_size: 1 << 30,
        ..Limits::default()
    };
    let found = fuzzing::find(
        || {
            let answer = answers.get(asked).or(answers.last()).copied();
            asked += 1;
            assert!(asked <= MOST_DOCUMENTS, "it asks and asks");
            let answer = answer.unwrap_or_default();
            let line = answer.split(|byte| *byte == b'\n').next();
            match line.map(str::from_utf8) {
                Some(Ok(line)) if line.starts_with("application/") => {
                    (answer[line.len()..].to_vec(), Some(line.to_owned()))
                }
                _ => (answer.to_vec(), None),
            }
        },
        &limits,
    );
    match found {
        Err(problem) => is_readable(&problem),
        Ok(layers) => {
            for layer in layers {
                assert!(layer.blob.1 <= limits.layer_size);
                for digest in [layer.blob.0, layer.diff_id] {
                    assert_eq!(digest.to_string().parse(), Ok(digest));
                    let hex = digest.hex();
                    assert!(find(bytes, hex.as_bytes()) || has_escapes(bytes), "made up");
                }
                let foreign = [&b"nondistributable"[..], b".foreign."];
                let foreign = foreign.iter().any(|word| find(bytes, word));
                assert!(layer.urls.is_empty() || foreign || has_escapes(bytes));
            }
        }
    }
}

/// Checks that a reference survives a round trip through its text, and that its parts are harmless.
pub fn reference(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let reference: Reference = match text.parse() {
        Ok(reference) => reference,
        Err(problem) => return assert!(!problem.to_string().is_empty()),
    };
    let written = reference.to_string();
    assert_eq!(written.parse().as_ref(), Ok(&reference), "{written}");
    assert_eq!(reference.familiar().parse().as_ref(), Ok(&reference));
    assert!(reference.tag().is_some() || reference.digest().is_some());
    // Parts become parts of URLs: they must not contain bytes that end a path or begin a query.
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    assert!(reference.repository().bytes().all(harmless));
    assert!(
        !reference
            .repository()
            .split('/')
            .any(|part| part.is_empty() || part.contains(".."))
    );
    assert!(
        reference
            .tag()
            .unwrap_or("x")
            .bytes()
            .all(|byte| harmless(byte) && byte != b'/')
    );
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    assert!(reference.registry().bytes().all(harmless));
    assert!(written.len() <= 255 + 1 + 128 + 1 + 71);
}

/// Checks that an error's text can be shown on a terminal, and does not contain the whole document.
fn is_readable(problem: &str) {
    assert!(!problem.contains(char::is_control), "{problem:?}");
    assert!(problem.len() < 4000, "{} bytes", problem.len());
}

fn find(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// JSON may escape any letter as a number.
fn has_escapes(bytes: &[u8]) -> bool {
    bytes.contains(&b'\\')
}

/// An index, a manifest and a config; and references.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let digest = Digest::of(b"layer");
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
        "config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":2}},
        "layers":[{{"mediaType":"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "digest":"{digest}","size":123,"urls":["https://elsewhere.test/x"]}}],
        "annotations":{{"a":"b"}}}}"#
    );
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json",
        "digest":"{digest}","size":9,"platform":{{"os":"linux","architecture":"arm64","variant":"v8"}}}},
        {{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"{digest}","size":9}}]}}"#
    );
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","config":{{"Env":["PATH=/bin"],"Cmd":["sh"],
        "User":"1:1","ExposedPorts":{{"80/tcp":{{}}}}}},"rootfs":{{"type":"layers",
        "diff_ids":["{digest}"]}},"history":[{{"created":"2024-01-01T00:00:00Z"}}]}}"#
    );
    let typed = format!("application/vnd.oci.image.index.v1+json\n{index}");
    let schema1 = r#"{"schemaVersion":1,"fsLayers":[]}"#;
    let join = |parts: &[&str]| parts.join("\0").into_bytes();
    vec![
        ("image", join(&[&manifest, &config])),
        ("index", join(&[&index, &manifest, &config])),
        ("typed", join(&[&typed, &index, &index, &manifest, "{}"])),
        ("schema1", join(&[schema1])),
    ]
}

/// References as users write them.
pub fn names() -> Vec<(&'static str, Vec<u8>)> {
    let digest = Digest::of(b"image");
    let texts = [
        ("short", "debian:12".to_owned()),
        (
            "full",
            format!("registry.test:5000/a/b__c-d.e:tag@{digest}"),
        ),
        ("address", "[::1]:5000/x:latest".to_owned()),
        ("legacy", "index.docker.io/library/debian".to_owned()),
        ("hex", digest.hex()),
    ];
    texts.map(|(name, text)| (name, text.into_bytes())).into()
}
