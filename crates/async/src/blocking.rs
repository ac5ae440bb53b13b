//! Work that blocks, on the runtime's threads for it.

use std::panic::resume_unwind;

/// Runs work of the blocking SDK, [`micabox`], on a thread for it. If the future is dropped, the work
/// is done all the same.
///
/// ```no_run
/// # async fn example() -> Result<(), micabox::Error> {
/// let image = micabox_async::blocking(|| {
///     micabox::Store::open(&micabox::Store::default_root()?)?.image("debian:12")
/// });
/// let image = image.await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of the work.
///
/// # Panics
/// Outside a runtime of tokio's; if the work does, or if the runtime ends before the work begins.
pub async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(ended) => panic!("the runtime has ended: {ended}"),
        },
    }
}
