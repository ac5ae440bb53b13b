//! Work that blocks, for asynchronous callers.

use tokio::task::{JoinError, spawn_blocking};

/// Runs work that blocks on disks and locks.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    joined(spawn_blocking(work).await)
}

/// Returns a task's result. Resumes the task's panic if it panicked.
pub(crate) fn joined<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
