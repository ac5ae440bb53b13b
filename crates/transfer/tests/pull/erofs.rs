//! Images that are pushed as EROFS images as well: what the tools of others make of them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_chunk::Index;
use micabox_image::convert::Place;
use micabox_image::{Digest, ImageEdit, Limits, Reference, append_layer};
use micabox_testing::image::layers;
use micabox_testing::mounts::{Mount, directory_on_disk};
use micabox_testing::{DockerRegistry, run};
use micabox_transfer::{PullPolicy, Pushed};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Puller;
use crate::image::{TestImage, TestLayer};
use crate::push::Pusher;
use crate::server::Registry;

/// An image in a registry, in both forms.
pub struct Converted {
    pub directory: TempDir,
    pub registry: DockerRegistry,
    pub pusher: Pusher,
    pub pushed: Pushed,
}

/// An EROFS image of a registry, uncompressed.
struct Unpacked {
    path: PathBuf,
    annotations: Value,
    /// Length of the filesystem, which its hash tree follows.
    length: u64,
}

/// cryptsetup's program, which Debian keeps out of a user's PATH.
fn veritysetup() -> Command {
    let mut command = Command::new("veritysetup");
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command
}

pub fn reference(registry: &DockerRegistry, rest: &str) -> Reference {
    format!("{}/{rest}", registry.host()).parse().unwrap()
}

fn test_image() -> TestImage {
    let [base, middle, top] = layers().try_into().unwrap();
    // One layer twice, as empty ones are.
    let layers = [&base, &middle, &top, &top];
    // Without a level of this machine's processor, which skopeo would not take.
    TestImage::for_platform(
        layers.map(|layer| TestLayer::gzip(layer)).into(),
        &"linux/amd64".parse().unwrap(),
    )
}

impl Converted {
    fn new() -> Self {
        Self::of(test_image())
    }

    pub fn of(image: TestImage) -> Self {
        let directory = directory_on_disk();
        let registry = DockerRegistry::start(directory.path(), "");
        let mut pusher = Pusher::with(image);
        pusher.options.erofs = true;
        let pushed = pusher.push(&reference(&registry, "app:1"));
        Self {
            directory,
            registry,
            pusher,
            pushed,
        }
    }

    /// Returns a document or blob as the registry has it on disk.
    pub fn blob(&self, digest: &str) -> Vec<u8> {
        let hex = digest.strip_prefix("sha256:").unwrap();
        let blobs = "registry/docker/registry/v2/blobs/sha256";
        let path = self.directory.path().join(blobs).join(&hex[..2]).join(hex);
        fs::read(path.join("data")).unwrap()
    }

    fn json(&self, digest: &str) -> Value {
        serde_json::from_slice(&self.blob(digest)).unwrap()
    }

    /// Returns the manifest of the EROFS images.
    pub fn manifest(&self) -> Value {
        let erofs = self.pushed.erofs.as_ref().unwrap();
        self.json(&erofs.manifest_digest.to_string())
    }

    /// Inflates the EROFS images with zstd's own program.
    fn unpacked(&self) -> Vec<Unpacked> {
        let manifest = self.manifest();
        let layers = manifest["layers"].as_array().unwrap().iter().enumerate();
        layers
            .map(|(number, layer)| {
                let blob = self.directory.path().join(format!("{number}.zst"));
                fs::write(&blob, self.blob(layer["digest"].as_str().unwrap())).unwrap();
                run(Command::new("zstd")
                    .args(["--quiet", "--force", "-d"])
                    .arg(&blob));
                let annotations = layer["annotations"].clone();
                let length = &annotations["org.erofs.dmverity.hash_offset"];
                Unpacked {
                    path: blob.with_extension(""),
                    length: length.as_str().unwrap().parse().unwrap(),
                    annotations,
                }
            })
            .collect()
    }
}

#[test]
fn clients_that_know_nothing_of_erofs_take_the_archives() {
    let converted = Converted::new();
    let (registry, pushed) = (&converted.registry, &converted.pushed);
    let name = format!("docker://{}/app:1", registry.host());
    let skopeo = |words: &[&str]| run(Command::new("skopeo").args(words));
    let index: Value =
        serde_json::from_str(&skopeo(&["inspect", "--raw", "--tls-verify=false", &name])).unwrap();
    let [archives, images] =
        <[Value; 2]>::try_from(index["manifests"].as_array().unwrap().clone()).unwrap();
    let erofs = pushed.erofs.as_ref().unwrap();
    assert_eq!(archives["digest"], json!(pushed.manifest_digest));
    assert_eq!(images["digest"], json!(erofs.manifest_digest));
    assert_eq!(archives["platform"]["os.features"], Value::Null);
    assert_eq!(images["platform"]["os.features"], json!(["erofs"]));
    assert_eq!(
        archives["platform"]["architecture"],
        images["platform"]["architecture"]
    );

    let layout = converted.directory.path().join("layout");
    let to = format!("oci:{}:x", layout.display());
    skopeo(&[
        "copy",
        "--quiet",
        "--insecure-policy",
        "--src-tls-verify=false",
        &name,
        &to,
    ]);
    let config: Value = serde_json::from_str(&skopeo(&["inspect", "--config", &to])).unwrap();
    assert_eq!(config["os.features"], Value::Null);
    let diff_ids = converted
        .pusher
        .image
        .layers
        .iter()
        .map(|layer| layer.diff_id);
    assert_eq!(
        config["rootfs"]["diff_ids"],
        json!(diff_ids.collect::<Vec<_>>())
    );

    let puller = Puller::new();
    let pulled = puller.pull(&reference(registry, "app:1"));
    assert_eq!(pulled.manifest_digest, pushed.manifest_digest);
    // skopeo copies both forms, and all blobs are what their digests say.
    let all = [
        "copy",
        "--all",
        "--quiet",
        "--insecure-policy",
        "--preserve-digests",
    ];
    let insecure = ["--src-tls-verify=false", "--dest-tls-verify=false"];
    let copy = format!("docker://{}/copy:1", registry.host());
    skopeo(&[&all[..], &insecure, &[&name, &copy]].concat());
}

#[test]
fn what_is_pushed_is_what_the_specification_says() {
    let converted = Converted::new();
    let manifest = converted.manifest();
    let config = converted.json(manifest["config"]["digest"].as_str().unwrap());
    assert_eq!(config["os.features"], json!(["erofs"]));
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 5);
    assert_eq!(layers[2], layers[3]);
    let unpacked = converted.unpacked();
    let uncompressed: Vec<_> = layers
        .iter()
        .map(|layer| &layer["annotations"]["org.erofs.uncompressed-digest"])
        .collect();
    assert_eq!(config["rootfs"]["diff_ids"], json!(uncompressed));
    for (number, (layer, image)) in layers.iter().zip(&unpacked).enumerate() {
        assert_eq!(layer["mediaType"], "application/vnd.erofs+zstd");
        let bytes = fs::read(&image.path).unwrap();
        let annotation = |name: &str| image.annotations[name].as_str().unwrap();
        assert_eq!(
            annotation("org.erofs.uncompressed-digest"),
            Digest::of(&bytes).to_string()
        );
        let role = &image.annotations["org.erofs.role"];
        assert_eq!(
            *role,
            if number < 4 {
                json!("device")
            } else {
                Value::Null
            }
        );

        let path = image.path.to_str().unwrap();
        let root = annotation("org.erofs.dmverity.root_digest");
        let root = root.strip_prefix("sha256:").unwrap();
        let offset = format!("--hash-offset={}", image.length);
        run(veritysetup().args(["verify", path, path, root, &offset]));
        assert_eq!(annotation("org.erofs.dmverity.block_size"), "4096");

        // One chunk after the other, read alone.
        let blob = converted.blob(layer["digest"].as_str().unwrap());
        let (start, end) = annotation("org.erofs.chunk-index.range")
            .split_once(':')
            .unwrap();
        let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
        assert_eq!((start % 4, end), (0, blob.len()));
        assert_eq!(blob[start..start + 4], 0x184d_2a50u32.to_le_bytes());
        let bytes_of_index = &blob[start + 8..end];
        assert_eq!(
            annotation("org.erofs.chunk-index.digest"),
            Digest::of(bytes_of_index).to_string()
        );
        let index = Index::parse(bytes_of_index, start as u64).unwrap();
        assert_eq!(index.size(), bytes.len() as u64);
        let mut read = Vec::new();
        for number in 0..index.len() {
            let range = index.range(number).unwrap();
            read.extend(
                index
                    .decode(number, &blob[range.start as usize..range.end as usize])
                    .unwrap(),
            );
        }
        assert!(read == bytes);
    }
    // The merged metadata refers to the devices: without them, nothing is missing but contents.
    for image in &unpacked[..4] {
        run(Command::new("fsck.erofs").arg(&image.path));
    }
}

#[test]
fn the_same_image_is_the_same_bits_wherever_it_is_converted() {
    let indexes = [(); 2].map(|()| {
        let converted = Converted::new();
        let again = converted
            .pusher
            .push(&reference(&converted.registry, "app:2"));
        assert_eq!(again.present, 4);
        assert_eq!(again.erofs, converted.pushed.erofs);
        converted.pushed.erofs.unwrap().index_digest
    });
    assert_eq!(indexes[0], indexes[1]);
}

/// Asks for the form of EROFS images.
pub fn puller() -> Puller {
    Puller::new().platform("linux(+erofs)/amd64")
}

#[test]
fn a_converted_image_is_pulled_as_it_is() {
    let converted = Converted::new();
    let was = &converted.pusher.puller.store;
    let was = was.image(&converted.pusher.name).unwrap();
    let puller = puller();
    let is = puller.pull(&reference(&converted.registry, "app:1"));
    let erofs = converted.pushed.erofs.as_ref().unwrap();
    assert_eq!(is.manifest_digest, erofs.manifest_digest);
    assert_eq!(is.layers.len(), 4);
    for (was, is) in was.layers.iter().zip(&is.layers) {
        assert_ne!(was.diff_id, is.diff_id);
        assert_eq!(is.record.archive, Some(was.diff_id));
        let checksums = [was, is].map(|layer| (layer.record.checksum, layer.blocks));
        assert_eq!(checksums[0], checksums[1]);
        let bytes = [was, is].map(|layer| fs::read(&layer.path).unwrap());
        assert!(bytes[0] == bytes[1]);
        // What is a hole here is one there.
        let blocks = [was, is].map(|layer| fs::metadata(&layer.path).unwrap().blocks());
        assert!(blocks[1] <= blocks[0] + 64, "{blocks:?}");
    }
    assert!(fs::read(&was.fsmeta).unwrap() == fs::read(&is.fsmeta).unwrap());
    let report = puller.store.fsck(false).unwrap();
    assert_eq!(report.findings, []);

    // No other image is made of it, as that would be one of archives.
    let changes = ImageEdit::default();
    let made = append_layer(
        &puller.store,
        &is,
        &[0; 1024][..],
        &changes,
        &[],
        &Limits::default(),
        Place::Here,
    );
    let said = made.unwrap_err().to_string();
    assert!(said.contains("their archives are not here"), "{said}");

    // Nothing of it is taken for what its archives convert to: they are fetched beside it.
    let mut puller = puller.platform("linux/amd64");
    puller.options.policy = PullPolicy::Always;
    let pulled = puller.pull(&reference(&converted.registry, "app:1"));
    assert_eq!(pulled.manifest_digest, converted.pushed.manifest_digest);
    for (was, is) in was.layers.iter().zip(&pulled.layers) {
        assert_eq!(
            (was.diff_id, was.record.checksum),
            (is.diff_id, is.record.checksum)
        );
    }
}

#[test]
fn settings_prefer_the_form_of_erofs_images_unless_a_platform_is_asked_for() {
    let converted = Converted::new();
    let name = reference(&converted.registry, "app:1");
    let [archives, erofs] = [
        converted.pushed.manifest_digest,
        converted.pushed.erofs.as_ref().unwrap().manifest_digest,
    ];
    let pulled = |puller: Puller| puller.pull(&name).manifest_digest;
    let preferring = || Puller::new().edit_settings(|settings| settings.prefer_erofs = true);
    assert_eq!(pulled(Puller::new()), archives);
    assert_eq!(pulled(preferring()), erofs);
    assert_eq!(pulled(preferring().platform("linux/amd64")), archives);
}

/// Serves an image of EROFS images whose manifest is changed.
pub fn served(converted: &Converted, change: impl FnOnce(&mut Value)) -> (Registry, Reference) {
    let mut manifest = converted.manifest();
    change(&mut manifest);
    served_with(converted, &manifest, &[])
}

/// Serves the image under another manifest, with some more blobs.
pub fn served_with(
    converted: &Converted,
    manifest: &Value,
    more: &[Vec<u8>],
) -> (Registry, Reference) {
    let registry = Registry::new();
    let put = |digest: &str, blob| {
        let path = format!("/v2/app/blobs/{digest}");
        registry.put(&path, "application/octet-stream", blob);
    };
    let was = converted.manifest();
    for blob in was["layers"]
        .as_array()
        .unwrap()
        .iter()
        .chain([&was["config"]])
    {
        let digest = blob["digest"].as_str().unwrap();
        put(digest, converted.blob(digest));
    }
    for blob in more {
        put(&Digest::of(blob).to_string(), blob.clone());
    }
    registry.put_manifest("app", "1", manifest.to_string().into_bytes());
    let reference = registry.reference("app:1");
    (registry, reference)
}

#[test]
fn a_guest_checks_a_converted_image_by_the_digests_that_were_published() {
    let converted = Converted::new();
    let puller = puller();
    let image = puller.pull(&reference(&converted.registry, "app:1"));
    let tree = puller.store.disk_tree(&image).unwrap();
    // It is that of the image of archives, whose disk has the same bits.
    let here = &converted.pusher.puller.store;
    let own = here.disk_tree(&here.image(&converted.pusher.name).unwrap());
    assert_eq!(own.unwrap().root, tree.root);

    // A manifest with another layer's: the blob is what its digests say, and not what this one says.
    let (_registry, name) = served(&converted, |manifest| {
        let layers = &mut manifest["layers"];
        let root = layers[1]["annotations"]["org.erofs.dmverity.root_digest"].clone();
        layers[0]["annotations"]["org.erofs.dmverity.root_digest"] = root;
    });
    let lied = puller.pull(&name);
    let said = puller.store.disk_tree(&lied).unwrap_err().to_string();
    assert!(said.contains("root digest"), "{said}");
}

#[test]
fn a_converted_image_that_lies_is_not_taken() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 12] = [
        (
            |m| {
                m["layers"][4]["annotations"]["org.erofs.uncompressed-digest"] =
                    json!(Digest::of(b""))
            },
            "it has the merged metadata sha256:",
        ),
        (
            |m| m["layers"].as_array_mut().unwrap().swap(0, 1),
            "it has the merged metadata sha256:",
        ),
        (
            |m| {
                m["layers"][0]["annotations"]["org.erofs.uncompressed-digest"] =
                    json!(Digest::of(b""))
            },
            "diff ID",
        ),
        (
            |m| m["layers"][0]["annotations"]["org.micabox.archive"] = json!(Digest::of(b"")),
            "its UUID is not that of the archive that its manifest names",
        ),
        (
            |m| m["layers"][0]["annotations"]["org.micabox.archive"] = json!("x"),
            "`x` is not a digest",
        ),
        (
            |m| m["layers"][0]["annotations"]["org.micabox.archive"] = Value::Null,
            "the role `device` (org.erofs.role)",
        ),
        (
            |m| m["layers"][0]["annotations"]["org.erofs.role"] = Value::Null,
            "the role `device` (org.erofs.role)",
        ),
        (
            |m| m["annotations"]["org.micabox.format"] = json!("2"),
            "EROFS images of format 2",
        ),
        (
            |m| m["layers"][0] = m["layers"][4].clone(),
            "the role `device` (org.erofs.role)",
        ),
        (
            |m| {
                let archive = m["layers"][0]["annotations"]["org.micabox.archive"].clone();
                m["layers"][1]["annotations"]["org.micabox.archive"] = archive;
            },
            "both said to be converted from the archive sha256:",
        ),
        (
            |m| m["layers"][4]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+zstd"),
            "the role `device` (org.erofs.role)",
        ),
        (
            |m| m["layers"][0]["annotations"]["org.opencontainers.image.enc.keys.jwe"] = json!("x"),
            "the mark of an encrypted layer",
        ),
    ];
    let converted = Converted::new();
    for (change, part) in changes {
        let (_registry, reference) = served(&converted, change);
        let puller = puller();
        // Layers that are what they should be may stay.
        let said = puller.try_pull(&reference).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
        assert_eq!(puller.store.images().unwrap(), []);
    }
}

/// Contents of all files below a directory, and targets of links, by path.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let output = run(Command::new("find")
        .args([".", "-type", "f"])
        .current_dir(directory));
    let mut paths: Vec<PathBuf> = output.lines().map(PathBuf::from).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(directory.join(&path)).unwrap();
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

#[test]
#[ignore = "needs root"]
fn the_kernel_mounts_what_was_pushed() {
    let converted = Converted::new();
    let unpacked = converted.unpacked();
    let (fsmeta, devices) = unpacked.split_last().unwrap();
    let devices: Vec<_> = devices.iter().map(|device| device.path.as_path()).collect();
    let mount = Mount::erofs(&fsmeta.path, &devices);

    // The same from the archives, by another tool.
    let layout = converted.directory.path().join("layout");
    let from = format!("docker://{}/app:1", converted.registry.host());
    let to = format!("oci:{}:x", layout.display());
    run(Command::new("skopeo").args([
        "copy",
        "--quiet",
        "--insecure-policy",
        "--src-tls-verify=false",
        &from,
        &to,
    ]));
    let root = converted.directory.path().join("root");
    fs::create_dir(&root).unwrap();
    let mut layers = layers();
    layers.push(layers[2].clone());
    for layer in layers {
        let archive = converted.directory.path().join("layer.tar");
        fs::write(&archive, layer).unwrap();
        run(Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(&root));
        // Whiteouts, as the image specification has them.
        let script = r#"
            find . -name .wh..wh..opq -printf '%h\n' | while read -r directory; do
                find "$directory" -mindepth 1 -name old -exec rm -r {} +
                rm "$directory/.wh..wh..opq"
            done
            find . -name '.wh.*' | while read -r whiteout; do
                rm -rf "$(dirname "$whiteout")/$(basename "$whiteout" | sed s/^.wh.//)" "$whiteout"
            done"#;
        run(Command::new("sh").args(["-ec", script]).current_dir(&root));
    }
    let (mounted, unpacked) = (contents(mount.path()), contents(&root));
    assert!(mounted.len() > 8);
    assert_eq!(
        mounted.iter().map(|(path, _)| path).collect::<Vec<_>>(),
        unpacked.iter().map(|(path, _)| path).collect::<Vec<_>>()
    );
    assert!(mounted == unpacked);
}
