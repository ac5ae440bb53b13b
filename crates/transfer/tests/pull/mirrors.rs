//! Mirrors: asked first, skipped when they fail, and never trusted with altered bytes.

use micabox_registry::{Mirror, Registry as RegistrySettings};

use crate::Puller;
use crate::image::TestImage;
use crate::ranges::{self, RANGE};
use crate::server::{End, Registry, Reply};

/// A puller that asks `mirrors` before `origin`.
fn puller(origin: &Registry, mirrors: &[&str]) -> Puller {
    let mirrors = mirrors.iter().map(|host| Mirror {
        registry: (*host).to_owned(),
        prefix: "copies/".to_owned(),
        plain_http: true,
    });
    let table = RegistrySettings {
        mirrors: mirrors.collect(),
        ..Default::default()
    };
    Puller::new().edit_settings(|settings| {
        settings.registry.insert(origin.host(), table);
    })
}

/// A mirror that has the image, and its origin.
fn pair(image: &TestImage) -> (Registry, Registry) {
    let mirror = Registry::new();
    mirror.push("copies/x", "1", image);
    (mirror, Registry::with(image))
}

#[test]
fn a_mirror_that_has_the_image_is_all_that_is_asked() {
    let image = TestImage::small();
    let (mirror, origin) = pair(&image);
    let puller = puller(&origin, &[&mirror.host()]);
    puller.assert_has(&puller.pull(&origin.reference("x:1")), &image);
    assert!(origin.requests().is_empty());
    let namespace = format!("ns={}", origin.host().replace(':', "%3A"));
    assert!(
        mirror
            .requests()
            .iter()
            .all(|request| request.target.contains(&namespace))
    );
    // The image has another source, but the same name.
    assert!(
        puller
            .store
            .image(&origin.reference("x:1").to_string())
            .is_ok()
    );
}

#[test]
fn peers_are_asked_first_for_every_registry_and_one_that_is_gone_is_passed_over() {
    let image = TestImage::small();
    let registries = [(); 2].map(|()| Registry::with(&image));
    let peer = Registry::new();
    peer.push("x", "1", &image);
    let puller = Puller::new().edit_settings(|settings| {
        settings.peers = ["127.0.0.1:1", &peer.host()]
            .map(|host| Mirror {
                registry: host.to_owned(),
                prefix: String::new(),
                plain_http: true,
            })
            .into();
    });
    for registry in &registries {
        puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
        assert!(registry.requests().is_empty());
        let namespace = format!("ns={}", registry.host().replace(':', "%3A"));
        let asked = peer.requests();
        assert!(
            asked
                .iter()
                .any(|request| request.target.contains(&namespace))
        );
    }
    let notices = puller.notices();
    assert!(
        notices.contains("passing over mirror 127.0.0.1:1"),
        "{notices}"
    );
    // What it lacks comes from the registry; its own images are asked for once.
    let other = TestImage::large();
    registries[0].push("y", "1", &other);
    puller.assert_has(&puller.pull(&registries[0].reference("y:1")), &other);
    let before = peer.requests().len();
    assert!(puller.try_pull(&peer.reference("none:1")).is_err());
    assert_eq!(peer.requests().len(), before + 1);
}

#[test]
fn a_mirror_that_fails_is_passed_over() {
    let image = TestImage::small();
    for status in [401, 403, 404, 429, 500, 503] {
        let (mirror, origin) = pair(&image);
        mirror.rule(move |_| Some(Reply::error(status, "no")));
        let puller = puller(&origin, &["127.0.0.1:1", &mirror.host()]);
        puller.assert_has(&puller.pull(&origin.reference("x:1")), &image);
        let notices = puller.notices();
        for host in ["127.0.0.1:1", &mirror.host()] {
            assert!(
                notices.contains(&format!("passing over mirror {host}")),
                "{notices}"
            );
        }
    }
}

#[test]
fn the_registrys_own_error_counts_in_the_end() {
    let image = TestImage::small();
    let (_, origin) = pair(&image);
    origin.rule(|_| Some(Reply::error(404, "")));
    let message = puller(&origin, &["127.0.0.1:1"]).refusal(&origin.reference("x:1"));
    assert!(message.contains("no such image"), "{message}");
    assert!(
        message.contains(&format!("from {}", origin.host())),
        "{message}"
    );
}

#[test]
fn a_mirror_that_dies_midway_is_replaced_at_that_offset() {
    let image = TestImage::large();
    let (mirror, origin) = pair(&image);
    mirror.blob_fault(&image, 1, |_, reply| reply.cut(1_000_000, End::Close));
    mirror.blob_fault(&image, usize::MAX, |_, _| Reply::error(500, "gone"));
    let puller = puller(&origin, &[&mirror.host()]);
    puller.assert_has(&puller.pull(&origin.reference("x:1")), &image);
    let requests = origin.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].range_start(), Some(1_000_000));
}

#[test]
fn a_mirror_that_alters_bytes_ends_the_pull() {
    let image = TestImage::small();
    let (mirror, origin) = pair(&image);
    mirror.blob_fault(&image, usize::MAX, |_, mut reply| {
        reply.body[100] ^= 1;
        reply
    });
    let digest = image.digest();
    let message = puller(&origin, &[&mirror.host()]).refusal(&origin.reference("x:1"));
    assert!(message.contains(&mirror.host()), "{message}");
    assert!(message.contains("damaged"), "{message}");

    let (mirror, origin) = pair(&image);
    mirror.rule(|request| request.is_manifest().then(|| Reply::new(200, "{}")));
    let reference = origin.reference(&format!("x@{digest}"));
    let message = puller(&origin, &[&mirror.host()]).refusal(&reference);
    assert!(message.contains(&mirror.host()), "{message}");
    assert!(origin.requests().is_empty());
}

#[test]
fn a_dead_mirror_is_tried_once_for_an_image() {
    let image = TestImage::small();
    let (mirror, origin) = pair(&image);
    mirror.rule(|_| Some(Reply::error(500, "down")));
    let puller = puller(&origin, &[&mirror.host()]);
    puller.assert_has(&puller.pull(&origin.reference("x:1")), &image);
    // The manifest, twice; neither the config nor the layers.
    assert_eq!(mirror.requests().len(), 2);
}

#[test]
fn what_a_mirror_lacks_of_a_blob_comes_from_the_registry_from_there_on() {
    let image = ranges::image();
    let (mirror, origin) = pair(&image);
    ranges::spoil(&mirror, &image, RANGE, usize::MAX, |_, _| {
        Reply::error(404, "gone")
    });
    let puller = puller(&origin, &[&mirror.host()]);
    puller.assert_has(&puller.pull(&origin.reference("x:1")), &image);
    let requests = origin.layer_requests(&image);
    let mut starts = requests.iter().map(|one| one.range_start().unwrap());
    assert!(starts.all(|start| start >= RANGE), "{requests:?}");
}
