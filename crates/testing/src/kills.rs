//! How often tests kill a process.

/// The variable that says how often tests of `kill -9` at any moment kill, each.
const KILLS: &str = "MICABOX_KILLS";

/// Returns how often a test kills a process: `usual` times, or as often as `MICABOX_KILLS` says (`scripts/nightly`).
///
/// # Panics
/// If the variable is no number.
#[must_use]
pub fn kills(usual: usize) -> usize {
    match std::env::var(KILLS) {
        Ok(number) => number
            .parse()
            .unwrap_or_else(|error| panic!("{KILLS}: {error}")),
        Err(_) => usual,
    }
}
