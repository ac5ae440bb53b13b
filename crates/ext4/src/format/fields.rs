//! Fixed-size structures as rows of integer fields at byte offsets.

/// A field's type: an unsigned integer, or bytes or words in a row.
pub trait Field: Sized {
    /// Bytes the field occupies.
    const SIZE: usize;
    /// Decodes from the front of `bytes`, least significant byte first. What is missing
    /// reads as zero.
    fn get_le(bytes: &[u8]) -> Self;
    /// Decodes from the front of `bytes`, most significant byte first. What is missing
    /// reads as zero.
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

/// Reads the field at `offset`; what lies past the end of `bytes` reads as zero.
#[inline]
pub fn get<T: Field>(bytes: &[u8], offset: usize) -> T {
    T::get_le(bytes.get(offset..).unwrap_or_default())
}

/// Reads the big-endian field at `offset`; what lies past the end of `bytes` reads as zero.
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
/// `decode` takes any length (what is past the end reads as zero) and `encode_into` writes the
/// fields that fit and leaves all other bytes as they are.
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
            /// Bytes on disk.
            pub const SIZE: usize = $size;

            /// Decodes; what is past the end of `bytes` reads as zero.
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

            // Of a known length, so that nothing is left to compare.
            fn decode_whole(bytes: &[u8; $size]) -> Self {
                Self {
                    $( $field: record!(@get $order, $type, bytes.get($offset..).unwrap_or_default()), )*
                }
            }

            /// Encodes the fields that fit into `bytes`; all other bytes stay as they are.
            pub fn encode_into(&self, bytes: &mut [u8]) {
                $(
                    let end = $offset + <$type as $crate::format::fields::Field>::SIZE;
                    if let Some(field) = bytes.get_mut($offset..end) {
                        record!(@put $order, self.$field, field);
                    }
                )*
            }

            /// Encodes with zeros where there are no fields.
            #[must_use]
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                self.encode_into(&mut bytes);
                bytes
            }
        }

        impl Default for $name {
            /// All fields zero.
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
