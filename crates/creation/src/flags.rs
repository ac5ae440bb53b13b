//! Options from the flags of a command line, for tests.

use clap::Parser;
use micabox_spec::options::SandboxOptions;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    sandbox: SandboxOptions,
    _image: String,
}

/// Parses flags and an image's name, as `mica run` does.
pub(crate) fn parse(words: &[&str]) -> Result<SandboxOptions, clap::Error> {
    let words = std::iter::once("run").chain(words.iter().copied());
    Line::try_parse_from(words).map(|line| line.sandbox)
}
