//! `mica store serve --keep-blobs`: what is pulled through is served as it came.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use micabox_image::Digest;
use micabox_testing::cosign::Cosign;
use micabox_testing::{DockerRegistry, Proxy};
use serde_json::{Value, json};

use super::{Replica, skopeo, status, with_settings};
use crate::signatures::{self, signed_by, with_policy};
use crate::support::Home;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An OCI layout.
struct Layout(PathBuf);

impl Layout {
    fn put(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = Digest::of(bytes);
        fs::write(self.blobs().join(digest.hex()), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    fn put_json(&self, media_type: &str, document: &Value) -> Value {
        // As no program of ours would write it.
        self.put(media_type, &serde_json::to_vec_pretty(document).unwrap())
    }

    fn get(&self, descriptor: &Value) -> Value {
        let digest = descriptor["digest"].as_str().unwrap();
        let hex = digest.strip_prefix("sha256:").unwrap();
        serde_json::from_slice(&fs::read(self.blobs().join(hex)).unwrap()).unwrap()
    }

    fn blobs(&self) -> PathBuf {
        self.0.join("blobs/sha256")
    }

    /// Returns all blobs by their names.
    fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.blobs()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        paths
            .map(|path| (name(&path), fs::read(path).unwrap()))
            .collect()
    }
}

/// A registry with `team/box:1`, an index of images for two platforms and of an attestation.
struct Origin {
    /// None once it has gone.
    registry: Option<DockerRegistry>,
    directory: tempfile::TempDir,
    host: String,
    /// What is in it.
    layout: Layout,
    /// Digests of the index, and of this machine's manifest, the other platform's and the attestation's.
    index: String,
    manifests: [String; 3],
}

impl Origin {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        let host = registry.host().to_owned();
        let single = format!("{host}/team/single:1");
        let pushed = Home::new().output(&["push", "-q", "box", &single]);
        assert_eq!(pushed.code(), 0);
        let layout = Layout(directory.path().join("layout"));
        let to = format!("oci:{}:1", layout.0.display());
        let from = format!("docker://{single}");
        skopeo(&["copy", "--src-tls-verify=false", &from, &to]);
        let own: Value =
            serde_json::from_slice(&fs::read(layout.0.join("index.json")).unwrap()).unwrap();
        let own = &own["manifests"][0];

        let mut manifest = layout.get(own);
        let mut config = layout.get(&manifest["config"]);
        config["architecture"] = "riscv64".into();
        let kind = "application/vnd.oci.image.config.v1+json";
        manifest["config"] = layout.put_json(kind, &config);
        let other = layout.put_json(MANIFEST, &manifest);
        let statement = layout.put_json("application/vnd.in-toto+json", &json!({"a": "statement"}));
        let config = json!({
            "architecture": "unknown", "os": "unknown",
            "rootfs": {"type": "layers", "diff_ids": [statement["digest"]]},
        });
        let config = layout.put_json(kind, &config);
        let attestation = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [statement],
        });
        let attestation = layout.put_json(MANIFEST, &attestation);

        let manifests = [own, &other, &attestation];
        let digests = manifests.map(|entry| entry["digest"].as_str().unwrap().to_owned());
        let platforms = [
            ("linux", "amd64"),
            ("linux", "riscv64"),
            ("unknown", "unknown"),
        ];
        let entries = manifests.iter().zip(platforms);
        let entries = entries.map(|(entry, (os, architecture))| {
            json!({
                "mediaType": MANIFEST, "digest": entry["digest"], "size": entry["size"],
                "platform": {"os": os, "architecture": architecture},
            })
        });
        let entries = Vec::from_iter(entries);
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        let index = layout.put_json(INDEX, &index);
        let top = json!({"schemaVersion": 2, "manifests": [index]});
        fs::write(layout.0.join("index.json"), top.to_string()).unwrap();
        registry.push(&layout.0, "team/box:1", &["--dest-tls-verify=false"]);
        Self {
            registry: Some(registry),
            host,
            index: index["digest"].as_str().unwrap().to_owned(),
            manifests: digests,
            layout,
            directory,
        }
    }

    /// Returns the digest and the bytes of the largest layer of this machine's image.
    fn layer(&self) -> (String, Vec<u8>) {
        let manifest = self.layout.get(&json!({"digest": self.manifests[0]}));
        let layers = manifest["layers"].as_array().unwrap().iter();
        let largest = layers.max_by_key(|layer| layer["size"].as_u64()).unwrap();
        let digest = largest["digest"].as_str().unwrap().to_owned();
        let bytes = self.blob(&digest);
        (digest, bytes)
    }

    fn blob(&self, digest: &str) -> Vec<u8> {
        let hex = digest.strip_prefix("sha256:").unwrap();
        fs::read(self.layout.blobs().join(hex)).unwrap()
    }

    /// Copies from a server with skopeo, and asserts that all that comes is as it is in the layout.
    fn copy(&self, replica: &Replica, name: &str, options: &[&str], to: &str) -> Layout {
        let copy = Layout(self.directory.path().join(to));
        let from = format!("docker://{}", replica.name(name));
        let to = format!("oci:{}:1", copy.0.display());
        let words = ["copy", "--preserve-digests", "--src-tls-verify=false"];
        skopeo(&[&words[..], options, &[&from, &to]].concat());
        let ours = self.layout.all();
        for (name, bytes) in copy.all() {
            assert!(ours.get(&name) == Some(&bytes), "{name}");
        }
        copy
    }
}

fn place(home: &Home, digest: &str) -> PathBuf {
    let hex = digest.strip_prefix("sha256:").unwrap();
    let shard = home.store().join("blobs/sha256").join(&hex[..2]);
    shard.join(format!("{hex}.blob"))
}

#[test]
fn tags_and_digests_are_those_of_the_registry_also_when_it_is_gone() {
    let mut origin = Origin::new();
    let proxy = Proxy::start(&origin.host);
    let upstream = proxy.address().to_owned();
    let home = Home::empty();
    let replica = Replica::new(&home, &["--pull-through", &upstream, "--keep-blobs"]);
    // A server like this one may be waiting for its own pull.
    let by_digest = |digest: &str| format!("/v2/team/box/manifests/{digest}");
    let via = format!("GET {} HTTP/1.1\r\nVia: 1.1 mica", by_digest(&origin.index));
    assert_eq!(status(&replica.ask(&via)), "404");
    assert_eq!(proxy.passed(), 0);

    // By digest first: what was never asked for by its tag.
    let [own, other, attestation] = origin.manifests.clone();
    let own_name = format!("team/box@{own}");
    origin.copy(&replica, &own_name, &[], "by-manifest");
    let by_index = format!("team/box@{}", origin.index);
    let all = origin
        .copy(&replica, &by_index, &["--all"], "by-index")
        .all();
    assert_eq!(all, origin.layout.all());
    origin.copy(&replica, "team/box:1", &[], "by-tag");
    for (digest, kind) in [(&origin.index, INDEX), (&own, MANIFEST), (&other, MANIFEST)] {
        let (head, bytes) = replica.get(&by_digest(digest));
        assert!(head.contains(&format!("content-type: {kind}")), "{head}");
        assert!(bytes == origin.blob(digest));
    }
    let tag = replica.get("/v2/team/box/manifests/1");
    assert!(tag.1 == origin.blob(&origin.index));
    assert_eq!(
        replica.get(&by_digest(&attestation)).1,
        origin.blob(&attestation)
    );
    let none = by_digest(&Digest::of(b"none").to_string());
    assert_eq!(status(&replica.get(&none)), "404");
    // Each blob has come once, also those that both images have.
    let size: usize = origin.layout.all().values().map(Vec::len).sum();
    let passed = proxy.passed() as usize;
    assert!(
        passed > size && passed < size + 100_000,
        "{passed} of {size}"
    );

    let (digest, layer) = origin.layer();
    let blob = format!("/v2/team/box/blobs/{digest}");
    let size = layer.len();
    for (first, last) in [
        (0, 0),
        (1, size / 2),
        (size / 3, size - 1),
        (size - 9, size + 9),
    ] {
        let range = format!("GET {blob} HTTP/1.1\r\nRange: bytes={first}-{last}");
        let (head, part) = replica.ask(&range);
        assert!(head.contains("206 "), "{head}");
        assert!(part == layer[first..size.min(last + 1)], "{first}-{last}");
    }

    origin.registry = None;
    origin.copy(&replica, "team/box:1", &[], "tag-alone");
    let all = origin
        .copy(&replica, &by_index, &["--all"], "index-alone")
        .all();
    assert_eq!(all, origin.layout.all());
    replica.end();
    // Without the flag too, but for what is no image: it was kept in memory.
    let replica = Replica::new(&home, &[]);
    let name = format!("/v2/team/box/manifests/1?ns={upstream}");
    assert!(replica.get(&name).1 == origin.blob(&origin.index));
    assert_eq!(status(&replica.get(&by_digest(&other))), "200");
    assert_eq!(status(&replica.get(&by_digest(&attestation))), "404");

    // A mica behind it has the registry's digests as well.
    let settings = origin.directory.path().join("config.toml");
    let mirror = format!(
        "[registry.\"{upstream}\"]\nmirrors = [\"http://{}\"]\n",
        replica.host
    );
    fs::write(&settings, mirror).unwrap();
    let client = Home::empty();
    let name = format!("{upstream}/team/box@{}", origin.index);
    with_settings(&client, &settings, &["pull", "-q", &name]).ok();
    let image = client.output(&["inspect", &name]).json();
    assert_eq!(image[0]["image"]["manifest_digest"], json!(own));
    replica.end();
}

#[test]
fn a_damaged_blob_is_never_sent_whole_and_is_brought_again() {
    let origin = Origin::new();
    let home = Home::empty();
    // The result of a pull answers for others for a moment: another server knows of none.
    let serve = || Replica::new(&home, &["--pull-through", &origin.host, "--keep-blobs"]);
    let replica = serve();
    let manifest = format!("/v2/team/box/manifests/{}", origin.manifests[0]);
    assert_eq!(status(&replica.get(&manifest)), "200");
    let usage = home.output(&["store", "df", "--json"]).json();
    assert!(usage["kept_blobs"].as_u64() > Some(1), "{usage}");
    assert!(
        home.output(&["store", "df"])
            .ok()
            .contains("blobs kept as they came")
    );

    let (digest, mut layer) = origin.layer();
    let (path, blob) = (
        place(&home, &digest),
        format!("/v2/team/box/blobs/{digest}"),
    );
    assert!(fs::read(&path).unwrap() == layer);
    layer[99] ^= 1;
    fs::write(&path, &layer).unwrap();
    let found = home.output(&["store", "fsck", "--json"]);
    assert_eq!(found.code(), 1);
    let found: Value = serde_json::from_str(&found.stdout()).unwrap();
    assert_eq!(found["findings"][0]["repair"], "remove-blob");
    assert_eq!(found["findings"].as_array().unwrap().len(), 1);
    // What is sent of it is not all of it, and it is gone then.
    let (head, bytes) = replica.get(&blob);
    assert!(
        head.contains(&format!("content-length: {}", layer.len())),
        "{head}"
    );
    assert!(bytes.len() < layer.len());
    assert!(!path.exists());
    replica.end();

    let replica = serve();
    assert_eq!(status(&replica.get(&manifest)), "200");
    assert!(replica.get(&blob).1 == origin.layer().1);
    fs::write(&path, &layer).unwrap();
    home.output(&["store", "fsck", "--repair"]).ok();
    assert!(!path.exists());
    // An index that is damaged is asked for again by its digest.
    let index = place(&home, &origin.index);
    let by_index = format!("/v2/team/box/manifests/{}", origin.index);
    assert!(replica.get(&by_index).1 == origin.blob(&origin.index));
    fs::write(&index, b"{}").unwrap();
    replica.end();
    let replica = serve();
    assert!(replica.get(&by_index).1 == origin.blob(&origin.index));
    // A blob of another length is none of this image.
    fs::write(&path, b"short").unwrap();
    replica.end();
    let replica = serve();
    assert_eq!(status(&replica.get(&manifest)), "200");
    assert!(replica.get(&blob).1 == origin.layer().1);
    replica.end();

    assert_eq!(
        home.output(&["store", "prune", "--json"]).json()["blobs"],
        json!([])
    );
    let pruned = home.output(&["store", "prune", "--all", "--json"]).json();
    assert!(
        pruned["blobs"].as_array().unwrap().contains(&json!(digest)),
        "{pruned}"
    );
    assert!(!path.exists());
}

#[test]
fn signatures_of_archives_and_indexes_hold_behind_it() {
    let mut origin = Origin::new();
    let cosign = Cosign::new();
    let home = Home::empty();
    let replica = Replica::new(&home, &["--pull-through", &origin.host, "--keep-blobs"]);
    let signed = format!("{}/team/box:1", origin.host);
    let policy = signed_by(&cosign.key(), Some(&signed));
    let pull = || {
        with_policy(
            &Home::empty(),
            &policy,
            &["pull", "-q", &replica.name("team/box:1")],
        )
    };
    signatures::assert_unsigned(&pull());
    let registry = origin.registry.as_ref().unwrap();
    cosign.sign(registry, "team/box:1", &origin.index);
    pull().ok();
    origin.registry = None;
    pull().ok();
    replica.end();
}

#[test]
fn a_policy_is_asked_about_what_is_named_by_its_digest() {
    let mut origin = Origin::new();
    let cosign = Cosign::new();
    let home = Home::empty();
    let settings = home.path().join("settings.toml");
    fs::write(&settings, "policy = \"policy.json\"").unwrap();
    let serve = |policy: &str| {
        fs::write(home.path().join("policy.json"), policy).unwrap();
        let listen = ["store", "serve", "--listen", "127.0.0.1:0"];
        let through = ["--pull-through", &origin.host, "--keep-blobs"];
        let mut mica = home.mica(&[&listen[..], &through].concat());
        mica.env("MICABOX_CONFIG", &settings);
        Replica::of(mica)
    };
    let signed = format!("{}/team/box:1", origin.host);
    let signed = signed_by(&cosign.key(), Some(&signed));
    let path = |what: &str| format!("/v2/team/box/manifests/{what}");
    let [own, other, attestation] = origin.manifests.clone();
    let index = origin.index.clone();

    // What asks for nothing lets pass what is no image.
    let replica = serve(r#"{"default": [{"type": "insecureAcceptAnything"}]}"#);
    for what in [&index, &own, &attestation] {
        assert_eq!(status(&replica.get(&path(what))), "200", "{what}");
    }
    replica.end();
    // What is here, and what is not, and what no policy can decide about.
    let replica = serve(&signed);
    for what in [&index, &own, &other, &attestation] {
        let reply = replica.get(&path(what));
        assert_eq!(status(&reply), "403", "{what}");
        assert!(String::from_utf8_lossy(&reply.1).contains("policy"));
    }
    let none = Digest::of(b"none").to_string();
    assert_eq!(status(&replica.get(&path(&none))), "404");
    replica.end();

    let registry = origin.registry.as_ref().unwrap();
    cosign.sign(registry, "team/box:1", &index);
    let replica = serve(&signed);
    // The index is signed alone, and its tag leads to this machine's image.
    for (what, expected) in [
        ("1", "200"),
        (&index, "200"),
        (&own, "200"),
        (&other, "403"),
        (&attestation, "403"),
    ] {
        assert_eq!(status(&replica.get(&path(what))), expected, "{what}");
    }
    replica.end();
    let replica = serve(&signed);
    origin.registry = None;
    for what in ["1", &index, &own] {
        assert_eq!(status(&replica.get(&path(what))), "200", "{what}");
    }
    replica.end();
}

#[test]
fn a_setting_keeps_what_is_pulled_and_a_push_sends_it_unchanged() {
    let origin = Origin::new();
    let home = Home::empty();
    let settings = home.path().join("config.toml");
    fs::write(&settings, "keep-blobs = true\n").unwrap();
    let name = format!("{}/team/box:1", origin.host);
    with_settings(&home, &settings, &["pull", "-q", &name]).ok();
    let directory = tempfile::tempdir().unwrap();
    let other = DockerRegistry::start(directory.path(), "");
    let to = format!("{}/other/box:2", other.host());
    home.output(&["push", "-q", &name, &to]).ok();
    let pushed = skopeo(&[
        "inspect",
        "--raw",
        "--tls-verify=false",
        &format!("docker://{to}"),
    ]);
    assert!(pushed.into_bytes() == origin.blob(&origin.manifests[0]));

    // A layer whose blob is damaged by now is packed anew.
    let (digest, mut layer) = origin.layer();
    layer[99] ^= 1;
    fs::write(place(&home, &digest), &layer).unwrap();
    let to = format!("{}/third/box:1", other.host());
    home.output(&["push", "-q", &name, &to]).ok();
    let third = Home::empty();
    third.output(&["pull", "-q", &to]).ok();

    let refused = home.output(&["store", "serve", "--keep-blobs"]);
    assert_eq!(refused.code(), 2);
    assert!(
        refused.stderr().contains("--pull-through"),
        "{}",
        refused.stderr()
    );
}
