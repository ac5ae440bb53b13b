//! Loads images from layouts and archives: every format that tools write, and invalid ones.

mod bundle;
mod documents;
mod hostile;
mod left_out;
mod names;
mod native;
mod shapes;
mod tools;

use std::path::Path;
use std::sync::{Arc, Mutex};

use micabox_image::progress::Event;
use micabox_image::store::Image;
use micabox_image::{LoadError, LoadOptions, Progress, Reference, Settings, load};

use crate::image::TestImage;
use crate::layer::{self, TestStore, store};

/// Records the notices.
#[derive(Default)]
struct Notices(Mutex<Vec<String>>);

impl Progress for Notices {
    fn event(&self, event: Event<'_>) {
        if let Event::Notice(text) = event {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }
}

/// A store, and options for loading into it.
struct Loader {
    store: TestStore,
    options: LoadOptions,
    notices: Notices,
}

impl Loader {
    fn new() -> Self {
        Self {
            store: store(),
            options: LoadOptions {
                platform: None,
                settings: Arc::new(Settings::default()),
            },
            notices: Notices::default(),
        }
    }

    fn platform(mut self, platform: &str) -> Self {
        self.options.platform = Some(platform.parse().unwrap());
        self
    }

    fn edit_settings(mut self, edit: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = (*self.options.settings).clone();
        edit(&mut settings);
        self.options.settings = Arc::new(settings);
        self
    }

    fn try_load(&self, path: &Path, name: Option<&str>) -> Result<Vec<Image>, LoadError> {
        let name = name.map(|name| name.parse::<Reference>().unwrap());
        load(
            &self.store,
            path,
            name.as_ref(),
            &self.options,
            &self.notices,
        )
    }

    /// Loads an archive that must be valid.
    fn load(&self, path: &Path, name: Option<&str>) -> Vec<Image> {
        self.try_load(path, name)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the message of a failed load, and asserts that the load left no files behind.
    fn refusal(&self, path: &Path) -> String {
        let error = self
            .try_load(path, None)
            .expect_err("loading should have failed");
        layer::assert_no_trace(&self.store);
        let message = error.to_string();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(!message.contains('\u{1b}'), "{message:?}");
        message
    }

    fn notices(&self) -> String {
        self.notices.0.lock().unwrap().join("\n")
    }
}

/// Asserts that a loaded image is this one, even if its manifest differs.
fn assert_is(loaded: &Image, image: &TestImage) {
    let diff_ids: Vec<_> = loaded.layers.iter().map(|layer| layer.diff_id).collect();
    let expected: Vec<_> = image.layers.iter().map(|layer| layer.diff_id).collect();
    assert_eq!(diff_ids, expected);
    assert_eq!(
        loaded.config_digest,
        micabox_image::Digest::of(&image.config)
    );
    for layer in &loaded.layers {
        layer::check_structure(&layer.path);
    }
}
