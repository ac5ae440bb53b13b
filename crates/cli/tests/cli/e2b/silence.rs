//! Clients that send and read nothing, beside others that work.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::json;

use super::{HOST, on_this_kernel};
use crate::support::e2b::{Made, Server, message, request};
use crate::support::{Home, wait_until};

/// More than most shells allow.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

fn entries(server: &Server, directory: &str) -> usize {
    let path = format!("/proc/{}/{directory}", server.pid());
    std::fs::read_dir(path).unwrap().count()
}

/// Sends bytes, and nothing more.
fn say(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(bytes).unwrap();
    stream
}

fn post(made: &Made, path: &str, length: usize, body: &[u8]) -> Vec<u8> {
    let headers = made.headers("application/connect+json");
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn get(made: &Made, path: &str) -> Vec<u8> {
    let headers = made.headers("text/plain");
    format!("GET {path} HTTP/1.1\r\nHost: here\r\n{headers}\r\n").into_bytes()
}

fn at_port(made: &Made, port: u16) -> String {
    format!(
        "E2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: {port}\r\n",
        made.id
    )
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_thousand_silent_clients_keep_nothing_from_ten_that_work() {
    allow_descriptors();
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let (theirs, ours) = (on_this_kernel(&server), on_this_kernel(&server));
    server.run(&theirs, "head -c 40000000 /dev/zero >/tmp/large");
    // A program that takes connections and says nothing.
    let (_, _silent) = server.start(&theirs, "exec nc -ll -p 8000 -e sleep 1000", false);
    let page = "cd /tmp; echo page >page; exec httpd -f -p 127.0.0.1:8000";
    let (_, _page) = server.start(&ours, page, false);
    let fetch = |of: &Made| server.ask("GET /page", &at_port(of, 8000), b"").0;
    wait_until("the page is there", || fetch(&ours) == 200);

    let start = message(&json!({"process": {"cmd": "/bin/sleep", "args": ["1000"]}}));
    let watch = message(&json!({"path": "/tmp"}));
    let port = format!(
        "GET / HTTP/1.1\r\nHost: here\r\n{}\r\n",
        at_port(&theirs, 8000)
    );
    let requests = [
        post(&theirs, "/files?path=/tmp/x", 1_000_000, b"x"),
        get(&theirs, "/files?path=/tmp/large"),
        post(&theirs, "/process.Process/Start", start.len(), &start),
        post(&theirs, "/process.Process/Start", start.len(), &start[..3]),
        post(
            &theirs,
            "/filesystem.Filesystem/WatchDir",
            watch.len(),
            &watch,
        ),
        post(&theirs, "/filesystem.Filesystem/Stat", 100, b"{"),
        port.into_bytes(),
        b"GET /health HTTP/1.1\r\n".to_vec(),
        b"POST /sandboxes HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n".to_vec(),
        Vec::new(),
    ];
    let mut held = Vec::new();
    for round in 0..100 {
        held.extend(requests.iter().map(|request| say(&server, request)));
        // All of them before the sandbox is full.
        if round == 0 {
            wait_until("they are let in", || entries(&server, "fd") > 20);
        }
    }
    wait_until("most have come", || entries(&server, "fd") > held.len() / 2);
    // More than there may be.
    held.extend((0..1500).map(|_| server.connect()));

    let work = |number: u32| {
        let (key, path) = (server.with_key(), format!("/tmp/{number}"));
        for round in 0..3 {
            assert_eq!(server.status("GET /v2/sandboxes", &key, ""), "200");
            let contents = vec![b'x'; 1_000_000 + round];
            assert_eq!(server.upload(&ours, &path, &contents), 200);
            assert!(server.download(&ours, &path) == contents);
            assert_eq!(server.run(&ours, "echo done"), "done\n");
            assert_eq!(fetch(&ours), 200);
            let (status, made) = server.files(&ours, "CreateWatcher", &json!({"path": "/tmp"}));
            assert_eq!(status, 200, "{made}");
            assert_eq!(server.files(&ours, "RemoveWatcher", &made).0, 200);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..10).map(|n| scope.spawn(move || work(n))).collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
    // Those of the rush end, and none is a silent client's.
    wait_until("few threads are left", || entries(&server, "task") < 50);

    // The sandbox itself, once they are gone.
    drop(held);
    wait_until("there is room", || {
        server.process(&theirs, "List", &json!({})).0 == 200
    });
    assert_eq!(server.run(&theirs, "echo done"), "done\n");
    for made in [&theirs, &ours] {
        server.delete(made);
    }
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn what_one_sandbox_uses_is_bounded() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let (theirs, ours) = (on_this_kernel(&server), on_this_kernel(&server));
    let watch = json!({"path": "/tmp"});
    let mut made = 0;
    let refused = loop {
        let (status, reply) = server.files(&theirs, "CreateWatcher", &watch);
        if status != 200 {
            break reply;
        }
        made += 1;
        assert!(made < 1000);
    };
    assert_eq!(
        refused["message"],
        format!("the sandbox has {made} watches already")
    );
    assert_eq!(server.files(&ours, "CreateWatcher", &watch).0, 200);

    // Headers of a part that do not end.
    let headers = theirs.headers("multipart/form-data; boundary=B");
    let part = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/";
    let endless = [part.as_bytes(), &vec![b'x'; 200 << 10]].concat();
    let (status, said) = server.ask("POST /files", &headers, &endless);
    let said = said.text();
    assert!(
        status == 413 && said.contains("a part's headers"),
        "{status} {said}"
    );
    // What precedes the first part, as well.
    let (status, _) = server.ask("POST /files", &headers, &vec![b'x'; 200 << 10]);
    assert_eq!(status, 413);
    for made in [&theirs, &ours] {
        server.delete(made);
    }
    drop(server);
    home.assert_nothing_left();
}

#[test]
fn a_connection_that_says_nothing_makes_room_for_one_that_asks() {
    allow_descriptors();
    let home = Home::new();
    let server = Server::new(&home, &[]);
    let mut first = server.connect();
    let held: Vec<_> = (0..2100).map(|_| server.connect()).collect();
    assert_eq!(server.status("GET /health", "", ""), "204");
    // It was the first that is silent.
    assert_eq!(first.read(&mut [0]).unwrap_or(0), 0);
    let mut last = held.into_iter().next_back().unwrap();
    last.write_all(&request("GET /health", "", b"")).unwrap();
    let mut reply = String::new();
    last.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 204"), "{reply}");
}

#[test]
fn requests_of_the_api_leave_connections_to_others() {
    allow_descriptors();
    let home = Home::new();
    let server = Server::new(&home, &[]);
    // A body is asked for once its request has been let in.
    let ask = format!(
        "POST /sandboxes HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\nContent-Length: 100\r\n{}\r\n",
        server.with_key()
    );
    let held: Vec<_> = (0..600).map(|_| say(&server, ask.as_bytes())).collect();
    let answers = held.iter().map(|mut stream| {
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        String::from_utf8_lossy(&status).into_owned()
    });
    let (let_in, refused): (Vec<_>, Vec<_>) = answers.partition(|said| said == "HTTP/1.1 100");
    assert_eq!(let_in.len(), 384);
    assert!(refused.iter().all(|said| said == "HTTP/1.1 429"));
    let (status, list) = server.api("GET /v2/sandboxes", &json!({}));
    assert_eq!((status, list), (200, json!([])));
    assert_eq!(server.status("GET /health", "", ""), "204");
}

#[test]
fn sandboxes_that_wait_for_a_registry_leave_threads_to_others() {
    allow_descriptors();
    let home = Home::new();
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = registry.local_addr().unwrap();
    let server = Server::new(&home, &[HOST[0], &format!("--allow-registry={address}")]);
    let template = format!("{address}/some/image:1");
    let new = json!({"templateID": template}).to_string();
    let headers = format!("Content-Type: application/json\r\n{}", server.with_key());
    let ask = request("POST /v2/sandboxes", &headers, new.as_bytes());
    let held: Vec<_> = (0..600).map(|_| say(&server, &ask)).collect();
    wait_until("all threads that there are wait", || {
        entries(&server, "task") > 128
    });
    assert_eq!(
        server.api("GET /v2/sandboxes", &json!({})),
        (200, json!([]))
    );
    drop(held);
    wait_until("they end with their clients", || {
        entries(&server, "task") < 50
    });
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_sandbox_that_says_nothing_leaves_threads_to_others() {
    allow_descriptors();
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let owner = Pid::from_raw(home.owner().cast_signed()).unwrap();
    kill_process(owner, Signal::STOP).unwrap();
    let metrics = format!("GET /sandboxes/metrics?sandbox_ids={}", made.id);
    let asks = [
        request(&metrics, &server.with_key(), b""),
        request("GET /v2/sandboxes", &server.with_key(), b""),
    ];
    let held: Vec<_> = (0..300).map(|n| say(&server, &asks[n % 2])).collect();
    wait_until("all have come", || entries(&server, "fd") > held.len());
    wait_until("threads wait", || entries(&server, "task") > 30);
    assert_eq!(server.api("GET /snapshots", &json!({})), (200, json!([])));
    let threads = entries(&server, "task");
    assert!(threads < 100, "{threads} threads");
    drop(held);
    kill_process(owner, Signal::CONT).unwrap();
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_command_that_reads_nothing_keeps_nobody_from_closing_its_stdin() {
    let home = Home::new();
    let server = Server::new(&home, &HOST);
    let made = on_this_kernel(&server);
    let script = "read line; echo $line; exec sleep 1000";
    let (pid, mut events) = server.start(&made, script, true);
    let which = json!({"pid": pid});
    let input = format!("begun\n{}", "x".repeat(1 << 20));
    let send = json!({"process": which, "input": {"stdin": STANDARD.encode(input)}});
    thread::scope(|scope| {
        let sent = scope.spawn(|| server.process(&made, "SendInput", &send));
        // The rest is more than a pipe holds.
        assert_eq!(events.line(), "begun\n");
        let closed = server.process(&made, "CloseStdin", &json!({"process": which}));
        assert_eq!(closed.0, 200, "{}", closed.1);
        let (status, said) = sent.join().unwrap();
        assert_eq!(
            (status, &said["code"]),
            (409, &json!("failed_precondition"))
        );
    });
    server.delete(&made);
    drop(server);
    home.assert_nothing_left();
}
