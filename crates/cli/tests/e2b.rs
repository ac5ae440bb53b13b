//! `mica serve --e2b`: who may ask, and what is not a request. `scripts/test-e2b` runs E2B's own clients.

mod support;

use std::os::unix::fs::PermissionsExt;

use support::Home;
use support::e2b::Server;

const ID: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn the_key_is_kept_and_is_needed_for_everything() {
    let home = Home::new();
    let server = Server::new(&home, &[]);
    let file = home.store().join("e2b-key");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), server.key);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for key in ["", "X-API-Key: e2b_0\r\n", "X-API-Key: \r\n"] {
        assert_eq!(server.status("GET /v2/sandboxes", key, ""), "401");
        assert_eq!(server.status("POST /sandboxes", key, "{"), "401");
        assert_eq!(server.status("GET /nothing", key, ""), "401");
    }
    let key = server.with_key();
    assert_eq!(server.status("GET /v2/sandboxes", &key, ""), "200");
    let before = server.key.clone();
    drop(server);
    assert_eq!(Server::new(&home, &[]).key, before);
}

#[test]
fn what_is_not_a_request_is_refused() {
    let home = Home::new();
    let server = Server::new(&home, &[]);
    let key = server.with_key();
    let post = |path: &str, body: &str| server.status(&format!("POST {path}"), &key, body);
    for body in [
        "{",
        "[]",
        "{}",
        r#"{"templateID": 1}"#,
        r#"{"templateID": "a", "timeout": -1}"#,
    ] {
        assert_eq!(post("/v2/sandboxes", body), "400", "{body}");
    }
    let long = r#"{"templateID": "box", "timeout": 99999999}"#;
    assert_eq!(post("/v2/sandboxes", long), "400");
    let variable = r#"{"templateID": "box", "envVars": {"A=B": "c"}}"#;
    assert_eq!(post("/v2/sandboxes", variable), "400");
    // An image's name is not an option.
    let image = r#"{"templateID": "--privileged"}"#;
    assert_eq!(post("/v2/sandboxes", image), "400");
    for id in [ID, "x", "..%2F..", "%00", "box"] {
        assert_eq!(post(&format!("/sandboxes/{id}/pause"), "{}"), "404", "{id}");
    }
    assert_eq!(post("/sandboxes/%ff/pause", "{}"), "400");
    assert_eq!(post("/v3/templates", "{}"), "501");
    assert_eq!(server.status("GET /v2/sandboxes?limit=x", &key, ""), "400");
    for header in [
        format!("E2b-Sandbox-Id: {ID}\r\n"),
        "E2b-Sandbox-Id: ../x\r\n".to_owned(),
        format!("E2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: 99999\r\n"),
    ] {
        let status = server.status("POST /process.Process/List", &header, "{}");
        assert_eq!(status, "502", "{header}");
    }
    let unsigned = server.status("GET /files?path=/etc/passwd&signature=v1_x", "", "");
    assert_eq!(unsigned, "401");
    assert_eq!(home.sandboxes(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn requests_are_bounded() {
    let home = Home::new();
    let server = Server::new(&home, &[]);
    let key = server.with_key();
    let body = format!(r#"{{"templateID": "{}"}}"#, "x".repeat(9 << 20));
    assert_eq!(server.status("POST /sandboxes", &key, &body), "413");
    let header = format!("X-Long: {}\r\n", "x".repeat(100 << 10));
    assert_eq!(server.status("GET /health", &header, ""), "431");
    let many = "X-A: b\r\n".repeat(200);
    assert_eq!(server.status("GET /health", &many, ""), "431");
    assert_eq!(server.status("GET /health", "", ""), "204");
}
