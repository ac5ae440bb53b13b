//! The process that packs, in the background, images and snapshots that were not used for long.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use micabox_transfer::Settings;

/// Packs what was not used for as long as the settings say, in the background.
pub fn after_pull(settings: &Settings) {
    let Some(days) = settings.pack_unused_days else {
        return;
    };
    let mut first = mica(&["--starts-another", "--unused-for", &format!("{days}d")]);
    // What it can't do now, the next pull's does. It ends at once, and what it has started is another process's child then.
    let _ = first.process_group(0).status();
}

/// Returns a `mica store pack` with these flags, which reads and prints nothing.
pub fn mica(words: &[&str]) -> Command {
    let mut process = Command::new("/proc/self/exe");
    process.arg0("mica").args(["store", "pack"]).args(words);
    for stream in [Command::stdin, Command::stdout, Command::stderr] {
        stream(&mut process, Stdio::null());
    }
    process
}
