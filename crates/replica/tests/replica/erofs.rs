//! EROFS images that a server sends of a store's archives: a client's pull, lazily, and each range of each blob.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use micabox_image::convert::{Expect, Place, convert_layer};
use micabox_image::export::convert_image;
use micabox_image::progress::Silent;
use micabox_image::store::Image;
use micabox_image::{Digest, Limits, Reference, Store};
use micabox_replica::{Access, Replica, serve};
use micabox_transfer::{PullOptions, PullPolicy, Settings, complete_blocking, pull_blocking};
use serde_json::{Value, json};

/// An archive with one file.
fn archive(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    let mut field =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(0, name);
    field(100, "0000644\0");
    field(108, "0000000\0");
    field(116, "0000000\0");
    field(124, &format!("{:011o}\0", contents.len()));
    field(136, "00000000000\0");
    field(148, "        ");
    field(156, "0");
    field(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let padding = contents.len().next_multiple_of(512) - contents.len() + 1024;
    [&header[..], contents, &vec![0; padding]].concat()
}

/// Publishes an image of two layers, the second of which can't be compressed, as docker.io/team/box:1.
fn image(store: &Store) -> Image {
    let mut state = 1u64;
    let noise = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    });
    let layers = [
        archive("text", &b"compressible ".repeat(100_000)),
        archive("noise", &noise.take(3_000_001).collect::<Vec<_>>()),
    ];
    let diff_ids = layers.each_ref().map(|layer| Digest::of(layer));
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        let expect = Expect {
            blob: None,
            diff_id,
            archive: None,
            checksum: None,
        };
        convert_layer(store, &layer[..], &expect, &Limits::default()).unwrap();
    }
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = config.to_string().into_bytes();
    let entries = layers.iter().map(|layer| {
        json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": Digest::of(layer), "size": layer.len(),
        })
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": Digest::of(&config), "size": config.len(),
        },
        "layers": entries.collect::<Vec<_>>(),
    });
    let name = "docker.io/team/box:1".parse().unwrap();
    let manifest = manifest.to_string().into_bytes();
    store.publish_image(&manifest, &config, &[name]).unwrap()
}

/// Serves a store until the test's process ends, and returns the address.
fn served(store: &Store) -> String {
    let replica = Replica::new(
        store.clone(),
        true,
        Access::default(),
        None,
        None,
        Arc::new(|line: &str| eprintln!("{line}")),
    );
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            serve(replica, listener).await.unwrap();
        });
    });
    receiver.recv().unwrap().to_string()
}

/// Returns the status and the body.
fn get(host: &str, path: &str, more: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(host).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let end = reply
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8_lossy(&reply[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().to_owned();
    (status, reply[end + 4..].to_vec())
}

fn open(directory: &Path) -> Store {
    Store::open(&directory.join("store")).unwrap()
}

#[test]
fn archives_are_also_served_as_what_they_convert_to() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let image = image(&store);
    let converted = convert_image(&store, &image, &Silent).unwrap();
    let host = served(&store);
    let (status, index) = get(&host, "/v2/team/box/manifests/1", "");
    assert_eq!(status, "200");
    let index: Value = serde_json::from_slice(&index).unwrap();
    let digest = Digest::of(&converted.documents.manifest);
    assert_eq!(
        index["manifests"][0]["digest"],
        json!(image.manifest_digest)
    );
    assert_eq!(index["manifests"][1]["digest"], json!(digest));
    assert_eq!(
        index["manifests"][1]["platform"]["os.features"],
        json!(["erofs"])
    );
    let (_, manifest) = get(&host, &format!("/v2/team/box/manifests/{digest}"), "");
    assert!(manifest == converted.documents.manifest);
    for entry in &converted.images {
        let path = format!("/v2/team/box/blobs/{}", entry.blob.digest);
        let (status, whole) = get(&host, &path, "");
        assert_eq!(status, "200");
        assert_eq!(Digest::of(&whole), entry.blob.digest);
        let size = whole.len();
        for (first, last) in [
            (0, 0),
            (1, size / 2),
            (size / 3, size / 3 * 2),
            (size - 9, size + 9),
        ] {
            let range = format!("Range: bytes={first}-{last}\r\n");
            let (status, part) = get(&host, &path, &range);
            assert_eq!(status, "206");
            assert!(
                part == whole[first..size.min(last + 1)],
                "{first}-{last} of {size}"
            );
        }
    }
}

#[test]
fn a_client_begins_with_a_part_and_ends_with_the_same_layers() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let was = image(&store);
    let host = served(&store);
    let clients = tempfile::tempdir().unwrap();
    let client = open(clients.path());
    let settings = Settings {
        conversion: Place::Here,
        ..Settings::default()
    };
    let mut options = PullOptions::new(Arc::new(settings));
    options.lazy = true;
    options.policy = PullPolicy::Missing;
    options.platform = Some("linux/amd64".parse().unwrap());
    let name: Reference = format!("{host}/team/box:1").parse().unwrap();
    let image = pull_blocking(&client, &name, &options, Arc::new(Silent)).unwrap();
    assert!(image.is_lazy());
    complete_blocking(&image, &options, Arc::new(Silent)).unwrap();
    assert!(!image.is_lazy());
    for (was, is) in was.layers.iter().zip(&image.layers) {
        assert_eq!(was.record.checksum, is.record.checksum);
        assert!(std::fs::read(&was.path).unwrap() == std::fs::read(&is.path).unwrap());
    }
    // From here on, it is served as it came.
    let (_, manifest) = get(
        &served(&client),
        &format!("/v2/team/box/manifests/{}", image.manifest_digest),
        "",
    );
    assert_eq!(Digest::of(&manifest), image.manifest_digest);
}
