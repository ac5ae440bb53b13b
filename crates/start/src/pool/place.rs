//! Where a pool listens, and how a sandbox's creator finds it.
//!
//! ```text
//! pools/<key>         the socket of a pool
//! pools/<key>.json    what it keeps, for lists
//! ```
//!
//! The key is a digest of the template's key and of the namespaces that a sandbox's network and
//! files would be in: a process in others does not find the pool.

use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use micabox_error::Error;
use micabox_ground::hex;
use micabox_image::Store;
use micabox_owner::socket;
use micabox_state::{BaseName, Directory, ProcessId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::template::Template;

/// The namespaces of an owner that a sandbox depends on: its sockets, and its resolver's
/// configuration.
const NAMESPACES: [&str; 2] = ["/proc/self/ns/net", "/proc/self/ns/mnt"];

/// Characters of a key.
const KEY: usize = 32;

/// What a pool keeps ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolRecord {
    /// What its machines are made from.
    #[serde(flatten)]
    pub base: BaseName,
    /// The number of machines.
    pub size: usize,
    /// The pool's process.
    pub process: Option<ProcessId>,
}

impl PoolRecord {
    /// Lists the pools of a store.
    pub fn list(store: &Store) -> Vec<Self> {
        let files = fs::read_dir(store.root().join("pools"));
        let files = files.into_iter().flatten().flatten();
        let records = files.filter_map(|file| {
            let path = file.path();
            path.extension().filter(|name| *name == "json")?;
            serde_json::from_slice(&fs::read(path).ok()?).ok()
        });
        // A pool that was killed has left its file.
        let lives = |pool: &Self| pool.process.is_some_and(|process| !process.has_ended());
        records.filter(lives).collect()
    }
}

/// A pool's socket. Dropping it removes the files.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl Place {
    /// Listens for the creators of sandboxes from `template`, in the store at `root`. Removes the
    /// sockets of pools that were killed.
    ///
    /// # Errors
    /// [`Error::PoolExists`] if another pool listens there.
    pub(super) fn bind(
        root: &Path,
        template: &Template,
        record: &PoolRecord,
    ) -> Result<Self, Error> {
        let directory = root.join("pools");
        let failed = |source| Error::State {
            what: "making",
            path: directory.clone(),
            source,
        };
        // Another pool that is being started looks at the same sockets.
        let _lock = Directory::open(root)?.lock()?;
        let made = fs::DirBuilder::new().mode(0o700).create(&directory);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let path = directory.join(&name);
            let socket = match path.extension() {
                Some(_) => path.file_stem().unwrap_or_default(),
                None => &name,
            };
            if !socket::is_open(&directory, socket) {
                let _ = fs::remove_file(path);
            }
        }
        let key = key(template).map_err(failed)?;
        let listener = match socket::listen(&directory, key.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(Error::PoolExists);
            }
            listener => listener.map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let place = Self {
            listener,
            path: directory.join(key),
        };
        let record = serde_json::to_vec(record).unwrap_or_default();
        fs::write(place.path.with_extension("json"), record).map_err(failed)?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path.with_extension("json"));
        let _ = fs::remove_file(&self.path);
    }
}

/// Connects to the pool for `template`, if there is one.
pub fn claim(root: &Path, template: &Template) -> Option<UnixStream> {
    let directory = root.join("pools");
    socket::connect(&directory, key(template).ok()?.as_ref()).ok()
}

fn key(template: &Template) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(
        template
            .directory()
            .file_name()
            .unwrap_or_default()
            .as_encoded_bytes(),
    );
    for namespace in NAMESPACES {
        let namespace = fs::metadata(namespace)?;
        hash.update(namespace.st_dev().to_le_bytes());
        hash.update(namespace.st_ino().to_le_bytes());
    }
    let mut key = hex(hash.finalize());
    key.truncate(KEY);
    Ok(key)
}
