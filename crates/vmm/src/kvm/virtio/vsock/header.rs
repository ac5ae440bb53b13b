//! The header of every packet (specification section 5.10.6).
//!
//! The crate virtio-vsock also reads packets, but expects data in one piece and reads and writes
//! the same memory. Linux sends data in many pieces, and here devices may read memory that they may
//! not write.

/// Bytes of a header.
pub(super) const LENGTH: usize = 44;

/// Stream sockets: the only supported type.
pub(super) const STREAM: u16 = 1;

/// What the sender of [`Operation::SHUTDOWN`] has stopped doing.
pub(super) const RECEIVES: u32 = 1;
pub(super) const SENDS: u32 = 2;

/// A packet's header, with unchecked values from the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) source: u64,
    pub(super) destination: u64,
    pub(super) source_port: u32,
    pub(super) destination_port: u32,
    /// Bytes of data behind the header.
    pub(super) length: u32,
    pub(super) kind: u16,
    pub(super) operation: Operation,
    pub(super) flags: u32,
    /// Bytes that the sender has room for in all.
    pub(super) room: u32,
    /// Bytes that the sender has passed on since the beginning, modulo 2^32.
    pub(super) forwarded: u32,
}

/// What a packet is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Operation(pub(super) u16);

impl Operation {
    /// Requests a connection.
    pub(super) const REQUEST: Self = Self(1);
    /// Accepts a connection.
    pub(super) const RESPONSE: Self = Self(2);
    /// Reports that the connection does not exist, or ends it.
    pub(super) const RESET: Self = Self(3);
    /// Reports that the sender has stopped sending or receiving, as the flags show.
    pub(super) const SHUTDOWN: Self = Self(4);
    /// Data.
    pub(super) const DATA: Self = Self(5);
    /// Announces the sender's room, as every packet does.
    pub(super) const CREDIT: Self = Self(6);
    /// Requests the receiver's room.
    pub(super) const CREDIT_REQUEST: Self = Self(7);
}

impl Header {
    pub(super) fn from_bytes(bytes: [u8; LENGTH]) -> Self {
        let mut rest = &bytes[..];
        Self {
            source: u64::from_le_bytes(take(&mut rest)),
            destination: u64::from_le_bytes(take(&mut rest)),
            source_port: u32::from_le_bytes(take(&mut rest)),
            destination_port: u32::from_le_bytes(take(&mut rest)),
            length: u32::from_le_bytes(take(&mut rest)),
            kind: u16::from_le_bytes(take(&mut rest)),
            operation: Operation(u16::from_le_bytes(take(&mut rest))),
            flags: u32::from_le_bytes(take(&mut rest)),
            room: u32::from_le_bytes(take(&mut rest)),
            forwarded: u32::from_le_bytes(take(&mut rest)),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; LENGTH] {
        let fields: [&[u8]; 10] = [
            &self.source.to_le_bytes(),
            &self.destination.to_le_bytes(),
            &self.source_port.to_le_bytes(),
            &self.destination_port.to_le_bytes(),
            &self.length.to_le_bytes(),
            &self.kind.to_le_bytes(),
            &self.operation.0.to_le_bytes(),
            &self.flags.to_le_bytes(),
            &self.room.to_le_bytes(),
            &self.forwarded.to_le_bytes(),
        ];
        let mut bytes = [0; LENGTH];
        for (to, from) in bytes.iter_mut().zip(fields.concat()) {
            *to = from;
        }
        bytes
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (first, rest) = bytes.split_first_chunk().unwrap_or((&[0; N], &[]));
    *bytes = rest;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let bytes: [u8; LENGTH] = std::array::from_fn(|at| at as u8);
        let header = Header::from_bytes(bytes);
        assert_eq!(header.destination, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(header.source_port, 0x1312_1110);
        assert_eq!(header.length, 0x1b1a_1918);
        assert_eq!(header.kind, 0x1d1c);
        assert_eq!(header.operation, Operation(0x1f1e));
        assert_eq!(header.forwarded, 0x2b2a_2928);
        assert_eq!(header.to_bytes(), bytes);
    }
}
