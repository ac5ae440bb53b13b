//! Opens the store and the settings that commands use.

use std::sync::Arc;

use micabox::Sandboxes;
use micabox_image::Store;
use micabox_transfer::Settings;

use crate::failure::Failure;
use crate::output::write_stderr;

/// Opens the user's store.
pub fn store() -> Result<Store, Failure> {
    let store = Store::open(&Store::default_root()?)?;
    // Settings that can't be read are reported by what needs them.
    let is_off = Settings::load().is_ok_and(|settings| !settings.fs_verity);
    let store = store.with_verity(!is_off);
    if let Some(mode) = store.tightened() {
        write_stderr(&format!(
            "mica: the store `{}` was open to other users (mode {mode:o}); now it is its owner's \
             alone\n",
            store.root().display()
        ));
    }
    Ok(store)
}

/// Reads the user's settings.
pub fn settings() -> Result<Arc<Settings>, Failure> {
    Ok(Arc::new(Settings::load()?))
}

/// Reads the user's settings for conversions of images.
pub fn for_images() -> Result<Arc<micabox_image::Settings>, Failure> {
    Ok(Arc::new(Settings::load()?.for_images()))
}

/// Opens the sandboxes of `store`. Listing them cleans up after owners that died, so that their
/// sandboxes don't keep images in use.
pub fn sandboxes(store: &Store) -> Result<Sandboxes, Failure> {
    Ok(Sandboxes::open(store)?)
}
