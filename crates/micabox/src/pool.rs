//! Machines that are kept ready for sandboxes.

use micabox_error::Error;
use micabox_start::Pool;

use crate::Builder;

impl Builder {
    /// Keeps `size` machines ready for sandboxes like this one, from now on: each restored from the template, in the
    /// hands of an owner, and waiting for its sandbox. Makes the template first if there is none, by a boot.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), micabox::Error> {
    /// # let store = micabox::Store::open(&micabox::Store::default_root()?)?;
    /// let image = store.image("debian:12")?;
    /// let pool = micabox::Builder::new(&store, &image).pool(4)?;
    /// pool.wait(4)?;
    /// let sandbox = micabox::Sandbox::create(&store, &image)?; // with a machine from the pool
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoPool`] if such sandboxes don't start from templates or can't use a pool;
    /// [`Error::PoolExists`]; those of [`Builder::create`] for the template.
    pub fn pool(self, size: usize) -> Result<Pool, Error> {
        Pool::of(self.start, size)
    }
}
