//! E2B's API of `mica serve --e2b`: what a client reaches, what is refused and not ignored.

mod deadlines;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;

use micabox::Store;
use serde_json::{Value, json};

use crate::support::e2b::{Made, Server, request};
use crate::support::{Home, PATIENCE, snapshot, wait_until};

const ID: &str = "0123456789abcdef0123456789abcdef";

const HOST: [&str; 2] = ["--with=backend=host", "--with=pull=never"];

/// Imports a snapshot, which needs no sandbox.
fn import(home: &Home, name: &str) {
    let file = home.path().join(name);
    let disk = home.path().join(format!("{name}.ext4"));
    let made = ["ext4", "mkfs", disk.to_str().unwrap(), "--size", "16M"];
    home.output(&made).ok();
    let store = Store::open(&home.store()).unwrap();
    let image = store.image("box").unwrap().manifest_digest.to_string();
    let disk = std::fs::read(disk).unwrap();
    let mut head = snapshot::snapshot(name, &image, disk.len());
    // A file does not say whose it is.
    head["labels"] = json!({"e2b": r#"{"sandbox": "0"}"#});
    snapshot::write(&file, &head, &disk);
    home.output(&["snapshot", "import", file.to_str().unwrap()])
        .ok();
}

fn names(home: &Home) -> Vec<String> {
    let list = home.output(&["snapshot", "ls", "--json"]).json();
    let list = list.as_array().unwrap().iter();
    list.map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_client_reaches_no_snapshot_but_those_of_clients() {
    let home = Home::new();
    import(&home, "precious");
    import(&home, "theirs");
    let record = home.store().join("sandboxes/snapshot-theirs/snapshot.json");
    let mut theirs: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    theirs["labels"] = json!({"e2b": json!({"sandbox": ID}).to_string()});
    std::fs::write(&record, theirs.to_string()).unwrap();

    let server = Server::new(&home, &HOST);
    let ask = |line: &str| server.api(line, &json!({}));
    let (_, listed) = ask("GET /snapshots");
    assert_eq!(
        listed,
        json!([{"snapshotID": "theirs", "names": ["theirs"]}])
    );
    assert_eq!(ask(&format!("GET /snapshots?sandboxID={ID}")).1, listed);
    assert_eq!(ask("GET /snapshots?sandboxID=other").1, json!([]));
    let (_, templates) = ask("GET /templates");
    let templates = templates.to_string();
    assert!(templates.contains("theirs") && !templates.contains("precious"));
    assert_eq!(ask("GET /templates/aliases/theirs").0, 200);
    assert_eq!(ask("GET /templates/aliases/precious").0, 404);
    assert_eq!(ask("DELETE /templates/precious").0, 404);
    let new = json!({"templateID": "precious"});
    let (status, refused) = server.api("POST /sandboxes", &new);
    assert_eq!(status, 404, "{refused}");
    assert_eq!(names(&home), ["precious", "theirs"]);
    assert_eq!(ask("DELETE /templates/theirs").0, 204);
    assert_eq!(names(&home), ["precious"]);
    drop(server);
    // Unless a flag of the server names it.
    let flags = [&HOST[..], &["--template=mine=precious"]].concat();
    let server = Server::new(&home, &flags);
    let (status, _) = server.api("GET /templates/aliases/mine", &json!({}));
    assert_eq!(status, 200);
    let (status, _) = server.api("DELETE /templates/mine", &json!({}));
    assert_eq!(status, 404);
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_snapshot_that_is_not_made_replaces_none() {
    let home = Home::new();
    import(&home, "precious");
    let server = Server::new(&home, &HOST);
    let made = offline(&server);
    let line = format!("POST /sandboxes/{}/snapshots", made.id);
    let (status, refused) = server.api(&line, &json!({"name": "precious"}));
    assert!((400..500).contains(&status), "{status} {refused}");
    assert_eq!(names(&home), ["precious"]);
    server.delete(&made);
}

#[test]
fn what_a_request_has_and_is_not_known_is_refused_by_its_name() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let of = |path: &str| format!("/sandboxes/{ID}{path}");
    let mut refused = Vec::new();
    for (path, body) in [
        ("/sandboxes".to_owned(), json!({"templateID": "box"})),
        (of("/timeout"), json!({"timeout": 1})),
        (of("/refreshes"), json!({})),
        (of("/pause"), json!({})),
        (of("/connect"), json!({})),
        (of("/resume"), json!({})),
        (of("/fork"), json!({})),
        (of("/snapshots"), json!({})),
    ] {
        let mut more = body.clone();
        more["noSuchField"] = json!(true);
        let (status, said) = server.api(&format!("POST {path}"), &more);
        refused.push((format!("{path} {more}"), status, said, "noSuchField"));
        let (status, said) = server.api(&format!("POST {path}?noSuchName=1"), &body);
        refused.push((format!("{path}?"), status, said, "noSuchName"));
    }
    for path in [
        "/v2/sandboxes",
        "/sandboxes/metrics",
        "/snapshots",
        "/templates",
        "/templates/aliases/box",
        &of(""),
        &of("/metrics"),
    ] {
        let (status, said) = server.api(&format!("GET {path}?noSuchName=1"), &json!({}));
        refused.push((path.to_owned(), status, said, "noSuchName"));
    }
    for line in [format!("DELETE {}", of("")), "GET /v2/sandboxes".to_owned()] {
        let (status, said) = server.api(&line, &json!({"noSuchField": 1}));
        refused.push((line, status, said, "noSuchField"));
    }
    for (path, name) in [
        ("/v2/sandboxes?order=up", "order"),
        ("/v2/sandboxes?state=dead", "dead"),
        ("/v2/sandboxes?startedAfter=yesterday", "startedAfter"),
        ("/v2/sandboxes?limit=0", "limit"),
        ("/v2/sandboxes?metadata=a%3D1%26a%3D2", "`a`"),
        ("/v2/sandboxes?limit=1&limit=2", "limit"),
        (&of("/metrics?start=now"), "start"),
    ] {
        let (status, said) = server.api(&format!("GET {path}"), &json!({}));
        refused.push((path.to_owned(), status, said, name));
    }
    for (field, name) in [
        (json!({"secure": false}), "secure"),
        (json!({"mcp": {"server": {}}}), "mcp"),
        (json!({"autoResume": [true]}), "sequence"),
        (
            json!({"autoResume": {"enabled": true, "other": 1}}),
            "other",
        ),
        (json!({"network": {"newRule": {}}}), "newRule"),
        (json!({"network": {"httpsPorts": [443]}}), "httpsPorts"),
        (json!({"network": {"denyOut": ["::/0"]}}), "denyOut"),
        (json!({"envVars": {"A\nB": "c"}}), "envVars"),
        (
            json!({"autoPause": true, "autoPauseMemory": false}),
            "autoPauseMemory",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "path": "/v"}]}),
            "volumeMounts",
        ),
    ] {
        let mut body = json!({"templateID": "box"});
        body.as_object_mut()
            .unwrap()
            .extend(field.as_object().unwrap().clone());
        let (status, said) = server.api("POST /v2/sandboxes", &body);
        refused.push((body.to_string(), status, said, name));
    }
    for (what, status, said, name) in refused {
        assert!([400, 501].contains(&status), "{what}: {status} {said}");
        assert_eq!(said["code"], status, "{what}: {said}");
        let message = said["message"].as_str().unwrap();
        assert!(message.contains(name), "{what}: {message}");
    }
    let headers = format!("Content-Type: application/json\r\n{}", server.with_key());
    for field in ["metadata", "envVars"] {
        let twice = format!(r#"{{"templateID": "box", "{field}": {{"a": "b", "a": "c"}}}}"#);
        let (status, said) = server.ask("POST /v2/sandboxes", &headers, twice.as_bytes());
        assert_eq!(
            (status, said.text().contains("`a`")),
            (400, true),
            "{field}"
        );
    }
    for field in ["mcp", "iam"] {
        let twice = format!(
            r#"{{"templateID": "box", "{field}": {{"tokens": {{"a": 1}}, "tokens": {{}}}}}}"#
        );
        let (status, said) = server.ask("POST /v2/sandboxes", &headers, twice.as_bytes());
        assert_eq!(
            (status, said.text().contains(field)),
            (501, true),
            "{field}"
        );
    }
    // What says a default is no more than that.
    let default = json!({"templateID": "none", "secure": true, "network": null, "mcp": null, "iam": {},
        "volumeMounts": [], "autoPause": false, "metadata": null});
    assert_eq!(server.api("POST /v2/sandboxes", &default).0, 404);
}

#[test]
fn what_is_no_json_is_answered_in_e2bs_words() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let key = server.with_key();
    let bodies: [&[u8]; 7] = [
        br#"["box", 60]"#,
        b"{\"templateID\": \"\xff\"}",
        br#"{"templateID": "\udce9"}"#,
        b"\0",
        b"null",
        &[b'['; 10_000],
        br#"{"templateID": "box", "templateID": "box"}"#,
    ];
    for body in bodies {
        for kind in ["application/json", "text/plain; charset=latin1"] {
            let headers = format!("Content-Type: {kind}\r\n{key}");
            let (status, said) = server.ask("POST /v2/sandboxes", &headers, body);
            assert_eq!(status, 400);
            let said: Value = serde_json::from_str(&said.text()).unwrap();
            assert_eq!(said["code"], 400, "{said}");
        }
    }
}

/// Makes a sandbox without a network.
fn offline(server: &Server) -> Made {
    server.create(&json!({"templateID": "box", "timeout": 600, "allow_internet_access": false}))
}

/// A template's registry that answers nothing.
#[test]
fn a_create_whose_client_has_gone_stops_its_pull() {
    let home = Home::new();
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = registry.local_addr().unwrap();
    let allow = format!("--allow-registry={address}");
    let server = Server::new(&home, &["--with=backend=host", &allow]);
    let template = format!("{address}/some/image:1");
    let new = json!({"templateID": template, "timeout": 600}).to_string();
    let headers = format!("Content-Type: application/json\r\n{}", server.with_key());
    let mut client = server.connect();
    let asked = request("POST /v2/sandboxes", &headers, new.as_bytes());
    client.write_all(&asked).unwrap();
    let (mut pull, _) = registry.accept().unwrap();
    drop(client);
    // The pull's connection ends with it.
    pull.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    let _ = pull.read_to_end(&mut rest).unwrap();
    // There is no other attempt, and no sandbox.
    assert_eq!(server.api("GET /v2/sandboxes", &json!({})).1, json!([]));
    assert_eq!(home.sandboxes(), Vec::<PathBuf>::new());
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_client_that_goes_while_its_sandbox_is_made_leaves_none() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let new = json!({"templateID": "box", "timeout": 600, "allow_internet_access": false});
    // Beside those that hold an image.
    let sandboxes = || home.sandboxes().len() - home.held_images().len();
    let mut gone = 0;
    wait_until("five clients go before their answers", || {
        match server.abandon("POST /v2/sandboxes", &new, || sandboxes() > 0) {
            Some(made) => server.delete(&Made::of(&made)),
            None => gone += 1,
        }
        wait_until("none is left", || sandboxes() == 0);
        gone == 5
    });
    drop(server);
    home.assert_nothing_left();
}

#[test]
fn a_template_that_can_not_be_pulled_is_one_that_is_not_there() {
    let home = Home::new();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let allow = format!("--allow-registry={address}");
    let server = Server::new(&home, &["--with=backend=host", &allow]);
    let template = format!("{address}/some/image:1");
    let new = json!({"templateID": template});
    let (status, said) = server.api("POST /v2/sandboxes", &new);
    assert_eq!(status, 404, "{said}");
    assert!(
        said["message"].as_str().unwrap().contains(&template),
        "{said}"
    );
}

#[test]
fn a_client_has_nothing_asked_that_the_servers_user_has_not_named() {
    let home = Home::new();
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    registry.set_nonblocking(true).unwrap();
    let address = registry.local_addr().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let named = format!("--template=named={}/x", closed.local_addr().unwrap());
    drop(closed);
    let server = Server::new(&home, &["--with=backend=host", &named]);
    let refused = |template: &str| {
        let (status, said) = server.api("POST /sandboxes", &json!({"templateID": template}));
        assert_eq!(status, 404, "{template}: {said}");
        let message = said["message"].as_str().unwrap();
        message.contains("`mica serve --e2b --allow-registry ")
    };
    assert!(refused(&format!("{address}/secret/path:tag")));
    for template in [
        "169.254.169.254/latest/x",
        "localhost/x",
        "[::1]:5000/x",
        "10.0.0.1/x",
        "registry.example/x",
    ] {
        assert!(refused(template), "{template}");
    }
    // The server has made no connection.
    let asked = registry.accept().unwrap_err();
    assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock);
    // That one can't be reached.
    assert!(!refused("named"));
}

#[test]
#[ignore = "needs root and a built guest"]
fn lists_and_metrics_are_of_the_time_that_was_asked_for() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let (first, second) = (offline(&server), offline(&server));
    let get = |path: &str| {
        let (status, said) = server.api(&format!("GET {path}"), &json!({}));
        assert_eq!(status, 200, "{path}: {said}");
        said
    };
    let started = |of: &Made| {
        let one = get(&format!("/sandboxes/{}", of.id));
        one["startedAt"].as_str().unwrap().to_owned()
    };
    let after = |moment: &str| {
        let list = get(&format!("/v2/sandboxes?startedAfter={moment}"));
        let list = list.as_array().unwrap().iter();
        list.map(|one| one["sandboxID"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // The moment itself counts, as in E2B's own tests.
    assert_eq!(after(&started(&first)).len(), 2);
    assert_eq!(after(&started(&second)), std::slice::from_ref(&second.id));
    assert_eq!(after("2999-01-01T00:00:00Z"), Vec::<String>::new());
    assert_eq!(after("2020-01-01T00:00:00%2B01:00").len(), 2);

    let metrics = |range: &str| get(&format!("/sandboxes/{}/metrics?{range}", first.id));
    assert_eq!(metrics("end=1700000000"), json!([]));
    assert_eq!(metrics("start=9999999999"), json!([]));
    let now = metrics("start=1700000000&end=9999999999");
    // Where nothing counts a container's memory, there is no answer without one.
    let stats = home
        .output(&["stats", "--no-stream", "--json", &first.id])
        .json();
    let is_counted = stats[0]["own_memory"].is_u64();
    assert_eq!(now.as_array().unwrap().len(), usize::from(is_counted));
    // Each is measured once, and not too many are.
    let ids = |more: usize| {
        let unknown = (0..more).map(|n| format!("{n:032x}"));
        let ids = vec![first.id.clone(); 200].into_iter().chain(unknown);
        let ids = ids.collect::<Vec<_>>().join(",");
        server.api(
            &format!("GET /sandboxes/metrics?sandbox_ids={ids}"),
            &json!({}),
        )
    };
    let (status, now) = ids(99);
    let measured = now["sandboxes"].as_object().unwrap();
    assert_eq!((status, measured.len()), (200, usize::from(is_counted)));
    assert_eq!(ids(100).0, 400);
    server.delete(&first);
    server.delete(&second);
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_request_with_a_key_makes_one_sandbox() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let new =
        json!({"templateID": "box", "timeout": 600, "allow_internet_access": false}).to_string();
    let create = |key: &str| {
        let headers = format!("{}Idempotency-Key: {key}\r\n", server.with_key());
        let (status, said) = server.ask("POST /v2/sandboxes", &headers, new.as_bytes());
        (status, serde_json::from_str::<Value>(&said.text()).unwrap())
    };
    let (first, again, other) = (create("a-1"), create("a-1"), create("a-2"));
    assert_eq!((first.0, &first), (201, &again));
    assert_ne!(first.1["sandboxID"], other.1["sandboxID"]);
    assert_eq!(create("A b").0, 400);
    for made in [&first.1, &other.1] {
        server.delete(&Made::of(made));
    }
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_clients_rules_open_nothing_that_the_servers_close() {
    let home = Home::new();
    let secret = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = secret.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in secret.incoming() {
            let _ = client.unwrap().write_all(b"secret\n");
        }
    });
    let read = format!("nc 10.213.9.1 {port} </dev/null || echo refused");
    let wants_it = json!({"allowOut": ["127.0.0.1"], "denyOut": ["0.0.0.0/0"]});
    let others = json!({"denyOut": ["192.0.2.1"]});
    for (with, network, said) in [
        ("quiet", Some(&wants_it), "refused\n"),
        ("net-allow=192.0.2.0/24", None, "refused\n"),
        ("net-allow=192.0.2.0/24", Some(&wants_it), "refused\n"),
        ("net-deny=127.0.0.0/8", Some(&others), "refused\n"),
        // A flag of the server opens it, and a client may close it again.
        ("net-allow=127.0.0.1", None, "secret\n"),
        ("net-allow=127.0.0.1", Some(&wants_it), "secret\n"),
        ("net-allow=127.0.0.1", Some(&others), "secret\n"),
        (
            "net-allow=127.0.0.1",
            Some(&json!({"denyOut": ["127.0.0.0/8"]})),
            "refused\n",
        ),
    ] {
        let flags = ["--with=backend=host", &format!("--with={with}")];
        let server = Server::new(&home, &flags);
        let made = server.create(&json!({"templateID": "box", "timeout": 600, "network": network}));
        assert_eq!(server.run(&made, &read), said, "{with} and {network:?}");
        server.delete(&made);
    }
    let server = Server::new(&home, &["--with=backend=host", "--with=net=none"]);
    for (network, internet) in [(&wants_it, None), (&others, None), (&json!({}), Some(true))] {
        let new =
            json!({"templateID": "box", "network": network, "allow_internet_access": internet});
        let (status, said) = server.api("POST /sandboxes", &new);
        assert_eq!(status, 400, "{said}");
        assert!(
            said["message"].as_str().unwrap().contains("no network"),
            "{said}"
        );
    }
    let made = offline(&server);
    server.delete(&made);
    // What is published by default is nothing without a network.
    let published = [
        "--with=backend=host",
        "--with=publish-all",
        "--with=expose=80",
    ];
    let server = Server::new(&home, &published);
    let made = offline(&server);
    server.delete(&made);
}

#[test]
#[ignore = "needs root and a built guest"]
fn who_has_no_token_is_told_so() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let new = json!({"templateID": "box", "timeout": 600, "allow_internet_access": false,
        "network": {"allowPublicTraffic": false}});
    let made = server.create(&new);
    let headers = format!("E2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: 8000\r\n", made.id);
    let (status, said) = server.ask("GET /", &headers, b"");
    assert_eq!(status, 403);
    let said: Value = serde_json::from_str(&said.text()).unwrap();
    assert_eq!((&said["port"], &said["code"]), (&json!(8000), &json!(403)));
    server.delete(&made);
}

#[test]
fn templates_have_all_that_e2bs_programs_show() {
    let home = Home::new();
    import(&home, "mine");
    let flags = [
        &HOST[..],
        &[
            "--with=cpus=3",
            "--template=base=box",
            "--template=gone=none",
        ],
    ]
    .concat();
    let server = Server::new(&home, &flags);
    let (status, list) = server.api("GET /templates?teamID=any", &json!({}));
    assert_eq!(status, 200);
    let list = list.as_array().unwrap();
    let names: Vec<_> = list.iter().map(|one| &one["names"][0]).collect();
    assert_eq!(names, ["box:latest", "base"]);
    for one in list {
        assert_eq!(one["cpuCount"], 3);
        for field in ["memoryMB", "diskSizeMB", "spawnCount", "buildCount"] {
            assert!(one[field].is_u64(), "{field} in {one}");
        }
        for field in ["templateID", "buildID", "envdVersion", "buildStatus"] {
            assert!(one[field].is_string(), "{field} in {one}");
        }
        for field in ["createdAt", "updatedAt"] {
            let moment = one[field].as_str().unwrap();
            assert!(moment.ends_with('Z') && moment.len() == 20, "{moment}");
        }
    }
    let (_, page) = server.api("GET /v2/templates?limit=1&nextToken=1", &json!({}));
    assert_eq!(page[0]["names"], json!(["base"]));
}
