use std::path::PathBuf;

use micabox::{Error as E, Lost, Root, StoreError, Transport};
use micabox_vmm::Exit;
use micabox_wire::{BootFailed, BootPart};

use super::*;

fn name() -> String {
    "it".to_owned()
}

fn path() -> PathBuf {
    "/there".into()
}

fn share(kind: io::ErrorKind) -> E {
    let source = kind.into();
    let path = path();
    E::Share { path, source }
}

fn upper(kind: io::ErrorKind) -> E {
    let source = kind.into();
    let path = path();
    E::UpperFolder { path, source }
}

fn root_disk(problem: Disk) -> E {
    let path = path();
    RootDisk { path, problem }
}

fn image_file(source: impl Into<Source>) -> E {
    E::ImageFile {
        path: path(),
        source: source.into(),
    }
}

fn volume(wish: VolumeWish, user: VolumeUser) -> E {
    let name = name();
    E::VolumeInUse { name, user, wish }
}

fn lost(reason: LostReason) -> Lost {
    Lost {
        reason,
        console: String::new(),
    }
}

fn boot_failed(errno: i32, part: BootPart) -> Lost {
    lost(LostReason::BootFailed(BootFailed {
        step: "mount EROFS".into(),
        target: "the image".into(),
        errno,
        detail: String::new(),
        part,
    }))
}

/// Errors, each with words of the hint for its cause. Every row of the table is for at least one.
fn with_hints() -> Vec<(E, &'static str)> {
    use VolumeUser::{Process, Reader, Sandbox, Writer};
    use VolumeWish::{Read, Remove, Resize, Write};
    use io::ErrorKind as Io;
    let no_snapshots = |backend| E::Machine(Machine::NoSnapshots { backend });
    vec![
        (
            E::NoGuest {
                name: "vmlinux",
                searched: Vec::new(),
            },
            "make guest",
        ),
        (E::GuestDenied { path: path() }, "this user may read"),
        (
            E::Machine(Machine::Spawn {
                path: path(),
                source: Io::NotFound.into(),
            }),
            "QEMU starts",
        ),
        (no_snapshots("host"), "without `--backend host`"),
        (no_snapshots("qemu"), "KVM that works"),
        (
            E::Machine(Machine::NoLimits { why: name() }),
            "control groups",
        ),
        (E::NoLimits(name()), "control groups"),
        (E::Unlimited(name()), "control groups"),
        (E::Machine(Machine::Paused), "unpause"),
        (E::Paused, "unpause"),
        (
            E::Plan(PlanError::TooManyLayers { layers: 501 }),
            "omit `--root stacked`",
        ),
        (E::NoPool, "no disk and no sockets"),
        (image_file("another image"), "fsck --repair"),
        (image_file(io::Error::from(Io::NotFound)), "fsck --repair"),
        (
            E::ImageNotMounted(boot_failed(117, BootPart::Root)),
            "fsck --repair",
        ),
        (E::Boot(boot_failed(12, BootPart::Other)), "`-m`"),
        (E::NoSuchSandbox(name()), "ps -a"),
        (
            E::NameTaken {
                name: name(),
                id: name(),
            },
            "mica rm",
        ),
        (E::Ambiguous(name()), "more digits"),
        (
            E::Store(StoreError::NoImage { name: name() }),
            "`mica images`",
        ),
        (E::Running(name()), "mica stop"),
        (E::DoesNotRun(name()), "ps -a"),
        (E::Starts(name()), "mica stop"),
        (
            E::File {
                what: "writing",
                path: path(),
                source: Io::StorageFull.into(),
            },
            "sandbox's own filesystem",
        ),
        (E::NotKept(name()), "--upper disk"),
        (E::NoDiskOnHost(name()), "without `--backend host`"),
        (
            E::InFolder {
                name: name(),
                path: path(),
            },
            "read the folder",
        ),
        (E::NotInFolder(path()), "omit --add"),
        (
            E::InPlace {
                name: name(),
                path: path(),
            },
            "mica ext4 ls",
        ),
        (E::NoImage(name()), "snapshot create"),
        (E::NotTrimmed("a stack of layers"), "--root stacked"),
        (E::NotTrimmed("a root disk"), "omit --trim"),
        (
            E::NotChecked("an image that is mapped as memory"),
            "omit `--transport pmem`",
        ),
        (E::NotChecked("a stack of layers"), "--root stacked"),
        (E::NotChecked("a root disk"), "omit --verity"),
        (E::NotInPlace("an upper layer"), "omit :rw"),
        (share(Io::NotFound), "make it first"),
        (upper(Io::NotFound), "that it is in"),
        (upper(Io::InvalidInput), "empty"),
        (upper(Io::InvalidData), "with that image"),
        (upper(Io::Unsupported), "ext4, XFS"),
        (E::UpperInUse(path()), "another folder"),
        (E::RootDiskUnnamed(name()), "--root-disk FILE"),
        (root_disk(Disk::Dirty), "replay"),
        (root_disk(Disk::Partitions(name())), "sfdisk"),
        (root_disk(Disk::Image(name(), name())), "qemu-img"),
        (root_disk(Disk::InImage), "omit :rw"),
        (root_disk(Disk::Foreign("a VHDX image")), "qemu-img"),
        (root_disk(Disk::Foreign("compressed (gzip)")), "decompress"),
        (root_disk(Disk::Foreign("a FAT filesystem")), "mke2fs"),
        (root_disk(Disk::Contents(name())), "mke2fs"),
        (root_disk(Disk::Unknown), "mke2fs"),
        (root_disk(Disk::NotMounted(name())), "lacks"),
        (root_disk(Disk::Busy), "without :rw"),
        (root_disk(Disk::Changed), "new sandbox"),
        (root_disk(Disk::ReadOnlyFormat), "omit :rw"),
        (root_disk(Disk::Another), "UUID"),
        (E::NoSuchSnapshot(name()), "snapshot ls"),
        (E::SnapshotExists(name()), "snapshot rm"),
        (E::NothingRuns(name()), "COMMAND"),
        (E::HasMemory(name()), "mica push"),
        (
            E::SnapshotStays {
                name: name(),
                problem: name(),
            },
            "without --memory",
        ),
        (
            E::SnapshotElsewhere {
                name: name(),
                source: Box::new(micabox_vmm::Difference::Monitor { theirs: name() }),
            },
            "like the one that saved it",
        ),
        (E::NoSuchVolume(name()), "volume ls"),
        (E::VolumeExists(name()), "volume rm"),
        (volume(Write, Process), "try again"),
        (volume(Remove, Sandbox(name())), "mica rm"),
        (volume(Resize, Writer(name())), "mica stop"),
        (volume(Resize, Reader(name())), "mica stop"),
        (volume(Write, Reader(name())), "with :ro as well"),
        (volume(Write, Writer(name())), "stop that sandbox"),
        (volume(Read, Writer(name())), "stop that sandbox"),
        (E::NoSuchTree(name()), "mica images"),
        (
            E::Mount(micabox_mount::Error::NoHelper(path())),
            "install fuse3",
        ),
        (E::MountedAlready(path()), "mica umount"),
        (E::MountedFolder(path()), "mount the image"),
        (
            E::MountedUpper {
                upper: path(),
                problem: name(),
            },
            "mica commit",
        ),
        (E::MountedReadOnly(path()), "--rw"),
        (
            E::NotByKernel {
                tree: name(),
                problem: name(),
            },
            "--with kernel",
        ),
        (E::NotMounted(path()), "mica mount"),
    ]
}

/// Errors whose causes have no hint: their messages say what there is to say.
fn without_hints() -> Vec<E> {
    use io::ErrorKind as Io;
    vec![
        E::Machine(Machine::Unsupported {
            backend: "the host backend",
            what: "has no vsock".into(),
        }),
        E::NotPossible("the host backend has no volumes".into()),
        E::MachineNotStarted("pausing the machine: busy".into()),
        E::Machine(Machine::Config("no memory".into())),
        E::Boot(boot_failed(22, BootPart::Other)),
        E::Boot(lost(LostReason::Silent)),
        E::Boot(lost(LostReason::Machine(Exit::PoweredOff))),
        E::Plan(PlanError::TooManyDevices {
            needed: 20,
            limit: 10,
            transport: Transport::Pmem,
            root: Root::Stacked,
        }),
        image_file(io::Error::from(Io::PermissionDenied)),
        share(Io::PermissionDenied),
        upper(Io::PermissionDenied),
        root_disk(Disk::Unusable("Permission denied".into())),
        E::NotSaved {
            name: name(),
            source: "it writes to a volume, which has one writer".into(),
        },
        E::File {
            what: "reading",
            path: path(),
            source: Io::NotFound.into(),
        },
        E::Store(StoreError::Ambiguous {
            name: name(),
            images: Vec::new(),
        }),
        E::Cancelled,
    ]
}

#[test]
fn a_hint_is_given_for_its_cause_and_every_cause_of_the_table_arises() {
    let mut arose = vec![false; CAUSES.len()];
    for (error, words) in with_hints() {
        let rows: Vec<usize> = (0..CAUSES.len())
            .filter(|row| (CAUSES[*row].is)(&error))
            .collect();
        let [row] = rows[..] else {
            panic!("{error}: it is in the rows {rows:?}, and must be in one");
        };
        arose[row] = true;
        let hint = hint(&error).unwrap_or_default();
        assert!(hint.contains(words), "{error}: {hint}");
    }
    let never = arose.iter().position(|arose| !arose);
    assert_eq!(
        never.map(|row| CAUSES[row].hint),
        None,
        "no test has its cause"
    );
}

#[test]
fn an_error_of_the_same_kind_with_another_cause_gets_no_hint() {
    for error in without_hints() {
        assert_eq!(hint(&error), None, "{error}");
    }
}

#[test]
fn the_remedy_for_a_backend_that_does_not_work_is_its_own() {
    use micabox::BackendChoice;
    use micabox_vmm::choose;
    for choice in [BackendChoice::Kvm, BackendChoice::Host] {
        let Err(error) = choose(choice) else { continue };
        let remedy = error.remedy().map(str::to_owned);
        assert_eq!(hint(&error.into()).map(str::to_owned), remedy);
    }
}
