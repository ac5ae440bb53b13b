//! `mica serve --e2b`: who may ask, what is not a request, and what needs no E2B's client to show. `scripts/test-e2b`
//! runs these.

mod connections;
mod files;
mod health;
mod interpreters;
mod kills;
mod room;
mod silence;
mod unknown;

use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::e2b::{Events, Made, Server};
use crate::support::host::assert_forked;
use crate::support::{Home, PATIENCE, wait_until};

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
    let formed = format!("v1_{}", "x".repeat(43));
    for signature in ["", "v1_x", &formed] {
        let line = format!("GET /files?path=/etc/passwd&signature={signature}");
        assert_eq!(server.status(&line, "", ""), "401", "{signature}");
    }
    let long = format!(
        "GET /files?path={}&signature={formed}",
        "x".repeat(17 << 10)
    );
    assert_eq!(server.status(&long, "", ""), "414");
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

#[test]
fn an_answer_that_needs_no_body_arrives() {
    let home = Home::new();
    let server = Server::new(&home, &[]);
    // The connection would be reset while its client still sends.
    let body = vec![b'x'; 64 << 20];
    let (status, _) = server.ask("POST /sandboxes", "X-API-Key: wrong\r\n", &body);
    assert_eq!(status, 401);
    let (status, _) = server.ask("POST /sandboxes", &server.with_key(), &body);
    assert_eq!(status, 413);
    // A client that waits to be asked for its body is not asked.
    let waiting = "POST /sandboxes HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 1000\r\n\
                   Expect: 100-continue\r\n\r\n";
    let begun = Instant::now();
    let reply = server.say(waiting.as_bytes());
    assert!(reply.starts_with("HTTP/1.1 401"), "{reply}");
    assert!(begun.elapsed() < PATIENCE);
}

const HOST: [&str; 1] = ["--with=backend=host"];

fn on_this_kernel(server: &Server) -> Made {
    let new = json!({"templateID": "box", "timeout": 600, "allow_internet_access": false});
    server.create(&new)
}

/// A reply before the end of its request closes the connection under the client.
#[test]
#[ignore = "needs root and a built guest"]
fn a_request_is_read_to_its_end_before_its_reply() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let start = json!({"process": {"cmd": "/bin/echo", "args": ["said"], "envs": {}}});
    let mut stream = server.unfinished(&made, "Start", std::slice::from_ref(&start));
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let early = stream.read(&mut [0]);
    assert_eq!(early.unwrap_err().kind(), ErrorKind::WouldBlock);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut events = Events::of_unfinished(stream);
    events.pid();
    assert_eq!(events.rest(), ("said\n".to_owned(), 0));

    let twice = server.unfinished(&made, "Start", &[start.clone(), start]);
    let said = Events::of_unfinished(twice).failure();
    assert_eq!(said, "the stream has more than one message");
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn commands_have_a_user_and_the_images_path() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let new = json!({
        "templateID": "box", "timeout": 600, "allow_internet_access": false,
        "envVars": {"PATH": "/opt/my own:/usr/bin:/bin"},
    });
    let made = server.create(&new);
    // As in Debian's profile.
    let script = "mkdir -p '/opt/my own'; echo 'echo mine' > '/opt/my own/prog'; chmod +x /opt/*/prog; \
                  echo 'PATH=/usr/local/bin:/usr/bin:/bin; export PATH' > /etc/profile";
    server.run(&made, script);
    let said = server.run(&made, "prog; echo $USER $LOGNAME; sh -c prog");
    assert_eq!(said, "mine\nroot root\nmine\n");

    // A file without a size has contents, and a page of any origin may read files.
    let headers = format!("{}Origin: http://page\r\n", made.headers("text/plain"));
    let (status, body) = server.ask("GET /files?path=/proc/version", &headers, b"");
    assert_eq!(status, 200);
    assert!(body.text().starts_with("Linux version "));
    let ask = "OPTIONS /files?path=/etc/profile HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\
               Origin: http://page\r\nAccess-Control-Request-Method: POST\r\n\r\n";
    let reply = server.say(ask.as_bytes()).to_lowercase();
    assert!(reply.starts_with("http/1.1 204"), "{reply}");
    assert!(reply.contains("access-control-allow-origin: *"), "{reply}");
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

fn listed(server: &Server, made: &Made) -> Vec<Value> {
    let (status, list) = server.process(made, "List", &json!({}));
    assert_eq!(status, 200, "{list}");
    list["processes"].as_array().unwrap().clone()
}

#[test]
#[ignore = "needs root and a built guest"]
fn another_server_has_the_commands_of_one_that_was_killed() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let script = "echo begun; while read line; do echo \"got $line\"; done; echo end; exit 3";
    let (pid, mut first) = server.start(&made, script, true);
    assert_eq!(first.line(), "begun\n");
    let (sleeper, _) = server.start(&made, "sleep 1000 & sleep 1000", false);
    let mut other = home.start(&["exec", &made.id, "sh", "-c", "echo here; exec sleep 1000"]);
    assert_eq!(other.line(), "here");
    server.kill();

    // Those of other programs are not shown.
    let server = Server::new(&home, &HOST);
    let mut list = listed(&server, &made);
    list.sort_by_key(|process| process["pid"].as_u64());
    let shown = list
        .iter()
        .map(|process| (&process["pid"], &process["config"]["args"][2]));
    let (begun, sleeps) = (json!(script), json!("sleep 1000 & sleep 1000"));
    let expected = [(&json!(pid), &begun), (&json!(sleeper), &sleeps)];
    assert_eq!(shown.collect::<Vec<_>>(), expected);

    let which = json!({"pid": pid});
    let mut events = server.stream(&made, "Connect", &json!({"process": which}));
    assert_eq!(events.pid(), pid);
    for word in ["one", "two"] {
        let input = json!({"stdin": STANDARD.encode(format!("{word}\n"))});
        let send = json!({"process": which, "input": input});
        assert_eq!(server.process(&made, "SendInput", &send).0, 200);
        assert_eq!(events.line(), format!("got {word}\n"));
    }
    let close = json!({"process": which});
    assert_eq!(server.process(&made, "CloseStdin", &close).0, 200);
    assert_eq!(events.rest(), ("end\n".to_owned(), 3));

    let kill = json!({"process": {"pid": sleeper}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(server.process(&made, "SendSignal", &kill).0, 200);
    wait_until("no command is left", || listed(&server, &made).is_empty());
    // The end of a command is that of its first process: the kernel may still be at
    // the others of its group. What stays is that of `mica exec`.
    wait_until("only the command of `mica exec` is left", || {
        let top = home.output(&["top", &made.id]).ok();
        top.matches("sleep 1000").count() == 1
    });
    server.delete(&made);
    other.wait();
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_port_is_reached_in_an_image_without_other_programs() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    assert_forked(&home, server.pid());
    let get = |port: u16, path: &str| {
        let headers = format!(
            "E2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: {port}\r\n",
            made.id
        );
        let (status, body) = server.ask(&format!("GET {path}"), &headers, b"");
        (status, body.text())
    };
    // No program but the server can be run, then.
    let script = "cd /tmp; echo page >page; head -c 3000000 /dev/zero | tr '\\0' x >large; \
        cp /bin/busybox /tmp/httpd; rm -r /bin; exec /tmp/httpd -f -p 127.0.0.1:8000";
    let (_, _events) = server.start(&made, script, false);
    wait_until("the server answers", || get(8000, "/page").0 == 200);
    assert_eq!(get(8000, "/page").1, "page\n");
    assert_eq!(get(8000, "/large").1.len(), 3_000_000);
    assert_eq!(get(8000, "/none").0, 404);
    let (status, said) = get(8001, "/");
    assert_eq!(status, 502);
    assert!(said.contains("port is not open"), "{said}");
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}
