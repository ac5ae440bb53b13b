//! A real registry, Debian's docker-registry, with images that a real client, skopeo, pushed.

use std::fs;
use std::path::Path;
use std::process::Command;

use micabox_image::{Compression, Reference};
use micabox_registry::Registry as RegistrySettings;
use micabox_testing::DockerRegistry;
use micabox_transfer::Credentials;

use crate::image::{TestImage, TestLayer, index};
use crate::push::Pusher;
use crate::{Puller, assert_has};

/// A name in the registry.
fn named(registry: &DockerRegistry, rest: &str) -> Reference {
    format!("{}/{rest}", registry.host()).parse().unwrap()
}

/// Writes a layout with these documents and the images' blobs.
pub fn layout(directory: &Path, entries: &[serde_json::Value], images: &[&TestImage]) {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(
        directory.join("oci-layout"),
        r#"{"imageLayoutVersion":"1.0.0"}"#,
    )
    .unwrap();
    fs::write(directory.join("index.json"), index(entries)).unwrap();
    for image in images {
        fs::write(blobs.join(image.digest().hex()), &image.manifest).unwrap();
        for (digest, bytes) in image.blobs() {
            fs::write(blobs.join(digest.hex()), bytes).unwrap();
        }
    }
}

#[test]
fn an_image_pushed_by_skopeo_is_pulled() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let make = |seed, platform: &str| {
        let layers = vec![
            TestLayer::noise(seed, 2 << 20),
            TestLayer::noise(seed + 10, 500),
        ];
        TestImage::for_platform(layers, &platform.parse().unwrap())
    };
    let (arm, amd) = (make(1, "linux/arm64"), make(2, "linux/amd64"));
    let both = index(&[
        arm.entry(Some("linux/arm64")),
        amd.entry(Some("linux/amd64")),
    ]);
    let source = directory.path().join("layout");
    let entry = serde_json::json!({
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": micabox_image::Digest::of(&both), "size": both.len(),
    });
    layout(&source, &[entry], &[&arm, &amd]);
    fs::write(
        source
            .join("blobs/sha256")
            .join(micabox_image::Digest::of(&both).hex()),
        &both,
    )
    .unwrap();
    let plain = ["--dest-tls-verify=false"];
    registry.push(&source, "team/app:1", &plain);

    let by_digest = format!("team/app@{}", micabox_image::Digest::of(&both));
    for name in ["team/app:1", &by_digest] {
        for (platform, image) in [("linux/arm64", &arm), ("linux/amd64", &amd)] {
            let puller = Puller::new().platform(platform);
            puller.assert_has(&puller.pull(&named(&registry, name)), image);
        }
    }
    for (name, part) in [
        ("team/app:2", "no such image or tag"),
        ("other/app:1", "no such image"),
    ] {
        let message = Puller::new().refusal(&named(&registry, name));
        assert!(message.contains(part), "{message}");
    }
}

/// TLS by a private authority, and a password, as in a company's registry.
#[test]
fn a_registry_with_a_private_authority_and_a_password_is_pulled_from() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(&directory)
            .output();
        let output = output.expect("openssl is needed");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=test authority",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
    ]);
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=registry",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-keyout",
        "registry.key",
        "-out",
        "registry.pem",
    ]);
    // The bcrypt hash of `secret`.
    let hash = "user:$2b$12$XMOyI3GOBRq.Ub6lknhkaux47rZ4luwvAvdnwdRXSgvrduBaedxd2\n";
    fs::write(path("htpasswd"), hash).unwrap();
    let registry = DockerRegistry::start(
        directory.path(),
        &format!(
            "  tls:\n    certificate: {}\n    key: {}\nauth:\n  htpasswd:\n    realm: test\n    path: {}\n",
            path("registry.pem").display(),
            path("registry.key").display(),
            path("htpasswd").display()
        ),
    );
    let image = TestImage::small();
    layout(&path("layout"), &[image.entry(None)], &[&image]);
    registry.push(
        &path("layout"),
        "app:1",
        &["--dest-tls-verify=false", "--dest-creds=user:secret"],
    );
    let reference = named(&registry, "app:1");

    // Loopback is plain HTTP unless the settings say otherwise.
    let with_tls = |ca: &[&str]| RegistrySettings {
        plain_http: Some(false),
        ca: ca.iter().map(|name| path(name)).collect(),
        ..Default::default()
    };
    let puller = |ca: &[&str]| {
        Puller::new().edit_settings(|settings| {
            settings
                .registry
                .insert(registry.host().to_owned(), with_tls(ca));
        })
    };
    let message = puller(&[]).refusal(&reference);
    assert!(
        message.contains("isn't trusted") && message.contains("`ca`"),
        "{message}"
    );
    let message = puller(&["htpasswd"]).refusal(&reference);
    assert!(message.contains("no PEM certificate"), "{message}");
    let message = puller(&["missing.pem"]).refusal(&reference);
    assert!(message.contains("missing.pem"), "{message}");
    let message = puller(&["ca.pem"]).refusal(&reference);
    assert!(message.contains("mica login"), "{message}");

    let docker = format!(
        r#"{{"auths": {{"{}": {{"username": "user", "password": "secret"}}}}}}"#,
        registry.host()
    );
    fs::write(path("config.json"), docker).unwrap();
    let puller = puller(&["ca.pem"]).credentials(Credentials::from_files([path("config.json")]));
    let pulled = puller.pull(&reference);
    assert_has(&puller.store, &pulled, &image);

    // With the password restored, under another name: the blobs are there, unchanged.
    let to = named(&registry, "copy:1");
    let mut pusher = Pusher::small();
    pusher.options.settings = puller.options.settings.clone();
    assert!(pusher.refusal(&to).contains("mica login"));
    pusher.options.credentials = puller.options.credentials.clone();
    pusher.push(&to);
    assert_eq!(puller.pull(&to).layers.len(), 3);
}

/// Copies an image from a registry to a layout; skopeo checks the image.
fn copied(reference: &Reference, directory: &Path, options: &[&str]) -> serde_json::Value {
    let layout = format!("oci:{}:x", directory.display());
    let skopeo = |arguments: &[&str]| {
        let output = Command::new("skopeo").args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        output.stdout
    };
    let source = format!("docker://{reference}");
    let copy = ["copy", "--quiet", "--insecure-policy"];
    skopeo(&[&copy, options, &[&source, &layout]].concat());
    let config = skopeo(&["inspect", "--config", &layout]);
    serde_json::from_slice(&config).unwrap()
}

/// A pushed image is accepted by the real registry, and pulled back by us and by skopeo.
#[test]
fn a_pushed_image_is_pulled_back() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let insecure = ["--src-tls-verify=false"];
    for compression in [Compression::Gzip, Compression::Zstd, Compression::None] {
        let mut pusher = Pusher::with(TestImage::new(vec![
            TestLayer::noise(1, 5 << 20),
            TestLayer::noise(2, 700),
            TestLayer::noise(1, 5 << 20),
        ]));
        pusher.options.compression = compression;
        let was = pusher.puller.store.image(&pusher.name).unwrap();
        let to = named(&registry, &format!("pushed/{compression}:1"));
        let pushed = pusher.push(&to);
        assert_eq!((pushed.layers, pushed.present), (3, 0));

        let puller = Puller::new();
        let is = puller.pull(&to);
        assert_eq!(is.manifest_digest, pushed.manifest_digest);
        assert_eq!(is.config_digest, was.config_digest);
        for (was, is) in was.layers.iter().zip(&is.layers) {
            assert_eq!(
                (was.diff_id, was.record.checksum),
                (is.diff_id, is.record.checksum)
            );
        }
        let config = copied(
            &to,
            &directory.path().join(compression.to_string()),
            &insecure,
        );
        let diff_ids: Vec<_> = was.layers.iter().map(|layer| layer.diff_id).collect();
        assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!(diff_ids));

        // Again, and with the pulled image: no blob needs to be sent, nothing changes.
        assert_eq!(pusher.push(&to).present, 3);
        let back = Pusher {
            name: to.to_string(),
            puller,
            ..Pusher::small()
        };
        let again = back.push(&named(&registry, &format!("pushed/{compression}:2")));
        assert_eq!(
            (again.manifest_digest, again.present),
            (pushed.manifest_digest, 3)
        );
        // Into another repository of the registry, blobs are mounted.
        let mounted = back.push(&named(&registry, &format!("mounted/{compression}:1")));
        assert_eq!(
            (mounted.manifest_digest, mounted.present),
            (pushed.manifest_digest, 3)
        );
        Puller::new().pull(&mounted.reference);
    }
}
