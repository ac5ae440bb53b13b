//! An image in a registry as EROFS images, and a store that has none of it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use micabox_testing::DockerRegistry;
use tempfile::TempDir;

use super::{Finished, Home, packed, wait_until};

/// A registry with the image, and an empty store.
pub struct Remote {
    /// None once it has gone.
    pub registry: Option<DockerRegistry>,
    directory: TempDir,
    /// The image's name there.
    pub name: String,
    /// The store that it came from, as `box`.
    pub origin: Home,
    pub home: Home,
}

impl Remote {
    pub fn new() -> Self {
        let origin = packed::home();
        let directory = tempfile::tempdir().unwrap();
        let registry = DockerRegistry::start(directory.path(), "");
        let name = format!("{}/box:1", registry.host());
        origin.output(&["push", "-q", "--erofs", "box", &name]).ok();
        Self {
            registry: Some(registry),
            directory,
            name,
            origin,
            home: Home::empty(),
        }
    }

    /// Fetches what is needed to start.
    pub fn pull(&self) {
        self.pull_as(&self.name);
    }

    /// Fetches it under another name, as of a proxy in front of the registry.
    pub fn pull_as(&self, name: &str) {
        self.home.output(&["pull", "-q", "--lazy", name]).ok();
        assert_ne!(self.lazy(), 0);
    }

    /// Returns how many layers are here in part.
    pub fn lazy(&self) -> u64 {
        let usage = self.home.output(&["store", "df", "--json"]).json();
        usage["lazy_layers"].as_u64().unwrap()
    }

    /// Runs a container with `--lazy`.
    pub fn run(&self, script: &str) -> Finished {
        let start = ["run", "--backend", "host", "--rm", "-q", "--lazy"];
        let words = [&start[..], &[&*self.name, "sh", "-c", script]];
        self.home.output(&words.concat())
    }

    /// Damages the middle of the largest blobs in the registry, which have `/srv/random`.
    pub fn damage(&self) {
        let length = |path: &PathBuf| fs::metadata(path).unwrap().len();
        let mut blobs = files(self.directory.path().join("registry"));
        blobs.sort_by_key(length);
        // Its archive, and its EROFS image.
        for blob in blobs.iter().rev().take(2) {
            let file = File::options().write(true).open(blob).unwrap();
            file.write_all_at(&[0x5a; 4096], length(blob) / 2).unwrap();
        }
    }

    /// Waits until `mica events` says why a layer can't be read: the reader is told first.
    pub fn assert_noted(&self, why: &str) {
        let filter = ["--filter", "type=image"];
        let words = [&["events", "--since", "1h", "--until", "0s"], &filter[..]].concat();
        wait_until("the reason is noted", || {
            let events = self.home.output(&words).ok();
            let mut lines = events.lines();
            lines.any(|line| line.contains(" read_error (image=") && line.contains(why))
        });
    }
}

fn files(directory: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let below = paths.flat_map(|path| {
        if path.is_dir() {
            files(path)
        } else {
            vec![path]
        }
    });
    below.collect()
}
