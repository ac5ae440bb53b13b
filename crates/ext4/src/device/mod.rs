//! The device that a filesystem lies on.

#[cfg(feature = "std")]
mod file;
mod memory;
mod read_only;

pub use memory::Memory;
pub use read_only::ReadOnly;

/// Random access to bytes that can be made durable.
///
/// Written bytes may reach durable storage in any order, or not at all, until
/// [`BlockDevice::flush`] returns.
pub trait BlockDevice {
    /// Returns the length in bytes.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn size(&self) -> Result<u64, DeviceError>;

    /// Fills `buf` from `offset`, given in bytes.
    ///
    /// # Errors
    ///
    /// Those of the device; a range that reaches past its end is an error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes all of `buf` at `offset`, given in bytes.
    ///
    /// # Errors
    ///
    /// Those of the device; a range that reaches past its end is an error.
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> Result<(), DeviceError>;

    /// Writes all of `bufs` one after the other from `offset` on, in one request if possible.
    ///
    /// # Errors
    ///
    /// Those of [`BlockDevice::write_at`].
    fn write_vectored_at(&mut self, mut offset: u64, bufs: &[&[u8]]) -> Result<(), DeviceError> {
        for buf in bufs {
            self.write_at(offset, buf)?;
            offset = offset.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Returns when everything written is durable.
    ///
    /// # Errors
    ///
    /// Those of the device.
    fn flush(&mut self) -> Result<(), DeviceError>;

    /// Whether the range is known to read as zeros without occupying space, so that zeros need not
    /// be written there. `false` if unknown.
    fn is_hole(&self, offset: u64, length: u64) -> bool {
        let _ = (offset, length);
        false
    }

    /// Whether every write will fail.
    fn is_read_only(&self) -> bool {
        false
    }
}

impl<D: BlockDevice + ?Sized> BlockDevice for &mut D {
    fn size(&self) -> Result<u64, DeviceError> {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        (**self).write_at(offset, buf)
    }

    fn write_vectored_at(&mut self, offset: u64, bufs: &[&[u8]]) -> Result<(), DeviceError> {
        (**self).write_vectored_at(offset, bufs)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        (**self).flush()
    }

    fn is_hole(&self, offset: u64, length: u64) -> bool {
        (**self).is_hole(offset, length)
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }
}

/// Why a request to a device failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The range is not entirely on the device.
    #[error("{length} bytes at {offset} reach past the device's end at {size}")]
    OutOfRange {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Length of the device in bytes.
        size: u64,
    },

    /// A write to a read-only device.
    #[error("the device is read-only")]
    ReadOnly,

    /// An error of the operating system.
    #[cfg(feature = "std")]
    #[error(transparent)]
    Io(#[from] std::io::Error),

    /// Any other error of a device.
    #[error("{0}")]
    Other(&'static str),
}

/// Returns the part of a device of `size` bytes that consists of `length` bytes at `offset`, or the
/// error for a range past its end.
fn range(offset: u64, length: usize, size: usize) -> Result<core::ops::Range<usize>, DeviceError> {
    usize::try_from(offset)
        .ok()
        .and_then(|from| Some(from..from.checked_add(length)?))
        .filter(|range| range.end <= size)
        .ok_or(DeviceError::OutOfRange {
            offset,
            length: length as u64,
            size: size as u64,
        })
}
