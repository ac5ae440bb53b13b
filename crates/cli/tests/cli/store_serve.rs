//! `mica store serve`: the store's images, as other registries' clients see them.

mod erofs;
mod keep_blobs;
mod upstream;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_testing::DockerRegistry;
use serde_json::Value;

use crate::support::{Finished, Home, PATIENCE, Running, image};

/// A server of a store.
struct Replica {
    process: Option<Running>,
    /// Address and port.
    host: String,
}

impl Replica {
    fn new(home: &Home, flags: &[&str]) -> Self {
        Self::of(home.mica(&[&["store", "serve", "--listen", "127.0.0.1:0"], flags].concat()))
    }

    fn of(mica: Command) -> Self {
        let mut process = Running::new(mica);
        let line = process.line();
        let (_, host) = line.trim_end().split_once("://").unwrap();
        Self {
            host: host.to_owned(),
            process: Some(process),
        }
    }

    fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.host)
    }

    /// Sends the head of a request, without the line that ends it. Returns the reply's head and body.
    fn ask(&self, head: &str) -> (String, Vec<u8>) {
        self.ask_host(&self.host, head)
    }

    /// Asks with this `Host`.
    fn ask_host(&self, host: &str, head: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{head}\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut reply = Vec::new();
        // A transfer that fails is reset.
        let _ = stream.read_to_end(&mut reply);
        let end = reply.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            return (String::from_utf8_lossy(&reply).into_owned(), Vec::new());
        };
        let head = String::from_utf8_lossy(&reply[..end]).into_owned();
        (head, reply[end + 4..].to_vec())
    }

    fn get(&self, path: &str) -> (String, Vec<u8>) {
        self.ask(&format!("GET {path} HTTP/1.1"))
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.get(path).1).unwrap()
    }

    fn end(mut self) {
        let process = self.process.take().unwrap();
        process.signal(signal_hook::consts::SIGINT);
        assert_eq!(process.wait(), 0);
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // A test has failed.
        if let Some(process) = self.process.take() {
            process.signal(signal_hook::consts::SIGKILL);
            process.wait();
        }
    }
}

fn status(reply: &(String, Vec<u8>)) -> &str {
    reply.0.split(' ').nth(1).unwrap()
}

/// `mica` with the settings in a file.
fn with_settings(home: &Home, settings: &Path, arguments: &[&str]) -> Finished {
    let mut mica = home.mica(arguments);
    mica.env("MICABOX_CONFIG", settings);
    Finished::of(mica)
}

fn config_of(home: &Home, name: &str) -> String {
    let image = home.output(&["inspect", name]).json();
    image[0]["image"]["config_digest"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn skopeo(arguments: &[&str]) -> String {
    let output = Command::new("skopeo").args(arguments).output();
    let output = output.expect("skopeo is installed; run scripts/setup");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Pushes `box` to a registry that keeps it compressed, and returns a store that has pulled it from there.
fn compressed(registry: &DockerRegistry) -> Home {
    let source = Home::new();
    let name = format!("{}/team/box:1", registry.host());
    assert_eq!(source.output(&["push", "box", &name]).code(), 0);
    let home = Home::empty();
    home.output(&["pull", &name]).ok();
    // A registry's port can't be in a path.
    home.output(&["tag", &name, "team/box:1"]).ok();
    home
}

#[test]
fn skopeo_and_mica_pull_what_a_store_has() {
    let home = Home::new();
    let replica = Replica::new(&home, &[]);
    let tags: Value = serde_json::from_str(&skopeo(&[
        "list-tags",
        "--tls-verify=false",
        &format!("docker://{}", replica.name("box")),
    ]))
    .unwrap();
    assert_eq!(tags["Tags"], serde_json::json!(["latest"]));
    let layout = home.path().join("layout");
    let to = format!("oci:{}:box", layout.display());
    let from = format!("docker://{}", replica.name("library/box:latest"));
    skopeo(&["copy", "--src-tls-verify=false", &from, &to]);

    let other = Home::empty();
    let name = replica.name("box");
    other.output(&["pull", &name]).ok();
    assert_eq!(config_of(&other, &name), config_of(&home, "box"));
    other.output(&["store", "fsck", "--archives"]).ok();
    let by_layout = Home::empty();
    let loaded = by_layout.output(&["load", layout.to_str().unwrap()]);
    // A layout has tags, and no names.
    let loaded = loaded.stdout().trim_end().to_owned();
    assert_eq!(config_of(&by_layout, &loaded), config_of(&home, "box"));
    replica.end();
}

#[test]
fn layers_that_were_compressed_are_their_archives() {
    let directory = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(directory.path(), "");
    let home = compressed(&registry);
    let of_registry = home.output(&["images", "--json"]).json()[0]["manifest_digest"].clone();
    let replica = Replica::new(&home, &[]);
    assert_eq!(
        replica.json("/v2/_catalog")["repositories"],
        serde_json::json!(["team/box"])
    );
    let manifest = replica.json("/v2/team/box/manifests/1");
    let config = replica.json(&format!(
        "/v2/x/blobs/{}",
        manifest["config"]["digest"].as_str().unwrap()
    ));
    let layers = manifest["layers"].as_array().unwrap();
    let digests: Vec<_> = layers.iter().map(|layer| layer["digest"].clone()).collect();
    assert_eq!(Value::from(digests.clone()), config["rootfs"]["diff_ids"]);

    let blob = format!("/v2/team/box/blobs/{}", digests[0].as_str().unwrap());
    let (head, archive) = replica.get(&blob);
    assert!(head.contains("200 OK"), "{head}");
    assert_eq!(
        micabox_image::Digest::of(&archive).to_string(),
        digests[0].as_str().unwrap()
    );
    assert_eq!(archive, image::layers()[0]);
    let size = archive.len();
    // Each part is that part, wherever it begins in headers, contents and padding.
    for (first, last) in [
        (0, 0),
        (1, 511),
        (511, 512),
        (size / 2, size - 1),
        (size - 1, size + 9),
    ] {
        let (head, part) = replica.ask(&format!(
            "GET {blob} HTTP/1.1\r\nRange: bytes={first}-{last}"
        ));
        let end = size.min(last + 1);
        assert!(head.contains("206 "), "{head}");
        assert!(
            head.contains(&format!("bytes {first}-{}/{size}", end - 1)),
            "{head}"
        );
        assert_eq!(part, archive[first..end], "{first}-{last}");
    }
    let beyond = replica.ask(&format!("GET {blob} HTTP/1.1\r\nRange: bytes={size}-"));
    assert_eq!(status(&beyond), "416");
    let other = replica.ask(&format!(
        "GET {blob} HTTP/1.1\r\nRange: bytes=1-1\r\nIf-Range: \"other\""
    ));
    assert_eq!((status(&other), other.1.len()), ("200", size));
    let head = replica.ask(&format!("HEAD {blob} HTTP/1.1"));
    assert!(
        head.0.contains(&format!("content-length: {size}")),
        "{}",
        head.0
    );
    assert!(head.1.is_empty());

    // The registry's own manifest names compressed blobs, which the store does not have.
    let missing = replica.json(&format!(
        "/v2/team/box/manifests/{}",
        of_registry.as_str().unwrap()
    ));
    let message = missing["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains("ask for a tag"), "{message}");
    replica.end();
}

#[test]
fn tokens_are_passwords_and_everything_is_not_for_everybody() {
    let home = Home::new();
    let file = home.path().join("tokens");
    let path = file.to_str().unwrap();
    for (text, part) in [("# none\n\n", "has no token"), ("short\n", "16 bytes")] {
        fs::write(&file, text).unwrap();
        let failed = home.output(&["store", "serve", "--token-file", path]);
        assert!(
            failed.code() == 1 && failed.stderr().contains(part),
            "{}",
            failed.stderr()
        );
    }
    let open = home.output(&["store", "serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.code(), 1);
    assert!(open.stderr().contains("--anonymous"), "{}", open.stderr());

    fs::write(&file, "# of the rack\n0123456789abcdef\nfedcba9876543210\n").unwrap();
    let replica = Replica::new(&home, &["--token-file", path]);
    for path in [
        "/v2/",
        "/v2/_catalog",
        "/v2/box/manifests/latest",
        "/nothing",
    ] {
        let refused = replica.get(path);
        assert_eq!(status(&refused), "401", "{path}");
        assert!(
            refused.0.contains("www-authenticate: Basic"),
            "{}",
            refused.0
        );
    }
    let other = Home::empty();
    let login = other.path().join("docker");
    let login_as = |token: &str| {
        let mut mica = other.mica(&["login", &replica.host, "-u", "any", "-p", token]);
        mica.env("DOCKER_CONFIG", &login)
            .env("XDG_RUNTIME_DIR", &login);
        Finished::of(mica)
    };
    assert_ne!(login_as("0123456789abcdeX").code(), 0);
    assert_eq!(login_as("fedcba9876543210").code(), 0);
    let pull = |login: &Path| {
        let mut mica = other.mica(&["pull", &replica.name("box")]);
        mica.env("DOCKER_CONFIG", login)
            .env("XDG_RUNTIME_DIR", login);
        Finished::of(mica)
    };
    assert_ne!(pull(&other.path().join("nowhere")).code(), 0);
    pull(&login).ok();
    replica.end();
}

#[test]
fn a_certificate_lets_a_client_in() {
    let home = Home::new();
    let path = |name: &str| home.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    authority(home.path());
    let flags = [
        "--tls-cert",
        &text("server.pem"),
        "--tls-key",
        &text("server.key"),
        "--client-ca",
        &text("ca.pem"),
    ];
    let replica = Replica::new(&home, &flags);
    let settings = |lines: &str| {
        let file = path("config.toml");
        let table = format!(
            "[registry.\"{}\"]\nplain-http = false\nca = [\"ca.pem\"]\n{lines}",
            replica.host
        );
        fs::write(&file, table).unwrap();
        file
    };
    let other = Home::empty();
    let name = replica.name("box");
    let refused = with_settings(&other, &settings(""), &["pull", &name]);
    assert_ne!(refused.code(), 0);
    let own = "client-certificate = \"client.pem\"\nclient-key = \"client.key\"\n";
    with_settings(&other, &settings(own), &["pull", &name]).ok();
    let wrong = settings("client-certificate = \"none.pem\"\nclient-key = \"client.key\"\n");
    let refused = with_settings(&Home::empty(), &wrong, &["pull", &name]);
    assert!(
        refused.stderr().contains("none.pem"),
        "{}",
        refused.stderr()
    );
    replica.end();

    for (flags, part) in [
        (
            [
                "--tls-cert",
                &text("server.key"),
                "--tls-key",
                &text("server.key"),
            ],
            "no certificate",
        ),
        (
            [
                "--tls-cert",
                &text("server.pem"),
                "--tls-key",
                &text("client.key"),
            ],
            "used together",
        ),
        (
            [
                "--tls-cert",
                &text("none.pem"),
                "--tls-key",
                &text("server.key"),
            ],
            "none.pem",
        ),
    ] {
        let failed = home.output(&[&["store", "serve"][..], &flags].concat());
        assert!(
            failed.code() == 1 && failed.stderr().contains(part),
            "{}",
            failed.stderr()
        );
    }
    assert_eq!(
        home.output(&["store", "serve", "--tls-cert", "x"]).code(),
        2
    );
}

/// Makes an authority, and certificates of a server and of a client by it.
fn authority(directory: &Path) {
    let common = [
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ];
    let make = |name: &str, more: &[&str]| {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        let subject = format!("/CN={name}");
        let names = ["-subj", &subject, "-keyout", &key, "-out", &certificate];
        let output = Command::new("openssl")
            .arg("req")
            .args(common.iter().chain(&names).chain(more))
            .current_dir(directory)
            .output();
        let output = output.expect("openssl is needed");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    make("ca", &[]);
    let ours = [
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
    ];
    make(
        "server",
        &[&ours[..], &["-addext", "subjectAltName=IP:127.0.0.1"]].concat(),
    );
    make(
        "client",
        &[&ours[..], &["-addext", "extendedKeyUsage=clientAuth"]].concat(),
    );
}

#[test]
fn wrong_requests_get_an_error_in_json() {
    let home = Home::new();
    let replica = Replica::new(&home, &[]);
    let none = "0".repeat(64);
    for (line, expected, code) in [
        ("GET /", "404", "UNSUPPORTED"),
        ("GET /v2/box", "404", "UNSUPPORTED"),
        ("GET /v2/box/manifests/none", "404", "MANIFEST_UNKNOWN"),
        ("GET /v2/box/manifests/..", "400", "NAME_INVALID"),
        ("GET /v2/../../etc/manifests/latest", "400", "NAME_INVALID"),
        ("GET /v2/b%6fx/manifests/latest", "400", "NAME_INVALID"),
        ("GET /v2/BOX/manifests/latest", "400", "NAME_INVALID"),
        ("GET /v2/other/tags/list", "404", "NAME_UNKNOWN"),
        (
            &format!("GET /v2/box/blobs/sha256:{none}"),
            "404",
            "BLOB_UNKNOWN",
        ),
        (
            &format!("GET /v2/box/manifests/sha256:{none}"),
            "404",
            "MANIFEST_UNKNOWN",
        ),
        ("GET /v2/box/blobs/sha256:..", "400", "DIGEST_INVALID"),
        ("POST /v2/box/blobs/uploads/", "405", "UNSUPPORTED"),
        ("PUT /v2/box/manifests/latest", "405", "UNSUPPORTED"),
        ("DELETE /v2/box/manifests/latest", "405", "UNSUPPORTED"),
    ] {
        let reply = replica.ask(&format!("{line} HTTP/1.1"));
        assert_eq!(status(&reply), expected, "{line}: {}", reply.0);
        let error: Value = serde_json::from_slice(&reply.1).unwrap();
        assert_eq!(error["errors"][0]["code"], code, "{line}");
    }
    assert_eq!(status(&replica.get("/v2/")), "200");
    replica.end();
}

#[test]
fn damage_ends_a_transfer_and_never_becomes_other_bytes() {
    let home = Home::new();
    let replica = Replica::new(&home, &[]);
    let settings = home.path().join("config.toml");
    fs::write(&settings, "[transfer]\nattempts = 1\n").unwrap();
    let manifest = replica.json("/v2/box/manifests/latest");
    let digest = manifest["layers"][0]["digest"].as_str().unwrap();
    let hex = digest.trim_start_matches("sha256:");
    let layer = |end: &str| -> PathBuf {
        let shard = home.store().join("layers/sha256").join(&hex[..2]);
        shard.join(format!("{hex}{end}"))
    };
    let path = format!("/v2/box/blobs/{digest}");
    let whole = replica.get(&path).1;
    for end in [".erofs", ".recipe"] {
        let file = layer(end);
        let bytes = fs::read(&file).unwrap();
        let mut damaged = bytes.clone();
        // A byte of each block, so that one of contents is among them.
        damaged
            .iter_mut()
            .step_by(64)
            .for_each(|byte| *byte ^= 0x55);
        fs::write(&file, &damaged).unwrap();
        let (head, part) = replica.get(&path);
        assert!(part.len() < whole.len(), "{end}: {head}");
        let failed = with_settings(&Home::empty(), &settings, &["pull", &replica.name("box")]);
        assert_ne!(failed.code(), 0);
        fs::write(&file, &bytes).unwrap();
    }
    assert_eq!(replica.get(&path).1, whole);
    home.output(&["rmi", "box"]).ok();
    assert_eq!(status(&replica.get("/v2/box/manifests/latest")), "404");
    replica.end();
}

#[test]
fn a_browsers_page_can_not_ask_by_a_name_of_its_own() {
    let home = Home::new();
    let replica = Replica::new(&home, &[]);
    let ask = |host| {
        let reply = replica.ask_host(host, "GET /v2/ HTTP/1.1");
        status(&reply).to_owned()
    };
    for host in [
        "127.0.0.1",
        "127.0.0.1:5000",
        "localhost:5000",
        "[::1]:5000",
        "LOCALHOST",
    ] {
        assert_eq!(ask(host), "200", "{host}");
    }
    for host in [
        "attacker.example",
        "attacker.example:5000",
        "localhost.attacker.example",
        "127.0.0.1.example",
    ] {
        assert_eq!(ask(host), "403", "{host}");
    }
    for header in [
        "Origin: http://127.0.0.1",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-origin",
    ] {
        let refused = replica.ask(&format!("GET /v2/ HTTP/1.1\r\n{header}"));
        assert_eq!(status(&refused), "403", "{header}");
    }
    let typed = replica.ask("GET /v2/ HTTP/1.1\r\nSec-Fetch-Site: none");
    assert_eq!(status(&typed), "200");
    let tag = "/v2/box/manifests/latest HTTP/1.1";
    let (head, _) = replica.ask(&format!("GET {tag}"));
    let etag = head
        .lines()
        .find_map(|line| line.strip_prefix("etag: "))
        .unwrap();
    let known = replica.ask(&format!("GET {tag}\r\nIf-None-Match: \"x\", {etag}"));
    assert_eq!((status(&known), known.1.len()), ("304", 0));
    replica.end();
}
