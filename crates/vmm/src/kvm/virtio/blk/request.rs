//! Serves requests to a disk (specification section 5.2.6).

use std::io;

use virtio_bindings::virtio_blk as blk;

use super::storage::Storage;
use crate::kvm::virtio::{Chain, Violation};

/// Bytes of a sector, the unit of requests.
pub(super) const SECTOR: u64 = 512;

/// Bytes of a header: type, reserved, sector.
pub(super) const HEADER: usize = 16;

/// Bytes of a request's status.
pub(super) const STATUS: usize = 1;

/// Bytes of a range to erase: sector, number of sectors, flags.
const RANGE: usize = 16;

/// Maximum sectors of one request to erase, as the configuration space announces: 1 GiB.
pub(super) const MOST_ERASED: u32 = 1 << 21;

/// Maximum ranges of such a request, as the configuration space announces.
pub(super) const MOST_RANGES: u32 = 1;

/// Maximum bytes that one request moves, far above a driver's requests: it bounds how long a
/// machine's save waits.
const MOST_MOVED: u64 = 1 << 30;

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    Done = blk::VIRTIO_BLK_S_OK as u8,
    Failed = blk::VIRTIO_BLK_S_IOERR as u8,
    Unknown = blk::VIRTIO_BLK_S_UNSUPP as u8,
}

/// The host's disk is full, so that the request can't be served now. It may be retried from its
/// beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoSpace;

/// Serves a chain's request; returns the bytes written to the chain.
pub(super) fn serve(
    mut chain: Chain<'_>,
    storage: &Storage,
    serial: &[u8],
) -> Result<Result<usize, NoSpace>, Violation> {
    let header = chain.readable.take(HEADER).read::<HEADER>();
    let answer = chain.writable.take_back(1);
    let (Some(header), 1) = (header, answer.len()) else {
        return Err(Violation::BadChain);
    };
    let (kind, _reserved, sector) = fields(header);
    let offset = sector.checked_mul(SECTOR);
    let room = chain.writable.len();
    let (status, written) = match kind {
        blk::VIRTIO_BLK_T_IN => (read(offset, chain, storage), room),
        blk::VIRTIO_BLK_T_OUT => (write(offset, chain, storage), 0),
        // A flush that fails for lack of room is not retried: its error is of writes that are
        // complete, and the next flush would not report it.
        blk::VIRTIO_BLK_T_FLUSH => (Ok(status(storage.flush())), 0),
        blk::VIRTIO_BLK_T_GET_ID => (Ok(Status::Done), identify(&chain, serial)),
        blk::VIRTIO_BLK_T_DISCARD | blk::VIRTIO_BLK_T_WRITE_ZEROES => (erase(chain, storage), 0),
        _ => (Ok(Status::Unknown), 0),
    };
    Ok(status.map(|status| {
        answer.copy_from(&[status as u8]);
        written.saturating_add(1)
    }))
}

fn fields(bytes: [u8; 16]) -> (u32, u32, u64) {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    let first = u32::from_le_bytes([a, b, c, d]);
    let second = u32::from_le_bytes([e, f, g, h]);
    (first, second, u64::from_le_bytes(rest))
}

fn status(result: io::Result<()>) -> Status {
    match result {
        Ok(()) => Status::Done,
        Err(error) => {
            eprintln!("disk: {error}");
            Status::Failed
        }
    }
}

/// As [`status`], for a request that may need room on the host's disk.
fn status_with_room(result: io::Result<()>) -> Result<Status, NoSpace> {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    match result {
        Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => Err(NoSpace),
        result => Ok(status(result)),
    }
}

/// Returns the offset of a transfer of `length` bytes, if it is of whole sectors on the disk and
/// not too long.
fn place(offset: Option<u64>, length: usize, storage: &Storage) -> Option<u64> {
    let length = Some(length as u64).filter(|length| *length <= MOST_MOVED)?;
    offset.filter(|offset| length.is_multiple_of(SECTOR) && storage.contains(*offset, length))
}

fn read(offset: Option<u64>, chain: Chain<'_>, storage: &Storage) -> Result<Status, NoSpace> {
    Ok(match place(offset, chain.writable.len(), storage) {
        Some(offset) => status(storage.read(offset, chain.writable)),
        None => Status::Failed,
    })
}

fn write(offset: Option<u64>, chain: Chain<'_>, storage: &Storage) -> Result<Status, NoSpace> {
    match place(offset, chain.readable.len(), storage) {
        Some(offset) if !storage.is_read_only() => {
            status_with_room(storage.write(offset, chain.readable))
        }
        _ => Ok(Status::Failed),
    }
}

fn identify(chain: &Chain<'_>, serial: &[u8]) -> usize {
    let mut id = [0; blk::VIRTIO_BLK_ID_BYTES as usize];
    for (to, from) in id.iter_mut().zip(serial) {
        *to = *from;
    }
    chain.writable.copy_from(&id)
}

/// Erases sectors. Discarded sectors read as zeroes too, so both kinds of request are the same. A
/// request has one range, as the configuration announces: with more, a guest could make it take any
/// time.
fn erase(chain: Chain<'_>, storage: &Storage) -> Result<Status, NoSpace> {
    if storage.is_read_only() || chain.readable.len() != RANGE * MOST_RANGES as usize {
        return Ok(Status::Failed);
    }
    let Some(range) = chain.readable.read::<RANGE>() else {
        return Ok(Status::Failed);
    };
    let (low, high, rest) = fields(range);
    let sector = u64::from(low) | u64::from(high) << 32;
    let length = (rest & 0xffff_ffff) * SECTOR;
    let offset = sector
        .checked_mul(SECTOR)
        .filter(|offset| storage.contains(*offset, length))
        .filter(|_| length <= u64::from(MOST_ERASED) * SECTOR);
    match offset {
        Some(offset) => status_with_room(storage.erase(offset, length)),
        None => Ok(Status::Failed),
    }
}
