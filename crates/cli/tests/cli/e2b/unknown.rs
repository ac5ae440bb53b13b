//! What a call for a sandbox has and is not known: it is refused by its name, and never ignored.

use std::io::Read;

use serde_json::{Value, json};

use super::{HOST, on_this_kernel};
use crate::support::Home;
use crate::support::e2b::{Made, Server, message};

/// Returns what is wrong with a call, of whichever kind its reply is.
fn wrong(server: &Server, made: &Made, path: &str, body: &str) -> String {
    let is_stream = ["Start", "Connect?", "StreamInput", "WatchDir"];
    let is_stream = is_stream.iter().any(|call| path.contains(call)) || path.ends_with("Connect");
    let (kind, body) = if is_stream {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[0][..], &length, body.as_bytes()].concat();
        ("application/connect+json", message)
    } else {
        ("application/json", body.as_bytes().to_vec())
    };
    let mut headers = made.headers(kind);
    if path.starts_with("/contexts") || path.starts_with("/execute") {
        headers = headers.replace("49983", "49999");
    }
    let (status, mut reply) = server.ask(&format!("POST {path}"), &headers, &body);
    let mut said = Vec::new();
    reply.read_to_end(&mut said).unwrap();
    // A stream's begins with a length.
    let said = String::from_utf8_lossy(&said);
    let json = said.find("{\"").map_or("{}", |at| &said[at..]);
    let json: Value = serde_json::from_str(json).unwrap_or_else(|_| panic!("{path}: {said:?}"));
    let message = match json.get("error") {
        Some(error) => &error["message"],
        None if status != 200 => &json["message"],
        None => panic!("{path} {said:?}: it was done"),
    };
    message.as_str().unwrap().to_owned()
}

#[test]
#[ignore = "needs root and a built guest"]
fn what_a_call_has_and_is_not_known_is_refused_by_its_name() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    server.run(&made, "mkdir /tmp/d; touch /tmp/d/f");
    let (pid, _events) = server.start(&made, "exec sleep 1000", false);
    let which = json!({"pid": pid});
    let process = |call: &str| format!("/process.Process/{call}");
    let files = |call: &str| format!("/filesystem.Filesystem/{call}");
    let start = json!({"process": {"cmd": "/bin/true", "args": [], "envs": {}}, "stdin": false});
    let input = json!({"stdin": ""});
    let calls = [
        (process("List"), json!({})),
        (process("Start"), start.clone()),
        (process("Connect"), json!({"process": which})),
        (
            process("SendInput"),
            json!({"process": which, "input": input}),
        ),
        (process("StreamInput"), json!({"start": {"process": which}})),
        (process("StreamInput"), json!({"data": {"input": input}})),
        (process("StreamInput"), json!({"keepalive": {}})),
        (process("CloseStdin"), json!({"process": which})),
        (
            process("SendSignal"),
            json!({"process": which, "signal": "SIGNAL_SIGKILL"}),
        ),
        (
            process("Update"),
            json!({"process": which, "pty": {"size": {"cols": 1, "rows": 1}}}),
        ),
        (files("Stat"), json!({"path": "/tmp/d"})),
        (files("MakeDir"), json!({"path": "/tmp/new"})),
        (
            files("Move"),
            json!({"source": "/tmp/d/f", "destination": "/tmp/d/g"}),
        ),
        (files("Remove"), json!({"path": "/tmp/d"})),
        (files("ListDir"), json!({"path": "/tmp", "depth": 1})),
        (
            files("WatchDir"),
            json!({"path": "/tmp", "allowNetworkMounts": true}),
        ),
        (
            files("CreateWatcher"),
            json!({"path": "/tmp", "include_entry": true}),
        ),
        (files("GetWatcherEvents"), json!({"watcherId": "x"})),
        (files("RemoveWatcher"), json!({"watcherId": "x"})),
        ("/execute".to_owned(), json!({"code": "1"})),
        ("/contexts".to_owned(), json!({})),
        ("/contexts/x/restart".to_owned(), json!({})),
    ];
    for (path, body) in &calls {
        for more in with_more(body) {
            let said = wrong(&server, &made, path, &more.to_string());
            assert!(said.contains("noSuchField"), "{path} {more}: {said}");
        }
        // A list is none of the objects, whatever is in it.
        let said = wrong(&server, &made, path, "[]");
        assert!(said.contains("sequence"), "{path}: {said}");
        let said = wrong(
            &server,
            &made,
            &format!("{path}?noSuchName=1"),
            &body.to_string(),
        );
        assert!(said.contains("noSuchName"), "{path}: {said}");
    }
    let many: String = (0..1000).map(|n| format!(r#""V{n}":"","#)).collect();
    let many = start
        .to_string()
        .replace("{}", &format!(r#"{{{many}"A":"b"}}"#));
    let twice = start.to_string().replace("{}", r#"{"A":"b","A":"c"}"#);
    for (path, body, name) in [
        (process("Start"), twice, "`A`"),
        (process("Start"), many, "1000 entries"),
        (
            process("Update"),
            json!({"process": which, "pty": {"size": [1, 1]}}).to_string(),
            "sequence",
        ),
        (
            "/execute".to_owned(),
            r#"{"code":"1","env_vars":{"A":"b","A":"c"}}"#.to_owned(),
            "`A`",
        ),
        (
            process("Connect"),
            json!({"process": {"pid": pid, "tag": "t"}}).to_string(),
            "tag",
        ),
        (
            process("SendSignal"),
            json!({"process": which}).to_string(),
            "signal",
        ),
        (
            "/execute".to_owned(),
            json!({"code": "1", "context_id": "x", "language": "python"}).to_string(),
            "language",
        ),
        // No home is removed since its path was forgotten.
        (files("Remove"), "{}".to_owned(), "path"),
        (files("Remove"), json!({"path": ""}).to_string(), "path"),
        (
            files("Move"),
            json!({"destination": "/tmp/x"}).to_string(),
            "source",
        ),
    ] {
        let said = wrong(&server, &made, &path, &body);
        assert!(said.contains(name), "{path} {body}: {said}");
    }
    for (line, name) in [
        ("GET /files?path=/tmp/d/f&noSuchName=1", "noSuchName"),
        ("GET /files?path=/tmp/d/f&path=/etc/passwd", "path"),
        ("POST /files?path=/tmp/other&noSuchName=1", "noSuchName"),
        (
            "POST /files?path=/tmp/other&username=root&username=x",
            "username",
        ),
    ] {
        let (status, said) = server.ask(line, &made.headers("text/plain"), b"");
        let said = said.text();
        assert!(
            [400, 501].contains(&status) && said.contains(name),
            "{line}: {said}"
        );
    }
    let headers = made.headers("multipart/form-data; boundary=B");
    let part = "--B\r\nContent-Disposition: form-data; name=\"fiel\"; filename=\"/tmp/other\"\r\n\r\nx\r\n--B--\r\n";
    let (status, said) = server.ask("POST /files", &headers, part.as_bytes());
    assert_eq!((status, said.text().contains("`fiel`")), (400, true));
    for header in ["Connect-Timeout-Ms: soon", "Keepalive-Ping-Interval: -1"] {
        let headers = format!("{}{header}\r\n", made.headers("application/connect+json"));
        let (status, said) = server.ask("POST /process.Process/Start", &headers, &message(&start));
        let (said, name) = (
            said.text(),
            header.split(':').next().unwrap().to_lowercase(),
        );
        assert!(status == 400 && said.contains(&name), "{status} {said}");
    }
    // Nothing was done.
    assert_eq!(server.run(&made, "cd /tmp; echo *; echo d/*"), "d\nd/f\n");
    let (_, list) = server.process(&made, "List", &json!({}));
    assert_eq!(list["processes"].as_array().unwrap().len(), 1);
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

/// Returns a body with one more field in each of its objects, one at a time.
fn with_more(body: &Value) -> Vec<Value> {
    let Value::Object(fields) = body else {
        return Vec::new();
    };
    let mut more = body.clone();
    more["noSuchField"] = json!(1);
    let mut all = vec![more];
    // What a map has is a variable.
    for (name, value) in fields.iter().filter(|(name, _)| *name != "envs") {
        for inner in with_more(value) {
            let mut more = body.clone();
            more[name] = inner;
            all.push(more);
        }
    }
    all
}
