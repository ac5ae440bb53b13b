//! Fixed-size structures as a sequence of fields.

/// Writes consecutive little-endian fields into a structure of `N` bytes.
pub(super) struct Fields<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fields<N> {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }

    pub(super) fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    pub(super) fn u8(self, value: u8) -> Self {
        self.put(&[value])
    }

    pub(super) fn u16(self, value: u16) -> Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u64(self, value: u64) -> Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn done(self) -> [u8; N] {
        self.bytes
    }
}

/// Reads consecutive little-endian fields from a structure. The caller passes all of its bytes;
/// fields past the end read as zero.
pub(super) struct Parse<'a>(pub(super) &'a [u8]);

impl Parse<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *field
    }

    pub(super) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
