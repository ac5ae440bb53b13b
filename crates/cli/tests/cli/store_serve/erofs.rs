//! EROFS images that `mica store serve` sends, and what is attached to images.

use std::fs;

use micabox_image::Digest;
use micabox_testing::DockerRegistry;
use micabox_testing::cosign::Cosign;
use serde_json::{Value, json};

use super::{Replica, config_of, skopeo, status};
use crate::signatures::{self, signed_by, with_policy};
use crate::support::lazy::Remote;
use crate::support::{Finished, Home, packed};

const PLATFORM: &str = "linux(+erofs)/amd64";

/// Returns the entries of the index of both forms.
fn forms(replica: &Replica, path: &str) -> [Value; 2] {
    let index = replica.json(path);
    let entries = index["manifests"].as_array().cloned();
    <[Value; 2]>::try_from(entries.unwrap_or_default()).expect("an index of two forms")
}

fn manifest_of(home: &Home, name: &str) -> String {
    let image = home.output(&["inspect", name]).json();
    let digest = image[0]["image"]["manifest_digest"].as_str();
    digest.unwrap().to_owned()
}

#[test]
fn an_image_starts_lazily_from_a_machine_beside_this_one() {
    let origin = packed::home();
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let name = format!("{}/box:1", registry.host());
    let words = ["push", "-q", "--erofs", "--json", "box", &name];
    let pushed = origin.output(&words).json();
    // Without the flag there are archives alone.
    let replica = Replica::new(&origin, &[]);
    assert_eq!(
        replica.json("/v2/box/manifests/latest")["manifests"],
        Value::Null
    );
    replica.end();

    let replica = Replica::new(&origin, &["--erofs"]);
    let [archives, erofs] = forms(&replica, "/v2/box/manifests/latest");
    // The same bits as in a registry.
    assert_eq!(erofs["digest"], pushed["erofs_manifest_digest"]);
    assert_eq!(erofs["platform"]["os.features"], json!(["erofs"]));
    let by = |entry: &Value| {
        let digest = entry["digest"].as_str().unwrap();
        replica.json(&format!("/v2/box/manifests/{digest}"))
    };
    assert_eq!(
        by(&archives)["config"]["digest"],
        json!(config_of(&origin, "box"))
    );
    let manifest = by(&erofs);
    for layer in manifest["layers"].as_array().unwrap() {
        let digest = layer["digest"].as_str().unwrap();
        let blob = format!("/v2/box/blobs/{digest}");
        let (head, whole) = replica.get(&blob);
        assert!(head.contains("200 OK"), "{head}");
        assert_eq!(Digest::of(&whole).to_string(), digest);
        let size = whole.len();
        for (first, last) in [
            (0, 0),
            (1, size / 2),
            (size / 3, size / 3 * 2),
            (size - 9, size + 9),
        ] {
            let range = format!("GET {blob} HTTP/1.1\r\nRange: bytes={first}-{last}");
            let (head, part) = replica.ask(&range);
            assert!(head.contains("206 "), "{head}");
            assert!(part == whole[first..size.min(last + 1)], "{first}-{last}");
        }
    }

    let client = Home::empty();
    let here = replica.name("box");
    client.output(&["pull", "-q", "--lazy", &here]).ok();
    assert_eq!(json!(manifest_of(&client, &here)), erofs["digest"]);
    let usage = client.output(&["store", "df", "--json"]).json();
    assert_ne!(usage["lazy_layers"], json!(0));
    let start = ["run", "--backend", "host", "--rm", "-q", "--lazy", &here];
    let read = [&start[..], &["sh", "-c", packed::READ]].concat();
    let ours = ["run", "--backend", "host", "--rm", "-q", "box"];
    let ours = [&ours[..], &["sh", "-c", packed::READ]].concat();
    assert_eq!(client.output(&read).ok(), origin.output(&ours).ok());

    // Others take the archives, and tools that take all find what the digests say.
    let other = Home::empty();
    other.output(&["pull", "-q", &here]).ok();
    assert_eq!(config_of(&other, &here), config_of(&origin, "box"));
    let from = format!("docker://{here}");
    let to = format!("oci:{}:x", directory.path().join("layout").display());
    skopeo(&[
        "copy",
        "--all",
        "--preserve-digests",
        "--src-tls-verify=false",
        &from,
        &to,
    ]);
    replica.end();
}

#[test]
fn an_image_that_came_as_erofs_images_is_served_as_it_came_with_the_order_of_its_start() {
    let remote = Remote::new();
    remote.pull();
    let local = "team/box:1";
    remote.home.output(&["tag", &remote.name, local]).ok();
    let replica = Replica::new(&remote.home, &[]);
    // Not before all of it is here.
    let part = replica.get("/v2/team/box/manifests/1");
    assert_eq!(status(&part), "404");
    replica.end();

    remote.run(packed::READ).ok();
    let whole = ["pull", "-q", "--platform", PLATFORM, &remote.name];
    remote.home.output(&whole).ok();
    assert_eq!(remote.lazy(), 0);
    let replica = Replica::new(&remote.home, &[]);
    let digest = manifest_of(&remote.home, local);
    let (_, served) = replica.get("/v2/team/box/manifests/1");
    assert_eq!(Digest::of(&served).to_string(), digest);
    let client = Home::empty();
    let here = replica.name("team/box:1");
    client.output(&["pull", "-q", "--lazy", &here]).ok();
    assert_eq!(manifest_of(&client, &here), digest);
    let order = |home: &Home| {
        let hex = digest.strip_prefix("sha256:").unwrap();
        let path = home
            .store()
            .join("images/sha256")
            .join(hex)
            .join("order.json");
        fs::read_to_string(path).ok()
    };
    assert!(order(&remote.home).is_some());
    assert_eq!(order(&client), order(&remote.home));
    let start = ["run", "--backend", "host", "--rm", "-q", "--lazy", &here];
    let words = [&start[..], &["sh", "-c", packed::READ]].concat();
    assert_eq!(client.output(&words).ok(), remote.run(packed::READ).ok());
    replica.end();
}

/// A registry with an image in both forms, `team/box:1`, and who signs it.
struct Signed {
    /// None once it has gone.
    registry: Option<DockerRegistry>,
    _directory: tempfile::TempDir,
    host: String,
    cosign: Cosign,
    /// Digest of the EROFS images' manifest.
    manifest: String,
}

impl Signed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        let host = registry.host().to_owned();
        let name = format!("{host}/team/box:1");
        let words = ["push", "-q", "--erofs", "--json", "box", &name];
        let pushed = Home::new().output(&words).json();
        let manifest = pushed["erofs_manifest_digest"].as_str().unwrap().to_owned();
        Self {
            registry: Some(registry),
            _directory: directory,
            host,
            cosign: Cosign::new(),
            manifest,
        }
    }

    fn sign(&self) {
        let registry = self.registry.as_ref().unwrap();
        self.cosign.sign(registry, "team/box:1", &self.manifest);
    }

    /// Serves a store, whose memory of what is attached to images is empty.
    fn replica(&self, home: &Home) -> Replica {
        Replica::new(home, &["--erofs", "--pull-through", &self.host])
    }

    /// Pulls through a replica into an empty store, under a policy that asks for this signer.
    fn pull(&self, replica: &Replica) -> Finished {
        let signed = format!("{}/team/box:1", self.host);
        let policy = signed_by(&self.cosign.key(), Some(&signed));
        let name = replica.name("team/box:1");
        let words = ["pull", "-q", "--platform", PLATFORM, &name];
        with_policy(&Home::empty(), &policy, &words)
    }
}

/// Returns the path of what is attached to a manifest.
fn attached(repository: &str, digest: &str, kind: &str) -> String {
    let tag = digest.replace(':', "-");
    format!("/v2/{repository}/manifests/{tag}.{kind}")
}

#[test]
fn signatures_pass_through_and_are_kept_for_when_their_registry_is_gone() {
    let mut signed = Signed::new();
    let home = Home::empty();
    let replica = signed.replica(&home);
    signatures::assert_unsigned(&signed.pull(&replica));
    signed.sign();
    signed.pull(&replica).ok();
    let sig = attached("team/box", &signed.manifest, "sig");
    let signature = replica.get(&sig);
    assert_eq!(status(&signature), "200");
    // Of another repository there is none, and an order is none.
    for path in [
        attached("team/other", &signed.manifest, "sig"),
        attached("team/box", &signed.manifest, "order"),
    ] {
        assert_eq!(status(&replica.get(&path)), "404", "{path}");
    }
    signed.registry = None;
    assert_eq!(replica.get(&sig).1, signature.1);
    // For an order, which is a hint, no registry is missed.
    let other = Digest::of(b"never asked for").to_string();
    let order = attached("team/box", &other, "order");
    assert_eq!(status(&replica.get(&order)), "404");
    let sig = attached("team/box", &other, "sig");
    assert_eq!(status(&replica.get(&sig)), "502");
    replica.end();
}

#[test]
fn an_image_comes_with_its_signatures_for_those_who_want_them_once_its_registry_is_gone() {
    let mut signed = Signed::new();
    signed.sign();
    let home = Home::empty();
    let replica = signed.replica(&home);
    // This one asks for none.
    let pull = |replica: &Replica| {
        let name = replica.name("team/box:1");
        Home::empty().output(&["pull", "-q", "--platform", PLATFORM, &name])
    };
    pull(&replica).ok();
    signed.registry = None;
    signed.pull(&replica).ok();
    replica.end();

    // A signature that is not known is no obstacle where none is wanted, and is not "none" where one is.
    let replica = signed.replica(&home);
    pull(&replica).ok();
    let refused = signed.pull(&replica);
    assert_eq!(refused.code(), 1);
    let said = refused.stderr();
    assert!(said.contains("can't be reached"), "{said}");
    replica.end();
}
