//! Snapshots in a registry, and a registry's blobs and manifests by hand: `mica push` sends only true ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_testing::DockerRegistry;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{Home, snapshot};

/// Media types of a snapshot's layers, without what they begin and end with.
pub const DISK: &str = "application/vnd.micabox.snapshot.disk.v1";
pub const PACK: &str = "application/vnd.micabox.snapshot.chunks.v1+zstd";

/// The annotations of a pack.
pub const RANGE: &str = "org.erofs.chunk-index.range";
pub const INDEX: &str = "org.erofs.chunk-index.digest";

/// Bytes of a chunk.
pub const CHUNK: usize = 16 << 10;

/// Bytes of the header of the frame around a pack's index.
const FRAME_HEADER: usize = 8;

/// A registry, a store with snapshots of disks, and an empty store.
pub struct Remote {
    pub registry: DockerRegistry,
    directory: TempDir,
    pub origin: Home,
    pub home: Home,
}

impl Remote {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        Self {
            registry,
            directory,
            origin: Home::new(),
            home: Home::empty(),
        }
    }

    /// Returns a name in the registry.
    pub fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.registry.host())
    }

    /// Makes a snapshot of the image `box`, with this disk.
    pub fn import(&self, name: &str, disk: &[u8]) {
        import(&self.origin, name, disk);
    }

    /// Pushes a snapshot. Returns what it printed.
    pub fn push(&self, name: &str, to: &str) -> Value {
        let to = self.name(to);
        self.origin
            .output(&["push", "--json", "-q", name, &to])
            .json()
    }

    /// Pulls a snapshot into the empty store, which fails. Returns the reason. Nothing is left of it.
    #[track_caller]
    pub fn refused(&self, name: &str) -> String {
        let output = self.home.output(&["pull", "-q", &self.name(name)]);
        assert_eq!(output.code(), 1, "{}", output.stdout());
        let made = files(&self.home.store().join("sandboxes"));
        assert_eq!(made, Vec::<PathBuf>::new());
        assert_eq!(self.home.output(&["snapshot", "ls", "-q"]).ok(), "");
        output.stderr()
    }

    /// Returns the file that a blob is in.
    pub fn blob_file(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        let blobs = self
            .directory
            .path()
            .join("registry/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }

    pub fn blob(&self, digest: &Value) -> Vec<u8> {
        fs::read(self.blob_file(digest.as_str().unwrap())).unwrap()
    }

    /// Returns how many bytes the registry's blobs have, manifests included.
    pub fn bytes(&self) -> u64 {
        let blobs = files(&self.directory.path().join("registry"));
        let blobs = blobs.iter().filter(|path| path.ends_with("data"));
        blobs.map(|path| fs::metadata(path).unwrap().len()).sum()
    }

    /// Returns a manifest.
    pub fn manifest(&self, name: &str) -> Value {
        let (repository, tag) = name.split_once(':').unwrap();
        let answer = self.request("GET", &format!("/v2/{repository}/manifests/{tag}"), "", b"");
        serde_json::from_slice(&answer.1).unwrap()
    }

    /// Puts a blob into a repository. Returns its descriptor.
    pub fn put(&self, repository: &str, media_type: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        let (head, _) = self.request("POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"");
        let location = head["location"].clone();
        let path = &location[location.find("/v2/").unwrap()..];
        let path = format!("{path}&digest={digest}");
        self.request("PUT", &path, "application/octet-stream", bytes);
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    /// Puts a manifest under a name.
    pub fn put_manifest(&self, name: &str, manifest: &Value) {
        let (repository, tag) = name.split_once(':').unwrap();
        let media_type = manifest["mediaType"].as_str().unwrap();
        let path = format!("/v2/{repository}/manifests/{tag}");
        self.request("PUT", &path, media_type, manifest.to_string().as_bytes());
    }

    /// Puts the manifest `name` as `repository:lies`, with a config that `change` has changed.
    pub fn put_config(&self, name: &str, change: impl FnOnce(&mut Value)) -> String {
        let (repository, _) = name.split_once(':').unwrap();
        let mut manifest = self.manifest(name);
        let mut config: Value =
            serde_json::from_slice(&self.blob(&manifest["config"]["digest"])).unwrap();
        change(&mut config);
        let media_type = manifest["config"]["mediaType"].as_str().unwrap().to_owned();
        manifest["config"] = self.put(repository, &media_type, config.to_string().as_bytes());
        let lies = format!("{repository}:lies");
        self.put_manifest(&lies, &manifest);
        lies
    }

    /// Puts the manifest `name` as `repository:lies`, with a layer whose bytes `change` has changed.
    pub fn put_layer(&self, name: &str, kind: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
        let (repository, _) = name.split_once(':').unwrap();
        let mut manifest = self.manifest(name);
        let layers = manifest["layers"].as_array_mut().unwrap();
        let layer = layers
            .iter_mut()
            .find(|layer| layer["mediaType"] == kind)
            .unwrap();
        let mut bytes = self.blob(&layer["digest"]);
        change(&mut bytes);
        let annotations = layer["annotations"].take();
        *layer = self.put(repository, kind, &bytes);
        if let Some(range) = annotations[RANGE].as_str() {
            // The index is as long as it was.
            let (start, _) = range.split_once(':').unwrap();
            let at: usize = start.parse().unwrap();
            let index = digest(&bytes[at + FRAME_HEADER..]);
            layer["annotations"] = json!({RANGE: format!("{at}:{}", bytes.len()), INDEX: index});
        }
        let lies = format!("{repository}:lies");
        self.put_manifest(&lies, &manifest);
        lies
    }

    /// Returns where the first pack's index begins, behind its frame's header.
    pub fn index_of(manifest: &Value) -> usize {
        let mut layers = manifest["layers"].as_array().unwrap().iter();
        let pack = layers.find(|layer| layer["mediaType"] == PACK).unwrap();
        let range = pack["annotations"][RANGE].as_str().unwrap();
        range.split_once(':').unwrap().0.parse::<usize>().unwrap() + FRAME_HEADER
    }

    /// Asks the registry. Returns the headers and the body of its answer.
    fn request(
        &self,
        method: &str,
        path: &str,
        media_type: &str,
        body: &[u8],
    ) -> (BTreeMap<String, String>, Vec<u8>) {
        let host = self.registry.host();
        let mut stream = TcpStream::connect(host).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: {media_type}\r\n\
             Accept: application/vnd.oci.image.manifest.v1+json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|bytes| bytes == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let (status, fields) = head.split_once("\r\n").unwrap();
        assert!(
            status.contains(" 20"),
            "{method} {path}: {status}: {}",
            String::from_utf8_lossy(&answer)
        );
        let fields = fields.lines().filter_map(|line| line.split_once(": "));
        let fields = fields.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        (fields.collect(), answer[end + 4..].to_vec())
    }
}

/// Makes a snapshot of a store's only image, with this disk.
pub fn import(home: &Home, name: &str, disk: &[u8]) {
    let digest = home.output(&["images", "--json"]).json()[0]["manifest_digest"].clone();
    let file = home.path().join("file");
    let head = snapshot::snapshot(name, digest.as_str().unwrap(), disk.len());
    snapshot::write(&file, &head, disk);
    let imported = home.output(&["snapshot", "import", file.to_str().unwrap()]);
    assert_eq!(imported.code(), 0, "{}", imported.stderr());
    fs::remove_file(file).unwrap();
}

/// Returns the file of a snapshot's disk.
pub fn disk(home: &Home, name: &str) -> PathBuf {
    home.store()
        .join(format!("sandboxes/snapshot-{name}/disk.ext4"))
}

/// Makes a filesystem with a file of random bytes, and room.
pub fn filesystem(home: &Home) -> Vec<u8> {
    filesystem_with(home, 3 << 20)
}

/// Makes a filesystem with so many random bytes, and room.
pub fn filesystem_with(home: &Home, size: usize) -> Vec<u8> {
    // Nothing compresses it: SplitMix64.
    let mut state = 7_u64;
    let mut random = Vec::new();
    while random.len() < size {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        random.extend((mixed ^ mixed >> 31).to_le_bytes());
    }
    let (folder, path) = (home.path().join("folder"), home.path().join("filesystem"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("random"), random).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-t", "ext4", "-d"])
        .args([&folder, &path])
        .arg("64M");
    assert!(mke2fs.status().unwrap().success());
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(path).unwrap();
    bytes
}

/// Changes a byte of each of some chunks of a disk, at offsets that have one.
pub fn changed(disk: &[u8], count: usize) -> Vec<u8> {
    let mut disk = disk.to_vec();
    let chunks = disk.chunks_mut(CHUNK).skip(256);
    let with_data =
        chunks.filter(|chunk| chunk.iter().filter(|byte| **byte != 0).count() > CHUNK / 2);
    let changed = with_data
        .step_by(3)
        .take(count)
        .map(|chunk| chunk[100] ^= 0x5a)
        .count();
    assert_eq!(changed, count);
    disk
}

fn digest(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    format!("sha256:{digits}")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = entries.flat_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    });
    below.collect()
}
