//! `mica mcp`: tools, resources, and what ends when.

mod allowed;
mod client;
mod commands;

use std::io::{Read, Write};
use std::time::Instant;

use client::Client;

use micabox_testing::DockerRegistry;
use serde_json::{Value, json};

use crate::support::host::assert_forked;
use crate::support::{Home, PATIENCE, wait_until};

const TOOLS: [&str; 13] = [
    "create_sandbox",
    "run_command",
    "read_output",
    "kill_command",
    "read_file",
    "write_file",
    "list_files",
    "list_sandboxes",
    "fork_sandbox",
    "snapshot_sandbox",
    "stop_sandbox",
    "keep_sandbox",
    "list_images",
];

fn names(home: &Home) -> Vec<String> {
    let listed = home.output(&["ps", "--json"]).json();
    let listed = listed.as_array().unwrap().iter();
    listed
        .map(|record| record["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn tools_are_described_as_the_version_of_the_protocol_has_it() {
    let home = Home::new();
    for (version, is_structured) in [
        ("2024-11-05", false),
        ("2025-06-18", true),
        ("2025-11-25", true),
    ] {
        let mut client = Client::of_version(&home, version);
        let mut listed = client.ok("tools/list", json!({}));
        let tools = listed["tools"].as_array_mut().unwrap();
        let names: Vec<_> = tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, TOOLS);
        for tool in tools {
            assert!(tool["description"].as_str().unwrap().len() > 20, "{tool}");
            let input = &tool["inputSchema"];
            assert_eq!(input["type"], "object", "{tool}");
            assert_eq!(input["additionalProperties"], false, "{tool}");
            for (name, property) in input["properties"].as_object().into_iter().flatten() {
                let text = property["description"].as_str();
                let is_described = text.is_some_and(|text| !text.contains('\n'));
                assert!(
                    is_described || property["$ref"].is_string(),
                    "{name}: {tool}"
                );
            }
            assert!(!tool.to_string().contains("uint"), "{tool}");
            assert_eq!(
                tool["outputSchema"]["type"] == "object",
                is_structured,
                "{tool}"
            );
        }
        let images = client.ok(
            "tools/call",
            json!({"name": "list_images", "arguments": {}}),
        );
        assert_eq!(images["structuredContent"].is_object(), is_structured);
        let text = images["content"][0]["text"].as_str().unwrap();
        let text: Value = serde_json::from_str(text).unwrap();
        assert_eq!(text["images"][0]["names"], json!(["box:latest"]));
        client.end();
    }
}

#[test]
fn tools_that_fail_say_why_and_what_to_do() {
    let home = Home::new();
    let mut client = Client::new(&home);
    let create = |image: &str, options: Value| json!({"image": image, "options": options});
    for (tool, arguments, words) in [
        (
            "run_command",
            json!({"sandbox": "none", "command": "true"}),
            "`mica ps -a`",
        ),
        (
            "run_command",
            json!({"sandbox": "none"}),
            "`command` or `argv`",
        ),
        (
            "run_command",
            json!({"sandbx": "none"}),
            "unknown field `sandbx`",
        ),
        (
            "run_command",
            json!({"sandbox": "none", "argv": ["a"], "timeout": -1}),
            "`timeout`",
        ),
        (
            "read_file",
            json!({"sandbox": "none"}),
            "missing field `path`",
        ),
        (
            "read_file",
            json!({"sandbox": 1, "path": "/"}),
            "expected a string",
        ),
        (
            "write_file",
            json!({"sandbox": "none", "path": "/a", "content": "?", "encoding": "base64"}),
            "decoding `content`",
        ),
        (
            "create_sandbox",
            create("none", json!({"pull": "never"})),
            "none",
        ),
        (
            "create_sandbox",
            create("box", json!({"no-such": 1})),
            "unknown option `no-such`",
        ),
        (
            "create_sandbox",
            json!({"options": {"from": "none"}}),
            "no such snapshot: `none`",
        ),
        (
            "create_sandbox",
            create("box", json!({"tty": true})),
            "`tty`",
        ),
        (
            "create_sandbox",
            json!({"image": "box", "memory": "lots"}),
            "lots",
        ),
        ("create_sandbox", json!({}), "required"),
        (
            "fork_sandbox",
            json!({"sandbox": "none", "count": 0}),
            "between 1 and 64",
        ),
        (
            "keep_sandbox",
            json!({"sandbox": "none"}),
            "no such sandbox",
        ),
    ] {
        let said = client.refused(tool, arguments);
        assert!(
            said.contains(words) && !said.contains("Usage"),
            "{tool}: {said}"
        );
    }
    // What the protocol has its own errors for.
    let (code, words) = client.error("tools/call", json!({"name": "none", "arguments": {}}));
    assert!(
        code == -32602 && words.contains("no tool none"),
        "{code} {words}"
    );
    for uri in [
        "mica://sandbox/none",
        "mica://sandbox/none/files/a",
        "file:///etc/passwd",
    ] {
        let (code, words) = client.error("resources/read", json!({"uri": uri}));
        assert!(code == -32002 && words.contains("no "), "{code} {words}");
    }
    assert_eq!(
        client.tool("list_sandboxes", json!({})),
        json!({"sandboxes": []})
    );
    client.end();
    home.assert_nothing_left();
}

#[test]
fn whatever_a_client_sends_is_answered() {
    let home = Home::new();
    let mut client = Client::new(&home);
    let call = |id: u64, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"read_file","arguments":{arguments}}}}}"#
        )
    };
    let mut long = br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":""#.to_vec();
    long.resize(17 << 20, b'a');
    for (line, id, code) in [
        (&b"{not json"[..], json!(null), -32700),
        (b"\xff\xfe{}", json!(null), -32700),
        (&long, json!(null), -32700),
        (b"[]", json!(null), -32600),
        (
            br#"[{"jsonrpc":"2.0","id":71,"method":"ping"}]"#,
            json!(71),
            -32600,
        ),
        (
            call(72, r#"{"sandbox":"none","path":"/caf\udce9"}"#).as_bytes(),
            json!(72),
            -32700,
        ),
        (call(73, r#""x""#).as_bytes(), json!(73), -32602),
        (
            br#"{"jsonrpc":"2.0","id":74,"method":"tools/call"}"#,
            json!(74),
            -32602,
        ),
        (
            br#"{"jsonrpc":"2.0","id":75,"method":"none"}"#,
            json!(75),
            -32601,
        ),
    ] {
        client.write(line);
        client.write(b"\n");
        let answer = client.receive();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&id, &json!(code)),
            "{answer}"
        );
    }
    // Of two requests with one ID the second is refused, and the first one answered; and so is a last line without an
    // end.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let registry = silent.local_addr().unwrap().to_string();
    client.end();
    let mut client = Client::allowed(&home, &["--allow-registry", &registry]);
    let image = json!({"image": format!("{registry}/x")});
    let create = json!({"name": "create_sandbox", "arguments": image});
    let id = client.request("tools/call", &create);
    let (asked, _) = silent.accept().unwrap();
    let again = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    client.send(&again);
    let refused = client.receive();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(id), &json!(-32600))
    );
    let cancel = json!({"requestId": id});
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}));
    drop(asked);
    // What is cancelled has no result, and its ID is of no other request.
    assert_eq!(client.ok("ping", json!({})), json!({}));
    let last = json!({"jsonrpc": "2.0", "id": "last", "method": "ping"});
    client.write(last.to_string().as_bytes());
    drop(client.stdin.take());
    assert_eq!(
        client.receive(),
        json!({"jsonrpc": "2.0", "id": "last", "result": {}})
    );
    client.end();
    home.assert_nothing_left();
}

#[test]
fn a_session_begins_whatever_comes_first() {
    let home = Home::new();
    let mut process = home.mica(&["mcp"]);
    let process = process.stdin(std::process::Stdio::piped());
    let mut process = process
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let info = json!({"name": "test", "version": "1"});
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
    let lines = [
        "nonsense".to_owned(),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string(),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}).to_string(),
        json!({"jsonrpc": "2.0", "id": 2, "method": "initialize"}).to_string(),
        json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}).to_string(),
        json!({"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": hello}).to_string(),
    ];
    stdin.write_all(lines.join("\n").as_bytes()).unwrap();
    drop(stdin);
    let mut said = String::new();
    process
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    let answers = said.lines().map(|line| {
        let answer: Value = serde_json::from_str(line).unwrap();
        (answer["id"].clone(), answer["error"]["code"].as_i64())
    });
    let expected = [
        (json!(null), Some(-32700)),
        (json!(2), Some(-32602)),
        (json!(3), Some(-32602)),
        (json!(4), None),
    ];
    assert_eq!(answers.collect::<Vec<_>>(), expected, "{said}");
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_cancelled_creation_ends_its_pull() {
    let home = Home::new();
    // It accepts, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let registry = silent.local_addr().unwrap().to_string();
    let image = format!("{registry}/x");
    let mut client = Client::allowed(&home, &["--allow-registry", &registry]);
    let create = json!({"name": "create_sandbox", "arguments": {"image": image}});
    let number = client.request("tools/call", &create);
    let (mut asked, _) = silent.accept().unwrap();
    let cancel = json!({"requestId": number, "reason": "enough"});
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}));
    asked.set_read_timeout(Some(PATIENCE)).unwrap();
    asked.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(
        client.tool("list_sandboxes", json!({})),
        json!({"sandboxes": []})
    );
    client.end();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn files_are_read_written_and_listed_as_tools_and_resources() {
    let home = Home::new();
    let mut client = Client::new(&home);
    let id = client.create("it");
    let write =
        |path: &str, content: &str| json!({"sandbox": "it", "path": path, "content": content});
    assert_eq!(
        client.tool("write_file", write("/w/a b/c", "né\n")),
        json!({"bytes": 4})
    );
    let mut more = write("/w/a b/c", "bytes /w==");
    more["append"] = json!(true);
    client.tool("write_file", more);
    let mut bytes = write("/w/bytes", "/wA=");
    (bytes["encoding"], bytes["executable"], bytes["user"]) =
        (json!("base64"), json!(true), json!("app"));
    let said = client.refused("write_file", bytes.clone());
    assert!(said.contains("Permission denied"), "{said}");
    bytes["path"] = json!("/tmp/bytes");
    assert_eq!(client.tool("write_file", bytes), json!({"bytes": 2}));
    assert_eq!(client.sh(&id, "cat '/w/a b/c'").1, "né\nbytes /w==");
    // A relative path begins where commands do.
    client.tool("write_file", write("own/file", "here"));
    assert_eq!(client.sh(&id, "cat own/file /srv/own/file").1, "herehere");
    let said = client.refused("write_file", write("", "x"));
    assert!(said.contains("the path is empty"), "{said}");
    let stat = "stat -c '%a %u' /tmp/bytes; od -An -tx1 /tmp/bytes";
    assert_eq!(client.sh(&id, stat).1, "755 1000\n ff 00\n");

    let read = |path: &str, offset: u64, length: u64| json!({"sandbox": "it", "path": path, "offset": offset, "length": length});
    for (request, content, encoding, bytes, next) in [
        (
            read("/w/a b/c", 0, 100),
            "né\nbytes /w==",
            "text",
            14,
            Value::Null,
        ),
        (read("/w/a b/c", 0, 2), "n", "text", 1, json!(1)),
        (read("/w/a b/c", 1, 3), "é\n", "text", 3, json!(4)),
        (read("/tmp/bytes", 0, 100), "/wA=", "base64", 2, Value::Null),
        (read("/w/a b/c", 100, 100), "", "text", 0, Value::Null),
    ] {
        let expected =
            json!({"content": content, "encoding": encoding, "bytes": bytes, "next_offset": next});
        assert_eq!(client.tool("read_file", request), expected);
    }
    // A file without an end.
    let zeros = client.tool("read_file", read("/dev/zero", 0, u64::MAX));
    assert_eq!(zeros["bytes"], 4 << 20);
    let said = client.refused("read_file", json!({"sandbox": "it", "path": "/none"}));
    assert!(
        said.contains("/none") && said.contains("No such file"),
        "{said}"
    );

    client.sh(
        &id,
        "ln -s nowhere /w/link; mkdir /many; cd /many; seq 1200 | xargs touch",
    );
    let listed = client.tool(
        "list_files",
        json!({"sandbox": "it", "path": "/w", "depth": 2}),
    );
    let entries = listed["entries"].as_array().unwrap();
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| format!("{} {} {}", entry["path"], entry["kind"], entry["target"]))
        .collect();
    assert_eq!(
        seen,
        [
            "\"a b\" \"directory\" null",
            "\"a b/c\" \"file\" null",
            "\"link\" \"symlink\" \"nowhere\"",
        ]
    );
    assert_eq!(
        (&entries[1]["size"], &entries[1]["mode"]),
        (&json!(14), &json!("0644"))
    );
    assert_eq!(listed["is_cut"], false);
    let many = client.tool("list_files", json!({"sandbox": "it", "path": "/many"}));
    assert_eq!(many["entries"].as_array().unwrap().len(), 1000);
    assert_eq!(many["is_cut"], true);

    let listed = client.ok("resources/list", json!({}));
    let uri = listed["resources"][0]["uri"].as_str().unwrap().to_owned();
    assert_eq!(uri, format!("mica://sandbox/{id}"));
    let mut text = |uri: &str| {
        let mut read = client.ok("resources/read", json!({"uri": uri}));
        assert_eq!(read["contents"][0]["uri"], uri);
        read["contents"][0].take()
    };
    let record: Value = serde_json::from_str(text(&uri)["text"].as_str().unwrap()).unwrap();
    assert_eq!((&record["id"], &record["name"]), (&json!(id), &json!("it")));
    for path in ["w/a%20b/c", "w%2Fa%20b%2Fc", "/w/a b/c"] {
        assert_eq!(
            text(&format!("{uri}/files/{path}"))["text"],
            "né\nbytes /w=="
        );
    }
    assert_eq!(text("mica://sandbox/it/files/tmp/bytes")["blob"], "/wA=");
    let templates = client.ok("resources/templates/list", json!({}));
    let templates = templates["resourceTemplates"].as_array().unwrap();
    assert_eq!(
        templates[1]["uriTemplate"],
        "mica://sandbox/{id}/files/{+path}"
    );
    let endless = json!({"uri": "mica://sandbox/it/files/dev/zero"});
    let (code, words) = client.error("resources/read", endless);
    assert!(
        code == -32603 && words.contains("read_file"),
        "{code} {words}"
    );
    client.end();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn sandboxes_end_with_stdin_unless_they_are_kept() {
    let home = Home::new();
    let mut client = Client::new(&home);
    client.create("ends");
    let kept = client.create("kept");
    client.create("stopped");
    client.tool("stop_sandbox", json!({"sandbox": "stopped", "grace": 0}));
    assert_eq!(
        client.tool("keep_sandbox", json!({"sandbox": "kept"}))["id"],
        kept
    );
    let listed = client.tool("list_sandboxes", json!({}));
    let listed = listed["sandboxes"].as_array().unwrap().iter();
    let seen: Vec<_> = listed
        .map(|it| {
            (
                it["name"].as_str().unwrap(),
                it["ends_with_session"] == true,
            )
        })
        .collect();
    assert_eq!(seen, [("ends", true), ("kept", false)]);
    let said = client.refused("keep_sandbox", json!({"sandbox": "kept"}));
    assert!(said.contains("do not end with this session"), "{said}");
    // A host without KVM says so.
    let said = client.refused("fork_sandbox", json!({"sandbox": "kept"}));
    assert!(said.contains("KVM"), "{said}");
    let said = client.refused(
        "snapshot_sandbox",
        json!({"sandbox": "kept", "name": "one"}),
    );
    assert!(said.contains("in memory only"), "{said}");
    client.end();
    assert_eq!(names(&home), ["kept"]);

    // Another server, and one that is killed.
    let mut client = Client::new(&home);
    assert_eq!(client.sh("kept", "echo $A"), (0, "b\n".to_owned()));
    client.create("again");
    client.process.kill().unwrap();
    client.process.wait().unwrap();
    wait_until("its sandbox is gone", || names(&home) == ["kept"]);
    home.output(&["rm", "-f", "kept"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_pull_has_progress() {
    let home = Home::new();
    let registry = DockerRegistry::start(home.path(), "");
    let name = format!("{}/team/box:v1", registry.host());
    home.output(&["tag", "box", &name]).ok();
    home.output(&["push", "--quiet", &name]).ok();
    let elsewhere = Home::empty();
    let flags = ["--allow-host-backend", "--allow-registry", registry.host()];
    let mut client = Client::allowed(&elsewhere, &flags);
    let create = json!({"image": name, "network": false, "options": {"backend": "host"}});
    let (made, steps) = client.watched("create_sandbox", create);
    assert!(!steps.is_empty());
    assert!(
        steps.iter().all(|step| step["message"].is_string()),
        "{steps:?}"
    );
    let id = made["id"].as_str().unwrap();
    assert_forked(&elsewhere, client.process.id());
    assert_eq!(
        client.sh(id, "cat /etc/hostname >&2; echo $FROM_IMAGE").1,
        "yes\n"
    );
    client.end();
    elsewhere.assert_nothing_left();
}
