//! Bundles that refer to an image, in registries that list what does and in those that leave that to a tag.

use micabox_image::Digest;
use micabox_image::Reference;
use micabox_trust::BUNDLE_TYPE;
use serde_json::{Value, json};

use crate::Puller;
use crate::image::{TestImage, TestLayer};
use crate::maker::Maker;
use crate::server::Registry;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An image that a key has signed, and the list of what refers to it.
struct Signed {
    maker: Maker,
    registry: Registry,
    image: Reference,
    digest: Digest,
    list: Vec<u8>,
}

impl Signed {
    fn new() -> Self {
        let maker = Maker::new();
        maker.key("P-256", "ours");
        maker.key("P-256", "theirs");
        let test = TestImage::new(vec![TestLayer::noise(1, 1000)]);
        let (registry, digest) = (Registry::new(), test.digest());
        registry.push("app", "1", &test);
        let image = registry.reference("app:1");
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"digest": {"sha256": digest.hex()}}],
            "predicateType": "https://sigstore.dev/cosign/sign/v1",
            "predicate": {},
        });
        let entries: Vec<Value> = ["theirs", "ours"]
            .into_iter()
            .map(|key| {
                put(
                    &registry,
                    digest,
                    &maker.bundled(&statement, key, None, None),
                )
            })
            .collect();
        let list = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        Self {
            maker,
            registry,
            image,
            digest,
            list: list.to_string().into_bytes(),
        }
    }

    /// Makes a puller with a policy that asks for a signature by a key, in a bundle or not.
    fn puller(&self, key: &str, takes_bundles: bool) -> Puller {
        let key = self.maker.path(&format!("{key}.pub"));
        let policy = json!({"default": [{"type": "sigstoreSigned", "keyPath": key}]});
        let path = self.maker.path("policy.json");
        std::fs::write(&path, policy.to_string()).unwrap();
        Puller::new().edit_settings(|settings| {
            settings.policy = Some(path);
            settings.sigstore_bundles = takes_bundles;
        })
    }

    fn assert_decided(&self) {
        let signers = |puller: Puller| {
            puller.pull(&self.image);
            puller.store.signers(&self.image).unwrap()
        };
        let ours = self.maker.path("ours.pub").display().to_string();
        assert_eq!(signers(self.puller("ours", true)), [format!("key {ours}")]);
        self.maker.key("P-256", "other");
        let said = self.puller("other", true).refusal(&self.image);
        assert!(said.contains("none of its 2 will do"), "{said}");
        let said = self.puller("ours", false).refusal(&self.image);
        assert!(said.contains("it has none"), "{said}");
    }
}

/// Puts a bundle into the image's repository. Returns what a list has of it.
fn put(registry: &Registry, subject: Digest, bundle: &Value) -> Value {
    let bytes = bundle.to_string().into_bytes();
    let digest = Digest::of(&bytes);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": BUNDLE_TYPE,
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2,
        },
        "layers": [{"mediaType": BUNDLE_TYPE, "digest": digest, "size": bytes.len()}],
        "subject": {"mediaType": MANIFEST, "digest": subject, "size": 1},
    });
    let path = format!("/v2/app/blobs/{digest}");
    registry.put(&path, "application/octet-stream", bytes);
    let manifest = manifest.to_string().into_bytes();
    let (digest, size) = (Digest::of(&manifest), manifest.len());
    registry.put(&format!("/v2/app/manifests/{digest}"), MANIFEST, manifest);
    json!({"mediaType": MANIFEST, "artifactType": BUNDLE_TYPE, "digest": digest, "size": size})
}

#[test]
fn a_registry_lists_what_refers_to_an_image() {
    let signed = Signed::new();
    let path = format!("/v2/app/referrers/{}", signed.digest);
    signed.registry.put(&path, INDEX, signed.list.clone());
    signed.assert_decided();
}

#[test]
fn a_tag_has_the_list_where_the_registry_has_none() {
    let signed = Signed::new();
    let path = format!("/v2/app/manifests/sha256-{}", signed.digest.hex());
    signed.registry.put(&path, INDEX, signed.list.clone());
    signed.assert_decided();
}

#[test]
fn a_bundle_that_is_gone_is_no_obstacle_where_another_will_do() {
    let signed = Signed::new();
    let mut list: Value = serde_json::from_slice(&signed.list).unwrap();
    let mut gone = list["manifests"][0].clone();
    gone["digest"] = json!(Digest::of(b"gone"));
    let path = format!("/v2/app/referrers/{}", signed.digest);
    let put = |list: &Value| {
        signed
            .registry
            .put(&path, INDEX, list.to_string().into_bytes())
    };
    list["manifests"]
        .as_array_mut()
        .unwrap()
        .insert(0, gone.clone());
    put(&list);
    let puller = signed.puller("ours", true);
    puller.pull(&signed.image);
    assert_eq!(puller.store.signers(&signed.image).unwrap().len(), 1);
    // Where none will do, it is the reason: it could have been the one.
    list["manifests"] = json!([gone]);
    put(&list);
    let said = signed.puller("ours", true).refusal(&signed.image);
    assert!(said.contains(&Digest::of(b"gone").to_string()), "{said}");
}

#[test]
fn the_list_of_cosign_3_0_has_bundles_of_no_type() {
    let signed = Signed::new();
    let mut list: Value = serde_json::from_slice(&signed.list).unwrap();
    for entry in list["manifests"].as_array_mut().unwrap() {
        entry["artifactType"] = json!("application/vnd.oci.empty.v1+json");
    }
    let path = format!("/v2/app/manifests/sha256-{}", signed.digest.hex());
    signed
        .registry
        .put(&path, INDEX, list.to_string().into_bytes());
    signed.assert_decided();
}
