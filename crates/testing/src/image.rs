//! The tests' image: a static busybox, and layers with all kinds of changes to each other.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// Debian's busybox-static.
const BUSYBOX: &str = "/bin/busybox";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n";
const GROUP: &str = "root:x:0:\napp:x:1000:\nstaff:x:50:app\n";

/// A layer under construction.
struct Layer(Builder<Vec<u8>>);

impl Layer {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn header(kind: EntryType, mode: u32) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        header
    }

    fn directory(mut self, path: &str, mode: u32) -> Self {
        let mut header = Self::header(EntryType::Directory, mode);
        self.0.append_data(&mut header, path, &[][..]).unwrap();
        self
    }

    fn file(mut self, path: &str, mode: u32, data: &[u8]) -> Self {
        let mut header = Self::header(EntryType::Regular, mode);
        header.set_size(data.len() as u64);
        self.0.append_data(&mut header, path, data).unwrap();
        self
    }

    fn link(mut self, kind: EntryType, path: &str, target: &str) -> Self {
        let mut header = Self::header(kind, 0o777);
        self.0.append_link(&mut header, path, target).unwrap();
        self
    }

    fn finish(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// Returns the layers, bottom first, as uncompressed archives. The second and third have a
/// whiteout, an opaque directory, a hard link to a lower layer's file and a directory that is only
/// implied.
pub fn layers() -> Vec<Vec<u8>> {
    let busybox = std::fs::read(BUSYBOX).expect("busybox-static is installed; run scripts/setup");
    let mut base = Layer::new()
        .directory("bin", 0o755)
        .file("bin/busybox", 0o755, &busybox)
        .directory("etc", 0o755)
        .file("etc/passwd", 0o644, PASSWD.as_bytes())
        .file("etc/group", 0o644, GROUP.as_bytes())
        .directory("root", 0o700)
        .directory("home/app", 0o755)
        .directory("tmp", 0o1777);
    let applets = Command::new(BUSYBOX).arg("--list").output().unwrap();
    for applet in String::from_utf8(applets.stdout).unwrap().lines() {
        if applet != "busybox" {
            base = base.link(EntryType::Symlink, &format!("bin/{applet}"), "busybox");
        }
    }
    let middle = Layer::new()
        .directory("srv", 0o755)
        .file("srv/data", 0o640, &b"0123456789abcdef".repeat(10_000))
        .file("srv/gone", 0o644, b"gone")
        .directory("srv/hidden", 0o755)
        .file("srv/hidden/old", 0o644, b"old")
        .directory("srv/kept", 0o711)
        .file("srv/kept/old", 0o644, b"old");
    let top = Layer::new()
        .file("srv/.wh.gone", 0, b"")
        .directory("srv/hidden", 0o750)
        .file("srv/hidden/.wh..wh..opq", 0, b"")
        .file("srv/hidden/new", 0o600, b"new")
        .link(EntryType::Link, "srv/hard", "srv/data")
        .file("srv/kept/+page.svelte", 0o644, b"+")
        .file("srv/run", 0o644, b"not a program");
    [base, middle, top].map(Layer::finish).into()
}

/// Returns a layer that removes files of lower ones, by whiteouts, and has symbolic links to targets.
pub fn links(whiteouts: &[&str], links: &[(&str, &str)]) -> Vec<u8> {
    let mut layer = Layer::new();
    for path in whiteouts {
        layer = layer.file(path, 0, b"");
    }
    for (path, target) in links {
        layer = layer.link(EntryType::Symlink, path, target);
    }
    layer.finish()
}

/// Makes a configuration with values in all fields that a command is made from.
pub fn config() -> Value {
    json!({
        "Env": ["PATH=/usr/bin:/bin", "FROM_IMAGE=yes"],
        "Cmd": ["echo", "the default"],
        "WorkingDir": "/srv",
    })
}

/// Writes an archive as `docker save` does.
pub fn write_archive(path: &Path, layers: &[Vec<u8>], config: &Value) {
    let diff_ids: Vec<String> = layers
        .iter()
        .map(|layer| format!("sha256:{}", hex(&Sha256::digest(layer))))
        .collect();
    let document = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let names: Vec<String> = (0..layers.len())
        .map(|n| format!("{n}/layer.tar"))
        .collect();
    let manifest = json!([{
        "Config": "config.json",
        "RepoTags": ["box:latest"],
        "Layers": names,
    }]);
    let mut archive = Builder::new(File::create(path).unwrap());
    let mut add = |name: &str, data: &[u8]| {
        let mut header = Layer::header(EntryType::Regular, 0o644);
        header.set_size(data.len() as u64);
        archive.append_data(&mut header, name, data).unwrap();
    };
    for (name, layer) in names.iter().zip(layers) {
        add(name, layer);
    }
    add("config.json", document.to_string().as_bytes());
    add("manifest.json", manifest.to_string().as_bytes());
    archive.finish().unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a layer with one file.
pub fn one_file(path: &str, data: &[u8]) -> Vec<u8> {
    Layer::new().file(path, 0o644, data).finish()
}

/// Makes a layer with one program.
pub fn program(path: &str, data: &[u8]) -> Vec<u8> {
    Layer::new().file(path, 0o755, data).finish()
}

/// Adds a file to a layer.
pub fn with_file(mut layer: Vec<u8>, path: &str, data: &[u8]) -> Vec<u8> {
    // An archive ends with two blocks of zeros.
    layer.truncate(layer.len() - 1024);
    layer.extend(one_file(path, data));
    layer
}

/// Makes a layer with programs of the host and the libraries that they are linked with.
pub fn programs(paths: &[&str]) -> Vec<u8> {
    let mut files: Vec<String> = Vec::new();
    for path in paths {
        let listed = Command::new("ldd")
            .env_remove("LD_PRELOAD")
            .arg(path)
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let libraries = listed
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        files.push((*path).to_owned());
        files.extend(libraries.map(str::to_owned));
    }
    files.sort();
    files.dedup();
    let add = |layer: Layer, path: &String| {
        let data = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        layer.file(path.trim_start_matches('/'), 0o755, &data)
    };
    files.iter().fold(Layer::new(), add).finish()
}
