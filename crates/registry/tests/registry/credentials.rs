//! Credentials as `docker login` stores them.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_registry::{Credential, Credentials};

/// `base64("user:secret")`.
const AUTH: &str = "dXNlcjpzZWNyZXQ=";

fn file(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("config.json");
    fs::write(&path, text).unwrap();
    path
}

fn password(username: &str, password: &str) -> Credential {
    Credential::Password {
        username: username.into(),
        password: password.into(),
    }
}

#[test]
fn entries_of_a_registry_are_found_under_every_name_they_may_have() {
    let directory = tempfile::tempdir().unwrap();
    let lookup = |text: &str, registry: &str, repository: &str| {
        Credentials::from_files([file(directory.path(), text)])
            .lookup(registry, repository)
            .unwrap()
    };
    let auths = |key: &str| format!(r#"{{"auths": {{"{key}": {{"auth": "{AUTH}"}}}}}}"#);
    let user = Some(password("user", "secret"));
    for key in [
        "https://index.docker.io/v1/",
        "docker.io",
        "docker.io/library",
        "index.docker.io",
    ] {
        assert_eq!(
            lookup(&auths(key), "docker.io", "library/python"),
            user,
            "{key}"
        );
        assert_eq!(
            lookup(&auths(key), "quay.io", "library/python"),
            None,
            "{key}"
        );
    }
    for key in [
        "localhost:5000",
        "https://localhost:5000",
        "https://localhost:5000/v2/",
        "localhost:5000/a/b",
    ] {
        assert_eq!(lookup(&auths(key), "localhost:5000", "a/b"), user, "{key}");
        assert_eq!(lookup(&auths(key), "localhost:5001", "a/b"), None, "{key}");
    }
    // Another repository's credentials don't apply.
    assert_eq!(
        lookup(&auths("localhost:5000/a/b"), "localhost:5000", "a/bc"),
        None
    );
    // The most specific entry takes precedence.
    let both = format!(
        r#"{{"auths": {{"q.io": {{"auth": "{AUTH}"}}, "q.io/o": {{"username": "o", "password": "p"}}}}}}"#
    );
    assert_eq!(lookup(&both, "q.io", "o/r"), Some(password("o", "p")));
    assert_eq!(lookup(&both, "q.io", "x/r"), user);
    let token = r#"{"auths": {"q.io": {"auth": "dXNlcjo=", "identitytoken": "refresh"}}}"#;
    assert_eq!(
        lookup(token, "q.io", "r"),
        Some(Credential::IdentityToken("refresh".into()))
    );
    for nothing in [
        "",
        "{}",
        r#"{"auths": {"q.io": {}}}"#,
        r#"{"HttpHeaders": {}}"#,
    ] {
        assert_eq!(lookup(nothing, "q.io", "r"), None, "{nothing}");
    }
}

#[test]
fn entries_are_read_as_docker_reads_them() {
    let directory = tempfile::tempdir().unwrap();
    let entry = |entry: &str| {
        let text = format!(r#"{{"auths": {{"q.io": {entry}, "other.io": null}}}}"#);
        Credentials::from_files([file(directory.path(), &text)])
            .lookup("q.io", "r")
            .map_err(|error| error.to_string())
    };
    let user = Ok(Some(password("user", "secret")));
    for known in [
        r#"{"auth": "dXNlcjpzZWNyZXQ="}"#,
        r#"{"auth": "dXNl\ncjpz\r\nZWNyZXQ=\n"}"#,
        r#"{"auth": "dXNlcjpzZWNyZXQ"}"#,
        r#"{"auth": "dXNlcjpzZWNyZXR="}"#,
        r#"{"auth": "dXNlcjpzZWNyZXQAAAA="}"#,
        r#"{"Auth": "dXNlcjpzZWNyZXQ=", "identitytoken": "", "registrytoken": null}"#,
        // What is encoded counts.
        r#"{"auth": "dXNlcjpzZWNyZXQ=", "username": "old", "password": "old", "email": 0}"#,
        r#"{"username": "user", "password": "secret", "auth": ""}"#,
    ] {
        assert_eq!(entry(known), user, "{known}");
    }
    // The alphabet for URLs: `user:?>~`.
    let odd = Ok(Some(password("user", "?>~")));
    for alphabet in ["dXNlcjo/Pn4=", "dXNlcjo_Pn4"] {
        assert_eq!(entry(&format!(r#"{{"auth": "{alphabet}"}}"#)), odd);
    }
    for nothing in ["null", "{}", r#"{"auth": ""}"#, r#"{"password": "x"}"#] {
        assert_eq!(entry(nothing), Ok(None), "{nothing}");
    }
    let token = r#"{"registrytoken": "t", "identitytoken": "i", "auth": "dXNlcjpzZWNyZXQ="}"#;
    assert_eq!(
        entry(token),
        Ok(Some(Credential::RegistryToken("t".into())))
    );
    for damaged in [r#"{"auth": "dXNlcg=="}"#, r#"{"auth": "OnNlY3JldA=="}"#] {
        assert!(
            entry(damaged).unwrap_err().contains("log in again"),
            "{damaged}"
        );
    }
    // Keys of a whole host, however they are written.
    for key in [
        "http://q.io",
        "https://q.io/v1/",
        "q.io/",
        "q.io/v2/",
        "ftp://q.io/x",
    ] {
        let text = format!(r#"{{"auths": {{"{key}": {{"auth": "{AUTH}"}}}}}}"#);
        let found = Credentials::from_files([file(directory.path(), &text)]).lookup("q.io", "a/b");
        assert_eq!(found.unwrap(), Some(password("user", "secret")), "{key}");
    }
}

#[test]
fn credential_files_are_read_in_order_and_may_be_missing() {
    let directory = tempfile::tempdir().unwrap();
    let first = file(directory.path(), r#"{"auths": {}}"#);
    let second = directory.path().join("auth.json");
    fs::write(
        &second,
        format!(r#"{{"auths": {{"q.io": {{"auth": "{AUTH}"}}}}}}"#),
    )
    .unwrap();
    let credentials = Credentials::from_files([directory.path().join("none"), first, second]);
    assert_eq!(
        credentials.lookup("q.io", "r").unwrap(),
        Some(password("user", "secret"))
    );
    assert_eq!(Credentials::none().lookup("q.io", "r").unwrap(), None);
}

#[test]
fn a_damaged_credentials_file_is_named_without_a_secret() {
    let directory = tempfile::tempdir().unwrap();
    for text in ["{", r#"{"auths": {"q.io": {"auth": "hunter2!"}}}"#, "[1]"] {
        let path = file(directory.path(), text);
        let error = Credentials::from_files([path.clone()])
            .lookup("q.io", "r")
            .unwrap_err();
        let message = error.to_string();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(
            message.contains("q.io") && !message.contains("hunter2"),
            "{message}"
        );
    }
    let debug = format!("{:?}", password("user", "hunter2"));
    assert!(debug.contains("user") && !debug.contains("hunter2"));
}

/// Helpers are found through `PATH`, which only a separate process can change safely.
#[test]
fn credential_helpers_are_run() {
    if let Some(files) = env::var_os("TEST_HELPERS_IN") {
        return in_a_process_with_helpers(Path::new(&files));
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, script) in [
        (
            "good",
            r#"read -r key; echo "{\"ServerURL\":\"$key\",\"Username\":\"for $key\",\"Secret\":\"s\"}""#,
        ),
        (
            "token",
            r#"cat >/dev/null; echo '{"ServerURL":"x","Username":"<token>","Secret":"refresh"}'"#,
        ),
        (
            "empty",
            "cat >/dev/null; echo 'credentials not found in native keychain'; exit 1",
        ),
        (
            "broken",
            r"cat >/dev/null; printf 'keyring \033[31mlocked\n' >&2; exit 3",
        ),
        ("chatty", "cat >/dev/null; echo hello"),
    ] {
        let path = directory.path().join(format!("docker-credential-{name}"));
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!(
        "{}:{}",
        directory.path().display(),
        env::var("PATH").unwrap()
    );
    let status = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "credentials::credential_helpers_are_run",
            "--nocapture",
        ])
        .env("PATH", path)
        .env("TEST_HELPERS_IN", directory.path())
        .status()
        .unwrap();
    assert!(status.success());
}

fn in_a_process_with_helpers(directory: &Path) {
    let lookup = |text: &str, registry: &str| {
        Credentials::from_files([file(directory, text)]).lookup(registry, "r")
    };
    let store = r#"{"credsStore": "good", "auths": {"q.io": {}}}"#;
    assert_eq!(
        lookup(store, "q.io").unwrap(),
        Some(password("for q.io", "s"))
    );
    assert_eq!(
        lookup(store, "docker.io").unwrap(),
        Some(password("for https://index.docker.io/v1/", "s"))
    );
    // A registry's own helper takes precedence over the store.
    let helpers = r#"{"credsStore": "good", "credHelpers": {"q.io": "token"}}"#;
    assert_eq!(
        lookup(helpers, "q.io").unwrap(),
        Some(Credential::IdentityToken("refresh".into()))
    );
    assert_eq!(lookup(r#"{"credsStore": "empty"}"#, "q.io").unwrap(), None);
    // An empty helper is none, and stands in the way of the store.
    let own = format!(r#""auths": {{"q.io": {{"auth": "{AUTH}"}}}}"#);
    let user = Some(password("user", "secret"));
    for helpers in [
        r#""credsStore": "", "credHelpers": null"#,
        r#""credsStore": null, "credHelpers": {"other.io": null}"#,
        r#""credsStore": "good", "credHelpers": {"q.io": ""}"#,
        // Where the store has nothing, or gives no answer, the file's own entry counts.
        r#""credsStore": "empty""#,
        r#""credsStore": "broken""#,
        r#""credsStore": "missing""#,
    ] {
        let text = format!("{{{helpers}, {own}}}");
        assert_eq!(lookup(&text, "q.io").unwrap(), user, "{helpers}");
    }
    let store = format!(r#"{{"credsStore": "good", {own}}}"#);
    assert_eq!(
        lookup(&store, "q.io").unwrap(),
        Some(password("for q.io", "s"))
    );
    let path = lookup(r#"{"credsStore": "../x"}"#, "q.io")
        .unwrap_err()
        .to_string();
    assert!(path.contains("is a path"), "{path}");
    for (helper, part) in [
        ("broken", "locked"),
        ("chatty", "format"),
        ("missing", "install it"),
    ] {
        let message = lookup(&format!(r#"{{"credsStore": "{helper}"}}"#), "q.io")
            .unwrap_err()
            .to_string();
        assert!(message.contains(part), "{message}");
        assert!(!message.contains('\u{1b}'), "{message}");
    }
}
