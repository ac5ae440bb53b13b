//! The forms in which an image reaches a machine, which must all look the same, and the steps that
//! can fail.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use micabox_erofs::merge;
use micabox_wire::{Format, Lower, Range};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev};

use crate::host::shell;
use crate::machine::{Attach, Layer, Machine, disk, lower, plan, pmem, userland};

/// Makes two layers above the userland: one that changes it, one that adds to the change.
fn stack(directory: &Path) -> Vec<(PathBuf, [u8; 16])> {
    let bottom = userland();
    bottom.file("/opt/gone", b"below", 0o644);
    bottom.file("/opt/replaced", b"below", 0o644);
    bottom.file("/var/lib/old/a", b"below", 0o644);
    let data: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    bottom.file("/opt/data", &data, 0o644);
    let middle = Layer::new(2);
    middle.file("/opt/replaced", b"middle", 0o600);
    middle.file("/var/lib/old/b", b"middle", 0o644);
    rustix::fs::mknodat(
        CWD,
        middle.at("/opt/gone"),
        FileType::CharacterDevice,
        Mode::empty(),
        makedev(0, 0),
    )
    .unwrap();
    rustix::fs::setxattr(
        middle.at("/var/lib/old"),
        "trusted.overlay.opaque",
        b"y",
        XattrFlags::empty(),
    )
    .unwrap();
    let top = Layer::new(3);
    top.file("/opt/+page.svelte", b"top", 0o644);
    [top, middle, bottom]
        .iter()
        .map(|layer| (layer.image(directory), layer.uuid()))
        .collect()
}

/// Prints what the stack must look like.
const LOOK: &str = "cd /opt; echo *; cat replaced +page.svelte; echo; echo /var/lib/old/*; \
    cksum < data";

/// Prints the kilobytes by which the page cache grows when a file of 7813 is read for the first
/// time.
const GROWTH: &str = "before=$(grep ^Cached /proc/meminfo); cksum < /opt/data > /dev/null; \
    after=$(grep ^Cached /proc/meminfo); set -- $before $after; echo $(($5 - $2))";

/// Checks by the page cache's growth whether `/opt/data` was mapped.
fn check_growth(machine: &mut Machine, dax: bool) {
    let run = machine.host.run(shell(GROWTH));
    let growth: i64 = run.text().trim_end().parse().unwrap();
    assert_eq!(growth < 1000, dax, "the page cache grew by {growth} kB");
}

fn check_stack(machine: &mut Machine, dax: bool) {
    check_growth(machine, dax);
    assert_eq!(
        machine.host.run(shell(LOOK)).text(),
        "+page.svelte data replaced\nmiddletop\n/var/lib/old/b\n1131452262 8000000\n"
    );
}

#[test]
#[ignore = "needs a built guest"]
fn layers_stack_on_pmem_devices_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let layers = stack(directory.path());
    // In any order: the agent identifies them by UUID.
    let devices: Vec<_> = layers
        .iter()
        .rev()
        .map(|(path, _)| Attach::Pmem(path))
        .collect();
    let mut machine = Machine::start(&devices);
    let lowers = layers
        .iter()
        .map(|(_, uuid)| lower(pmem(*uuid, None)))
        .collect();
    machine.boot(plan(lowers)).unwrap();
    check_stack(&mut machine, true);
    machine.shut_down();
}

/// Writes all images to one file; returns it with the range of each.
fn concatenated(directory: &Path, images: &[PathBuf]) -> (PathBuf, Vec<Range>) {
    let path = directory.join("all");
    let mut all = File::create(&path).unwrap();
    let mut offset = 0;
    let mut ranges = Vec::new();
    for image in images {
        let length = io::copy(&mut File::open(image).unwrap(), &mut all).unwrap();
        ranges.push(Range { offset, length });
        offset += length;
    }
    (path, ranges)
}

#[test]
#[ignore = "needs a built guest"]
fn layers_stack_on_pieces_of_a_pmem_device() {
    let directory = tempfile::tempdir().unwrap();
    let layers = stack(directory.path());
    let images: Vec<_> = layers.iter().map(|(path, _)| path.clone()).collect();
    let (path, ranges) = concatenated(directory.path(), &images);
    let mut machine = Machine::start(&[Attach::Pmem(&path)]);
    let (_, head) = layers[0];
    let mut lowers: Vec<_> = ranges
        .iter()
        .map(|range| lower(pmem(head, Some(*range))))
        .collect();
    // An image may have a layer twice.
    lowers.push(lowers[1].clone());
    machine.boot(plan(lowers)).unwrap();
    check_stack(&mut machine, true);
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn layers_stack_on_pieces_of_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let layers = stack(directory.path());
    let images: Vec<_> = layers.iter().map(|(path, _)| path.clone()).collect();
    let (path, ranges) = concatenated(directory.path(), &images);
    let mut machine = Machine::start(&[
        Attach::Disk {
            path: Path::new("/dev/null"),
            serial: "other",
        },
        Attach::Disk {
            path: &path,
            serial: "micabox-image",
        },
    ]);
    let lowers = ranges
        .iter()
        .map(|range| lower(disk("micabox-image", Some(*range))))
        .collect();
    machine.boot(plan(lowers)).unwrap();
    check_stack(&mut machine, false);
    machine.shut_down();
}

/// Disables the kernel's device mapper.
const NO_MAPPER: &str = "initcall_blacklist=dm_init";

/// Writes all images to one file with a partition for each, in a table written by sfdisk.
/// Returns the ranges and the table's GUID.
fn partitioned(directory: &Path, images: &[PathBuf]) -> (PathBuf, Vec<Range>, [u8; 16]) {
    const ROOM: u64 = 2 << 20;
    let path = directory.join("partitioned");
    let mut all = File::create(&path).unwrap();
    let mut table = "label: gpt\n".to_owned();
    let mut ranges = Vec::new();
    let mut offset = ROOM;
    for image in images {
        all.seek(SeekFrom::Start(offset)).unwrap();
        let length = io::copy(&mut File::open(image).unwrap(), &mut all).unwrap();
        ranges.push(Range { offset, length });
        table += &format!("start={}, size={}\n", offset / 512, length / 512);
        offset += length;
    }
    all.set_len(offset + ROOM).unwrap();
    let script = directory.join("table");
    fs::write(&script, table).unwrap();
    let sfdisk = Command::new("sfdisk")
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(&path)
        .stdin(File::open(script).unwrap())
        .output();
    let output = sfdisk.expect("sfdisk is installed; run scripts/setup");
    assert!(output.status.success(), "{output:?}");
    let mut uuid = [0; 16];
    let file = File::open(&path).unwrap();
    file.read_exact_at(&mut uuid, 512 + 56).unwrap();
    (path, ranges, uuid)
}

/// Makes a stack of `count` layers, topmost first: the lowest ones are those of [`stack`], and each
/// further one has a file in `/srv`.
fn stack_of(count: u8, directory: &Path) -> Vec<PathBuf> {
    let more = (3..count).rev().map(|number| {
        let layer = Layer::new(number + 1);
        layer.file(&format!("/srv/{number}"), b"more", 0o644);
        layer.image(directory)
    });
    let three = stack(directory).into_iter().map(|(path, _)| path);
    let lowest = three.skip(3_usize.saturating_sub(count.into()));
    more.chain(lowest).collect()
}

#[test]
#[ignore = "needs a built guest"]
fn layers_stack_on_partitions_where_there_is_no_device_mapper() {
    for count in [1, 3, 30] {
        let directory = tempfile::tempdir().unwrap();
        let images = stack_of(count, directory.path());
        let (path, ranges, uuid) = partitioned(directory.path(), &images);
        let serial = "image";
        for dax in [true, false] {
            let device = if dax {
                Attach::Pmem(&path)
            } else {
                Attach::Disk {
                    path: &path,
                    serial,
                }
            };
            let mut machine = Machine::start_with(&[device], NO_MAPPER);
            let extent = |range: &Range| {
                if dax {
                    pmem(uuid, Some(*range))
                } else {
                    disk(serial, Some(*range))
                }
            };
            let lowers = ranges.iter().map(|range| lower(extent(range))).collect();
            machine.boot(plan(lowers)).unwrap();
            let look = "grep -c device-mapper /proc/devices /proc/misc; ls /srv | grep -c .";
            let run = machine.host.run(shell(look));
            let more = count.saturating_sub(3);
            assert_eq!(
                run.text(),
                format!("/proc/devices:0\n/proc/misc:0\n{more}\n")
            );
            match count {
                1 => check_growth(&mut machine, dax),
                _ => check_stack(&mut machine, dax),
            }
            machine.shut_down();
        }
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_missing_partition_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let images = stack_of(1, directory.path());
    let (path, ranges, _) = partitioned(directory.path(), &images);
    let serial = "image";
    let device = Attach::Disk {
        path: &path,
        serial,
    };
    let mut machine = Machine::start_with(&[device], NO_MAPPER);
    let mut range = ranges[0];
    range.length -= 512;
    let failed = machine.boot(plan(vec![lower(disk(serial, Some(range)))]));
    let failed = failed.unwrap_err();
    assert_eq!(failed.step, "find a piece of a device");
    assert!(failed.target.contains("at 2097152"), "{failed:?}");
    assert!(failed.detail.contains("no device mapper"), "{failed:?}");
    assert!(machine.ended().success());
}

/// The UUID of merged images.
const MERGED: [u8; 16] = [0x99; 16];

/// Merges the stack into one image over its layers. Returns that image, then the layers with the
/// lowest first, which is also their order in one address space.
fn merged(directory: &Path) -> Vec<(PathBuf, [u8; 16])> {
    let mut layers = stack(directory);
    layers.reverse();
    let images: Vec<_> = layers
        .iter()
        .map(|(path, _)| File::open(path).unwrap())
        .collect();
    let sources: Vec<_> = images
        .iter()
        .map(|image| merge::Layer {
            image,
            tag: b"layer",
        })
        .collect();
    let path = directory.join("fsmeta");
    let (file, written) = merge::Merge::of(&sources, 512)
        .unwrap()
        .write_fsmeta(File::create(&path).unwrap(), MERGED)
        .unwrap();
    file.set_len(u64::from(written.padded_blocks) * 4096)
        .unwrap();
    layers.insert(0, (path, MERGED));
    layers
}

#[test]
#[ignore = "needs a built guest"]
fn a_merged_image_spans_pmem_devices() {
    let directory = tempfile::tempdir().unwrap();
    let images = merged(directory.path());
    let devices: Vec<_> = images.iter().map(|(path, _)| Attach::Pmem(path)).collect();
    let mut machine = Machine::start(&devices);
    let layers = images[1..]
        .iter()
        .map(|(_, uuid)| pmem(*uuid, None))
        .collect();
    let root = Lower {
        format: Format::Erofs,
        image: pmem(MERGED, None),
        devices: layers,
    };
    machine.boot(plan(vec![root])).unwrap();
    check_stack(&mut machine, true);
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn a_merged_image_lies_flat_on_one_device() {
    let directory = tempfile::tempdir().unwrap();
    let images: Vec<_> = merged(directory.path())
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    let (path, _) = concatenated(directory.path(), &images);
    let mut machine = Machine::start(&[Attach::Pmem(&path)]);
    machine.boot(plan(vec![lower(pmem(MERGED, None))])).unwrap();
    check_stack(&mut machine, true);
    machine.shut_down();
    let mut machine = Machine::start(&[Attach::Disk {
        path: &path,
        serial: "flat",
    }]);
    machine.boot(plan(vec![lower(disk("flat", None))])).unwrap();
    check_stack(&mut machine, false);
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn a_step_that_fails_is_named_and_ends_the_machine() {
    let directory = tempfile::tempdir().unwrap();
    let image = userland().image(directory.path());
    let mut bytes = Vec::new();
    File::open(&image).unwrap().read_to_end(&mut bytes).unwrap();
    let altered = |name: &str, at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    // An incompatible feature that the kernel does not know, and a missing superblock.
    let unknown = altered("unknown", 1024 + 80 + 3, 0x80);
    let nothing = altered("nothing", 1024, 0);
    let whole = lower(disk("image", None));
    let end = Range {
        offset: 1 << 40,
        length: 4096,
    };
    for (path, lowers, step, target, detail) in [
        (
            &unknown,
            vec![whole.clone()],
            "mount EROFS",
            "the image (/dev/vda)",
            "erofs",
        ),
        (
            &nothing,
            vec![whole.clone()],
            "mount EROFS",
            "/dev/vda",
            "erofs",
        ),
        (
            &image,
            vec![whole.clone(), lower(disk("else", None))],
            "find the disk",
            "serial number else",
            "image",
        ),
        (
            &image,
            vec![lower(pmem([9; 16], None))],
            "find the image",
            "pmem, UUID 09090909090909090909090909090909",
            "no persistent memory is attached",
        ),
        (
            &image,
            vec![lower(disk("image", Some(end)))],
            "map a piece of a device",
            "/dev/vda, 4096 bytes at 1099511627776",
            "device-mapper",
        ),
        (&image, vec![], "mount the image", "it", "no layers"),
    ] {
        let mut machine = Machine::start(&[Attach::Disk {
            path,
            serial: "image",
        }]);
        let failed = machine.boot(plan(lowers)).unwrap_err();
        eprintln!("{failed}");
        assert_eq!(failed.step, step);
        assert!(failed.target.contains(target), "{failed:?}");
        assert!(failed.detail.contains(detail), "{failed:?}");
        assert!(machine.ended().success());
    }
}

#[test]
#[ignore = "needs a built guest"]
fn an_image_that_leaves_no_place_for_a_mount_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let layer = userland();
    fs::remove_dir(layer.at("/proc")).unwrap();
    layer.file("/proc", b"", 0o644);
    let image = layer.image(directory.path());
    let mut machine = Machine::start(&[Attach::Disk {
        path: &image,
        serial: "image",
    }]);
    let failed = machine
        .boot(plan(vec![lower(disk("image", None))]))
        .unwrap_err();
    assert_eq!(
        (failed.step.as_str(), failed.target.as_str()),
        ("make the directory", "/proc")
    );
    assert!(machine.ended().success());
}
