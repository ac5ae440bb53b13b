//! Asks registries whether they take credentials.

use std::sync::Arc;

use micabox_registry::{Credential, Reason, check_login};

use crate::Settings;

/// Asks a registry whether it takes a credential. Returns whether it has asked for one at all.
///
/// # Errors
/// [`Reason`]: it refuses the credential, or can't be asked.
pub fn check_login_blocking(
    registry: &str,
    credential: Credential,
    settings: &Settings,
) -> Result<bool, Reason> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("mica-login")
        .enable_all()
        .build()
        .map_err(|error| Reason::Settings(format!("starting a thread: {error}")))?;
    let settings = Arc::new(settings.for_registries());
    let taken = runtime.block_on(check_login(registry, credential, &settings));
    runtime.shutdown_background();
    taken
}
