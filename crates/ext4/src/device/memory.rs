//! A device in memory.

use alloc::vec;
use alloc::vec::Vec;

use super::{BlockDevice, DeviceError, range};

/// A device in memory, of a fixed size. Every write is durable immediately.
#[derive(Debug, Clone, Default)]
pub struct Memory(Vec<u8>);

impl Memory {
    /// Creates a device of `size` zero bytes.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    /// Returns the device's bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Returns the device's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl BlockDevice for Memory {
    fn size(&self) -> Result<u64, DeviceError> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = range(offset, buf.len(), self.0.len())?;
        buf.copy_from_slice(self.0.get(range).unwrap_or_default());
        Ok(())
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let range = range(offset, buf.len(), self.0.len())?;
        if let Some(place) = self.0.get_mut(range) {
            place.copy_from_slice(buf);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}
