//! A device that rejects writes.

use super::{BlockDevice, DeviceError};

/// Passes reads to the inner device and rejects writes.
#[derive(Debug, Clone)]
pub struct ReadOnly<D>(pub D);

impl<D: BlockDevice> BlockDevice for ReadOnly<D> {
    fn size(&self) -> Result<u64, DeviceError> {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&mut self, _offset: u64, _buf: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
