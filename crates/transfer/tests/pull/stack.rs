//! Images that are pushed as a stack of EROFS images for containerd as well.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_image::Digest;
use micabox_testing::image::layers;
use micabox_testing::mounts::{Mount, directory_on_disk};
use micabox_testing::{DockerRegistry, run};
use serde_json::{Value, json};

use crate::erofs::{Converted, puller, reference};
use crate::image::{TestImage, TestLayer};
use crate::layer::archive::Archive;
use crate::push::Pusher;

/// Pushes an image of these archives under two tags: `app:1`, and `app:stack` for containerd.
fn stacked(archives: &[Vec<u8>]) -> Converted {
    let layers = archives.iter().map(|archive| TestLayer::gzip(archive));
    let platform = "linux/amd64".parse().unwrap();
    let image = TestImage::for_platform(layers.collect(), &platform);
    let directory = directory_on_disk();
    let registry = DockerRegistry::start(directory.path(), "");
    let mut pusher = Pusher::with(image);
    pusher.options.erofs = true;
    pusher.options.containerd = Some("stack".to_owned());
    let pushed = pusher.push(&reference(&registry, "app:1"));
    Converted {
        directory,
        registry,
        pusher,
        pushed,
    }
}

/// Returns the manifest and the config of the stack.
fn documents(converted: &Converted) -> (Value, Value) {
    let (_, stack) = converted.pushed.containerd.as_ref().unwrap();
    let json = |digest: &str| -> Value { serde_json::from_slice(&converted.blob(digest)).unwrap() };
    let manifest = json(&stack.manifest_digest.to_string());
    let config = json(manifest["config"]["digest"].as_str().unwrap());
    (manifest, config)
}

/// Inflates the stack's layers with zstd's own program, bottom first.
fn inflated(converted: &Converted) -> Vec<PathBuf> {
    let (manifest, _) = documents(converted);
    let layers = manifest["layers"].as_array().unwrap().iter().enumerate();
    layers
        .map(|(number, layer)| {
            let digest = layer["digest"].as_str().unwrap();
            let blob = converted.directory.path().join(format!("{number}.zst"));
            fs::write(&blob, converted.blob(digest)).unwrap();
            run(Command::new("zstd").args(["--quiet", "-d"]).arg(&blob));
            blob.with_extension("")
        })
        .collect()
}

fn digests(manifest: &Value) -> Vec<String> {
    let layers = manifest["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["digest"].as_str().unwrap().to_owned())
        .collect()
}

/// Layers whose lowest visible one has whiteouts, above one that an opaque root hides.
fn hidden_below() -> Vec<Vec<u8>> {
    let hidden = Archive::new().file("hidden", "x").directory("./");
    let bottom = Archive::new()
        .whiteout(".wh..wh..opq")
        .whiteout(".wh.nothing")
        .directory("d/")
        .whiteout("d/.wh..wh..opq")
        .file("d/file", "contents")
        .directory("./");
    let top = Archive::new().hard_link("link", "d/file");
    [hidden, bottom, top].map(|archive| archive.finish()).into()
}

#[test]
fn a_stack_has_containerds_types_and_nearly_all_blobs_of_the_other_form() {
    let converted = stacked(&layers());
    let (manifest, config) = documents(&converted);
    let layers = manifest["layers"].as_array().unwrap();
    // Three layers, and what they alone do not show.
    assert_eq!(layers.len(), 4);
    let mut diff_ids = Vec::new();
    for (layer, image) in layers.iter().zip(inflated(&converted)) {
        assert_eq!(layer["mediaType"], "application/vnd.erofs.layer.v1+zstd");
        let annotations = layer["annotations"].as_object().unwrap();
        let own = |name: &String| name == "org.erofs.role" || name.starts_with("org.micabox.");
        assert_eq!(annotations.keys().find(|name| own(name)), None);
        diff_ids.push(Digest::of(&fs::read(&image).unwrap()));
        run(Command::new("fsck.erofs").arg(image));
    }
    assert_eq!(config["rootfs"]["diff_ids"], json!(diff_ids));
    assert_eq!(config["os.features"], json!(["erofs"]));
    assert_eq!(config["config"]["Cmd"], json!(["sh"]));
    assert_eq!(digests(&manifest)[..3], digests(&converted.manifest())[..3]);

    // Its tag has nothing else: containerd would unpack all that is for the platform.
    let (name, stack) = converted.pushed.containerd.as_ref().unwrap();
    assert_eq!(*name, reference(&converted.registry, "app:stack"));
    let index: Value =
        serde_json::from_slice(&converted.blob(&stack.index_digest.to_string())).unwrap();
    let [alone] = &index["manifests"].as_array().unwrap()[..] else {
        panic!("{index}");
    };
    assert_eq!(alone["digest"], json!(stack.manifest_digest));
    assert_eq!(alone["platform"]["os.features"], json!(["erofs"]));
    // Once more, it is the same.
    let again = converted
        .pusher
        .push(&reference(&converted.registry, "app:1"));
    assert_eq!(again.containerd, converted.pushed.containerd);
}

#[test]
fn mica_takes_a_stack_too_beside_the_other_form() {
    for archives in [layers(), hidden_below()] {
        let converted = stacked(&archives);
        for forms in [["app:1", "app:stack"], ["app:stack", "app:stack"]] {
            let puller = puller();
            for form in forms {
                let image = puller.pull(&reference(&converted.registry, form));
                let was = converted.pusher.puller.store.image(&converted.pusher.name);
                let tree = |image: &micabox_image::store::Image| {
                    let layers = image.layers.iter().map(|layer| layer.path.clone());
                    listing_of_merge(&layers.collect::<Vec<_>>())
                };
                assert_eq!(tree(&image), tree(&was.unwrap()), "{form}");
            }
            assert_eq!(puller.store.fsck(false).unwrap().findings, []);
        }
    }
}

/// Everything that a merge of layers shows but link counts, which hidden names may raise.
fn listing_of_merge(layers: &[PathBuf]) -> Vec<String> {
    use micabox_erofs::merge::{Layer, Merge};
    let files: Vec<_> = layers
        .iter()
        .map(|path| fs::File::open(path).unwrap())
        .collect();
    let inputs = files.iter().map(|image| Layer { image, tag: b"" });
    let merge = Merge::of(&inputs.collect::<Vec<_>>(), 512).unwrap();
    let contents = micabox_erofs::Concat::new(&files, 2 << 20).unwrap();
    let out = std::io::Cursor::new(Vec::new());
    let (out, summary) = merge.write_whole(&contents, out, [0; 16]).unwrap();
    let mut image = out.into_inner();
    image.resize(summary.blocks as usize * 4096, 0);
    let reader = micabox_erofs::Reader::open(image).unwrap();
    let mut lines = Vec::new();
    reader
        .walk(|path, inode| {
            let mut bytes = vec![0; inode.size as usize];
            if inode.kind != micabox_erofs::format::FileType::Directory {
                reader.read(inode, 0, &mut bytes)?;
            } else {
                bytes.clear();
            }
            let path = String::from_utf8_lossy(path).into_owned();
            let xattrs = reader.xattrs(inode)?;
            lines.push(format!(
                "{path} {:?} {:o} {}:{} {:?} {:?} {}",
                inode.kind,
                inode.mode,
                inode.uid,
                inode.gid,
                inode.mtime,
                xattrs,
                Digest::of(&bytes)
            ));
            Ok(())
        })
        .unwrap();
    lines
}

#[test]
fn the_lowest_layer_hides_nothing() {
    let converted = stacked(&hidden_below());
    let (manifest, config) = documents(&converted);
    // Without the hidden one, with the bottom written anew, and with the link's file on top.
    let stack = digests(&manifest);
    assert_eq!(stack.len(), 3);
    let devices: HashSet<_> = digests(&converted.manifest()).into_iter().collect();
    let shared: Vec<_> = stack
        .iter()
        .map(|digest| devices.contains(digest))
        .collect();
    assert_eq!(shared, [false, true, false]);
    assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 3);
    let dump = |image: &Path| {
        let reader = micabox_erofs::Reader::open(fs::File::open(image).unwrap()).unwrap();
        let mut names = Vec::new();
        reader
            .walk(|path, inode| {
                let path = String::from_utf8_lossy(path).into_owned();
                let markers = reader.xattrs(inode)?.len();
                names.push((path, inode.kind as u8, markers));
                Ok(())
            })
            .unwrap();
        names
    };
    let names = dump(&inflated(&converted)[0]);
    let paths: Vec<_> = names.iter().map(|(path, ..)| &**path).collect();
    assert_eq!(paths, ["/", "/d", "/d/file"]);
    assert!(names.iter().all(|(.., markers)| *markers == 0));
}

#[test]
#[ignore = "needs root"]
fn the_kernel_shows_a_stack_as_it_shows_the_other_form() {
    for archives in [layers(), hidden_below()] {
        let converted = stacked(&archives);
        let lowers = inflated(&converted);
        let lowers: Vec<_> = lowers.iter().rev().map(|l| Mount::erofs(l, &[])).collect();
        let stack = Mount::stack(&lowers);
        let store = &converted.pusher.puller.store;
        let image = store.image(&converted.pusher.name).unwrap();
        let devices: Vec<_> = image.layers.iter().map(|l| l.path.as_path()).collect();
        let merged = Mount::stack(&[Mount::erofs(&image.fsmeta, &devices)]);
        let list = |mount: &Mount| {
            let script = r#"
                find . ! -type d -printf '%p %y %m %U %G %n %s %T@ %l\n' -o -printf '%p %y %m %U %G %T@\n' | sort
                find . -type f -print0 | sort -z | xargs -0r sha256sum
                getfattr -R -h -d -m - ."#;
            let mut shell = Command::new("sh");
            run(shell.args(["-ec", script]).current_dir(mount.path()))
        };
        let (stacked, merged) = (list(&stack), list(&merged));
        assert!(stacked.lines().count() > 4, "{stacked}");
        assert_eq!(stacked, merged);
    }
}

#[test]
fn another_tag_is_needed() {
    for tag in ["1", "a b", "", "x@sha256:00", "-x"] {
        let mut pusher = Pusher::with(TestImage::small());
        pusher.options.containerd = Some(tag.to_owned());
        let name = "127.0.0.1:1/app:1".parse().unwrap();
        let said = pusher.try_push(&name).unwrap_err().to_string();
        assert!(said.contains("is no tag for containerd's form"), "{said}");
    }
}
