//! Large blobs, which are fetched in ranges on several connections.

use std::num::NonZero;
use std::ops::Range;
use std::time::Duration;

use micabox_image::ParallelLayers;
use micabox_testing::wait_until;
use micabox_transfer::Settings;

use crate::image::{TestImage, TestLayer};
use crate::server::{End, Registry, Reply, Request};
use crate::{Puller, assert_has};

pub const RANGE: usize = 8 << 20;
/// Where an answer breaks: in the middle of a range, and at the end of a piece.
const CUT: usize = 1 << 20;

/// An image with a layer of four ranges and some.
pub fn image() -> TestImage {
    TestImage::new(vec![TestLayer::noise(7, 4 * RANGE + 1000)])
}

/// The header's text of the ranges in which a layer should be requested.
fn ranges(image: &TestImage) -> Vec<String> {
    let total = image.layers[0].blob.len();
    let starts = (0..total).step_by(RANGE);
    starts
        .map(|start| format!("bytes={start}-{}", total.min(start + RANGE) - 1))
        .collect()
}

fn asked(requests: &[Request]) -> Vec<Option<&str>> {
    requests.iter().map(|one| one.header("range")).collect()
}

/// Answers a request for a range as a correct registry would.
pub fn part(range: &Range<usize>, blob: &[u8]) -> Reply {
    let header = format!("bytes {}-{}/{}", range.start, range.end - 1, blob.len());
    Reply::new(206, &blob[range.clone()]).header("content-range", header)
}

/// Spoils answers to the requests for the range that begins at `start`, as often as `times`.
pub fn spoil(
    registry: &Registry,
    image: &TestImage,
    start: usize,
    mut times: usize,
    fault: impl Fn(Range<usize>, &[u8]) -> Reply + Send + 'static,
) {
    let blob = image.layers[0].blob.clone();
    registry.rule(move |request| {
        let range = request.range(blob.len())?;
        let is_it = request.is_blob() && range.start == start && range.end - start <= RANGE;
        if !is_it || times == 0 {
            return None;
        }
        times -= 1;
        Some(fault(range, &blob))
    });
}

#[test]
fn a_large_blob_is_fetched_on_several_connections() {
    let image = image();
    let registry = Registry::with(&image);
    // The second range comes only if the third one is asked for beside it.
    registry.ranges_wait_for(3);
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert!(puller.retries().is_empty());
    let requests = registry.layer_requests(&image);
    let mut asked: Vec<_> = requests
        .iter()
        .map(|one| (one.range_start(), one.header("range").unwrap().to_owned()))
        .collect();
    asked.sort();
    let asked: Vec<_> = asked.into_iter().map(|(_, header)| header).collect();
    assert_eq!(asked, ranges(&image));
}

#[test]
fn one_connection_asks_for_no_ranges() {
    let image = image();
    let registry = Registry::with(&image);
    let puller = Puller::new()
        .edit_settings(|settings| settings.transfer.connections = NonZero::new(1).unwrap());
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    assert_eq!(asked(&registry.layer_requests(&image)), [None]);
    // Nor does a blob that is worth no second one.
    let small = TestImage::new(vec![TestLayer::noise(8, RANGE)]);
    let registry = Registry::with(&small);
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &small);
    assert_eq!(asked(&registry.layer_requests(&small)), [None]);
}

#[test]
fn a_registry_without_ranges_is_asked_for_one_once() {
    let layer = |seed| TestLayer::noise(seed, 2 * RANGE + 1000);
    let image = TestImage::new(vec![layer(1), layer(2)]);
    let registry = Registry::with(&image);
    registry.ignore_ranges();
    let puller = Puller::new().edit_settings(|settings| {
        settings.parallel_layers = ParallelLayers::new(1);
    });
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    let requests = registry.layer_requests(&image);
    let first = format!("bytes=0-{}", RANGE - 1);
    assert_eq!(asked(&requests), [Some(first.as_str()), None, None]);
    assert!(puller.retries().is_empty());
}

#[test]
fn wrong_answers_to_a_range_end_the_ranges() {
    let image = image();
    type Fault = fn(Range<usize>, &[u8]) -> Reply;
    let faults: [(&str, Fault); 9] = [
        ("another range", |range, blob| {
            part(&(range.start + 1..range.end + 1), blob)
        }),
        ("a shorter one", |range, blob| {
            part(&(range.start..range.end - 1), blob)
        }),
        ("a range of another blob", |range, blob| {
            let header = format!("bytes {}-{}/{}", range.start, range.end - 1, blob.len() + 1);
            Reply::new(206, &blob[range]).header("content-range", header)
        }),
        ("no range", |range, blob| Reply::new(206, &blob[range])),
        ("nonsense", |range, blob| {
            Reply::new(206, &blob[range]).header("content-range", "bytes x-y/z")
        }),
        ("several ranges", |range, blob| {
            let body = [b"--x\r\n\r\n".as_slice(), &blob[range], b"\r\n--x--"].concat();
            Reply::new(206, body).header("content-type", "multipart/byteranges; boundary=x")
        }),
        ("more than the range", |range, blob| {
            let mut reply = part(&range, blob);
            reply.body.extend([0; 1000]);
            reply.length = Some(reply.body.len());
            reply
        }),
        ("the whole blob", |_, blob| Reply::new(200, blob)),
        ("a refusal of the range", |_, blob| {
            Reply::new(416, "").header("content-range", format!("bytes */{}", blob.len()))
        }),
    ];
    for (what, fault) in faults {
        for start in [0, 2 * RANGE] {
            let registry = Registry::with(&image);
            spoil(&registry, &image, start, usize::MAX, fault);
            let puller = Puller::new();
            let pulled = puller.try_pull(&registry.reference("x:1"));
            let pulled = pulled.unwrap_or_else(|error| panic!("{what} at {start}: {error}"));
            puller.assert_has(&pulled, &image);
            assert!(puller.retries().is_empty(), "{what} at {start}");
            // One request for all that is missing follows. Ranges that were asked for before may arrive after it.
            let requests = registry.layer_requests(&image);
            let requests = asked(&requests);
            let mut ranges = requests.iter();
            let is_open = ranges.any(|range| range.as_ref().is_none_or(|r| r.ends_with('-')));
            assert!(is_open, "{what} at {start}: {requests:?}");
        }
    }
}

#[test]
fn a_range_that_breaks_is_asked_for_again_alone() {
    let image = image();
    type Fault = fn(Range<usize>, &[u8]) -> Reply;
    let faults: [(&str, Fault); 2] = [
        ("cut", |range, blob| part(&range, blob).cut(CUT, End::Close)),
        ("short", |range, blob| {
            let mut reply = part(&range, blob);
            reply.body.truncate(CUT);
            reply.length = Some(reply.body.len());
            reply
        }),
    ];
    for (what, fault) in faults {
        for start in [0, 3 * RANGE] {
            let registry = Registry::with(&image);
            spoil(&registry, &image, start, 1, fault);
            let puller = Puller::new();
            let pulled = puller.try_pull(&registry.reference("x:1"));
            let pulled = pulled.unwrap_or_else(|error| panic!("{what} at {start}: {error}"));
            puller.assert_has(&pulled, &image);
            assert_eq!(puller.retries().len(), 1, "{what} at {start}");
            let requests = registry.layer_requests(&image);
            let mut asked = asked(&requests);
            let again = format!("bytes={}-{}", start + CUT, start + RANGE - 1);
            let is_again = |one: &Option<&str>| *one == Some(&again);
            assert_eq!(asked.iter().filter(|one| is_again(one)).count(), 1);
            asked.retain(|one| !is_again(one));
            let expected = ranges(&image).len();
            assert_eq!(asked.len(), expected, "{what} at {start}: {asked:?}");
        }
    }
}

/// On a busy machine, other delays are taken for a stall as well: what else is asked for again does not matter. Three
/// of them in a row are too many for one pull, but not for each.
#[test]
fn a_range_that_stalls_is_asked_for_again() {
    let image = image();
    let pull = |fault: &dyn Fn(&Registry), edit: fn(&mut Settings)| {
        let mut requests = Vec::new();
        wait_until("a pull is not delayed three times in a row", || {
            let registry = Registry::with(&image);
            fault(&registry);
            let puller = Puller::new().edit_settings(edit);
            let pulled = match puller.try_pull(&registry.reference("x:1")) {
                Err(error) if error.to_string().contains("gave up after") => return false,
                pulled => pulled.unwrap(),
            };
            puller.assert_has(&pulled, &image);
            assert!(!puller.retries().is_empty());
            requests = registry.layer_requests(&image);
            true
        });
        requests
    };
    for start in [0, 3 * RANGE] {
        let last = start + RANGE - 1;
        // Stalls at the same byte from wherever in the range it is asked for.
        let stalls = |registry: &Registry| {
            let blob = image.layers[0].blob.clone();
            registry.rule(move |request| {
                let range = request.range(blob.len())?;
                let is_it = (start..start + CUT).contains(&range.start) && range.end == last + 1;
                let left = (start + CUT).saturating_sub(range.start);
                is_it.then(|| part(&range, &blob).cut(left, End::Stall))
            });
        };
        let idle = |settings: &mut Settings| {
            settings.transfer.idle_timeout = Duration::from_secs(1);
        };
        let requests = pull(&stalls, idle);
        let again = format!("bytes={}-{last}", start + CUT);
        let asked_for = asked(&requests);
        assert!(asked_for.contains(&Some(&again)), "{asked_for:?}");

        let says_nothing = |registry: &Registry| {
            spoil(registry, &image, start, 1, |range, blob| {
                part(&range, blob).cut(0, End::Silent)
            });
        };
        let silent = |settings: &mut Settings| {
            settings.transfer.idle_timeout = Duration::from_secs(1);
            settings.transfer.connect_timeout = Duration::from_secs(1);
        };
        let requests = pull(&says_nothing, silent);
        let again = format!("bytes={start}-{last}");
        let mut asked_for = asked(&requests);
        asked_for.retain(|one| *one == Some(&again));
        assert!(asked_for.len() > 1, "silent at {start}");
    }
}

#[test]
fn a_registry_that_refuses_ranges_or_many_requests_is_asked_for_the_rest_once() {
    let image = image();
    type Fault = fn(Range<usize>, &[u8]) -> Reply;
    let faults: [(&str, Fault); 10] = [
        ("400", |_, _| Reply::error(400, "no ranges")),
        ("401", |_, _| Reply::error(401, "no ranges")),
        ("403", |_, _| Reply::error(403, "no ranges")),
        ("404", |_, _| Reply::error(404, "no ranges")),
        ("405", |_, _| Reply::error(405, "no ranges")),
        ("204", |_, _| Reply::new(204, "")),
        ("a circle", |_, _| Reply::redirect("?")),
        ("500", |_, _| Reply::error(500, "out of order")),
        ("503", |_, _| {
            Reply::error(503, "busy").header("retry-after", "1")
        }),
        // Longer than any pause that is allowed.
        ("429", |_, _| {
            Reply::error(429, "slowly").header("retry-after", "3600")
        }),
    ];
    for (what, fault) in faults {
        for start in [0, 2 * RANGE] {
            let registry = Registry::with(&image);
            spoil(&registry, &image, start, usize::MAX, fault);
            let puller = Puller::new().edit_settings(|settings| {
                settings.transfer.longest_pause = Duration::from_secs(1);
            });
            let pulled = puller.try_pull(&registry.reference("x:1"));
            let pulled = pulled.unwrap_or_else(|error| panic!("{what} at {start}: {error}"));
            puller.assert_has(&pulled, &image);
            let requests = registry.layer_requests(&image);
            let whole = requests
                .iter()
                .filter(|one| one.header("range").is_none_or(|range| range.ends_with('-')));
            assert_eq!(
                whole.count(),
                1,
                "{what} at {start}: {:?}",
                asked(&requests)
            );
        }
    }
}

#[test]
fn a_layer_that_is_wrong_as_published_is_not_fetched_again() {
    let mut image = image();
    let wrong = "sha256:".to_owned() + &"1".repeat(64);
    let mut config: serde_json::Value = serde_json::from_slice(&image.config).unwrap();
    config["rootfs"]["diff_ids"][0] = wrong.into();
    image = TestImage::with_config(image.layers, &config);
    let registry = Registry::with(&image);
    let puller = Puller::new();
    let message = puller.refusal(&registry.reference("x:1"));
    assert!(message.contains("diff ID"), "{message}");
    assert!(puller.retries().is_empty(), "{:?}", puller.retries());
    assert_eq!(registry.layer_requests(&image).len(), ranges(&image).len());
}

#[test]
fn a_range_with_other_bytes_is_found_out_and_the_blob_fetched_whole() {
    let image = image();
    let lie = |range: Range<usize>, blob: &[u8]| {
        let mut reply = part(&range, blob);
        reply.body[RANGE / 2] ^= 1;
        reply
    };
    for start in [0, 2 * RANGE] {
        let registry = Registry::with(&image);
        spoil(&registry, &image, start, usize::MAX, lie);
        let puller = Puller::new();
        let pulled = puller.try_pull(&registry.reference("x:1"));
        let pulled = pulled.unwrap_or_else(|error| panic!("{start}: {error}"));
        assert_has(&puller.store, &pulled, &image);
        assert!(puller.retries().join(" ").contains("on one connection"));
        assert!(asked(&registry.layer_requests(&image)).contains(&None));
    }
    // Where the blob is damaged, that is the end.
    let registry = Registry::with(&image);
    let mut damaged = image.layers[0].blob.clone();
    damaged[3 * RANGE] ^= 1;
    let path = format!("/v2/x/blobs/{}", image.layers[0].digest());
    registry.put(&path, "application/octet-stream", damaged);
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("damaged"), "{message}");
    let requests = registry.layer_requests(&image);
    let whole = asked(&requests)
        .iter()
        .filter(|range| range.is_none())
        .count();
    assert_eq!(whole, 1);
}
