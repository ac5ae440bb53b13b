//! Pulls from well-behaved, broken and hostile registries.

#[path = "../../../image/tests/image/layer/mod.rs"]
mod layer;

mod bundles;
mod erofs;
mod faults;
#[path = "../../../image/tests/image/image.rs"]
mod image;
mod incoming;
mod keep_blobs;
mod kept;
mod killed;
mod killed_fill;
mod killed_push;
mod lazy;
mod login;
#[path = "../../../trust/tests/trust/maker.rs"]
mod maker;
mod mirrors;
mod part_file;
mod plain;
mod push;
mod ranges;
mod real;
mod server;
mod simple_signing;
mod stack;
mod trust;
mod uploads;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use micabox_image::progress::{Event, LayerState};
use micabox_image::store::Image;
use micabox_image::{Platform, Progress, Reference, Store};
use micabox_transfer::{Cancellation, Credentials, PullError, PullOptions, pull_blocking};
use micabox_transfer::{PullPolicy, Settings};

use image::TestImage;
use layer::{TestStore, store};

// Conversions run in a worker.
micabox_jail::run_if_worker_before_main!(&[
    micabox_image::WORKER,
    micabox_image::convert::CHECKER,
    micabox_lazy::INFLATER,
]);

/// Records events.
#[derive(Default)]
struct Recorder {
    notices: Mutex<Vec<String>>,
    retries: Mutex<Vec<String>>,
    /// Diff ID and bytes of each event.
    received: Mutex<Vec<(String, u64)>>,
    present: Mutex<usize>,
}

impl Progress for Recorder {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Notice(text) => self.notices.lock().unwrap().push(text.to_owned()),
            Event::Layer { diff_id, state } => match state {
                LayerState::Retrying { reason, .. } => {
                    self.retries.lock().unwrap().push(reason.to_owned());
                }
                LayerState::Received { bytes } => {
                    self.received
                        .lock()
                        .unwrap()
                        .push((diff_id.to_string(), bytes));
                }
                LayerState::Present => *self.present.lock().unwrap() += 1,
                _ => {}
            },
            _ => {}
        }
    }
}

/// A store, and options for pulling into it.
struct Puller {
    store: TestStore,
    options: PullOptions,
    progress: Arc<Recorder>,
}

/// Settings that don't make a test wait.
fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.transfer.first_pause = Duration::from_millis(1);
    settings
}

impl Puller {
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: Settings) -> Self {
        Self {
            store: store(),
            options: PullOptions {
                policy: PullPolicy::Missing,
                platform: None,
                any_platform: false,
                settings: Arc::new(settings),
                credentials: Credentials::none(),
                cancellation: Cancellation::default(),
                layers_from_elsewhere: true,
                lazy: false,
            },
            progress: Arc::default(),
        }
    }

    fn edit_settings(mut self, edit: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = (*self.options.settings).clone();
        edit(&mut settings);
        self.options.settings = Arc::new(settings);
        self
    }

    fn platform(mut self, platform: &str) -> Self {
        self.options.platform = Some(platform.parse::<Platform>().unwrap());
        self
    }

    fn policy(mut self, policy: PullPolicy) -> Self {
        self.options.policy = policy;
        self
    }

    fn credentials(mut self, credentials: Credentials) -> Self {
        self.options.credentials = credentials;
        self
    }

    fn try_pull(&self, reference: &Reference) -> Result<Image, PullError> {
        pull_blocking(&self.store, reference, &self.options, self.progress.clone())
    }

    /// Pulls an image that must be there.
    fn pull(&self, reference: &Reference) -> Image {
        self.try_pull(reference)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the message of a pull's failure, and asserts that the pull left no files behind.
    fn refusal(&self, reference: &Reference) -> String {
        let error = self
            .try_pull(reference)
            .expect_err("the pull should have failed");
        layer::assert_no_trace(&self.store);
        error.to_string()
    }

    fn notices(&self) -> String {
        self.progress.notices.lock().unwrap().join("\n")
    }

    fn retries(&self) -> Vec<String> {
        self.progress.retries.lock().unwrap().clone()
    }

    /// Asserts that the store has exactly this image's layers.
    fn assert_has(&self, pulled: &Image, image: &TestImage) {
        assert_has(&self.store, pulled, image);
        let received = self.progress.received.lock().unwrap();
        for layer in &image.layers {
            let blob = layer.digest().to_string();
            let counts = received
                .iter()
                .filter(|(of, _)| *of == blob)
                .map(|(_, bytes)| *bytes);
            assert!(counts.is_sorted(), "progress never goes back");
        }
    }
}

fn assert_has(store: &Store, pulled: &Image, image: &TestImage) {
    assert_eq!(pulled.manifest_digest, image.digest());
    assert_eq!(store.manifest(&image.digest()).unwrap(), image.manifest);
    assert_eq!(store.config(&image.digest()).unwrap(), image.config);
    let diff_ids: Vec<_> = pulled.layers.iter().map(|layer| layer.diff_id).collect();
    let expected: Vec<_> = image.layers.iter().map(|layer| layer.diff_id).collect();
    assert_eq!(diff_ids, expected);
    for layer in &pulled.layers {
        layer::check_structure(&layer.path);
    }
}
