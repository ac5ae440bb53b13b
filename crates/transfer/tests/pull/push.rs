//! Pushes to registries that accept them, refuse them, fail or require a login. `real.rs` has the
//! real registry.

use std::fs;
use std::time::Duration;

use micabox_image::{Compression, Digest, Reference};
use micabox_transfer::Settings;
use micabox_transfer::{Credentials, PushError, PushOptions, Pushed, push_blocking};
use serde_json::{Value, json};

use crate::Puller;
use crate::image::{TestImage, TestLayer};
use crate::server::{Registry, Reply};
use crate::uploads::accept;

/// A store with an image, and options for pushing it.
pub struct Pusher {
    pub puller: Puller,
    pub options: PushOptions,
    pub name: String,
    pub image: TestImage,
}

impl Pusher {
    /// Takes an image from a registry that is gone.
    pub fn with(image: TestImage) -> Self {
        let puller = Puller::new();
        let registry = Registry::with(&image);
        let reference = registry.reference("x:1");
        puller.pull(&reference);
        Self {
            options: PushOptions {
                compression: Compression::Gzip,
                erofs: false,
                containerd: None,
                settings: puller.options.settings.clone(),
                credentials: Credentials::none(),
            },
            name: reference.to_string(),
            puller,
            image,
        }
    }

    pub fn small() -> Self {
        Self::with(TestImage::new(vec![
            TestLayer::noise(1, 50_000),
            TestLayer::noise(2, 7000),
            TestLayer::noise(1, 50_000),
        ]))
    }

    fn edit_settings(mut self, edit: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = (*self.options.settings).clone();
        edit(&mut settings);
        self.options.settings = settings.into();
        self
    }

    pub fn try_push(&self, to: &Reference) -> Result<Pushed, PushError> {
        let progress = self.puller.progress.clone();
        push_blocking(
            &self.puller.store,
            &self.name,
            Some(to),
            &self.options,
            progress,
        )
    }

    pub fn push(&self, to: &Reference) -> Pushed {
        self.try_push(to).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the message of a push's failure.
    pub fn refusal(&self, to: &Reference) -> String {
        let error = self.try_push(to).expect_err("the push should have failed");
        let litter = fs::read_dir(self.puller.store.root().join("tmp")).unwrap();
        assert_eq!(litter.count(), 0);
        error.to_string()
    }
}

#[test]
fn blobs_go_up_once_and_the_manifest_last() {
    let pusher = Pusher::small();
    for compression in [Compression::Gzip, Compression::Zstd, Compression::None] {
        let registry = Registry::new();
        let uploads = accept(&registry);
        let mut options = pusher.options.clone();
        options.compression = compression;
        let pusher = Pusher {
            options,
            ..Pusher::small()
        };
        let pushed = pusher.push(&registry.reference("team:1"));
        assert_eq!((pushed.layers, pushed.present), (3, 0));
        let uploads = uploads.lock().unwrap();
        let key = ("team".to_owned(), "1".to_owned());
        let (media_type, manifest) = &uploads.manifests[&key];
        assert_eq!(media_type, "application/vnd.oci.image.manifest.v1+json");
        assert_eq!(pushed.manifest_digest, Digest::of(manifest));
        let manifest: Value = serde_json::from_slice(manifest).unwrap();
        assert_eq!(
            manifest["config"]["digest"],
            Digest::of(&pusher.image.config).to_string()
        );
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers[0], layers[2]);
        let ends_with = layers[0]["mediaType"].as_str().unwrap().rsplit('.').next();
        let expected = match compression {
            Compression::Gzip => "tar+gzip",
            Compression::Zstd => "tar+zstd",
            Compression::None => "tar",
        };
        assert_eq!(ends_with, Some(expected));
        let requests = registry.requests();
        let finished = requests
            .iter()
            .filter(|request| request.method == "PUT" && request.path().contains("/uploads/"));
        // Two layers and the config.
        assert_eq!(finished.count(), 3);
        let last = requests.last().unwrap();
        assert_eq!((last.method.as_str(), last.is_manifest()), ("PUT", true));
    }
}

#[test]
fn blobs_that_the_registry_has_are_neither_made_nor_sent() {
    let pusher = Pusher::small();
    let registry = Registry::new();
    let uploads = accept(&registry);
    let first = pusher.push(&registry.reference("team:1"));
    let before = registry.requests().len();
    let second = pusher.push(&registry.reference("team:2"));
    assert_eq!(second.manifest_digest, first.manifest_digest);
    assert_eq!(second.present, 3);
    let later = &registry.requests()[before..];
    assert!(later.iter().all(|request| request.method != "PATCH"));
    assert_eq!(uploads.lock().unwrap().manifests.len(), 2);
}

#[test]
fn every_request_with_a_body_says_its_length_also_of_an_empty_one() {
    let pusher = Pusher::small();
    let registry = Registry::new();
    registry.rule(|request| {
        let has_body = ["POST", "PUT", "PATCH"].contains(&&*request.method);
        let says = request.header("content-length") == Some(&request.body.len().to_string());
        (has_body && !says).then(|| Reply::error(411, "length required"))
    });
    let _uploads = accept(&registry);
    pusher.push(&registry.reference("team:1"));
}

#[test]
fn a_redirected_push_takes_its_body_along_and_no_secret() {
    for status in [301, 302, 307, 308] {
        let pusher = Pusher::small();
        let (registry, elsewhere) = (Registry::new(), Registry::new());
        let uploads = accept(&elsewhere);
        let url = elsewhere.url();
        registry.rule(move |request| {
            if request.header("authorization").is_none() {
                let refusal = Reply::error(401, "who is it");
                return Some(refusal.header("www-authenticate", "Basic realm=\"test\""));
            }
            let to = format!("{url}{}", request.target);
            Some(Reply::new(status, "").header("location", to))
        });
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        let auths = json!({"auths": {registry.host(): {"auth": "dXNlcjpzZWNyZXQ="}}});
        fs::write(&file, auths.to_string()).unwrap();
        let mut options = pusher.options.clone();
        options.credentials = Credentials::from_files([file]);
        let pusher = Pusher { options, ..pusher };
        pusher.push(&registry.reference("team:1"));
        assert_eq!(uploads.lock().unwrap().manifests.len(), 1);
        let mut requests = elsewhere.requests().into_iter();
        assert!(requests.all(|request| request.header("authorization").is_none()));
    }
    // What is there is the answer to another request.
    let registry = Registry::new();
    registry.rule(|request| {
        (request.method == "POST").then(|| Reply::new(303, "").header("location", "/elsewhere"))
    });
    let message = Pusher::small().refusal(&registry.reference("team:1"));
    assert!(message.contains("without the body"), "{message}");
}

#[test]
fn a_registry_without_a_request_of_the_push_gets_the_blobs_in_another_way() {
    for methods in [&["HEAD"][..], &["PATCH"], &["HEAD", "PATCH"]] {
        for status in [405, 501] {
            let pusher = Pusher::small();
            let registry = Registry::new();
            registry.rule(move |request| {
                let refused = methods.contains(&&*request.method);
                refused.then(|| Reply::error(status, "no such method"))
            });
            let uploads = accept(&registry);
            pusher.push(&registry.reference("team:1"));
            assert_eq!(uploads.lock().unwrap().manifests.len(), 1);
        }
    }
}

#[test]
fn a_broken_upload_resumes_or_starts_over() {
    for (forgetful, transfers) in [(false, 1), (true, 2)] {
        let pusher = Pusher::with(TestImage::large());
        let registry = Registry::new();
        let uploads = accept(&registry);
        uploads.lock().unwrap().forgetful = forgetful;
        registry.break_upload(1_500_000);
        pusher.push(&registry.reference("team:1"));
        let requests = registry.requests();
        let patches: Vec<_> = requests
            .iter()
            .filter(|request| request.method == "PATCH")
            .collect();
        // One failed, one for the rest or for all of the blob, one for the config.
        assert_eq!(patches.len(), 3);
        let range = patches[1].header("content-range");
        assert_eq!(range.is_some(), !forgetful);
        if let Some(range) = range {
            assert!(range.starts_with("1500000-"), "{range}");
        }
        let started = requests.iter().filter(|request| request.method == "POST");
        assert_eq!(started.count(), transfers + 1);
        assert!(!pusher.puller.retries().is_empty());
    }
}

#[test]
fn a_limit_on_the_size_of_requests_is_kept_to() {
    let blob = TestLayer::noise(5, 40 << 20);
    let pusher = Pusher::with(TestImage::new(vec![blob]));
    let registry = Registry::new();
    let uploads = accept(&registry);
    uploads.lock().unwrap().limit = Some(17 << 20);
    pusher.push(&registry.reference("team:1"));
    let sizes: Vec<_> = registry
        .requests()
        .iter()
        .filter(|request| request.method == "PATCH")
        .map(|request| request.body.len() >> 20)
        .collect();
    assert_eq!(sizes[..4], [40, 16, 16, 8]);

    let registry = Registry::new();
    let uploads = accept(&registry);
    uploads.lock().unwrap().limit = Some(1 << 20);
    let message = pusher.refusal(&registry.reference("team:1"));
    assert!(message.contains("no transfer of that size"), "{message}");
}

#[test]
fn refusals_of_a_push_are_told_apart_and_publish_nothing() {
    let pusher = Pusher::small().edit_settings(|settings| settings.transfer.attempts = 2);
    let starts: [(u16, &str); 6] = [
        (401, "mica login"),
        (403, "access denied: go away"),
        (404, "no such repository, and makes none: go away"),
        (413, "no transfer of that size: go away"),
        (429, "limits how often"),
        (503, "answers 503: go away (gave up after 2 attempts)"),
    ];
    for method in ["HEAD", "POST", "PATCH", "PUT"] {
        for (status, part) in starts {
            if (method, status) == ("HEAD", 404) {
                continue; // A registry reports a missing blob with this status.
            }
            let registry = Registry::new();
            registry.rule(move |request| {
                let challenge = "Basic realm=\"test\"";
                let refusal = Reply::error(status, "go away");
                (request.method == method).then(|| refusal.header("www-authenticate", challenge))
            });
            let uploads = accept(&registry);
            let message = pusher.refusal(&registry.reference("team:1"));
            let part = match (method, status) {
                // The response has no body with a reason.
                ("HEAD", _) => part.split(':').next().unwrap(),
                // In the middle of a transfer the repository existed a moment ago.
                ("PATCH" | "PUT", 404) => "forgot the transfer: go away",
                _ => part,
            };
            let part = part.trim_end_matches(" go away");
            assert!(message.contains(part), "{method} {status}: {message}");
            assert!(message.contains("cannot push"), "{message}");
            assert!(message.contains(&registry.host()), "{message}");
            assert!(uploads.lock().unwrap().manifests.is_empty());
        }
    }
    // Only the manifest.
    let registry = Registry::new();
    registry.rule(|request| {
        let refused = request.method == "PUT" && request.is_manifest();
        refused.then(|| Reply::error(400, "manifest invalid"))
    });
    accept(&registry);
    let message = pusher.refusal(&registry.reference("team:1"));
    assert!(
        message.contains("the manifest as `1`") && message.contains("manifest invalid"),
        "{message}"
    );
}

#[test]
fn a_web_page_in_place_of_an_answer_is_no_success_of_a_push() {
    let steps = [
        ("POST", false),
        ("PATCH", false),
        ("PUT", false),
        ("PUT", true),
    ];
    for (method, is_manifest) in steps {
        let pusher = Pusher::small();
        let registry = Registry::new();
        registry.rule(move |request| {
            let page = Reply::new(200, " <html>Please log in</html>");
            let page = page.header("content-type", "text/html; charset=utf-8");
            let is_asked = request.method == method && request.is_manifest() == is_manifest;
            is_asked.then_some(page)
        });
        let uploads = accept(&registry);
        let message = pusher.refusal(&registry.reference("team:1"));
        assert!(
            message.contains("it sends a web page"),
            "{method}: {message}"
        );
        assert!(uploads.lock().unwrap().manifests.is_empty());
    }
    // Some registries call an answer without a body HTML.
    let pusher = Pusher::small();
    let registry = Registry::new();
    registry.rule(|request| {
        let answer = Reply::new(200, "").header("content-type", "text/html; charset=utf-8");
        (request.method == "PUT" && request.is_manifest()).then_some(answer)
    });
    accept(&registry);
    pusher.push(&registry.reference("team:1"));
}

#[test]
fn temporary_failures_of_a_push_are_retried() {
    for method in ["HEAD", "POST", "PATCH", "PUT"] {
        for status in [429, 500, 503] {
            let pusher = Pusher::small();
            let registry = Registry::new();
            let mut left = 2;
            registry.rule(move |request| {
                let fails = request.method == method && left > 0;
                left -= u32::from(fails);
                fails.then(|| Reply::error(status, "later"))
            });
            let uploads = accept(&registry);
            pusher.push(&registry.reference("team:1"));
            assert_eq!(uploads.lock().unwrap().manifests.len(), 1);
        }
    }
}

#[test]
fn a_registry_that_stalls_is_given_up() {
    let pusher = Pusher::small().edit_settings(|settings| {
        settings.transfer.idle_timeout = Duration::from_millis(200);
        settings.transfer.connect_timeout = Duration::from_millis(200);
        settings.transfer.attempts = 2;
    });
    for method in ["HEAD", "POST", "PATCH"] {
        let registry = Registry::new();
        registry.rule(move |request| {
            let stalls = request.method == method;
            stalls.then(|| Reply::new(202, "xx").cut(0, crate::server::End::Silent))
        });
        accept(&registry);
        let message = pusher.refusal(&registry.reference("team:1"));
        assert!(message.contains("nothing arrived"), "{method}: {message}");
    }
}

/// A login is for pulling and pushing, and for the repositories to mount from.
#[test]
fn tokens_are_asked_for_with_all_that_a_push_needs() {
    let pusher = Pusher::small();
    let registry = Registry::new();
    let url = registry.url();
    registry.rule(move |request| {
        if request.path() == "/token" {
            return Some(Reply::new(200, json!({"token": "t"}).to_string()));
        }
        if request.header("authorization") == Some("Bearer t") {
            return None;
        }
        let scope = "repository:team:pull";
        let challenge = format!("Bearer realm=\"{url}/token\",service=\"test\",scope=\"{scope}\"");
        Some(Reply::error(401, "who?").header("www-authenticate", challenge))
    });
    let uploads = accept(&registry);
    let beside = registry.reference("beside:9");
    let digest = pusher.image.digest();
    pusher.puller.store.tag(&beside, &digest).unwrap();
    pusher.push(&registry.reference("team:1"));
    assert_eq!(uploads.lock().unwrap().manifests.len(), 1);
    let requests = registry.requests();
    let mut asked = requests.iter().filter(|request| request.path() == "/token");
    let target = asked.next().unwrap().target.replace("%3A", ":");
    assert!(
        target.contains("scope=repository:team:pull%2Cpush"),
        "{target}"
    );
    assert!(target.contains("scope=repository:beside:pull"), "{target}");
    assert!(asked.next().is_none());
    let tried = requests
        .iter()
        .any(|request| request.target.contains("from=beside"));
    assert!(tried, "no mount was tried");
}

/// Secrets don't follow a transfer to another host.
#[test]
fn blobs_may_go_elsewhere_without_credentials() {
    let pusher = Pusher::small();
    let (registry, elsewhere) = (Registry::new(), Registry::new());
    let there = accept(&elsewhere);
    let (url, other) = (registry.url(), elsewhere.url());
    registry.rule(move |request| {
        if request.path() == "/token" {
            return Some(Reply::new(200, json!({"token": "t"}).to_string()));
        }
        if request.header("authorization").is_none() {
            let challenge = format!("Bearer realm=\"{url}/token\"");
            return Some(Reply::error(401, "who?").header("www-authenticate", challenge));
        }
        match (request.method.as_str(), request.is_manifest()) {
            ("POST", _) => {
                let location = format!("{other}/v2/team/uploads/7?state=a%2Fb");
                Some(Reply::new(202, "").header("location", location))
            }
            ("HEAD", _) => Some(Reply::new(404, "")),
            ("PUT", true) => Some(Reply::new(201, "")),
            _ => None,
        }
    });
    // That host doesn't know transfer 7.
    let message = pusher.refusal(&registry.reference("team:1"));
    assert!(message.contains("forgot the transfer"), "{message}");
    let requests = elsewhere.requests();
    assert!(!requests.is_empty());
    assert!(
        requests
            .iter()
            .all(|request| request.header("authorization").is_none())
    );
    assert!(there.lock().unwrap().manifests.is_empty());
}

#[test]
fn an_altered_layer_is_noticed_before_anything_is_published() {
    let pusher = Pusher::small();
    let store = &pusher.puller.store;
    let layer = store.image(&pusher.name).unwrap().layers[1].clone();
    let mut bytes = fs::read(&layer.path).unwrap();
    bytes[4096] ^= 1;
    fs::write(&layer.path, bytes).unwrap();
    let registry = Registry::new();
    let uploads = accept(&registry);
    let message = pusher.refusal(&registry.reference("team:1"));
    assert!(message.contains("mica store fsck"), "{message}");
    fs::remove_file(layer.path.with_extension("recipe")).unwrap();
    let message = pusher.refusal(&registry.reference("team:1"));
    assert!(message.contains(".recipe"), "{message}");
    assert!(uploads.lock().unwrap().manifests.is_empty());
}

#[test]
fn a_destination_is_a_name_and_a_tag() {
    let pusher = Pusher::small();
    let registry = Registry::new();
    let digest = pusher.image.digest();
    let to = registry.reference(&format!("team@{digest}"));
    assert!(pusher.refusal(&to).contains("a tag and no digest"));
    let unnamed = Pusher {
        name: digest.to_string(),
        ..Pusher::small()
    };
    let progress = unnamed.puller.progress.clone();
    let error = push_blocking(
        &unnamed.puller.store,
        &unnamed.name,
        None,
        &unnamed.options,
        progress,
    );
    assert!(matches!(error, Err(PushError::NoDestination(_))));
}
