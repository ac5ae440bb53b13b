//! Shared code of the tests of layers: archives made byte by byte, and a store for them.

#![allow(dead_code)] // Each test binary uses its own part of this.

pub mod archive;
pub mod image;
pub mod tree;

use std::io::{Read, Write};
use std::path::Path;

use micabox_erofs::Reader;
use micabox_erofs::format::FileType;
use micabox_erofs::reader::Inode;
use micabox_image::convert::{self, Expect, convert_layer};
use micabox_image::store::Layer;
use micabox_image::{Descriptor, Digest, Limits, Store};

/// A store in a directory that is removed on drop.
pub struct TestStore {
    pub store: Store,
    pub directory: tempfile::TempDir,
}

impl std::ops::Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

pub fn store() -> TestStore {
    store_in(tempfile::tempdir().unwrap())
}

/// Makes a store in memory where possible, for tests that make very many.
pub fn fast_store() -> TestStore {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    store_in(in_memory.unwrap_or_else(|_| tempfile::tempdir().unwrap()))
}

fn store_in(directory: tempfile::TempDir) -> TestStore {
    let store = Store::open(&directory.path().join("store")).unwrap();
    TestStore { store, directory }
}

/// Returns a correct manifest's description of an uncompressed archive.
pub fn expect(blob: &[u8], archive: &[u8]) -> Expect {
    expect_typed(blob, archive, "application/vnd.oci.image.layer.v1.tar")
}

/// The same for a layer of another media type.
pub fn expect_typed(blob: &[u8], archive: &[u8], media_type: &str) -> Expect {
    Expect {
        blob: Some(Descriptor {
            media_type: media_type.to_owned(),
            digest: Digest::of(blob),
            size: blob.len() as u64,
        }),
        diff_id: Digest::of(archive),
        archive: None,
        checksum: None,
    }
}

/// Converts an archive that is its own blob, and asserts that the layer gives it back.
pub fn convert(store: &Store, archive: &[u8]) -> Result<Layer, convert::Error> {
    let layer = convert_layer(
        store,
        archive,
        &expect(archive, archive),
        &Limits::default(),
    )?;
    assert!(archive_of(store, &layer) == archive, "another archive");
    Ok(layer)
}

/// Returns the archive that a layer gives back, after checking its digest.
pub fn archive_of(store: &Store, layer: &Layer) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut source = store.archive(layer).unwrap();
    source.read_to_end(&mut archive).unwrap();
    assert_eq!(Digest::of(&archive), layer.diff_id);
    archive
}

/// Converts an archive that must be accepted, and opens the layer.
pub fn layer(archive: &[u8]) -> OpenLayer {
    let store = store();
    let layer = convert(&store, archive).unwrap();
    check_structure(&layer.path);
    OpenLayer::new(store, layer)
}

/// Returns the message with which an archive is refused.
pub fn refusal(archive: &[u8]) -> String {
    let store = store();
    let message = convert(&store, archive).unwrap_err().to_string();
    assert_no_trace(&store);
    message
}

/// Asserts that a failed import left no files.
pub fn assert_no_trace(store: &Store) {
    for directory in ["layers", "blobs", "images", "refs", "tmp"] {
        let files = files_below(&store.root().join(directory));
        assert!(files.is_empty(), "left behind: {files:?}");
    }
}

/// Asserts that there is no file of any layer.
pub fn assert_no_trace_of_layers(store: &Store) {
    let files = files_below(&store.root().join("layers"));
    assert!(files.is_empty(), "left behind: {files:?}");
}

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(&entry.path()))
        } else {
            files.push(entry.path())
        }
    }
    files
}

/// Asserts that `fsck.erofs` accepts an image.
pub fn check_structure(image: &Path) {
    check_structure_over(image, &[]);
}

/// Asserts that `fsck.erofs` accepts an image over these layers.
pub fn check_structure_over(image: &Path, layers: &[Layer]) {
    let devices = layers
        .iter()
        .map(|layer| format!("--device={}", layer.path.display()));
    let output = std::process::Command::new("fsck.erofs")
        .args(devices)
        .arg(image)
        .output();
    let output = output.expect("fsck.erofs, of Debian's erofs-utils, is needed");
    assert!(
        output.status.success(),
        "fsck.erofs: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// A converted layer that is open for reading.
pub struct OpenLayer {
    pub reader: Reader<Vec<u8>>,
    pub layer: Layer,
    _store: TestStore,
}

impl OpenLayer {
    pub fn new(store: TestStore, layer: Layer) -> Self {
        let reader = Reader::open(std::fs::read(&layer.path).unwrap()).unwrap();
        Self {
            reader,
            layer,
            _store: store,
        }
    }

    /// Returns the inode with this path, without following symbolic links.
    pub fn find(&self, path: &str) -> Option<Inode> {
        let mut inode = self.reader.inode(self.reader.root()).unwrap();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let entry = self.reader.lookup(&inode, name.as_bytes()).unwrap()?;
            inode = self.reader.inode(entry.nid).unwrap();
        }
        Some(inode)
    }

    pub fn inode(&self, path: &str) -> Inode {
        self.find(path).unwrap_or_else(|| panic!("no {path}"))
    }

    /// Returns a file's contents.
    pub fn read(&self, path: &str) -> Vec<u8> {
        let inode = self.inode(path);
        assert_eq!(inode.kind, FileType::Regular, "{path}");
        let mut contents = vec![0; inode.size as usize];
        let count = self.reader.read(&inode, 0, &mut contents).unwrap();
        assert_eq!(count, contents.len());
        contents
    }

    /// Returns an attribute's value.
    pub fn xattr(&self, path: &str, name: &str) -> Option<Vec<u8>> {
        let xattrs = self.reader.xattrs(&self.inode(path)).unwrap();
        let xattr = xattrs
            .into_iter()
            .find(|xattr| &*xattr.name == name.as_bytes())?;
        Some(xattr.value.to_vec())
    }

    pub fn is_whiteout(&self, path: &str) -> bool {
        let inode = self.inode(path);
        (inode.kind, inode.device) == (FileType::CharDevice, 0)
    }

    pub fn is_opaque(&self, path: &str) -> bool {
        self.xattr(path, "trusted.overlay.opaque").as_deref() == Some(b"y")
    }

    pub fn is_implied(&self, path: &str) -> bool {
        self.xattr(path, "trusted.overlay.implied").is_some()
    }

    /// Returns the target of a hard link into a lower layer.
    pub fn lower_target(&self, path: &str) -> Option<String> {
        self.xattr(path, "trusted.overlay.metacopy")?;
        let target = self.xattr(path, "trusted.overlay.redirect")?;
        Some(String::from_utf8(target).unwrap())
    }

    /// Returns every path with a letter for its type, sorted: `f/a/b`. Names that aren't UTF-8 are
    /// escaped.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.reader
            .walk(|path, inode| {
                let kind = match inode.kind {
                    FileType::Regular => 'f',
                    FileType::Directory => 'd',
                    FileType::CharDevice => 'c',
                    FileType::BlockDevice => 'b',
                    FileType::Fifo => 'p',
                    FileType::Socket => 's',
                    FileType::Symlink => 'l',
                };
                paths.push(format!("{kind}{}", path.escape_ascii()));
                Ok(())
            })
            .unwrap();
        paths.sort_by(|a, b| a[1..].cmp(&b[1..]));
        paths
    }
}
