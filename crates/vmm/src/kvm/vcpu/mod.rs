//! Virtual processors, a thread each.

pub(crate) mod cpuid;
pub(crate) mod pause;
pub(crate) mod registers;
mod run;
mod state;

pub(crate) use pause::Pause;
pub(crate) use run::run;
pub(crate) use state::State;

/// An error of KVM about a processor.
#[derive(Debug, thiserror::Error)]
#[error("a processor: {what}: {source}")]
pub(crate) struct Error {
    what: &'static str,
    source: kvm_ioctls::Error,
}
