//! The code of the fuzz targets. Tests include these modules by path, to run them on mutated files.

pub mod archive;
pub mod chunks;
pub mod compressed;
pub mod disk;
pub mod dns;
pub mod documents;
pub mod e2b;
pub mod erofs;
pub mod erofs_seeds;
pub mod ext4;
pub mod files;
pub mod frames;
pub mod headers;
pub mod jailed;
pub mod loaded;
pub mod mutate;
pub mod recipe;
pub mod requests;
pub mod share;
pub mod signatures;
pub mod snapshot;
pub mod wire;

use std::path::PathBuf;

/// Returns those of [`ext4::seeds`] that belong to a target.
pub fn ext4_seeds(target: &str) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let seeds = ext4::seeds().into_iter();
    seeds.filter(move |(of, _)| *of == target)
}

/// Writes a target's seeds to its corpus, before libFuzzer reads it: the first directory on the
/// command line.
pub fn plant<'a>(seeds: impl IntoIterator<Item = (&'a str, Vec<u8>)>) {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(corpus) = arguments.find(|path| path.is_dir()) else {
        return;
    };
    for (number, (name, seed)) in seeds.into_iter().enumerate() {
        let path = corpus.join(format!("seed-{number}-{name}"));
        std::fs::write(path, seed).expect("the corpus can be written");
    }
}
