//! `mica convert` and `mica push --erofs`: both forms of an image, and whether the one was made from the other.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use micabox_testing::{DockerRegistry, run};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Home, image, packed};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

struct Registry {
    _directory: TempDir,
    registry: DockerRegistry,
}

impl Registry {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            registry: DockerRegistry::start(directory.path(), ""),
            _directory: directory,
        }
    }

    fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.registry.host())
    }

    fn url(&self, reference: &str) -> String {
        format!(
            "http://{}/v2/box/manifests/{reference}",
            self.registry.host()
        )
    }

    fn get(&self, reference: &str) -> Value {
        let accept = format!("Accept: {MANIFEST}, {INDEX}");
        let url = self.url(reference);
        let text = run(Command::new("curl").args(["-fsS", "-H", &accept, &url]));
        serde_json::from_str(&text).unwrap()
    }

    fn put(&self, reference: &str, media_type: &str, document: &Value) {
        let header = format!("Content-Type: {media_type}");
        let (url, text) = (self.url(reference), document.to_string());
        let put = [
            "-fsS",
            "-X",
            "PUT",
            "-H",
            &header,
            "--data-binary",
            &text,
            &url,
        ];
        run(Command::new("curl").args(put));
    }
}

/// A registry with `box:1` in both forms, and the store that it came from.
fn converted() -> (Home, Registry) {
    let home = Home::empty();
    home.load(&image::layers(), &image::config());
    let registry = Registry::new();
    let name = registry.name("box:1");
    home.output(&["convert", "-q", "box", &name]).ok();
    (home, registry)
}

#[test]
fn a_conversion_is_the_same_wherever_it_is_made() {
    let (home, registry) = converted();
    let said = home.output(&["convert", "--json", "box"]).json();
    let index = registry.get("1");
    assert_eq!(
        index["manifests"][1]["digest"],
        said["erofs_manifest_digest"]
    );
    let digest = said["erofs_manifest_digest"].as_str().unwrap();
    let manifest = registry.get(digest);
    let (there, here) = (&manifest["layers"], &said["images"]);
    assert_eq!(
        there.as_array().unwrap().len(),
        here.as_array().unwrap().len()
    );
    for (number, layer) in there.as_array().unwrap().iter().enumerate() {
        assert_eq!(layer["digest"], here[number]["digest"]);
        assert_eq!(layer["size"], here[number]["size"]);
    }
    let text = home.output(&["convert", "box"]).ok();
    assert!(text.ends_with(&format!("{digest}\n")), "{text}");
    assert!(
        text.contains("layer 3") && text.contains("metadata"),
        "{text}"
    );

    // Pushed again, in the other spelling, and from a store that has pulled the archives.
    let name = registry.name("box:1");
    let other = Home::empty();
    other.output(&["pull", &name]).ok();
    let again = other
        .output(&["push", "-q", "--erofs", "--json", &name])
        .json();
    assert_eq!(
        again["erofs_manifest_digest"],
        said["erofs_manifest_digest"]
    );
    assert_eq!(registry.get("1"), index);

    // Checked, where nothing of it is known.
    let fresh = Home::empty();
    let verified = fresh.output(&["convert", "--verify", &name]).ok();
    let archives = index["manifests"][0]["digest"].as_str().unwrap();
    assert_eq!(
        verified,
        format!("{digest} is the conversion of {archives}\n")
    );
    let verified = fresh
        .output(&["convert", "--verify", "--json", &name])
        .json();
    assert_eq!(
        (&verified["erofs_manifest_digest"], &verified["layers"]),
        (&json!(digest), &json!(3))
    );
}

#[test]
fn a_pull_checks_the_conversion_first() {
    let (home, registry) = converted();
    let name = registry.name("box:1");
    let index = registry.get("1");
    let forms = [("linux/amd64", 0), ("linux(+erofs)/amd64", 1)];
    for (platform, form) in forms {
        let words = [
            "pull",
            "-q",
            "--verify-conversion",
            "--platform",
            platform,
            &name,
        ];
        let digest = index["manifests"][form]["digest"].as_str().unwrap();
        assert_eq!(Home::empty().output(&words).ok(), format!("{digest}\n"));
    }
    lie(&home, &registry, |manifest| {
        manifest["more"] = json!("text")
    });
    for (platform, _) in forms {
        let store = Home::empty();
        let lie = registry.name("box:lie");
        let words = [
            "pull",
            "-q",
            "--verify-conversion",
            "--platform",
            platform,
            &lie,
        ];
        let refused = store.output(&words);
        assert_eq!(refused.code(), 1);
        let said = refused.stderr();
        assert!(
            said.contains("is not converted from its archives"),
            "{said}"
        );
        // The name leads to nothing.
        assert_eq!(store.output(&["inspect", &lie]).code(), 1);
    }
}

/// Publishes `box:lie`, whose form of EROFS images is changed, and returns what `--verify` says of it.
fn lie(home: &Home, registry: &Registry, change: impl FnOnce(&mut Value)) -> String {
    publish(registry, change);
    let finished = home.output(&["convert", "--verify", &registry.name("box:lie")]);
    assert_eq!((finished.code(), finished.stdout()), (1, String::new()));
    finished.stderr()
}

/// Publishes `box:lie`, whose form of EROFS images is changed.
fn publish(registry: &Registry, change: impl FnOnce(&mut Value)) {
    let mut index = registry.get("1");
    let mut manifest = registry.get(index["manifests"][1]["digest"].as_str().unwrap());
    change(&mut manifest);
    let text = manifest.to_string();
    let digest = micabox_image::Digest::of(text.as_bytes());
    registry.put(&digest.to_string(), MANIFEST, &manifest);
    index["manifests"][1]["digest"] = json!(digest);
    index["manifests"][1]["size"] = json!(text.len());
    registry.put("lie", INDEX, &index);
}

#[test]
fn a_conversion_that_lies_is_found_field_by_field() {
    let (home, registry) = converted();
    let digest = format!("sha256:{}", "5".repeat(64));
    for (name, part) in [
        ("org.erofs.role", "of layer 2, org.erofs.role is "),
        (
            "org.erofs.uncompressed-digest",
            "of layer 2, org.erofs.uncompressed-digest is ",
        ),
        (
            "org.erofs.chunk-index.range",
            "of layer 2, org.erofs.chunk-index.range is ",
        ),
        (
            "org.erofs.chunk-index.digest",
            "of layer 2, org.erofs.chunk-index.digest is ",
        ),
        (
            "org.erofs.chunk-index.mediaType",
            "of layer 2, org.erofs.chunk-index.mediaType is ",
        ),
        (
            "org.erofs.dmverity.hash_offset",
            "of layer 2, org.erofs.dmverity.hash_offset is ",
        ),
        (
            "org.erofs.dmverity.root_digest",
            "of layer 2, org.erofs.dmverity.root_digest is ",
        ),
        (
            "org.erofs.dmverity.block_size",
            "of layer 2, org.erofs.dmverity.block_size is ",
        ),
        ("org.micabox.archive", "of layer 2, org.micabox.archive is "),
    ] {
        for value in [json!(digest), Value::Null] {
            let said = lie(&home, &registry, |manifest| {
                manifest["layers"][1]["annotations"][name] = value;
            });
            assert!(said.contains(part), "{name}: {said}");
        }
    }
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 8] = [
        (
            |m| m["layers"].as_array_mut().unwrap().swap(0, 1),
            "of layer 1, ",
        ),
        (
            |m| drop(m["layers"].as_array_mut().unwrap().remove(0)),
            "it has 3 EROFS images, and its archives convert to 4",
        ),
        (
            |m| m["layers"][3] = m["layers"][0].clone(),
            "of the merged metadata, ",
        ),
        (
            |m| m["layers"][0]["mediaType"] = json!("application/vnd.erofs"),
            "of layer 1, the media type is application/vnd.erofs, ",
        ),
        (
            |m| {
                m["layers"][0]["digest"] = m["layers"][3]["digest"].clone();
                m["layers"][0]["size"] = m["layers"][3]["size"].clone()
            },
            "of layer 1, the digest is ",
        ),
        (
            |m| {
                m["config"]["digest"] = m["layers"][3]["digest"].clone();
                m["config"]["size"] = m["layers"][3]["size"].clone()
            },
            "its config is sha256:",
        ),
        (
            |m| m["annotations"]["more"] = json!("text"),
            "other fields of its manifest",
        ),
        (
            |m| m["annotations"]["org.micabox.format"] = json!("2"),
            "was converted in format 2; this version makes format ",
        ),
    ];
    for (change, part) in changes {
        let said = lie(&home, &registry, change);
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn what_another_zstd_has_compressed_is_checked_but_for_its_compression() {
    let (home, registry) = converted();
    let other = format!("sha256:{}", "5".repeat(64));
    let compressed_otherwise = |manifest: &mut Value| {
        manifest["annotations"]["org.micabox.zstd"] = json!("1.4.9");
        manifest["layers"][1]["digest"] = manifest["layers"][3]["digest"].clone();
        manifest["layers"][1]["size"] = manifest["layers"][3]["size"].clone();
        let annotations = &mut manifest["layers"][1]["annotations"];
        annotations["org.erofs.chunk-index.range"] = json!("8:104");
        annotations["org.erofs.chunk-index.digest"] = json!(other);
    };
    publish(&registry, compressed_otherwise);
    let verify = ["convert", "--verify", &registry.name("box:lie")];
    let said = home.output(&verify).ok();
    assert!(
        said.contains(" has the contents of the conversion of sha256:")
            && said.contains("zstd 1.4.9 has compressed them"),
        "{said}"
    );
    let json = home.output(&[&verify[..], &["--json"]].concat()).json();
    assert_eq!(json["other_zstd"], json!("1.4.9"));
    let said = lie(&home, &registry, |manifest| {
        compressed_otherwise(manifest);
        manifest["layers"][1]["annotations"]["org.erofs.dmverity.root_digest"] = json!(other);
    });
    let difference = "of layer 2, org.erofs.dmverity.root_digest is ";
    assert!(said.contains(difference), "{said}");
}

#[test]
fn a_packed_image_is_published_as_when_it_was_whole() {
    let (home, registry) = (packed::home(), Registry::new());
    let publish = |tag: &str| {
        let name = registry.name(&format!("box:{tag}"));
        home.output(&["push", "-q", "--erofs", "box", &name]).ok();
        registry.get(tag)
    };
    let whole = publish("1");
    let packed = packed::pack(&home);
    assert_ne!(packed, 0);
    // To another repository, where nothing is there yet.
    let other = registry.name("other:1");
    home.output(&["push", "-q", "--erofs", "box", &other]).ok();
    let verified = Home::empty().output(&["convert", "--verify", "--json", &other]);
    assert_eq!(
        verified.json()["erofs_manifest_digest"],
        whole["manifests"][1]["digest"]
    );
    assert_eq!(publish("2"), whole);
    // None of it was unpacked for that.
    assert_eq!(packed::packed(&home), packed);
}

#[test]
fn what_a_disk_has_damaged_is_not_published() {
    let (home, registry) = converted();
    let name = registry.name("box:1");
    // Three layers and the merged metadata: a fixup is not published.
    let names = ["-name", "*.erofs", "-not", "-name", "fixup.erofs"];
    let found = run(Command::new("find").arg(home.store()).args(names));
    assert_eq!(found.lines().count(), 4, "{found}");
    for path in found.lines() {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let at = first_data(&file) + 9;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let mut all = vec![
            vec!["push", "-q", "--erofs", "box", &name],
            vec!["convert", "box"],
        ];
        // What is compared has merged metadata of its own.
        if !path.ends_with("fsmeta.erofs") {
            all.push(vec!["convert", "--verify", &name]);
        }
        for words in all {
            let refused = home.output(&words);
            let said = refused.stderr();
            assert_eq!(refused.code(), 1, "{words:?}: {said}");
            // A push of archives finds it by its recipe.
            let file = path.trim_end_matches(".erofs");
            assert!(
                said.contains("is damaged: ") && said.contains(file),
                "{words:?}: {said}"
            );
        }
        file.write_all_at(&byte, at).unwrap();
    }
    home.output(&["convert", "--verify", &name]).ok();
}

/// Returns where a file's first block is that has more than zeros, behind the one with its superblock.
fn first_data(file: &File) -> u64 {
    let mut block = [0; 4096];
    let is_data = |at: &u64| {
        file.read_exact_at(&mut block, *at).unwrap();
        block.iter().any(|byte| *byte != 0)
    };
    let length = file.metadata().unwrap().len();
    (4096..length).step_by(4096).find(is_data).unwrap()
}

#[test]
fn what_can_not_be_checked_is_said() {
    let (home, registry) = converted();
    let verify = |name: &str| {
        let finished = home.output(&["convert", "--verify", &registry.name(name)]);
        assert_eq!((finished.code(), finished.stdout()), (1, String::new()));
        finished.stderr()
    };
    home.output(&["push", "-q", "box", &registry.name("box:plain")])
        .ok();
    let said = verify("box:plain");
    assert!(
        said.contains("has no form of EROFS images") && said.contains("mica push --erofs"),
        "{said}"
    );
    let mut index = registry.get("1");
    index["manifests"].as_array_mut().unwrap().remove(0);
    registry.put("half", INDEX, &index);
    let said = verify("box:half");
    assert!(said.contains("has no form of archives"), "{said}");
    let said = verify("box:none");
    assert!(said.contains("no such image or tag"), "{said}");
    let said = home.output(&["convert", "nothing"]);
    assert_eq!(said.code(), 1);
    assert!(said.stderr().contains("nothing"), "{}", said.stderr());
    let said = home.output(&["convert", "--verify", "box", "target"]);
    assert_eq!(said.code(), 2);

    // EROFS images that are called archives would be compared with themselves.
    let mut index = registry.get("1");
    index["manifests"][0] = index["manifests"][1].clone();
    let platform = index["manifests"][0]["platform"].as_object_mut().unwrap();
    platform.remove("os.features");
    registry.put("forged", INDEX, &index);
    let said = verify("box:forged");
    assert!(said.contains("has no form of archives"), "{said}");

    // Who names the form of EROFS images by its digest gets that one.
    let erofs = registry.get("1")["manifests"][1]["digest"].clone();
    let erofs = erofs.as_str().unwrap();
    let named = format!("{}@{erofs}", registry.name("box"));
    assert_eq!(
        home.output(&["pull", "-q", &named]).ok(),
        format!("{erofs}\n")
    );
}

#[test]
#[ignore = "needs root"]
fn a_converted_image_runs_and_is_not_taken_for_its_archives() {
    let (_, registry) = converted();
    let name = registry.name("box:1");
    let home = Home::empty();
    let erofs = ["--platform", "linux(+erofs)/amd64"];
    let host = ["run", "--backend", "host", "--name", "one"];
    let command = [
        &name,
        "sh",
        "-c",
        "wc -c < /srv/hard; ls /srv/hidden; touch /srv/mine",
    ];
    let said = home.output(&[&host[..], &erofs, &command.map(|word| word)].concat());
    assert_eq!((said.code(), said.stdout().as_str()), (0, "160000\nnew\n"));
    home.output(&["store", "fsck"]).ok();
    let digest = registry.get("1")["manifests"][1]["digest"].clone();
    let inspected = home.output(&["inspect", &name]).json();
    assert_eq!(inspected[0]["image"]["manifest_digest"], digest);

    // So it does in a layout, which another tool has copied.
    let layout = home.path().join("layout");
    let from = format!("docker://{name}");
    let to = format!("oci:{}:box", layout.display());
    let copy = [
        "copy",
        "--all",
        "--quiet",
        "--insecure-policy",
        "--src-tls-verify=false",
    ];
    run(Command::new("skopeo").args(copy).args([&from, &to]));
    let loaded = Home::empty();
    let words = ["load", "-q", "-i", layout.to_str().unwrap()];
    loaded.output(&[&words[..], &erofs].concat()).ok();
    let images = loaded.output(&["images", "-q", "--no-trunc"]).ok();
    assert_eq!(images, format!("{}\n", digest.as_str().unwrap()));
    loaded.output(&["store", "fsck"]).ok();

    // By its digest it is this form and no other.
    let (other, digest) = (registry.name("other:1"), digest.as_str().unwrap());
    for words in [
        &["convert", "-q", &name][..],
        &["push", "-q", digest, &other],
        &["push", "-q", "--erofs", digest, &other],
        &["save", "-o", "out.tar", digest],
        &["convert", "-q", digest, &other],
    ] {
        let refused = home.output(words);
        assert_eq!(refused.code(), 1, "{words:?}");
        let said = refused.stderr();
        assert!(said.contains("archive"), "{words:?}: {said}");
    }
    assert!(!home.path().join("out.tar").exists());
    home.output(&["rm", "one"]).ok();
    home.output(&["rmi", &name]).ok();
    home.output(&["store", "prune"]).ok();
    home.output(&["store", "fsck"]).ok();
}
