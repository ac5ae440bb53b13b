//! Registries that require a login, and secrets that must not leave them.

use std::fs;

use micabox_registry::Registry as RegistrySettings;
use micabox_transfer::Credentials;
use serde_json::json;

use crate::Puller;
use crate::image::TestImage;
use crate::server::{End, Registry, Reply, Request};

/// `base64("user:secret")`.
const AUTH: &str = "dXNlcjpzZWNyZXQ=";

/// Credentials from a Docker configuration with this entry for the registry.
fn credentials(registry: &Registry, entry: serde_json::Value) -> (tempfile::TempDir, Credentials) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.json");
    fs::write(
        &file,
        json!({"auths": {registry.host(): entry}}).to_string(),
    )
    .unwrap();
    let credentials = Credentials::from_files([file]);
    (directory, credentials)
}

fn challenge(text: impl Into<String>) -> Reply {
    Reply::error(401, "authentication required").header("www-authenticate", text)
}

fn wants_basic(registry: &Registry) {
    registry.rule(|request| {
        let known = request.header("authorization") == Some(&format!("Basic {AUTH}"));
        (!known).then(|| challenge("Basic realm=\"test\""))
    });
}

/// Makes `registry` require tokens from `/token`, each valid for `uses` requests. `issue` checks a
/// request for a token.
fn wants_tokens(
    registry: &Registry,
    uses: usize,
    mut issue: impl FnMut(&Request) -> Option<Reply> + Send + 'static,
) {
    let url = registry.url();
    let (mut issued, mut left) = (0, 0);
    registry.rule(move |request| {
        if request.path() == "/token" {
            return Some(issue(request).unwrap_or_else(|| {
                issued += 1;
                left = uses;
                // The field's name depends on the request's method.
                let field = if request.method == "POST" {
                    "access_token"
                } else {
                    "token"
                };
                Reply::new(200, json!({field: format!("token-{issued}")}).to_string())
            }));
        }
        if request.header("authorization") == Some(&format!("Bearer token-{issued}")) && left > 0 {
            left -= 1;
            return None;
        }
        let realm =
            format!("Bearer realm=\"{url}/token\",service=\"test\",scope=\"repository:x:pull\"");
        Some(challenge(realm))
    });
}

#[test]
fn a_token_for_the_registry_is_sent_as_it_is() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    registry.rule(|request| {
        let known = request.header("authorization") == Some("Bearer given");
        (!known).then(|| challenge("Bearer realm=\"http://127.0.0.1:1/token\",service=\"test\""))
    });
    let (_directory, credentials) = credentials(
        &registry,
        json!({"registrytoken": "given", "identitytoken": ""}),
    );
    let puller = Puller::new().credentials(credentials);
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
}

#[test]
fn basic_credentials_are_sent_once_asked_for() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    wants_basic(&registry);
    let (_directory, credentials) = credentials(&registry, json!({"auth": AUTH}));
    let puller = Puller::new().credentials(credentials);
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    let requests = registry.requests();
    assert_eq!(requests[0].header("authorization"), None);
    assert!(
        requests[1..]
            .iter()
            .all(|request| request.header("authorization").is_some())
    );
}

#[test]
fn a_refusal_says_where_to_log_in_and_no_secret() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    wants_basic(&registry);
    let reference = registry.reference("x:1");
    let login = format!("mica login {}", registry.host());
    let message = Puller::new().refusal(&reference);
    assert!(message.contains(&login), "{message}");

    let wrong = json!({"username": "user", "password": "hunter2"});
    let (_directory, wrong) = credentials(&registry, wrong);
    let message = Puller::new().credentials(wrong).refusal(&reference);
    for part in [login.as_str(), "`user`"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("hunter2"), "{message}");

    let (_directory, damaged) = credentials(&registry, json!({"auth": "%%%"}));
    let message = Puller::new().credentials(damaged).refusal(&reference);
    assert!(
        message.contains("config.json") && message.contains("damaged"),
        "{message}"
    );
}

#[test]
fn tokens_are_fetched_anonymously_or_with_a_password() {
    let image = TestImage::small();
    for password in [false, true] {
        let registry = Registry::with(&image);
        wants_tokens(&registry, usize::MAX, |_| None);
        let (_directory, known) = credentials(&registry, json!({"auth": AUTH}));
        let puller = if password {
            Puller::new().credentials(known)
        } else {
            Puller::new()
        };
        puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
        let requests = registry.requests();
        let tokens: Vec<_> = requests
            .iter()
            .filter(|request| request.path() == "/token")
            .collect();
        assert_eq!(tokens.len(), 1, "one is enough for an image");
        assert!(tokens[0].target.contains("scope=repository%3Ax%3Apull"));
        assert!(tokens[0].target.contains("service=test"));
        let basic = format!("Basic {AUTH}");
        let sent = tokens[0].header("authorization");
        assert_eq!(sent, password.then_some(basic.as_str()));
        // The password is sent to the token server only.
        let others = requests.iter().filter(|request| request.path() != "/token");
        assert!(
            others
                .clone()
                .all(|request| request.header("authorization") != Some(&basic))
        );
    }
}

#[test]
fn an_identity_token_is_exchanged() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    wants_tokens(&registry, usize::MAX, |request| {
        let form = String::from_utf8(request.body.clone()).unwrap();
        let expected = [
            "grant_type=refresh_token",
            "refresh_token=re%2Ffresh",
            "service=test",
            "scope=repository%3Ax%3Apull",
        ];
        let good = request.method == "POST" && expected.iter().all(|part| form.contains(part));
        (!good).then(|| Reply::error(400, "no"))
    });
    let entry = json!({"auth": "dXNlcjo=", "identitytoken": "re/fresh"});
    let (_directory, known) = credentials(&registry, entry);
    let puller = Puller::new().credentials(known);
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    // Not in the URL, which servers log.
    let mut requests = registry.requests().into_iter();
    assert!(requests.all(|request| !request.target.contains("fresh")));
}

#[test]
fn tokens_expire_in_the_middle_of_a_pull() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    wants_tokens(&registry, 1, |_| None);
    let puller = Puller::new().edit_settings(|settings| {
        settings.parallel_layers = micabox_image::ParallelLayers::new(1);
    });
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
}

#[test]
fn useless_token_servers_are_named() {
    let image = TestImage::small();
    for (reply, part) in [
        (Reply::error(401, "who?"), "mica login"),
        (Reply::error(404, ""), "404"),
        (Reply::new(200, "{}"), "no token"),
        (Reply::new(200, "<html>"), "no token"),
        (Reply::new(200, r#"{"token": "a\nb"}"#), "isn't one"),
        (
            Reply::new(200, "").cut(0, End::Endless).without_length(),
            "larger than",
        ),
    ] {
        let registry = Registry::with(&image);
        wants_tokens(&registry, 1, move |_| Some(reply.clone()));
        let message = Puller::new().refusal(&registry.reference("x:1"));
        assert!(message.contains(part), "{message}");
    }
    for (realm, part) in [
        ("Bearer realm=\"not a url\"", "no usable address"),
        ("Bearer service=\"x\"", "no usable address"),
        ("Bearer realm=\"http://token.example.com/\"", "plain HTTP"),
        ("Bearer realm=\"file:///etc/passwd\"", "file"),
        ("Digest realm=\"x\", nonce=\"y\"", "Digest"),
        ("", "is not supported"),
    ] {
        let registry = Registry::with(&image);
        registry.rule(move |_| Some(challenge(realm)));
        let message = Puller::new().refusal(&registry.reference("x:1"));
        assert!(message.contains(part), "{realm}: {message}");
    }
}

#[test]
fn a_failing_token_server_is_asked_again() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    let mut failures = 2;
    wants_tokens(&registry, usize::MAX, move |_| {
        failures -= 1;
        (failures >= 0).then(|| Reply::error(503, "busy"))
    });
    let puller = Puller::new();
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
}

#[test]
fn a_redirect_to_another_host_takes_no_secret_along() {
    let image = TestImage::large();
    let (registry, storage) = (Registry::with(&image), Registry::with(&image));
    wants_basic(&registry);
    let elsewhere = storage.url();
    registry.rule(move |request| {
        request
            .is_blob()
            .then(|| Reply::redirect(format!("{elsewhere}{}", request.target)))
    });
    storage.blob_fault(&image, 1, |_, reply| reply.cut(1_000_000, End::Close));
    let (_directory, known) = credentials(&registry, json!({"auth": AUTH}));
    let puller = Puller::new().credentials(known);
    puller.assert_has(&puller.pull(&registry.reference("x:1")), &image);
    let stored = storage.requests();
    assert_eq!(stored.len(), 3, "config, layer, the rest of the layer");
    assert!(
        stored
            .iter()
            .all(|request| request.header("authorization").is_none())
    );
    assert_eq!(
        stored[2].range_start(),
        Some(1_000_000),
        "the range goes along"
    );
}

#[test]
fn a_redirects_target_cannot_ask_for_the_secret() {
    let image = TestImage::small();
    let (registry, storage) = (Registry::with(&image), Registry::new());
    let elsewhere = storage.url();
    registry.rule(move |request| {
        request
            .is_blob()
            .then(|| Reply::redirect(format!("{elsewhere}{}", request.target)))
    });
    let realm = format!("Bearer realm=\"{}/token\"", storage.url());
    storage.rule(move |_| Some(challenge(realm.clone())));
    let (_directory, known) = credentials(&registry, json!({"auth": AUTH}));
    let message = Puller::new()
        .credentials(known)
        .refusal(&registry.reference("x:1"));
    assert!(
        message.contains("needs a login") && message.contains(&storage.host()),
        "{message}"
    );
    let mut requests = storage.requests().into_iter();
    assert!(requests.all(|request| request.header("authorization").is_none()));
}

#[test]
fn a_redirect_within_the_host_keeps_the_secret() {
    let image = TestImage::small();
    let registry = Registry::with(&image);
    wants_basic(&registry);
    registry.rule(|request| {
        let rest = request.path().strip_prefix("/v2/y/")?;
        Some(Reply::redirect(format!("/v2/x/{rest}")))
    });
    let (_directory, known) = credentials(&registry, json!({"auth": AUTH}));
    let puller = Puller::new().credentials(known);
    puller.assert_has(&puller.pull(&registry.reference("y:1")), &image);
}

#[test]
fn redirects_that_lead_nowhere_end() {
    for (to, part) in [
        ("/v2/x/manifests/1", "in a row"),
        ("http://registry.example.com/", "plain HTTP"),
        ("file:///etc/passwd", "file"),
        ("http://[", "http://["),
    ] {
        let registry = Registry::new();
        registry.rule(move |_| Some(Reply::redirect(to)));
        let message = Puller::new().refusal(&registry.reference("x:1"));
        assert!(message.contains(part), "{message}");
        assert!(registry.requests().len() < 20);
    }
    let registry = Registry::new();
    registry.rule(|_| Some(Reply::new(302, "")));
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(message.contains("where to"), "{message}");
}

#[test]
fn plain_http_is_not_spoken_where_tls_is_wanted() {
    let registry = Registry::with(&TestImage::small());
    let puller = Puller::new().edit_settings(|settings| {
        let tls = RegistrySettings {
            plain_http: Some(false),
            ..Default::default()
        };
        settings.registry.insert(registry.host(), tls);
    });
    let message = puller.refusal(&registry.reference("x:1"));
    assert!(message.contains("plain-http = true"), "{message}");
}

#[test]
fn a_token_server_that_is_not_there_is_named() {
    let registry = Registry::with(&TestImage::small());
    registry.rule(|_| Some(challenge("Bearer realm=\"http://127.0.0.1:1/token\"")));
    let message = Puller::new().refusal(&registry.reference("x:1"));
    assert!(
        message.contains("cannot connect to 127.0.0.1:1:"),
        "{message}"
    );
}
