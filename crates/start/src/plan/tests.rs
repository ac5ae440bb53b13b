use super::*;
use std::os::unix::fs::FileExt;

use micabox_vmm::FileRef;

const MIB: u64 = 1 << 20;

const ONE: Limits = Limits {
    files_per_region: FilesPerRegion::One,
    max_devices: 10,
    cheap_regions: 4,
    public_regions: false,
    snapshots: false,
    frame_header: false,
    vhost_user: false,
    parts: false,
    own_kernel: true,
};

const MANY: Limits = Limits {
    files_per_region: FilesPerRegion::Many,
    ..ONE
};

fn file(number: u8, mib: u64) -> ImageFile {
    let description = FileRef {
        number: 0,
        length: mib * MIB,
        name: format!("/s/{number}"),
        part: None,
    };
    // The plan doesn't read it.
    let file = std::fs::File::open("/dev/null").unwrap();
    ImageFile {
        file: MachineFile::received(file, description),
        uuid: [number; 16],
    }
}

/// Makes an image whose fsmeta is file 100 and whose layers are files 0, 1, 2... of 2, 4, 6... MiB.
fn image(layers: u8) -> ImageFiles {
    ImageFiles {
        fsmeta: file(100, 2),
        layers: (0..layers)
            .map(|number| file(number, 2 * (u64::from(number) + 1)))
            .collect(),
        first_layer: 0,
        fixup: None,
    }
}

fn plan(image: &ImageFiles, transport: Transport, root: Root, limits: &Limits) -> Plan {
    Plan::new(image, transport, root, limits).unwrap()
}

fn pmem(number: u8) -> Extent {
    on_pmem([number; 16], None)
}

fn piece(offset: u64, length: u64) -> Option<Range> {
    Some(Range {
        offset: offset * MIB,
        length: length * MIB,
    })
}

fn lower(image: Extent, devices: Vec<Extent>) -> Lower {
    Lower {
        format: micabox_wire::Format::Erofs,
        image,
        devices,
    }
}

fn names(files: &[MachineFile]) -> Vec<&str> {
    let names = files.iter().map(|file| file.path().to_str().unwrap());
    names.collect()
}

/// Returns the names of the files of each region.
fn regions(plan: &Plan) -> Vec<Vec<&str>> {
    plan.pmem
        .iter()
        .map(|region| names(&region.files))
        .collect()
}

#[test]
fn merged_pmem_mounts_fsmeta_over_a_device_a_layer() {
    let plan = plan(&image(2), Transport::Pmem, Root::Merged, &ONE);
    assert_eq!(regions(&plan), [["/s/100"], ["/s/0"], ["/s/1"]]);
    assert_eq!(plan.lowers, [lower(pmem(100), vec![pmem(0), pmem(1)])]);
    assert!(plan.disks.is_empty());
}

#[test]
fn merged_pmem_is_one_flat_region_where_that_can_be() {
    let plan = plan(&image(2), Transport::Pmem, Root::Merged, &MANY);
    assert_eq!(regions(&plan), [["/s/100", "/s/0", "/s/1"]]);
    assert_eq!(plan.pmem[0].size(), 8 * MIB);
    assert_eq!(plan.lowers, [lower(pmem(100), vec![])]);
}

#[test]
fn merged_blk_is_one_flat_disk() {
    let plan = plan(&image(2), Transport::Blk, Root::Merged, &ONE);
    assert!(plan.pmem.is_empty());
    assert_eq!(plan.disks.len(), 1);
    assert_eq!(names(&plan.disks[0].files), ["/s/100", "/s/0", "/s/1"]);
    assert!(plan.disks[0].read_only);
    assert_eq!(plan.lowers, [lower(on_disk("image", None), vec![])]);
}

#[test]
fn stacked_layers_come_topmost_first() {
    let plan = plan(&image(3), Transport::Pmem, Root::Stacked, &ONE);
    assert_eq!(regions(&plan), [["/s/0"], ["/s/1"], ["/s/2"]]);
    let expected = [2, 1, 0].map(|number| lower(pmem(number), vec![]));
    assert_eq!(plan.lowers, expected);
}

#[test]
fn a_stacked_root_of_more_layers_than_an_overlay_takes_is_refused_before_the_boot() {
    let layers = |count: u16| {
        let layer = |number: u16| ImageFile {
            uuid: (u128::from(number) + 1).to_le_bytes(),
            ..file(0, 2)
        };
        ImageFiles {
            layers: (0..count).map(layer).collect(),
            ..image(0)
        }
    };
    let plan = |image, root| Plan::new(image, Transport::Blk, root, &ONE);
    let (fits, exceeds) = (layers(498), layers(499));
    assert!(plan(&fits, Root::Stacked).is_ok());
    let refused = plan(&exceeds, Root::Stacked).map(drop);
    assert_eq!(refused, Err(PlanError::TooManyLayers { layers: 499 }));
    assert!(plan(&exceeds, Root::Merged).is_ok());
}

#[test]
fn stacked_pieces_of_one_region_and_of_one_disk() {
    let packed = ["/s/0", "/s/1"];
    let pieces = [piece(4, 4), piece(2, 2)];
    let region = plan(&image(2), Transport::Pmem, Root::Stacked, &MANY);
    assert_eq!(regions(&region), [packed]);
    let uuid = region.table.as_ref().unwrap().uuid;
    let expected = pieces.map(|range| lower(on_pmem(uuid, range), vec![]));
    assert_eq!(region.lowers, expected);

    let disk = plan(&image(2), Transport::Blk, Root::Stacked, &ONE);
    assert_eq!(names(&disk.disks[0].files), packed);
    let expected = pieces.map(|range| lower(on_disk("image", range), vec![]));
    assert_eq!(disk.lowers, expected);
    assert_eq!(disk.table, region.table);
}

#[test]
fn more_pieces_than_partitions_are_for_a_device_mapper() {
    let mut image = image(255);
    let plan = |image: &ImageFiles, transport| self::plan(image, transport, Root::Stacked, &MANY);
    assert!(plan(&image, Transport::Pmem).table.is_some());
    image.fixup = Some(file(255, 2));
    for transport in [Transport::Pmem, Transport::Blk] {
        let plan = plan(&image, transport);
        assert_eq!(plan.table, None);
        let first = &plan.lowers.last().unwrap().image;
        assert_eq!(first.range, piece(0, 2));
        if transport == Transport::Pmem {
            assert_eq!(first.device, Device::Pmem { uuid: [0; 16] });
        }
    }
}

#[test]
fn the_fixup_lies_on_top_and_reads_from_all_layers() {
    let mut image = image(2);
    image.fixup = Some(file(200, 2));
    let devices = plan(&image, Transport::Pmem, Root::Stacked, &ONE);
    assert_eq!(regions(&devices), [["/s/0"], ["/s/1"], ["/s/200"]]);
    let zero = on_pmem([0; 16], piece(0, 2));
    let one = on_pmem([1; 16], piece(0, 4));
    assert_eq!(
        devices.lowers,
        [
            lower(pmem(200), vec![zero.clone(), one.clone()]),
            lower(one, vec![]),
            lower(zero, vec![]),
        ]
    );

    // On one device the fixup is a flat image, followed by the layers again.
    let packed = ["/s/0", "/s/1", "/s/200", "/s/0", "/s/1"];
    let pieces = [piece(8, 8), piece(4, 4), piece(2, 2)];
    let region = plan(&image, Transport::Pmem, Root::Stacked, &MANY);
    assert_eq!(regions(&region), [packed]);
    let uuid = region.table.as_ref().unwrap().uuid;
    let expected = pieces.map(|range| lower(on_pmem(uuid, range), vec![]));
    assert_eq!(region.lowers, expected);

    let disk = plan(&image, Transport::Blk, Root::Stacked, &ONE);
    assert_eq!(disk.disks.len(), 1);
    assert_eq!(names(&disk.disks[0].files), packed);
    let expected = pieces.map(|range| lower(on_disk("image", range), vec![]));
    assert_eq!(disk.lowers, expected);

    // A merged root needs no fixup.
    let merged = plan(&image, Transport::Pmem, Root::Merged, &ONE);
    assert_eq!(merged.pmem.len(), 3);
}

#[test]
fn the_machine_finds_what_the_plan_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let lengths = |files: &[MachineFile]| {
        let lengths = files.iter().map(MachineFile::length);
        lengths.collect::<Vec<_>>()
    };
    let mut region = plan(&image(2), Transport::Pmem, Root::Stacked, &MANY);
    let table = region.table.clone().unwrap();
    region.write_files(directory.path()).unwrap();
    let files = &region.pmem[0].files;
    let own = |name| directory.path().join(name).display().to_string();
    let (head, tail) = (own("partitions"), own("partitions.copy"));
    assert_eq!(names(files), [&*head, "/s/0", "/s/1", &*tail]);
    assert_eq!(
        lengths(files),
        [2, 2, 4, 2].map(|mib| mib * MIB),
        "where the plan has put the layers"
    );
    let mut bytes = vec![0; table.head.len()];
    files[0].file().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, table.head);

    let mut disk = plan(&image(2), Transport::Blk, Root::Stacked, &ONE);
    disk.write_files(directory.path()).unwrap();
    assert_eq!(names(&disk.disks[0].files), names(files));

    // The image's own files are all that a merged root needs.
    let mut merged = plan(&image(2), Transport::Blk, Root::Merged, &ONE);
    merged.write_files(directory.path()).unwrap();
    assert_eq!(names(&merged.disks[0].files), ["/s/100", "/s/0", "/s/1"]);
}

#[test]
fn layers_that_can_not_be_seen_are_not_stacked() {
    let mut image = image(3);
    image.first_layer = 1;
    let stacked = plan(&image, Transport::Pmem, Root::Stacked, &ONE);
    assert_eq!(
        stacked.lowers,
        [2, 1].map(|number| lower(pmem(number), vec![]))
    );
    // fsmeta's device table has all layers.
    let merged = plan(&image, Transport::Pmem, Root::Merged, &ONE);
    assert_eq!(merged.lowers[0].devices.len(), 3);
}

#[test]
fn a_layer_that_occurs_twice_is_one_device() {
    let mut image = image(2);
    image.layers.push(image.layers[0].clone());
    let stacked = plan(&image, Transport::Pmem, Root::Stacked, &ONE);
    assert_eq!(regions(&stacked), [["/s/0"], ["/s/1"]]);
    assert_eq!(
        stacked.lowers,
        [0, 1].map(|number| lower(pmem(number), vec![]))
    );
    let merged = plan(&image, Transport::Pmem, Root::Merged, &ONE);
    assert_eq!(merged.pmem.len(), 3);
    assert_eq!(merged.lowers[0].devices, [pmem(0), pmem(1), pmem(0)]);
    // In one address space the layer has two places.
    let flat = plan(&image, Transport::Pmem, Root::Merged, &MANY);
    assert_eq!(flat.pmem[0].files.len(), 4);
    let disk = plan(&image, Transport::Blk, Root::Stacked, &ONE);
    assert_eq!(disk.lowers.len(), 2);
}

#[test]
fn auto_takes_pmem_while_it_is_cheap() {
    let auto = |layers, root, limits| plan(&image(layers), Transport::Auto, root, limits);
    assert_eq!(auto(3, Root::Merged, &ONE).transport, Transport::Pmem);
    let many_layers = auto(4, Root::Merged, &ONE);
    assert_eq!(many_layers.transport, Transport::Blk);
    let reason = many_layers.reason.unwrap();
    assert!(
        reason.contains("5 pmem devices") && reason.contains("up to 4"),
        "{reason}"
    );
    assert_eq!(auto(4, Root::Stacked, &ONE).transport, Transport::Pmem);
    assert_eq!(auto(200, Root::Merged, &MANY).transport, Transport::Pmem);
    let asked = plan(&image(4), Transport::Pmem, Root::Merged, &ONE);
    assert_eq!((asked.transport, asked.reason), (Transport::Pmem, None));
}

#[test]
fn more_devices_than_a_machine_has_is_an_error() {
    plan(&image(9), Transport::Pmem, Root::Merged, &ONE);
    let error = Plan::new(&image(10), Transport::Pmem, Root::Merged, &ONE).unwrap_err();
    assert!(
        error.to_string().contains("11 devices over pmem"),
        "{error}"
    );
    plan(&image(10), Transport::Pmem, Root::Merged, &MANY);
}

#[test]
fn an_image_from_scratch_has_a_merged_root() {
    for transport in [Transport::Pmem, Transport::Blk] {
        let plan = plan(&image(0), transport, Root::Stacked, &ONE);
        assert_eq!(plan.root, Root::Merged);
        assert_eq!(plan.lowers.len(), 1);
    }
}

#[test]
fn describing_pmem_costs_the_guest_memory() {
    let mut image = image(1);
    image.layers[0] = file(0, 2 << 10);
    let pmem = plan(&image, Transport::Pmem, Root::Stacked, &ONE);
    assert_eq!(pmem.pmem_overhead_mib(), 32);
    let blk = plan(&image, Transport::Blk, Root::Stacked, &ONE);
    assert_eq!(blk.pmem_overhead_mib(), 0);
}
