//! What is wrong with options.

/// What is wrong with options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is none of this name.
    #[error("unknown option `{0}`: `mica run --help` lists a sandbox's options")]
    Unknown(String),
    /// An option has no such value.
    #[error("option `{name}` can't be `{value}`: {why}")]
    Value {
        /// Its long name.
        name: String,
        /// The value.
        value: String,
        /// What was expected.
        why: String,
    },
    /// It can't be read.
    #[error("{0}")]
    Invalid(String),
    /// It contradicts others, or what the sandbox is made from.
    #[error("{0}")]
    Unfit(String),
}
