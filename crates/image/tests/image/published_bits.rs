//! The bits that an image becomes for registries, which are the same on every machine.

use micabox_image::Digest;
use micabox_image::export::{convert_image, zstd_version};
use micabox_image::identity::FORMAT;
use micabox_image::progress::Silent;

use crate::files::noise;
use crate::layer::archive::Archive;
use crate::layer::image::publish;
use crate::layer::store;

/// The digest of the manifest. It changes with the format of images and with zstd, and then only: what registries have was
/// made by other versions then.
const MADE_BY: (u32, &str) = (3, "1.5.7");
const MANIFEST: &str = "sha256:003b636dd545d74f1d7681e8a955879f7ddfcaa110ab26cc1fc310df09a03c6a";

#[test]
fn an_image_becomes_the_bits_that_it_has_become_elsewhere() {
    let store = store();
    let below = Archive::new()
        .file("etc/hostname", "box\n")
        .file("usr/lib/large", noise(1, 700_000))
        .file("usr/lib/text", "a line of it\n".repeat(40_000))
        .finish();
    let above = Archive::new()
        .file("etc/hostname", "another\n")
        .file("usr/lib/.wh.text", "")
        .finish();
    let image = publish(&store, &[below, above], "box");
    let conversion = convert_image(&store, &image, &Silent).unwrap();
    let manifest = Digest::of(&conversion.documents.manifest).to_string();
    let made_by = (FORMAT, &*zstd_version());
    assert_eq!((made_by, &*manifest), (MADE_BY, MANIFEST));
}
