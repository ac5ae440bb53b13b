//! Archives and layouts of skopeo and umoci.

use std::path::Path;
use std::process::Command;

use super::bundle::{REF_NAME, layout, named, plain_layer};
use super::{Loader, assert_is};
use crate::image::{TestImage, TestLayer};

fn skopeo(directory: &Path, from: &str, to: &str) {
    let output = Command::new("skopeo")
        .args(["copy", "--quiet", "--insecure-policy", from, to])
        .current_dir(directory)
        .output()
        .expect("skopeo, of Debian's package of that name, is needed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn skopeo_copies_to_every_shape() {
    let layers = vec![
        plain_layer("a"),
        TestLayer::noise(1, 100_000),
        plain_layer("a"),
    ];
    let image = TestImage::new(layers);
    let directory = tempfile::tempdir().unwrap();
    layout(&[named(&image, REF_NAME, "1")], &[&image]).write_directory(directory.path());
    for (to, name) in [
        ("oci:layout:localhost/x:1", Some("localhost/x:1")),
        ("oci:bare:1", None),
        ("oci-archive:oci.tar:localhost/x:1", Some("localhost/x:1")),
        (
            "docker-archive:docker.tar:localhost/x:1",
            Some("localhost/x:1"),
        ),
        ("docker-archive:unnamed.tar", None),
    ] {
        skopeo(directory.path(), "oci:unpacked:1", to);
        let path = directory.path().join(to.split(':').nth(1).unwrap());
        let loader = Loader::new();
        let loaded = loader.load(&path, None);
        assert_eq!(loaded.len(), 1, "{to}");
        assert_is(&loaded[0], &image);
        match name {
            Some(name) => assert!(loader.store.image(name).is_ok(), "{to}"),
            None => assert!(loader.notices().contains("mica tag"), "{to}"),
        }
    }
}
