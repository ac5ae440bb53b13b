//! Registries that fail, lie or never end.

mod documents;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use micabox_image::Digest;
use micabox_testing::PATIENCE;
use micabox_transfer::PullError;
use serde_json::json;

use crate::image::{TestImage, TestLayer, index};
use crate::layer::archive::Archive;
use crate::server::{End, Registry, Reply, Request};
use crate::{Puller, assert_has};

/// Pulls `image` from a registry whose first response for its layer is spoiled by `fault`, and
/// asserts that the image arrives nonetheless. Returns the requests for the layer.
fn survives(
    registry: &Registry,
    image: &TestImage,
    fault: impl Fn(&Request, Reply) -> Reply + Send + 'static,
) -> Vec<Request> {
    registry.blob_fault(image, 1, fault);
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), image);
    assert!(!puller.retries().is_empty());
    registry.layer_requests(image)
}

const CUT: usize = 1_000_000;

#[test]
fn a_pull_that_breaks_is_resumed() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    let requests = survives(&registry, &image, |_, reply| reply.cut(CUT, End::Close));
    let ranges: Vec<_> = requests.iter().map(Request::range_start).collect();
    assert_eq!(ranges, [None, Some(CUT)]);
}

#[test]
fn a_pull_that_stalls_is_resumed() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    // Stalls at the same byte from wherever it is asked for: on a busy machine, a delay before that
    // is taken for a stall.
    registry.blob_fault(&image, usize::MAX, |request, reply| {
        let (start, total) = (request.range_start().unwrap_or(0), reply.body.len());
        let range = format!("bytes {start}-{}/{total}", total - 1);
        let status = if start == 0 { 200 } else { 206 };
        let part = Reply::new(status, &reply.body[start..]).header("content-range", range);
        match CUT.checked_sub(start) {
            Some(left @ 1..) => part.cut(left, End::Stall),
            _ => part,
        }
    });
    let puller = Puller::new().edit_settings(|settings| {
        settings.transfer.idle_timeout = Duration::from_secs(1);
    });
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert!(!puller.retries().is_empty());
    let requests = registry.layer_requests(&image);
    let ranges: Vec<_> = requests.iter().map(Request::range_start).collect();
    assert_eq!(ranges[0], None);
    assert!(ranges.contains(&Some(CUT)), "{ranges:?}");
}

#[test]
fn a_registry_may_ignore_ranges() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    registry.ignore_ranges();
    let requests = survives(&registry, &image, |_, reply| reply.cut(CUT, End::Close));
    assert_eq!(requests.len(), 2);
}

#[test]
fn a_break_without_a_promised_length_is_noticed() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    let requests = survives(&registry, &image, |_, reply| {
        reply.cut(CUT, End::Close).without_length()
    });
    assert_eq!(requests[1].range_start(), Some(CUT));
}

#[test]
fn wrong_answers_to_a_range_request_are_survived() {
    let image = TestImage::large();
    let total = image.layers[0].blob.len();
    let range = |start: usize| format!("bytes {start}-{}/{total}", total - 1);
    // (status, where the body begins, Content-Range)
    let answers = [
        (206, CUT - 1000, Some(range(CUT - 1000))),
        (206, CUT + 1000, Some(range(CUT + 1000))),
        (206, 0, Some(format!("bytes 0-{}/{total}", total - 1))),
        (206, CUT, Some(format!("bytes {CUT}-{}/*", total - 1))),
        (206, CUT, Some("nonsense".to_owned())),
        (206, CUT, None),
        (416, total, Some(format!("bytes */{total}"))),
    ];
    for (status, start, content_range) in answers {
        let registry = Registry::with(&image);
        registry.blob_fault(&image, 1, |_, reply| reply.cut(CUT, End::Close));
        let answer = content_range.clone();
        registry.blob_fault(&image, 1, move |request, reply| {
            assert_eq!(request.range_start(), Some(CUT));
            let part = Reply::new(status, &reply.body[start..]);
            match &answer {
                Some(range) => part.header("content-range", range),
                None => part,
            }
        });
        let puller = Puller::new();
        let pulled = puller.try_pull(&registry.reference("x:1"));
        let pulled = pulled.unwrap_or_else(|error| panic!("{content_range:?}: {error}"));
        puller.assert_has(&pulled, &image);
    }
}

#[test]
fn a_range_of_another_blob_is_found_out() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    registry.blob_fault(&image, 1, |_, reply| reply.cut(CUT, End::Close));
    registry.blob_fault(&image, 1, |_, reply| {
        let total = reply.body.len();
        let range = format!("bytes {CUT}-{}/{total}", total - 1);
        // Valid in every respect but its bytes.
        Reply::new(206, &reply.body[..total - CUT]).header("content-range", range)
    });
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("damaged"), "{message}");
}

#[test]
fn a_pull_without_progress_is_given_up() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    registry.ignore_ranges();
    // The same first bytes each time: a new connection, but no progress.
    registry.blob_fault(&image, usize::MAX, |_, reply| reply.cut(CUT, End::Close));
    let puller = Puller::new();
    let message = puller.refusal(&registry.reference("x:1"));
    assert!(message.contains("gave up after 6 attempts"), "{message}");
    assert!(
        message.contains(&image.layers[0].digest().to_string()),
        "{message}"
    );
    assert_eq!(registry.layer_requests(&image).len(), 6);
}

#[test]
fn progress_earns_new_attempts() {
    let image = TestImage::new(vec![TestLayer::noise(3, 12 << 20)]);
    let registry = Registry::with(&image);
    // More failures than attempts, but with progress between them.
    registry.blob_fault(&image, 10, |request, reply| {
        let start = request.range_start().unwrap_or(0);
        let total = reply.body.len();
        let range = format!("bytes {start}-{}/{total}", total - 1);
        let status = if start == 0 { 200 } else { 206 };
        let part = Reply::new(status, &reply.body[start..]);
        part.header("content-range", range)
            .cut((1 << 20) + 1, End::Close)
    });
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert_eq!(puller.retries().len(), 10);
}

#[test]
fn blobs_of_a_wrong_length_are_not_requested_again() {
    let image = TestImage::large();
    let total = image.layers[0].blob.len();
    let lies: [fn(Reply) -> Reply; 4] = [
        |mut reply| {
            reply.body.push(0);
            Reply::new(200, reply.body)
        },
        |mut reply| {
            reply.body.push(0);
            Reply::new(200, reply.body).without_length()
        },
        |mut reply| {
            reply.body.pop();
            Reply::new(200, reply.body)
        },
        |mut reply| {
            reply.length = None;
            reply.end = End::Endless;
            reply
        },
    ];
    for lie in lies {
        let registry = Registry::with(&image);
        registry.blob_fault(&image, usize::MAX, move |_, reply| lie(reply));
        let message = Puller::new().refusal(&registry.reference("x:1"));
        assert!(
            message.contains(&format!("manifest says {total}")),
            "{message}"
        );
        assert_eq!(registry.layer_requests(&image).len(), 1);
    }
}

#[test]
fn a_blob_may_come_in_many_short_parts() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    registry.blob_fault(&image, usize::MAX, |request, reply| {
        let (start, total) = (request.range_start().unwrap_or(0), reply.body.len());
        let end = (start + 100_000).min(total);
        let range = format!("bytes {start}-{}/{total}", end - 1);
        Reply::new(206, &reply.body[start..end]).header("content-range", range)
    });
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert!(puller.retries().is_empty());
    // Of a small blob the parts may be smaller.
    let small = TestImage::small();
    let registry = Registry::with(&small);
    registry.blob_fault(&small, usize::MAX, |request, reply| {
        let (start, total) = (request.range_start().unwrap_or(0), reply.body.len());
        let end = (start + 20).min(total);
        let range = format!("bytes {start}-{}/{total}", end - 1);
        Reply::new(206, &reply.body[start..end]).header("content-range", range)
    });
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &small);
    assert!(puller.retries().is_empty());
    // Parts of nothing are none.
    let registry = Registry::with(&image);
    registry.blob_fault(&image, usize::MAX, |request, reply| {
        let (start, total) = (request.range_start().unwrap_or(0), reply.body.len());
        let range = format!("bytes {start}-{start}/{total}");
        Reply::new(206, &reply.body[start..=start]).header("content-range", range)
    });
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("gave up after"), "{message}");
}

#[test]
fn altered_blobs_are_not_requested_again() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    registry.blob_fault(&image, usize::MAX, |_, mut reply| {
        let middle = reply.body.len() / 2;
        reply.body[middle] ^= 1;
        reply
    });
    let puller = Puller::new();
    let message = puller.refusal(&registry.reference("x:1"));
    for part in [
        "damaged or replaced",
        &registry.host(),
        &image.layers[0].digest().to_string(),
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(registry.layer_requests(&image).len(), 1);
    assert!(puller.retries().is_empty());
}

#[test]
fn a_layer_must_have_its_diff_id() {
    let mut layer = TestLayer::noise(1, 1000);
    layer.diff_id = Digest::of(b"something else");
    let registry = Registry::with(&TestImage::new(vec![layer]));
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("diff ID"), "{message}");
}

#[test]
fn temporary_errors_of_a_pull_are_retried() {
    let image = TestImage::small();
    for (status, header) in [
        (500, None),
        (502, None),
        (503, Some("0")),
        (429, Some("1")),
        (408, None),
    ] {
        let registry = Registry::with(&image);
        let count = AtomicUsize::new(0);
        // Every first request of a kind fails.
        registry.rule(move |request| {
            let failed = count.load(Ordering::Relaxed);
            let fails = matches!((request.is_manifest(), failed), (true, 0) | (false, 1));
            fails.then(|| {
                count.fetch_add(1, Ordering::Relaxed);
                let reply = Reply::error(status, "later");
                match header {
                    Some(pause) => reply.header("retry-after", pause),
                    None => reply,
                }
            })
        });
        let puller = Puller::new();
        puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
        assert!(puller.notices().contains("trying again"));
    }
}

#[test]
fn permanent_errors_say_what_to_do() {
    let image = TestImage::small();
    // (status, attempts, parts of the message)
    for (status, attempts, parts) in [
        (500, 6, ["answers 500", "gave up after 6 attempts"]),
        (429, 6, ["limits how often", "log in"]),
        (404, 1, ["no such image or tag", "a \"reason\""]),
        (403, 1, ["access denied", "a \"reason\""]),
        (418, 1, ["answers 418", "a \"reason\""]),
    ] {
        let registry = Registry::with(&image);
        registry.rule(move |_| Some(Reply::error(status, "a \"reason\"\u{1b}[31m\n")));
        let reference = registry.reference("x:1");
        let message = Puller::new().refusal(&reference);
        for part in parts.iter().chain([&reference.to_string().as_str()]) {
            assert!(message.contains(part), "{status}: {message}");
        }
        assert!(
            !message.contains('\u{1b}') && !message.contains('\n'),
            "{message:?}"
        );
        assert_eq!(registry.requests().len(), attempts, "{status}");
    }
}

#[test]
fn a_registrys_retry_after_is_bounded() {
    let registry = Registry::with(&TestImage::small());
    registry.rule(|_| Some(Reply::error(429, "").header("retry-after", "86400")));
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("pause of 86400 seconds"), "{message}");
    assert_eq!(registry.requests().len(), 1);
}

#[test]
fn a_registry_that_is_not_there_is_named() {
    let message = Puller::new().refusal(&"127.0.0.1:1/x:1".parse().unwrap());
    assert!(message.contains("cannot connect"), "{message}");
    assert!(message.contains("127.0.0.1:1"), "{message}");
}

#[test]
fn a_registry_that_accepts_and_says_nothing_is_left() {
    let registry = Registry::with(&TestImage::small());
    registry.rule(|_| {
        let mut silent = Reply::new(200, "");
        silent.length = Some(10);
        silent.end = End::Stall;
        Some(silent)
    });
    let puller = Puller::new().edit_settings(|settings| {
        settings.transfer.idle_timeout = Duration::from_millis(50);
        settings.transfer.attempts = 2;
    });
    let message = puller.refusal(&registry.reference("x:1"));
    assert!(message.contains("nothing arrived"), "{message}");
}

#[test]
fn a_pull_is_cancelled_while_its_registry_says_nothing() {
    let registry = Registry::with(&TestImage::small());
    let (asked, is_asked) = channel();
    registry.rule(move |_| {
        let _ = asked.send(());
        let mut silent = Reply::new(200, "");
        silent.length = Some(10);
        silent.end = End::Stall;
        Some(silent)
    });
    let puller = Puller::new().edit_settings(|settings| {
        settings.transfer.idle_timeout = Duration::from_secs(600);
    });
    let cancellation = puller.options.cancellation.clone();
    let canceller = std::thread::spawn(move || {
        is_asked.recv().unwrap();
        cancellation.cancel();
    });
    let begun = std::time::Instant::now();
    // The second one begins when it is cancelled already.
    for _ in 0..2 {
        let error = puller.try_pull(&registry.reference("x:1")).unwrap_err();
        assert!(matches!(error, PullError::Cancelled { .. }), "{error}");
    }
    assert!(begun.elapsed() < PATIENCE);
    canceller.join().unwrap();
}

#[test]
fn a_missing_blob_is_named() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let lost = image.layers[1].digest().to_string();
    let part = lost.clone();
    registry.rule(move |request| {
        request
            .target
            .contains(&lost)
            .then(|| Reply::error(404, "blob unknown"))
    });
    // The other layer may have made it into the store.
    let error = Puller::new()
        .try_pull(&registry.reference("x:1"))
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains(&part) && message.contains("lacks"),
        "{message}"
    );
}

#[test]
fn one_layers_failure_ends_the_others() {
    let image = TestImage::new(vec![
        TestLayer::noise(1, 100_000),
        TestLayer::noise(2, 100_000),
    ]);
    let registry = Registry::with(&image);
    let (stalls, fails) = (image.layers[0].digest(), image.layers[1].digest());
    registry.gather(2);
    let blob = image.layers[0].blob.clone();
    registry.rule(move |request| {
        if request.target.contains(&stalls.to_string()) {
            return Some(Reply::new(200, blob.clone()).cut(50_000, End::Stall));
        }
        request
            .target
            .contains(&fails.to_string())
            .then(|| Reply::error(404, ""))
    });
    // The pull doesn't wait for the stalled layer.
    let puller = Puller::new().edit_settings(|settings| {
        settings.transfer.idle_timeout = Duration::from_secs(86_400);
    });
    let message = puller.refusal(&registry.reference("x:1"));
    assert!(message.contains("lacks"), "{message}");
}

#[test]
fn a_bad_archive_ends_the_transfer() {
    // The blob is the manifest's, but not an archive.
    let mut layer = TestLayer::gzip(&[0xff; 4 << 20]);
    layer.media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
    let registry = Registry::with(&TestImage::new(vec![layer]));
    let puller = Puller::new();
    let error = puller.try_pull(&registry.reference("x:1")).unwrap_err();
    assert!(matches!(error, PullError::Layer { .. }), "{error}");
    crate::layer::assert_no_trace(&puller.store);
}

#[test]
fn a_dropped_pull_is_a_cancelled_one() {
    let image = TestImage::large();
    let registry = Registry::with(&image);
    registry.blob_fault(&image, 1, |_, reply| reply.cut(CUT, End::Stall));
    let puller = Puller::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let reference = registry.reference("x:1");
    runtime.block_on(async {
        let progress: Arc<dyn micabox_image::Progress> = puller.progress.clone();
        let pull = micabox_transfer::pull(&puller.store, &reference, &puller.options, progress);
        tokio::pin!(pull);
        loop {
            let step = Duration::from_millis(5);
            assert!(tokio::time::timeout(step, &mut pull).await.is_err());
            if !puller.progress.received.lock().unwrap().is_empty() {
                break;
            }
        }
    });
    // Waits for the conversion's thread, which must end by itself.
    drop(runtime);
    crate::layer::assert_no_trace(&puller.store);
    assert_has(&puller.store, &puller.pull(&reference), &image);
}

#[test]
fn a_layer_may_be_elsewhere_but_only_over_tls() {
    let archive = Archive::new().file("a", "b").finish();
    let mut layer = TestLayer::gzip(&archive);
    layer.media_type = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip";
    let image = TestImage::new(vec![layer]);
    // A registry that holds the blob though it need not.
    let registry = Registry::with(&image);
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);

    let elsewhere = Registry::new();
    let mut foreign = image.clone();
    let urls = json!([format!("{}/layer", elsewhere.url())]);
    foreign.edit_manifest(|manifest| manifest["layers"][0]["urls"] = urls);
    let registry = Registry::with(&foreign);
    let config = Digest::of(&foreign.config).to_string();
    registry.rule(move |request| {
        let lost = request.is_blob() && !request.target.contains(&config);
        lost.then(|| Reply::error(404, ""))
    });
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("not an https address"), "{message}");
    // Nor is it looked for where the manifest says, if that is not to be.
    let mut bound = Puller::new();
    bound.options.layers_from_elsewhere = false;
    let message = bound.refusal(&registry.reference("x:1"));
    assert!(!message.contains("https address"), "{message}");
    assert!(elsewhere.requests().is_empty());
}
