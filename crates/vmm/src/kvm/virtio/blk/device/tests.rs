use std::fs::File;
use std::os::unix::fs::FileExt;

use micabox_ground::lock;

use super::*;
use crate::kvm::virtio::driver::{Driver, PMEM, READ, WRITE};
use crate::{FileRef, MachineFile};

fn file(fill: u8, length: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&vec![fill; length], 0).unwrap();
    file
}

fn piece(file: File, length: u64) -> MachineFile {
    let description = FileRef {
        number: 0,
        length,
        name: "layer".into(),
        part: None,
    };
    MachineFile::received(file, description)
}

fn start(pieces: Vec<MachineFile>, read_only: bool) -> Driver {
    let storage = Storage::new(pieces, read_only);
    Driver::new(Box::new(Blk::new(storage, "image")))
}

/// Sends one request; returns its status and the data.
fn request(driver: &mut Driver, kind: u32, sector: u64, data: &[u8]) -> (u8, Vec<u8>) {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    let header = driver.buffer(&header);
    let at = driver.buffer(data);
    let status = driver.buffer(&[0xff]);
    let from_device = matches!(kind, blk::VIRTIO_BLK_T_IN | blk::VIRTIO_BLK_T_GET_ID);
    let direction = if from_device { WRITE } else { READ };
    let data = (at, data.len() as u32, direction);
    driver.add(0, &[(header, 16, READ), data, (status, 1, WRITE)]);
    driver.run(0);
    let data = driver.read(at, data.1 as usize);
    (driver.read(status, 1)[0], data)
}

fn flush(driver: &mut Driver) -> u8 {
    request(driver, blk::VIRTIO_BLK_T_FLUSH, 0, &[]).0
}

const READ_SECTORS: u32 = blk::VIRTIO_BLK_T_IN;
const WRITE_SECTORS: u32 = blk::VIRTIO_BLK_T_OUT;

#[test]
fn several_files_are_one_disk() {
    let pieces = (1..=3).map(|fill| piece(file(fill, 2048), 2048)).collect();
    let mut driver = start(pieces, true);
    assert_eq!(driver.config(0, 8), 12_u64.to_le_bytes());
    let (status, data) = request(&mut driver, READ_SECTORS, 3, &[0; 3072]);
    assert_eq!(status, 0);
    let expected = [vec![1; 512], vec![2; 2048], vec![3; 512]].concat();
    assert!(data == expected);
    assert_eq!(
        request(&mut driver, READ_SECTORS, 11, &[0; 512]).1,
        [3; 512]
    );
    let (status, id) = request(&mut driver, blk::VIRTIO_BLK_T_GET_ID, 0, &[0xff; 20]);
    assert_eq!((status, &id[..6]), (0, &b"image\0"[..]));
}

#[test]
fn requests_outside_of_the_disk_are_errors() {
    let mut driver = start(vec![piece(file(1, 2048), 2048)], true);
    for (kind, sector, length) in [
        (READ_SECTORS, 4, 512),
        (READ_SECTORS, 3, 1024),
        (READ_SECTORS, u64::MAX, 512),
        (READ_SECTORS, u64::MAX / 512, 1024),
        (READ_SECTORS, 0, 100),
        (WRITE_SECTORS, 0, 512),
        (blk::VIRTIO_BLK_T_DISCARD, 0, 16),
    ] {
        let (status, _) = request(&mut driver, kind, sector, &vec![0; length]);
        assert_eq!(status, 1, "{kind} {sector} {length}");
    }
    assert_eq!(request(&mut driver, 99, 0, &[0; 16]).0, 2);
    assert_eq!(request(&mut driver, READ_SECTORS, 0, &[0; 512]).0, 0);
    assert!(!driver.is_stopped());
}

#[test]
fn a_truncated_layer_is_an_error() {
    let layer = file(1, 2048);
    let mut driver = start(vec![piece(layer.try_clone().unwrap(), 2048)], true);
    layer.set_len(512).unwrap();
    assert_eq!(request(&mut driver, READ_SECTORS, 0, &[0; 512]).0, 0);
    assert_eq!(request(&mut driver, READ_SECTORS, 1, &[0; 512]).0, 1);
}

#[test]
fn writes_arrive_and_erased_sectors_read_as_zeroes() {
    let disk = file(7, 64 << 10);
    let mut driver = start(vec![piece(disk.try_clone().unwrap(), 64 << 10)], false);
    assert_eq!(request(&mut driver, WRITE_SECTORS, 9, &[5; 1024]).0, 0);
    assert_eq!(flush(&mut driver), 0);
    let mut bytes = [0; 1024];
    disk.read_exact_at(&mut bytes, 9 * 512).unwrap();
    assert!(bytes == [5; 1024]);
    let mut range = 8_u64.to_le_bytes().to_vec();
    range.extend(16_u32.to_le_bytes());
    range.extend([0; 4]);
    let (status, _) = request(&mut driver, blk::VIRTIO_BLK_T_WRITE_ZEROES, 0, &range);
    assert_eq!(status, 0);
    assert!(request(&mut driver, READ_SECTORS, 8, &[1; 8192]).1 == [0; 8192]);
    assert!(request(&mut driver, READ_SECTORS, 7, &[1; 512]).1 == [7; 512]);
    assert_eq!(disk.metadata().unwrap().len(), 64 << 10);
}

/// Encodes a range to erase: sector, number of sectors, flags.
fn range(sector: u64, sectors: u32) -> Vec<u8> {
    let mut range = sector.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend([0; 4]);
    range
}

#[test]
fn an_erase_has_as_many_ranges_and_sectors_as_the_device_says() {
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(4 << 30).unwrap();
    let mut driver = start(vec![piece(disk, 4 << 30)], false);
    for kind in [blk::VIRTIO_BLK_T_DISCARD, blk::VIRTIO_BLK_T_WRITE_ZEROES] {
        let most = u32::from_le_bytes(driver.config(36, 4).try_into().unwrap());
        assert_eq!(driver.config(40, 4), [1, 0, 0, 0]);
        assert_eq!(request(&mut driver, kind, 0, &range(8, most)).0, 0);
        assert_eq!(request(&mut driver, kind, 0, &range(8, most + 1)).0, 1);
        let two = [range(0, 8), range(8, 8)].concat();
        assert_eq!(request(&mut driver, kind, 0, &two).0, 1);
        // Ranges without sectors: their number makes the work.
        assert_eq!(
            request(&mut driver, kind, 0, &range(0, 0).repeat(4096)).0,
            1
        );
    }
    assert!(!driver.is_stopped());
}

#[test]
fn a_transfer_is_bounded() {
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(4 << 30).unwrap();
    let mut driver = start(vec![piece(disk, 4 << 30)], false);
    // One piece of RAM many times, which is less than 1 GiB, and more.
    let (at, length) = (1 << 20, 12 << 20);
    for (pieces, expected) in [(64, 0), (126, 1)] {
        let mut header = READ_SECTORS.to_le_bytes().to_vec();
        header.extend([0; 12]);
        let header = driver.buffer(&header);
        let status = driver.buffer(&[0xff]);
        let pieces = (0..pieces).map(|_| (at, length, WRITE));
        let mut chain = vec![(header, 16, READ)];
        chain.extend(pieces);
        chain.push((status, 1, WRITE));
        driver.add(0, &chain);
        driver.run(0);
        assert_eq!(driver.read(status, 1), [expected]);
    }
}

#[test]
fn a_request_without_room_on_the_host_waits_and_is_served_later() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let device = |file| {
        let pieces = vec![piece(file, 4096)];
        Box::new(Blk::new(Storage::new(pieces, false), "image"))
    };
    let mut driver = Driver::new(device(full()));
    let stalled = |driver: &Driver| lock(&driver.transport).stalled();
    let mut header = WRITE_SECTORS.to_le_bytes().to_vec();
    header.extend([0; 12]);
    let header = driver.buffer(&header);
    let data = driver.buffer(&[5; 512]);
    let status = driver.buffer(&[0xff]);
    let chain = [(header, 16, READ), (data, 512, READ), (status, 1, WRITE)];
    driver.add(0, &chain);
    driver.run(0);
    // The request is not completed, and the time of the retry is returned once.
    assert_eq!((driver.used(0).len(), driver.read(status, 1)[0]), (0, 0xff));
    let first = stalled(&driver).unwrap();
    assert_eq!(stalled(&driver), None);
    for _ in 0..9 {
        driver.run(0);
    }
    let last = stalled(&driver).unwrap();
    assert!(
        first < last && last <= Duration::from_secs(1),
        "{first:?} {last:?}"
    );
    assert_eq!((driver.used(0).len(), driver.is_stopped()), (0, false));

    // A copy of the machine, with room on the host's disk, still completes the request.
    let state = lock(&driver.transport).save();
    let disk = file(7, 4096);
    driver
        .replace(device(disk.try_clone().unwrap()), state)
        .unwrap();
    driver.host();
    assert_eq!((driver.used(0).len(), driver.read(status, 1)[0]), (1, 0));
    let mut bytes = [0; 512];
    disk.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == [5; 512]);
    assert_eq!(stalled(&driver), None);
}

#[test]
fn a_request_beyond_the_rate_waits_and_is_served_later() {
    let device = |rate: DiskRate| {
        let storage = Storage::new(vec![piece(file(7, 8192), 8192)], false);
        Box::new(Blk::new(storage, "image").limited(&rate))
    };
    let read = |driver: &mut Driver| request(driver, READ_SECTORS, 0, &[0; 4096]).0;
    let stalled = |driver: &Driver| lock(&driver.transport).stalled();
    let second = Duration::from_secs(1);
    // A read is as much as may pass in a second; the burst may pass at once.
    for (rate, burst) in [
        (
            DiskRate {
                read: Some(4096),
                ..DiskRate::default()
            },
            second / 10,
        ),
        (
            DiskRate {
                operations: Some(1),
                ..DiskRate::default()
            },
            second,
        ),
    ] {
        // Longer than the clocks of a virtual machine's processors differ by.
        let differ = Duration::from_millis(50);
        let begin = Instant::now();
        let mut driver = Driver::new(device(rate));
        let mut served = 0;
        while read(&mut driver) == 0 {
            served += 1;
            // Sleep: longer than the clocks of processors differ by.
            std::thread::sleep(differ);
        }
        let wait = stalled(&driver).unwrap();
        // However late this thread runs, the reads are paid for when the wait is over.
        let paid = burst + begin.elapsed() + wait + differ;
        assert!(
            wait <= second && paid >= served * second,
            "{served} {wait:?}"
        );
        assert_eq!((stalled(&driver), driver.is_stopped()), (None, false));
        // A copy of the machine without a rate serves the request.
        driver.used(0);
        let state = lock(&driver.transport).save();
        driver.replace(device(DiskRate::default()), state).unwrap();
        driver.host();
        assert_eq!((driver.used(0).len(), stalled(&driver)), (1, None));
    }
    // Writes do not count as reads.
    let rate = DiskRate {
        write: Some(1),
        ..DiskRate::default()
    };
    let mut driver = Driver::new(device(rate));
    for _ in 0..3 {
        assert_eq!(read(&mut driver), 0);
    }
    assert_eq!(request(&mut driver, WRITE_SECTORS, 0, &[1; 4096]).0, 0);
    assert_eq!(read(&mut driver), 0xff);
}

#[test]
fn a_disk_writes_from_pmem_and_never_to_it() {
    let mut driver = start(vec![piece(file(7, 4096), 4096)], false);
    let chain = |driver: &mut Driver, kind: u32, direction| {
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 12]);
        let header = driver.buffer(&header);
        let status = driver.buffer(&[0xff]);
        let chain = [
            (header, 16, READ),
            (PMEM, 512, direction),
            (status, 1, WRITE),
        ];
        driver.add(0, &chain);
        driver.run(0);
        driver.read(status, 1)[0]
    };
    assert_eq!(chain(&mut driver, WRITE_SECTORS, READ), 0);
    assert!(!driver.is_stopped());
    assert_eq!(chain(&mut driver, READ_SECTORS, WRITE), 0xff);
    assert!(driver.is_stopped());
}

#[test]
fn a_malformed_chain_stops_the_disk() {
    for chain in [
        vec![(0x8000, 16, READ)],
        vec![(0x8000, 15, READ), (0x9000, 1, WRITE)],
        vec![(0x9000, 1, WRITE), (0x8000, 16, READ)],
        vec![(u64::MAX, 16, READ), (0x9000, 1, WRITE)],
        vec![(0x8000, 16, READ), (0x8000, u32::MAX, WRITE)],
    ] {
        let mut driver = start(vec![piece(file(7, 4096), 4096)], true);
        driver.add(0, &chain);
        driver.run(0);
        assert!(driver.is_stopped(), "{chain:?}");
        // A reset makes it usable again.
        driver.write(0x70, 0);
        assert!(!driver.is_stopped());
    }
}
