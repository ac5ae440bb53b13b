//! Files and their changes.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::{HOST, on_this_kernel};
use crate::support::Home;
use crate::support::e2b::Server;

#[test]
#[ignore = "needs root and a built guest"]
fn a_change_is_there_when_the_call_that_made_it_has_returned() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    // What the file is now is looked up meanwhile.
    let ask = json!({"path": "/tmp", "includeEntry": true});
    let (status, watch) = server.files(&made, "CreateWatcher", &ask);
    assert_eq!(status, 200, "{watch}");
    let changes = || {
        let (status, told) = server.files(&made, "GetWatcherEvents", &watch);
        assert_eq!(status, 200, "{told}");
        let events = told["events"].as_array().unwrap().clone();
        let told = events.into_iter().map(|event| {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            (text("name"), text("type"))
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(changes(), []);
    for number in 0..20 {
        let name = number.to_string();
        assert_eq!(server.upload(&made, &format!("/tmp/{name}"), b"x"), 200);
        let expected = ["EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE"];
        assert_eq!(
            changes(),
            expected.map(|kind| (name.clone(), kind.to_owned()))
        );
        server.run(&made, &format!("rm /tmp/{name}"));
        assert_eq!(changes(), [(name, "EVENT_TYPE_REMOVE".to_owned())]);
    }
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_request_has_thousands_of_files() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let part = |path: String| {
        format!(
            "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{path}\"\r\n\r\n{path}\r\n"
        )
    };
    let mut body: String = (0..1200).map(|n| part(format!("/tmp/{n}"))).collect();
    body.push_str("--B--\r\n");
    let headers = made.headers("multipart/form-data; boundary=B");
    let (status, written) = server.ask("POST /files", &headers, body.as_bytes());
    let written: Value = serde_json::from_str(&written.text()).unwrap();
    assert_eq!(status, 200, "{written}");
    assert_eq!(written.as_array().unwrap().len(), 1200);
    let last = json!({"name": "1199", "type": "file", "path": "/tmp/1199"});
    assert_eq!(written[1199], last);
    assert_eq!(server.download(&made, "/tmp/1199"), b"/tmp/1199");
    let (status, list) = server.files(&made, "ListDir", &json!({"path": "/tmp"}));
    assert_eq!(
        (status, list["entries"].as_array().unwrap().len()),
        (200, 1200)
    );
    // One that can't be written is named; those before it are written, and none behind it.
    let parts = ["/tmp/before", "/tmp/0/below", "/tmp/behind"].map(|path| part(path.to_owned()));
    let body = format!("{}--B--\r\n", parts.concat());
    let (status, said) = server.ask("POST /files", &headers, body.as_bytes());
    let said = said.text();
    assert!(
        status == 400 && said.contains("writing `/tmp/0/below` in the sandbox"),
        "{status} {said}"
    );
    assert_eq!(server.download(&made, "/tmp/before"), b"/tmp/before");
    let (status, _) = server.files(&made, "Stat", &json!({"path": "/tmp/behind"}));
    assert_eq!(status, 404);
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_link_has_the_type_and_mode_of_what_it_leads_to() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    server.run(
        &made,
        "mkdir -p /tmp/l/d; cd /tmp/l; echo x >f; chmod 640 f; ln -s f to-file; ln -s ../l/d to-directory; \
         ln -s to-file twice; ln -s nowhere broken",
    );
    let (_, list) = server.files(&made, "ListDir", &json!({"path": "/tmp/l"}));
    let mut shown: Vec<_> = list["entries"].as_array().unwrap().iter().collect();
    shown.sort_by_key(|entry| entry["name"].as_str().unwrap().to_owned());
    let shown: Vec<_> = shown
        .into_iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or("none").to_owned();
            let kind = text("type").trim_start_matches("FILE_TYPE_").to_owned();
            (
                text("name"),
                kind,
                entry["mode"].as_u64().unwrap(),
                text("symlinkTarget"),
            )
        })
        .collect();
    let expected = [
        ("broken", "UNSPECIFIED", 0, "/tmp/l/broken"),
        ("d", "DIRECTORY", 0o755, "none"),
        ("f", "FILE", 0o640, "none"),
        ("to-directory", "DIRECTORY", 0o755, "/tmp/l/d"),
        ("to-file", "FILE", 0o640, "/tmp/l/f"),
        ("twice", "FILE", 0o640, "/tmp/l/f"),
    ];
    let expected = expected.map(|(name, kind, mode, target)| {
        (name.to_owned(), kind.to_owned(), mode, target.to_owned())
    });
    assert_eq!(shown, expected);
    let (_, one) = server.files(&made, "Stat", &json!({"path": "/tmp/l/twice"}));
    assert_eq!(one["entry"]["symlinkTarget"], "/tmp/l/f");
    assert_eq!(one["entry"]["isSymlink"], true);
    assert_eq!(one["entry"]["permissions"], "Lrwxrwxrwx");
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_packed_body_is_taken_whole_or_refused() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let packed = |text: &[u8]| {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    };
    let headers = format!(
        "{}Content-Encoding: gzip\r\n",
        made.headers("application/octet-stream")
    );
    let upload = |body: &[u8]| server.ask("POST /files?path=/tmp/x", &headers, body).0;
    let both = [packed(b"first "), packed(b"second")].concat();
    assert_eq!(upload(&both), 200);
    assert_eq!(server.download(&made, "/tmp/x"), b"first second");
    assert_eq!(upload(&[&both, &b"and something else"[..]].concat()), 400);
    assert_eq!(upload(&[&both, &b"\x1f"[..]].concat()), 400);
    assert_eq!(upload(&both[..both.len() - 1]), 400);
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}
