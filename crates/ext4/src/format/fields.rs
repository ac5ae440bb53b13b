//! Fixed-size structures as integer fields at byte offsets.

/// A field's type: an unsigned integer, or an array of bytes or words.
pub trait Field: Sized {
    /// Size of the field in bytes.
    const SIZE: usize;
    /// Decodes from the start of `bytes`, least significant byte first. Missing bytes read as zero.
    fn get_le(bytes: &[u8]) -> Self;
    /// Decodes from the start of `bytes`, most significant byte first. Missing bytes read as zero.
    fn get_be(bytes: &[u8]) -> Self;
    /// Encodes, least significant byte first, to `bytes`, which has exactly [`Field::SIZE`].
    fn put_le(&self, bytes: &mut [u8]);
    /// Encodes, most significant byte first, to `bytes`, which has exactly [`Field::SIZE`].
    fn put_be(&self, bytes: &mut [u8]);
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Field for $integer {
            const SIZE: usize = size_of::<$integer>();

            #[inline]
            fn get_le(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(0, |field| Self::from_le_bytes(*field))
            }

            #[inline]
            fn get_be(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(0, |field| Self::from_be_bytes(*field))
            }

            #[inline]
            fn put_le(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn put_be(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

impl<T: Field + Copy, const N: usize> Field for [T; N] {
    const SIZE: usize = T::SIZE * N;

    fn get_le(bytes: &[u8]) -> Self {
        core::array::from_fn(|i| T::get_le(bytes.get(i * T::SIZE..).unwrap_or_default()))
    }

    fn get_be(bytes: &[u8]) -> Self {
        core::array::from_fn(|i| T::get_be(bytes.get(i * T::SIZE..).unwrap_or_default()))
    }

    fn put_le(&self, bytes: &mut [u8]) {
        for (value, bytes) in self.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            value.put_le(bytes);
        }
    }

    fn put_be(&self, bytes: &mut [u8]) {
        for (value, bytes) in self.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            value.put_be(bytes);
        }
    }
}

/// Reads the field at `offset`; bytes past the end of `bytes` read as zero.
#[inline]
pub fn get<T: Field>(bytes: &[u8], offset: usize) -> T {
    T::get_le(bytes.get(offset..).unwrap_or_default())
}

/// Reads the big-endian field at `offset`; bytes past the end of `bytes` read as zero.
#[inline]
pub fn get_be<T: Field>(bytes: &[u8], offset: usize) -> T {
    T::get_be(bytes.get(offset..).unwrap_or_default())
}

/// Writes the field at `offset`, unless it would lie past the end of `bytes`.
#[inline]
pub fn put<T: Field>(bytes: &mut [u8], offset: usize, value: T) {
    if let Some(field) = bytes.get_mut(offset..offset + T::SIZE) {
        value.put_le(field);
    }
}

/// Writes the big-endian field at `offset`, unless it would lie past the end of `bytes`.
#[inline]
pub fn put_be<T: Field>(bytes: &mut [u8], offset: usize, value: T) {
    if let Some(field) = bytes.get_mut(offset..offset + T::SIZE) {
        value.put_be(field);
    }
}

/// Declares a structure on disk: its size, byte order (`le` or `be`) and fields by offset.
///
/// `decode` accepts any length (fields past the end read as zero) and `encode_into` writes the
/// fields that fit and leaves all other bytes unchanged.
macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident [$size:literal, $order:ident] {
            $( $(#[$field_meta:meta])* $offset:literal $field:ident : $type:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        impl $name {
            /// Size on disk in bytes.
            pub const SIZE: usize = $size;

            /// Decodes the structure; fields past the end of `bytes` read as zero.
            #[must_use]
            pub fn decode(bytes: &[u8]) -> Self {
                if let Some(whole) = bytes.first_chunk() {
                    return Self::decode_whole(whole);
                }
                let mut whole = [0; $size];
                for (to, from) in whole.iter_mut().zip(bytes) {
                    *to = *from;
                }
                Self::decode_whole(&whole)
            }

            // With a known length, the compiler removes all bounds checks.
            fn decode_whole(bytes: &[u8; $size]) -> Self {
                Self {
                    $( $field: record!(@get $order, $type, bytes.get($offset..).unwrap_or_default()), )*
                }
            }

            /// Encodes the fields that fit into `bytes`; all other bytes are unchanged.
            pub fn encode_into(&self, bytes: &mut [u8]) {
                $(
                    let end = $offset + <$type as $crate::format::fields::Field>::SIZE;
                    if let Some(field) = bytes.get_mut($offset..end) {
                        record!(@put $order, self.$field, field);
                    }
                )*
            }

            /// Encodes the structure with zeros where there are no fields.
            #[must_use]
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                self.encode_into(&mut bytes);
                bytes
            }
        }

        impl Default for $name {
            /// Returns a structure whose fields are all zero.
            fn default() -> Self {
                Self::decode(&[])
            }
        }
    };
    (@get le, $type:ty, $bytes:expr) => { <$type as $crate::format::fields::Field>::get_le($bytes) };
    (@get be, $type:ty, $bytes:expr) => { <$type as $crate::format::fields::Field>::get_be($bytes) };
    (@put le, $value:expr, $bytes:expr) => { $crate::format::fields::Field::put_le(&$value, $bytes) };
    (@put be, $value:expr, $bytes:expr) => { $crate::format::fields::Field::put_be(&$value, $bytes) };
}
pub(crate) use record;
