//! Waits for devices that the host announced.

use std::time::Duration;

use crate::machine;

/// How long a device that the host announced may take to appear.
const PATIENCE: Duration = Duration::from_secs(5);

/// Calls `ask` repeatedly until it returns a value, for a few seconds at most.
pub fn wait_for<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = machine::uptime_us();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        let waited = machine::uptime_us().saturating_sub(start);
        if u128::from(waited) > PATIENCE.as_micros() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
