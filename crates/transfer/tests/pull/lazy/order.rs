//! Orders of starts, beside their images.

use std::sync::Arc;

use micabox_erofs::ReadAt;
use micabox_image::Digest;
use micabox_lazy::Recorder;
use micabox_transfer::{PushOptions, push_start_order_blocking};
use serde_json::json;

use super::{converted, fetcher, image_served, lazy};
use crate::erofs::reference;

#[test]
fn the_order_of_a_start_travels_beside_the_image() {
    let converted = converted();
    let name = reference(&converted.registry, "app:1");
    let puller = lazy();
    let image = puller.pull(&name);
    let manifest = &image.manifest_digest;
    assert_eq!(puller.store.start_order(manifest), None);
    let options = PushOptions::new(Arc::clone(&puller.options.settings));
    let pushed = push_start_order_blocking(&puller.store, &name.to_string(), &options);
    let said = pushed.unwrap_err().to_string();
    assert!(said.contains("there is no order to push"), "{said}");

    let recorder = Arc::new(Recorder::default());
    let opened = fetcher(&puller)
        .open(&puller.store, &image.layers[3])
        .unwrap();
    let opened = opened.recorded(3, &recorder);
    let end = opened.size().unwrap();
    for offset in [0, end / 2, 0, end - 1] {
        opened.read_exact_at(&mut [0], offset).unwrap();
    }
    let order = recorder.order();
    assert_eq!(
        order
            .runs()
            .map(|(layer, run)| (layer, run.len()))
            .collect::<Vec<_>>(),
        [(3, 1); 3]
    );
    puller.store.keep_start_order(manifest, &order).unwrap();
    let pushed = push_start_order_blocking(&puller.store, &name.to_string(), &options).unwrap();

    let other = lazy();
    other.pull(&name);
    assert_eq!(other.store.start_order(manifest).as_ref(), Some(&order));
    assert_eq!(other.store.fsck(false).unwrap().findings, []);
    // It is no image.
    let said = lazy().try_pull(&pushed).unwrap_err().to_string();
    assert!(said.contains("vnd.micabox.start-order"), "{said}");

    // One that is no order, or of chunks that there are not, is not used.
    let tag = pushed.tag().unwrap().to_owned();
    for text in [
        r#"{"runs":[[9,9,9],[3,4294967295,4294967295]]}"#,
        "{",
        "[]",
        r#"{"runs":[[-1,0,0]]}"#,
    ] {
        let (registry, name) = image_served(&converted);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2},
            "layers": [],
            "annotations": {"org.micabox.start-order": text},
        });
        registry.put_manifest("app", &tag, manifest.to_string().into_bytes());
        assert!(lazy().pull(&name).is_lazy(), "{text}");
    }
}
