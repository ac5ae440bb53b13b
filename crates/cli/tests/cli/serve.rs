//! `mica serve --stdio`, by a client that is written from `docs/protocol.md` alone.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use micabox_testing::{DockerRegistry, image};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::host::assert_forked;
use crate::support::{Home, PATIENCE, wait_until};

const PREAMBLE: &[u8; 12] = b"MICAOWN\n\x02\0\0\0";

struct Client {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
}

/// A frame: number, kind, body.
type Frame = (u32, u8, Vec<u8>);

impl Client {
    fn new(home: &Home) -> Self {
        Self::begin(home, home.mica(&["serve", "--stdio"]))
    }

    fn begin(home: &Home, mut process: std::process::Command) -> Self {
        let process = process.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = process.spawn().unwrap();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().unwrap());
        let mut client = Self {
            process,
            stdin,
            stdout,
        };
        client.write(PREAMBLE);
        let mut preamble = [0; 12];
        client.stdout.read_exact(&mut preamble).unwrap();
        assert_eq!(&preamble, PREAMBLE);
        let hello = client.answer(0);
        assert_eq!(hello["type"], "hello");
        assert_eq!(hello["home"], *home.store().to_str().unwrap());
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn send(&mut self, number: u32, kind: u8, body: &[u8]) {
        let length = u32::try_from(5 + body.len()).unwrap();
        let head = [&length.to_le_bytes()[..], &[kind], &number.to_le_bytes()].concat();
        self.write(&[&head, body].concat());
    }

    fn request(&mut self, number: u32, request: &Value) {
        self.send(number, 0, request.to_string().as_bytes());
    }

    fn frame(&mut self) -> Frame {
        let mut head = [0; 9];
        self.stdout.read_exact(&mut head).unwrap();
        let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
        let mut body = vec![0; length - 5];
        self.stdout.read_exact(&mut body).unwrap();
        (
            u32::from_le_bytes(head[5..].try_into().unwrap()),
            head[4],
            body,
        )
    }

    /// The next frame, which is a message with this number.
    fn answer(&mut self, number: u32) -> Value {
        let (of, kind, body) = self.frame();
        assert_eq!((of, kind), (number, 0), "{}", body.escape_ascii());
        serde_json::from_slice(&body).unwrap()
    }

    fn ask(&mut self, number: u32, request: &Value) -> Value {
        self.request(number, request);
        self.answer(number)
    }

    /// Runs a command of mica; its exit code, stdout and stderr.
    fn command(&mut self, number: u32, args: &[&str]) -> (i64, Vec<u8>, String) {
        let started = self.ask(number, &json!({"type": "command", "args": args}));
        assert_eq!(started, json!({"type": "started", "window": 0}));
        let mut outputs = [Vec::new(), Vec::new()];
        loop {
            match self.frame() {
                (of, 0, body) => {
                    let exited: Value = serde_json::from_slice(&body).unwrap();
                    assert_eq!((of, &exited["type"]), (number, &json!("exited")));
                    let [stdout, stderr] = outputs;
                    let stderr = String::from_utf8(stderr).unwrap();
                    return (exited["code"].as_i64().unwrap(), stdout, stderr);
                }
                (of, kind, body) => {
                    assert_eq!(of, number);
                    outputs[usize::from(kind) - 2].extend(&body);
                    let stream = if kind == 2 { "stdout" } else { "stderr" };
                    let bytes = body.len();
                    let credit = json!({"type": "credit", "stream": stream, "bytes": bytes});
                    // It may have ended meanwhile.
                    self.request(number, &credit);
                }
            }
        }
    }

    fn create(&mut self, number: u32, options: &Value) -> String {
        let options = json!({"type": "create", "image": "box", "options": options});
        let made = self.ask(number, &options);
        let made = &made["sandboxes"][0];
        assert!(
            made["directory"].as_str().unwrap().starts_with('/'),
            "{made}"
        );
        made["record"]["id"].as_str().unwrap().to_owned()
    }

    /// Closes stdin, and waits for the end.
    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn commands_of_mica_have_streams_with_credit() {
    let home = Home::new();
    let mut client = Client::new(&home);
    let (code, stdout, _) = client.command(1, &["images", "--json"]);
    let images: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!((code, &images[0]["layers"]), (0, &json!(3)));
    let (code, stdout, stderr) = client.command(1, &["rmi", "nothing"]);
    assert_eq!((code, stdout.len()), (1, 0));
    assert!(stderr.contains("nothing"), "{stderr}");
    // More than the windows hold, each way.
    let big: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let layer = image::one_file("big", &big);
    let archive = home.path().join("big.tar");
    image::write_archive(&archive, &[layer], &image::config());
    let archive = std::fs::read(archive).unwrap();
    let load = json!({"type": "command", "args": ["load", "--name", "big", "-"], "stdin": true});
    let mut window = client.ask(2, &load)["window"].as_u64().unwrap() as usize;
    let mut sent = 0;
    while sent < archive.len() {
        let most = window.min(archive.len() - sent).min(32 << 10);
        if most > 0 {
            client.send(2, 1, &archive[sent..sent + most]);
            (sent, window) = (sent + most, window - most);
        } else {
            let more = client.answer(2);
            assert_eq!(more["type"], "credit");
            window += more["bytes"].as_u64().unwrap() as usize;
        }
    }
    client.send(2, 1, b"");
    let exited = loop {
        match client.frame() {
            (2, 0, body) if !body.starts_with(b"{\"type\":\"credit\"") => break body,
            _ => {}
        }
    };
    assert_eq!(exited, b"{\"type\":\"exited\",\"code\":0}");
    let (code, saved, _) = client.command(3, &["save", "--compression", "none", "big"]);
    assert!(
        code == 0 && saved.len() > 3_000_000,
        "{code} {}",
        saved.len()
    );
    // One that is not read waits, and stops nothing else.
    let save =
        json!({"type": "command", "args": ["save", "--compression", "none", "big"], "window": 1});
    assert_eq!(client.ask(4, &save)["type"], "started");
    assert_eq!(client.frame().2.len(), 1);
    assert_eq!(client.command(5, &["images", "-q"]).0, 0);
    client.request(4, &json!({"type": "signal", "signal": 9}));
    client.request(
        4,
        &json!({"type": "credit", "stream": "stdout", "bytes": 1 << 30}),
    );
    while client.frame().1 != 0 {}
    client.end();
}

#[test]
fn requests_that_can_not_be_met_say_why() {
    let home = Home::new();
    let mut client = Client::new(&home);
    for (number, (image, options, kind, words)) in (1..).zip([
        ("none", json!({"pull": "never"}), "not_found", "none"),
        (
            "box",
            json!({"memory": "lots"}),
            "invalid",
            "option `memory` can't be `lots`: expected a number",
        ),
        (
            "box",
            json!({"from": "x", "upper": "disk"}),
            "invalid",
            "`from`",
        ),
        ("box", json!({"tty": true}), "invalid", "`tty`"),
        ("box", json!({"no-such": 1}), "invalid", "`no-such`"),
        ("box", json!({"env": [["a"]]}), "invalid", "`env`"),
        (
            "--privileged",
            json!({"pull": "never"}),
            "invalid",
            "privileged",
        ),
    ]) {
        let request = json!({"type": "create", "image": image, "options": options});
        let failed = client.ask(number, &request);
        assert_eq!(failed["type"], "failed", "{failed}");
        let message = failed["message"].as_str().unwrap();
        assert!(
            message.contains(words) && !message.contains("Usage") && message.trim() == message,
            "{failed}"
        );
        if image != "--privileged" {
            assert_eq!(failed["kind"], kind, "{failed}");
        }
    }
    let failed = client.ask(20, &json!({"type": "detach", "sandbox": "none"}));
    assert_eq!(failed["kind"], "not_found", "{failed}");
    let failed = client.ask(21, &json!({"type": "fork", "sandbox": "none", "count": 2}));
    assert_eq!(failed["kind"], "not_found", "{failed}");
    // So does a message that can't be decoded fail alone.
    for (number, request) in (30..).zip([
        json!({"type": "fork", "sandbox": "none", "count": -1}),
        json!({"type": "create", "image": 5}),
        json!({"type": "no such"}),
    ]) {
        let failed = client.ask(number, &request);
        assert_eq!(failed["kind"], "invalid", "{failed}");
    }
    client.send(40, 0, br#"{"type": "detach", "sandbox": "\udcff"}"#);
    assert_eq!(client.answer(40)["kind"], "invalid");
    // A frame that breaks the rules ends it.
    client.send(9, 2, b"bytes");
    assert_eq!(client.process.wait().unwrap().code(), Some(1));
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn sandboxes_end_with_the_client_unless_it_detaches_them() {
    let home = Home::new();
    let host = json!({"backend": "host", "net": "none", "rm": true});
    let listed = || {
        let listed = home.output(&["ps", "--json"]).json();
        listed.as_array().unwrap().len()
    };
    let mut client = Client::new(&home);
    let (first, second) = (client.create(1, &host), client.create(2, &host));
    // One that is removed by another client is no longer this one's.
    let third = client.create(3, &host);
    assert_eq!(listed(), 3);
    home.output(&["rm", "-f", &third]).ok();
    wait_until("the client's server has seen it", || {
        let detach = json!({"type": "detach", "sandbox": third});
        client.ask(4, &detach)["kind"] == "not_found"
    });
    let detached = client.ask(5, &json!({"type": "detach", "sandbox": second}));
    assert_eq!(detached, json!({"type": "detached"}));
    assert_eq!(home.output(&["exec", &first, "echo", "a"]).ok(), "a\n");
    client.end();
    assert_eq!(listed(), 1);
    assert_eq!(home.output(&["exec", &second, "echo", "b"]).ok(), "b\n");

    // Not even time to say so.
    home.output(&["rm", "-f", &second]).ok();
    let mut client = Client::new(&home);
    client.create(1, &host);
    assert_forked(&home, client.process.id());
    let server = Pid::from_child(&client.process);
    kill_process(server, Signal::KILL).unwrap();
    client.process.wait().unwrap();
    wait_until("its sandbox is gone", || listed() == 0);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn pulls_are_told_of_to_clients_that_ask() {
    let home = Home::new();
    let registry = DockerRegistry::start(home.path(), "");
    let name = format!("{}/team/box:v1", registry.host());
    home.output(&["tag", "box", &name]).ok();
    home.output(&["push", "--quiet", &name]).ok();
    for is_asked in [true, false] {
        let elsewhere = Home::empty();
        let mut client = Client::new(&elsewhere);
        let options = json!({"backend": "host", "net": "none", "rm": true});
        let create =
            json!({"type": "create", "image": name, "options": options, "progress": is_asked});
        client.request(1, &create);
        let mut reports = Vec::new();
        let made = loop {
            let message = client.answer(1);
            if message["type"] != "progress" {
                break message;
            }
            reports.push(message);
        };
        assert_eq!(made["type"], "sandboxes", "{made}");
        if is_asked {
            assert_is_a_pull(&reports);
        } else {
            assert!(reports.is_empty(), "{reports:?}");
        }
        // What is here is not pulled.
        let again = client.ask(2, &create);
        assert_eq!(again["type"], "sandboxes", "{again}");
        client.end();
        elsewhere.assert_nothing_left();
    }
}

#[test]
fn a_pull_says_how_far_it_is_in_lines_of_json() {
    let home = Home::new();
    let registry = DockerRegistry::start(home.path(), "");
    let name = format!("{}/team/box:v1", registry.host());
    home.output(&["tag", "box", &name]).ok();
    home.output(&["push", "--quiet", &name]).ok();
    let elsewhere = Home::empty();
    let pull = |flag: &str| {
        let pulled = elsewhere.output(&["pull", "--json", flag, &name]);
        let lines = pulled.stderr();
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let result: Value = serde_json::from_str(&pulled.stdout()).unwrap();
        assert_eq!((pulled.code(), &result["layers"]), (0, &json!(3)));
        lines.collect::<Vec<Value>>()
    };
    assert_is_a_pull(&pull("--progress=json"));
    // Nothing comes of an image that is here.
    let reports = pull("--progress=json");
    let last = json!({"type": "progress", "phase": "done", "done": 0, "total": 0, "layers": []});
    assert_eq!(reports.last(), Some(&last));
    assert!(pull("--progress=auto").is_empty());
}

#[test]
fn an_image_that_is_missing_is_told_from_a_registry_that_is() {
    let home = Home::new();
    let config = home.path().join("config.toml");
    std::fs::write(&config, "[transfer]\nattempts = 1\n").unwrap();
    let mut mica = home.mica(&["serve", "--stdio"]);
    mica.env("MICABOX_CONFIG", &config);
    let mut client = Client::begin(&home, mica);
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("{}/x", registry.local_addr().unwrap());
    let create = json!({"type": "create", "image": name});
    client.request(1, &create);
    let (mut asked, _) = registry.accept().unwrap();
    let none = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let count = asked.read(&mut [0; 4096]).unwrap();
    assert_ne!(count, 0);
    asked.write_all(none).unwrap();
    drop((asked, registry));
    assert_eq!(client.answer(1)["kind"], "not_found");
    assert_eq!(client.ask(2, &create)["kind"], "unreachable");
    client.end();
}

#[test]
fn a_creation_is_given_up() {
    let home = Home::new();
    // It accepts, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/x", silent.local_addr().unwrap());
    let mut client = Client::new(&home);
    client.request(1, &json!({"type": "create", "image": image}));
    let (_asked, _) = silent.accept().unwrap();
    client.request(2, &json!({"type": "cancel"}));
    client.request(1, &json!({"type": "cancel"}));
    let failed = client.answer(1);
    assert_eq!(
        (&failed["type"], &failed["kind"]),
        (&json!("failed"), &json!("cancelled"))
    );
    // It is over.
    client.request(1, &json!({"type": "cancel"}));
    assert_eq!(client.command(1, &["images", "-q"]).0, 0);
    client.end();
    home.assert_nothing_left();
}

#[test]
fn commands_end_with_a_server_that_is_killed() {
    let home = Home::new();
    // It accepts, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/x", silent.local_addr().unwrap());
    let mut client = Client::new(&home);
    client.ask(1, &json!({"type": "command", "args": ["pull", image]}));
    let (mut asked, _) = silent.accept().unwrap();
    client.process.kill().unwrap();
    client.process.wait().unwrap();
    // Its connection ends with the pull.
    asked.set_read_timeout(Some(PATIENCE)).unwrap();
    asked.read_to_end(&mut Vec::new()).unwrap();
    home.assert_nothing_left();
}

/// Checks what is said of a pull of an image with three layers.
fn assert_is_a_pull(reports: &[Value]) {
    let mut phases: Vec<_> = reports.iter().map(|report| &report["phase"]).collect();
    phases.dedup();
    assert_eq!(phases, ["resolving", "pulling", "merging", "done"]);
    for report in reports {
        assert_eq!(report["type"], "progress");
        let layers = report["layers"].as_array().unwrap();
        let sum = |field: &str| -> u64 {
            let of = layers.iter().map(|layer| layer[field].as_u64().unwrap());
            of.sum()
        };
        assert_eq!(report["done"], sum("done"), "{report}");
        assert_eq!(report["total"], sum("total"), "{report}");
    }
    let last = reports.last().unwrap();
    assert_eq!(last["done"], last["total"]);
    let layers = last["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3);
    for layer in layers {
        assert!(layer["digest"].as_str().unwrap().starts_with("sha256:"));
        assert_eq!(layer["phase"], "done", "{layer}");
        assert!(layer["total"].as_u64().unwrap() > 0 && layer["reason"].is_null());
    }
}
