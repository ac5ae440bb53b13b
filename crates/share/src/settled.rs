//! Whether a file's times tell whether it changes.

use micabox_ground::clock;
use rustix::fs::Stat;

/// Seconds without a change after which a file's times show every later change, whatever the
/// resolution of the host's clock and filesystem.
const SETTLED: i64 = 2;

/// Returns whether any later change of a file will change its times.
pub(crate) fn is_settled(stat: &Stat) -> bool {
    let (now, _) = clock::now_as_parts();
    let latest = stat.st_mtime.max(stat.st_ctime);
    latest.saturating_add(SETTLED) <= now
}
