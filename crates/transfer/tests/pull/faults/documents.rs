//! Documents of images that are wrong: sizes, digests, encodings, shapes.

use super::*;

#[test]
fn documents_in_an_encoding_that_was_not_asked_for_are_read() {
    let image = TestImage::small();
    let encode = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    };
    let config = Digest::of(&image.config).to_string();
    let bodies = [encode(&image.manifest), encode(&image.config)];
    let registry = Registry::with(&image);
    registry.rule(move |request| {
        let body = if request.is_manifest() {
            &bodies[0]
        } else if request.target.contains(&config) {
            &bodies[1]
        } else {
            return None;
        };
        Some(Reply::new(200, body.clone()).header("content-encoding", "gzip"))
    });
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    // A bomb is a document that is too large.
    let bomb = encode(&vec![b' '; 5 << 20]);
    let registry = Registry::with(&image);
    registry.rule(move |request| {
        let reply = Reply::new(200, bomb.clone()).header("content-encoding", "gzip");
        request.is_manifest().then_some(reply)
    });
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("larger than 4194304 bytes"), "{message}");
}

#[test]
fn a_web_page_in_place_of_any_part_of_an_image_is_called_so() {
    let image = TestImage::small();
    let page = "\n<!DOCTYPE html><html>Please log in to the hotel's network</html>";
    let parts: [fn(&Request, &str) -> bool; 3] = [
        |request, _| request.is_manifest(),
        |request, config| request.target.contains(config),
        |request, config| request.is_blob() && !request.target.contains(config),
    ];
    for (part, length) in parts.into_iter().zip([true, true, false]) {
        let registry = Registry::with(&image);
        let config = Digest::of(&image.config).to_string();
        registry.rule(move |request| {
            let reply = Reply::new(200, page).header("content-type", "text/html; charset=utf-8");
            let reply = if length {
                reply
            } else {
                reply.without_length()
            };
            part(request, &config).then_some(reply)
        });
        let message = Puller::new().refusal(&registry.reference("x:1"));
        assert!(message.contains("it sends a web page"), "{message}");
    }
    let registry = Registry::with(&image);
    registry.rule(move |_| Some(Reply::new(511, page).header("content-type", "text/html")));
    let puller = Puller::new().edit_settings(|settings| settings.transfer.attempts = 1);
    let message = puller.refusal(&registry.reference("x:1"));
    assert!(
        message.contains("511 (Network Authentication Required)"),
        "{message}"
    );
}

#[test]
fn sizes_of_documents_are_those_of_the_index_and_the_manifest() {
    let image = TestImage::small();
    let mut entry = image.entry(None);
    entry["size"] = json!(image.manifest.len() + 1);
    let registry = Registry::with(&image);
    registry.put_manifest("x", "index", index(&[entry]));
    let message = Puller::new().refusal(&registry.reference("x:index"));
    assert!(message.contains("but the manifest says"), "{message}");
    let mut lying = image;
    lying.edit_manifest(|manifest| manifest["config"]["size"] = json!(1));
    let registry = Registry::with(&lying);
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("but the manifest says 1"), "{message}");
}

#[test]
fn an_index_may_have_members_that_are_no_images() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let mut chart = TestImage::large();
    chart.edit_manifest(|manifest| {
        manifest["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json");
    });
    registry.push("x", "chart", &chart);
    let mut device = TestImage::small();
    device.edit_manifest(|manifest| {
        manifest["layers"][0]["annotations"] = json!({"org.erofs.role": "device"});
    });
    registry.push("x", "device", &device);
    let host = micabox_image::Platform::host().to_string();
    let entries = [
        json!("x"),
        json!({"mediaType": "x/y", "digest": "sha512:00"}),
        device.entry(Some(&host)),
        chart.entry(None),
        image.entry(None),
    ];
    registry.put_manifest("x", "index", index(&entries));
    let puller = Puller::new();
    let reference = registry.reference(&format!("x@{}", Digest::of(&index(&entries))));
    puller.assert_has(&puller.pull(&reference), &image);
    // A name by the index's digest is the image's, and stays so where it is in the store.
    assert!(puller.store.image(&reference.to_string()).is_ok());
    puller.assert_has(&puller.pull(&reference), &image);
    // Without an image it says what was wrong with the one for this machine.
    registry.put_manifest("x", "none", index(&entries[..4]));
    let message = Puller::new().refusal(&registry.reference("x:none"));
    assert!(message.contains("the role `device`"), "{message}");
}

#[test]
fn documents_must_have_their_digests() {
    let image = TestImage::small();
    let config = Digest::of(&image.config).to_string();
    let digest = image.digest();
    let altered = |bytes: &[u8]| [bytes, b" "].concat();

    let registry = Registry::with(&image);
    let bytes = altered(&image.manifest);
    registry.rule(move |request| {
        request
            .is_manifest()
            .then(|| Reply::new(200, bytes.clone()))
    });
    let message = Puller::new().refusal(&registry.reference(&format!("x@{digest}")));
    assert!(
        message.contains(&format!("instead of {digest}")),
        "{message}"
    );
    assert_eq!(registry.requests().len(), 1);

    let registry = Registry::with(&image);
    let bytes = altered(&image.manifest);
    registry.rule(move |request| {
        let reply = Reply::new(200, bytes.clone());
        let reply = reply.header("docker-content-digest", digest.to_string());
        request.is_manifest().then_some(reply)
    });
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("damaged or replaced"), "{message}");

    let registry = Registry::with(&image);
    let bytes = altered(&image.config);
    registry.rule(move |request| {
        request
            .target
            .contains(&config)
            .then(|| Reply::new(200, bytes.clone()))
    });
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(
        message.contains("config") && message.contains("damaged"),
        "{message}"
    );
}

#[test]
fn endless_documents_are_cut_off() {
    let image = TestImage::small();
    let config = Digest::of(&image.config).to_string();
    for (which, length) in [
        ("manifests", None),
        ("manifests", Some(5 << 20)),
        (&config, None),
    ] {
        let registry = Registry::with(&image);
        let which = which.to_owned();
        registry.rule(move |request| {
            let mut reply = Reply::new(200, "{");
            reply.length = length;
            reply.end = End::Endless;
            request.target.contains(&which).then_some(reply)
        });
        let message = Puller::new().refusal(&registry.reference("x:1"));
        assert!(message.contains("larger than 4194304 bytes"), "{message}");
    }
    let mut image = image;
    image.edit_manifest(|manifest| manifest["config"]["size"] = json!(u64::MAX));
    let registry = Registry::with(&image);
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("larger than"), "{message}");
}

#[test]
fn documents_that_are_not_images_are_refused_by_name() {
    let registry = Registry::new();
    let mut chart = TestImage::small();
    chart.edit_manifest(|manifest| {
        manifest["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json");
    });
    registry.push("x", "chart", &chart);
    let mut uneven = TestImage::small();
    uneven.edit_manifest(|manifest| {
        manifest["layers"].as_array_mut().unwrap().pop();
    });
    registry.push("x", "uneven", &uneven);
    let schema1 = json!({"schemaVersion": 1, "name": "x", "tag": "1", "fsLayers": []});
    let documents = [
        ("schema1", schema1.to_string()),
        (
            "html",
            "<html>Please log in to the hotel's network</html>".to_owned(),
        ),
        ("empty", String::new()),
        (
            "escape",
            r#"{"schemaVersion":2,"mediaType":"\u001b[2Jx"}"#.to_owned(),
        ),
        ("nothing", String::from_utf8(index(&[])).unwrap()),
    ];
    for (tag, document) in documents {
        registry.put_manifest("x", tag, document.into_bytes());
    }
    for (tag, part) in [
        ("chart", "helm"),
        ("uneven", "1 layers, its config 2"),
        ("schema1", "schema 1"),
        ("html", "it sends a web page"),
        ("empty", "it is empty"),
        ("escape", "neither an image nor an index"),
        ("nothing", "names no image"),
    ] {
        let message = Puller::new().refusal(&registry.reference(&format!("x:{tag}")));
        assert!(message.contains(part), "{tag}: {message}");
        assert!(!message.contains('\u{1b}'), "{message:?}");
    }
}

#[test]
fn an_index_of_itself_ends() {
    let registry = Registry::new();
    // No document can hold its own digest, but many can refer to each other.
    let mut bytes = index(&[]);
    for _ in 0..10 {
        let entry = json!({
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "digest": Digest::of(&bytes), "size": bytes.len(),
        });
        registry.put_manifest("x", "inner", bytes);
        bytes = index(&[entry]);
    }
    registry.put_manifest("x", "deep", bytes);
    let message = Puller::new().refusal(&registry.reference("x:deep"));
    assert!(message.contains("too deeply"), "{message}");
}
