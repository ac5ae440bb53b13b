//! A store with an image, for programs that use the SDK.

#![allow(dead_code, reason = "no test uses all of it")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use micabox::image::convert::Place;
use micabox::image::{LoadOptions, Settings, load, progress};
use micabox::{Builder, GuestFiles, Image, Sandbox, Sandboxes, Store};
use micabox_testing::image;

/// A store with the image `box`.
pub struct Fixture {
    _directory: tempfile::TempDir,
    pub store: Store,
    pub image: Image,
}

impl Fixture {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("box.tar");
        image::write_archive(&archive, &image::layers(), &image::config());
        let store = Store::open(&directory.path().join("store")).unwrap();
        let options = LoadOptions {
            platform: None,
            settings: Arc::new(Settings {
                conversion: Place::Here,
                ..Settings::default()
            }),
        };
        load(&store, &archive, None, &options, &progress::Silent).unwrap();
        let image = store.image("box").unwrap();
        Self {
            _directory: directory,
            store,
            image,
        }
    }

    pub fn builder(&self) -> Builder {
        Sandbox::builder(&self.store, &self.image).guest(guest())
    }

    pub fn sandbox(&self) -> Sandbox {
        self.builder().create().unwrap()
    }

    pub fn sandboxes(&self) -> Sandboxes {
        Sandboxes::open(&self.store).unwrap()
    }

    pub fn is_empty(&self) -> bool {
        let sandboxes = self.store.root().join("sandboxes");
        fs::read_dir(sandboxes).unwrap().next().is_none()
    }
}

/// The guest that `make guest` has built, beside the directory of this program's profile.
pub fn guest() -> GuestFiles {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(Path::parent).unwrap();
    GuestFiles::find_for(&profile.join("mica")).unwrap()
}
