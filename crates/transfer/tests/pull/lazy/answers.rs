//! Answers of registries to requests for parts of layers.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use micabox_image::progress::Silent;
use micabox_testing::wait_until;
use micabox_transfer::complete_blocking;

use super::{converted, image_served, lazy, read};
use crate::server::{End, Registry, Reply, Request};

/// Answers requests for parts of blobs that begin like this otherwise than a registry.
fn part_fault(
    registry: &Registry,
    begins: impl Fn(usize) -> bool + Send + 'static,
    fault: impl Fn(&Request) -> Reply + Send + 'static,
) {
    registry.rule(move |request| {
        let start = request.range_start().filter(|_| request.is_blob())?;
        begins(start).then(|| fault(request))
    });
}

fn other_range(request: &Request) -> Reply {
    let range = request.range(usize::MAX).unwrap();
    let length = range.end - range.start;
    let header = format!("bytes {}-{}/*", range.start + 1, range.end);
    Reply::new(206, vec![0; length]).header("content-range", header)
}

fn other_bytes(request: &Request) -> Reply {
    let range = request.range(usize::MAX).unwrap();
    let length = range.end - range.start;
    let header = format!("bytes {}-{}/*", range.start, range.end - 1);
    Reply::new(206, vec![0x5a; length]).header("content-range", header)
}

fn several_ranges(request: &Request) -> Reply {
    let range = request.range(usize::MAX).unwrap();
    let head = format!(
        "--x\r\ncontent-range: bytes {}-{}/*\r\n\r\n",
        range.start,
        range.end - 1
    );
    let body = [head.as_bytes(), &vec![0x5a; range.len()], b"\r\n--x--\r\n"].concat();
    Reply::new(206, body).header("content-type", "multipart/byteranges; boundary=x")
}

fn unsaid_range(request: &Request) -> Reply {
    let range = request.range(usize::MAX).unwrap();
    Reply::new(206, vec![0x5a; range.len()])
}

fn no_range(_: &Request) -> Reply {
    Reply::new(416, "").header("content-range", "bytes */1")
}

#[test]
fn a_registry_that_has_no_ranges_gives_the_whole_image() {
    let converted = converted();
    let (registry, name) = image_served(&converted);
    registry.ignore_ranges();
    let puller = lazy();
    assert!(!puller.pull(&name).is_lazy());
    let notices = puller.progress.notices.lock().unwrap().join("\n");
    assert!(notices.contains("it sends no parts of layers"), "{notices}");
}

#[test]
fn other_bytes_than_the_index_says_are_never_read() {
    let converted = converted();
    // While the image is pulled.
    type Begins = fn(usize) -> bool;
    type Fault = fn(&Request) -> Reply;
    let parts: [(Begins, &str); 2] = [
        (|start| start > 0, "its chunk index has the digest"),
        (
            |start| start == 0,
            "chunk 0 has another checksum than its index says",
        ),
    ];
    for (begins, part) in parts {
        let (registry, name) = image_served(&converted);
        part_fault(&registry, begins, other_bytes);
        let said = lazy().try_pull(&name).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        let from = format!("(the blob came from {})", name.registry());
        assert!(said.contains(&from), "{from}: {said}");
    }
    // Later, in each way.
    let faults: [(Fault, &str); 8] = [
        (several_ranges, "it sends no parts of layers"),
        (unsaid_range, "it sends no parts of layers"),
        (no_range, "it sends no parts of layers"),
        (
            other_bytes,
            "another checksum than its index says, from 127.0.0.1:",
        ),
        (other_range, "it sends no parts of layers"),
        (
            |_| Reply::new(200, vec![0x5a; 1 << 20]),
            "it sends no parts of layers",
        ),
        (|_| Reply::error(404, "gone"), "it lacks this part"),
        (|_| Reply::error(403, "expired"), "access denied"),
    ];
    for (fault, part) in faults {
        let (registry, name) = image_served(&converted);
        let puller = lazy();
        let image = puller.pull(&name);
        part_fault(&registry, |_| true, fault);
        let said = read(&puller, &image.layers[3]).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        let completed = complete_blocking(&image, &puller.options, Arc::new(Silent));
        let said = completed.unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    }
}

#[test]
fn answers_that_are_no_part_give_the_whole_image() {
    let converted = converted();
    type Fault = fn(&Request) -> Reply;
    let faults: [Fault; 4] = [several_ranges, unsaid_range, no_range, other_range];
    for (number, fault) in faults.into_iter().enumerate() {
        let (registry, name) = image_served(&converted);
        part_fault(&registry, |_| true, fault);
        let puller = lazy();
        let image = puller.pull(&name);
        assert!(!image.is_lazy(), "{number}");
        let notices = puller.notices();
        assert!(notices.contains("it sends no parts of layers"), "{notices}");
        assert_eq!(puller.store.fsck(false).unwrap().findings, []);
    }
}

#[test]
fn each_part_is_asked_for_by_a_link_of_its_own() {
    // As from a storage whose links expire: each is good for one request, and the first for a part breaks.
    let converted = converted();
    let (registry, name) = image_served(&converted);
    let mut links = 0;
    let mut used = HashSet::new();
    let mut broken = HashSet::new();
    let blobs: HashMap<String, Vec<u8>> = converted.manifest()["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| layer["digest"].as_str().unwrap().to_owned())
        .map(|digest| (digest.clone(), converted.blob(&digest)))
        .collect();
    registry.rule(move |request| {
        let range = request.range(usize::MAX).filter(|_| request.is_blob())?;
        let Some((path, link)) = request.target.split_once("?link=") else {
            links += 1;
            return Some(Reply::redirect(format!("{}?link={links}", request.target)));
        };
        if !used.insert(link.to_owned()) {
            return Some(Reply::error(403, "expired"));
        }
        if range.len() < 2 || !broken.insert((path.to_owned(), range.end)) {
            return None;
        }
        let blob = &blobs[path.rsplit('/').next().unwrap()];
        let header = format!("bytes {}-{}/{}", range.start, range.end - 1, blob.len());
        let reply = Reply::new(206, &blob[range.clone()]).header("content-range", header);
        Some(reply.cut(range.len() / 2, End::Close))
    });
    let puller = lazy();
    let image = puller.pull(&name);
    assert!(image.is_lazy());
    complete_blocking(&image, &puller.options, Arc::new(Silent)).unwrap();
    assert!(!image.is_lazy());
    assert_eq!(puller.store.fsck(false).unwrap().findings, []);
}

#[test]
fn a_part_that_fails_ends_those_that_are_fetched_beside_it() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        print(panicked);
    }));
    let converted = converted();
    let (registry, name) = image_served(&converted);
    let puller = lazy();
    let image = puller.pull(&name);
    let mut large = 0;
    registry.rule(move |request| {
        let range = request
            .range(usize::MAX)
            .filter(|range| range.len() > 1 << 20)?;
        large += 1;
        // The first one is still waited for when the second one lies.
        let reply = other_bytes(request);
        Some(if large == 1 {
            reply.cut(range.len() / 2, End::Stall)
        } else {
            reply
        })
    });
    let completed = complete_blocking(&image, &puller.options, Arc::new(Silent));
    let said = completed.unwrap_err().to_string();
    assert!(said.contains("another checksum"), "{said}");
    wait_until("no thread fetches", || {
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let mut names =
            threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        !names.any(|name| name.starts_with("mica-pull"))
    });
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}
