//! Whether a server, or a sandbox, is there.

use serde_json::json;

use super::HOST;
use crate::support::Home;
use crate::support::e2b::{Made, Server};

/// Returns the status of a sandbox's health, for a client without a token.
fn health(server: &Server, made: &Made) -> String {
    let headers = format!("E2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: 49983\r\n", made.id);
    server.status("GET /health", &headers, "")
}

#[test]
fn a_question_for_health_has_nothing_else() {
    let home = Home::new();
    let server = Server::new(&home, &[]);
    let id = "E2b-Sandbox-Id: 0123456789abcdef0123456789abcdef\r\n";
    for headers in ["", id] {
        for (line, body, status) in [
            ("POST /health", "", "501"),
            ("DELETE /health", "", "501"),
            ("GET /health?x", "", "501"),
            ("GET /health", "{}", "400"),
        ] {
            let said = server.status(line, headers, body);
            assert_eq!(said, status, "{line} {headers} {body}");
        }
    }
    assert_eq!(server.status("GET /health", "", ""), "204");
    assert_eq!(server.status("GET /health", id, ""), "502");
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_question_for_the_health_of_a_paused_sandbox_does_not_resume_it() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let new = json!({
        "templateID": "box", "timeout": 600, "allow_internet_access": false,
        "autoPause": true, "autoResume": {"enabled": true},
    });
    let made = server.create(&new);
    assert_eq!(health(&server, &made), "204");
    let (status, said) = server.api(&format!("POST /sandboxes/{}/pause", made.id), &json!({}));
    assert_eq!(status, 204, "{said}");
    assert_eq!(health(&server, &made), "502");
    let (_, shown) = server.api(&format!("GET /sandboxes/{}", made.id), &json!({}));
    assert_eq!(shown["state"], "paused");
    // One who may is served.
    assert_eq!(server.run(&made, "echo done"), "done\n");
    assert_eq!(health(&server, &made), "204");
    server.delete(&made);
    assert_eq!(health(&server, &made), "502");
    drop(server);
    home.assert_nothing_left();
}
