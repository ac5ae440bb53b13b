//! The program `mica-manual`, which is not shipped: writes man pages and completions of `mica`.
//!
//!     mica-manual DIRECTORY
//!
//! Below the directory, files have the places that Debian gives them below `/usr/share`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

/// For each shell, the directory of completions, and the name of those of `mica`.
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "mica"),
    (Shell::Zsh, "zsh/vendor-completions", "_mica"),
    (Shell::Fish, "fish/vendor_completions.d", "mica.fish"),
];

fn main() -> io::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let [_, directory] = arguments.as_slice() else {
        return Err(io::Error::other("usage: mica-manual DIRECTORY"));
    };
    let directory = PathBuf::from(directory);
    for (shell, place, name) in COMPLETIONS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut micabox_cli::definition(), "mica", &mut text);
        write(&directory.join(place), name, &text)?;
    }
    let pages = directory.join("man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(micabox_cli::definition(), &pages)
}

fn write(directory: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join(name), text)
}
