//! Writes sound structures to start fuzzing from.
//!
//! ```text
//! cargo run -p micabox-ext4 --example ext4_fuzz_seeds -- fuzz/corpus
//! ```

#[allow(dead_code, reason = "the targets themselves")]
#[path = "../../../fuzz/src/ext4.rs"]
mod ext4;

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let corpus: PathBuf = std::env::args_os().nth(1).ok_or("where to?")?.into();
    for (target, seed) in ext4::seeds() {
        let directory = corpus.join(target);
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join("sound"), seed)?;
    }
    Ok(())
}
