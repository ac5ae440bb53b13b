//! The causes of failures for which there is a next step, each with its hint. The SDK does not know our commands.
//!
//! A hint belongs to one cause, so a row has all that tells its cause from others. A command that knows a cause
//! better than its error does has a hint of its own ([`Failure::hint`](crate::failure::Failure::hint)).

use std::io;

use micabox::Error::{self as E, RootDisk};
use micabox::{
    DiskProblem as Disk, LostReason, PlanError, Source, StoreError, VolumeUser, VolumeWish,
};
use micabox_vmm::Error as Machine;
use rustix::io::Errno;

/// A cause, and what to do about it.
struct Cause {
    /// Whether it is the cause of an error.
    is: fn(&E) -> bool,
    hint: &'static str,
}

/// Makes the table, of patterns and hints.
macro_rules! causes {
    ($($pattern:pat $(if $guard:expr)? => $hint:expr,)*) => {
        &[$(Cause {
            is: |error| matches!(error, $pattern $(if $guard)?),
            hint: $hint,
        },)*]
    };
}

const CONTROL_GROUPS: &str = "`mica doctor` says what control groups need";
const CONVERT: &str = "`qemu-img convert -O raw IMAGE FILE` makes a raw one";
const MAKE_ONE: &str =
    "make one with `mke2fs -d DIRECTORY FILE SIZE` or `mkfs.erofs FILE DIRECTORY`";
const REPAIR: &str =
    "`mica store fsck --repair` removes what is damaged; then pull the image again";

/// All causes. Not more than one row is for an error.
const CAUSES: &[Cause] = causes! {
    // Backends, and what they need.
    E::NoGuest { .. } => "build the guest with `make guest`, or name its directory in MICABOX_GUEST",
    E::GuestDenied { .. } =>
        "copy the guest to where this user may read, and name that directory in MICABOX_GUEST",
    E::Machine(Machine::Spawn { .. }) => "`mica doctor` says whether QEMU starts here",
    E::Machine(Machine::NoSnapshots { backend: "host" }) =>
        "only a machine has memory of its own: run it without `--backend host`",
    E::Machine(Machine::NoSnapshots { backend }) if *backend != "host" =>
        "`mica doctor` says whether this machine has a KVM that works",
    E::Machine(Machine::NoLimits { .. }) | E::NoLimits(_) | E::Unlimited(_) => CONTROL_GROUPS,
    E::Machine(Machine::Paused) | E::Paused => "`mica unpause` lets it continue",
    E::Store(StoreError::NoImage { .. }) =>
        "`mica images` lists what is there; `mica pull` or `mica load` gets another image",
    E::Plan(PlanError::TooManyLayers { .. }) =>
        "a merged root takes any number of layers: omit `--root stacked`",
    E::NoPool =>
        "a pool's machines are restored from a template and have no disk and no sockets; \
         `mica run --log debug` says what a sandbox starts from",
    // Images, and their files.
    E::ImageFile { source, .. } if is_damage(source) => REPAIR,
    E::ImageNotMounted(_) => REPAIR,
    E::Boot(lost) if lacks_memory(&lost.reason) => "give it more memory with `-m`",
    // Sandboxes.
    E::NoSuchSandbox(_) => "`mica ps -a` lists all sandboxes",
    E::NameTaken { .. } => "choose another name, or remove that one with `mica rm`",
    E::Ambiguous(_) => "give more digits of the ID",
    E::Running(_) => "stop it first with `mica stop`",
    E::Starts(_) => "try again when `mica ps` shows it as up; `mica stop` ends it",
    E::DoesNotRun(_) => "`mica ps -a` shows its state, and how it ended",
    E::File { source, .. } if is_full(source) =>
        "it is the sandbox's own filesystem: remove files there, or run it with more memory (`-m`) or a \
         larger disk (`--upper disk:SIZE`)",
    // What it has changed.
    E::NotKept(_) => "run it with `--upper disk`",
    E::NoDiskOnHost(_) =>
        "`mica cp` gets files out while it runs; run it as a machine, without `--backend host`, to keep \
         changes (`--upper disk`)",
    E::InFolder { .. } =>
        "`mica diff` and `mica commit` read the folder, and it can be copied once the sandbox has stopped",
    E::NotInFolder(_) =>
        "omit --add, --mkdir, --symlink and --remove, or run it with `--upper disk`",
    E::InPlace { .. } =>
        "look inside with `mica ext4 ls FILE` and `mica ext4 cp` once it has stopped",
    E::NoImage(_) => "`mica snapshot create` keeps its changes, or `mica cp` gets files out",
    E::NotTrimmed("a stack of layers") => "omit `--root stacked`: a merged root shows the same",
    E::NotTrimmed("a root disk") => "omit --trim: it leaves files of an image out",
    E::NotChecked("an image that is mapped as memory") => "omit `--transport pmem`: mapped pages come from this machine's \
        page cache, past dm-verity. `mica doctor` says whether fs-verity checks them here",
    E::NotChecked("a stack of layers") => "omit `--root stacked`: a merged root shows the same",
    E::NotChecked("a root disk") => "omit --verity: it is about images",
    E::NotInPlace(_) => "omit :rw, and the file is not changed",
    // Folders of the host.
    E::Share { source, .. } if source.kind() == io::ErrorKind::NotFound =>
        "make it first; `-v` of `mica run` and `mica create` makes a missing folder, `--mount` does not",
    E::UpperFolder { source, .. } if source.kind() == io::ErrorKind::NotFound =>
        "make the folder that it is in",
    E::UpperFolder { source, .. } if source.kind() == io::ErrorKind::InvalidInput =>
        "name an absolute path, of a folder that is empty or has only a sandbox's changes",
    E::UpperFolder { source, .. } if source.kind() == io::ErrorKind::InvalidData =>
        "use it with that image, or name another folder",
    E::UpperFolder { source, .. } if lacks_feature(source) =>
        "name a folder on a filesystem such as ext4, XFS or Btrfs",
    E::UpperInUse(_) => "one sandbox uses it at a time: stop that one, or name another folder",
    // Root disks.
    E::RootDiskUnnamed(_) => "name the file: `mica run --from SNAPSHOT --root-disk FILE`",
    RootDisk { problem: Disk::Dirty, .. } =>
        "`mica ext4 replay FILE` puts them in place, as `e2fsck -p FILE` does; or have the \
         sandbox do it with `--root-disk FILE:rw`",
    RootDisk { problem: Disk::Partitions(_), .. } =>
        "`sfdisk -d FILE` lists the partitions; `--root-disk FILE,partition=N` takes one",
    RootDisk { problem: Disk::Image(..), .. } => CONVERT,
    RootDisk { problem: Disk::InImage, .. } =>
        "omit :rw: changes then go to memory, or to `--upper disk`",
    RootDisk { problem: Disk::Foreign(what), .. } if is_virtual_disk(what) => CONVERT,
    RootDisk { problem: Disk::Foreign(what), .. } if is_compressed(what) => "decompress it first",
    RootDisk { problem: Disk::Foreign(what), .. }
        if !is_virtual_disk(what) && !is_compressed(what) => MAKE_ONE,
    RootDisk { problem: Disk::Contents(_) | Disk::Unknown, .. } => MAKE_ONE,
    RootDisk { problem: Disk::NotMounted(_), .. } =>
        "if `mica ext4 check FILE` or `fsck.erofs FILE` finds no damage, it has features that the guest's \
         kernel lacks: make one with `mke2fs -d DIRECTORY FILE SIZE` or `mkfs.erofs FILE DIRECTORY`",
    RootDisk { problem: Disk::Busy, .. } =>
        "`mica ps` lists running sandboxes; without :rw, any number may share the file",
    RootDisk { problem: Disk::Changed, .. } => "make a new sandbox, or restore the file's contents",
    RootDisk { problem: Disk::ReadOnlyFormat, .. } =>
        "omit :rw: changes then go to memory, or to `--upper disk`",
    RootDisk { problem: Disk::Another, .. } =>
        "a copy of the file has the same UUID; another filesystem does not",
    // Snapshots.
    E::NoSuchSnapshot(_) => "`mica snapshot ls` lists all snapshots",
    E::SnapshotExists(_) => "choose another name, or remove that one with `mica snapshot rm`",
    E::NothingRuns(_) => "add a COMMAND: `mica run --from NAME COMMAND`",
    E::HasMemory(_) =>
        "`mica push SNAPSHOT REF` sends it to a registry; or make a snapshot of the disk alone, without --memory",
    E::SnapshotStays { .. } => "make a snapshot of the disk alone, without --memory",
    E::SnapshotElsewhere { .. } =>
        "use it on a machine like the one that saved it, or make a snapshot there of the disk alone, without --memory",
    // Volumes.
    E::NoSuchVolume(_) => "`mica volume ls` lists all volumes",
    E::VolumeExists(_) => "choose another name, or remove that one with `mica volume rm`",
    E::VolumeInUse { user: VolumeUser::Process, .. } =>
        "try again: a sandbox that has it starts or ends, or it is being changed",
    E::VolumeInUse { user: VolumeUser::Sandbox(_), .. } =>
        "remove that sandbox first, with `mica rm`, or `mica rm -f` while it runs",
    E::VolumeInUse { wish: VolumeWish::Resize | VolumeWish::Remove, user, .. }
        if is_running(user) => "stop that sandbox first, with `mica stop`",
    E::VolumeInUse { wish: VolumeWish::Write, user: VolumeUser::Reader(_), .. } =>
        "a volume has one writer or many readers: mount it with :ro as well, or stop that sandbox",
    E::VolumeInUse { wish: VolumeWish::Write | VolumeWish::Read, user: VolumeUser::Writer(_), .. } =>
        "a volume has one writer or many readers: stop that sandbox, or start it again with :ro",
    // Mounted trees.
    E::NoSuchTree(_) =>
        "`mica images`, `mica ps -a` and `mica snapshot ls` list what there is; `mica pull` gets images",
    E::Mount(micabox_mount::Error::NoHelper(_)) =>
        "install fuse3; or give a command, which alone sees the tree: `mica mount ... -- COMMAND`",
    E::MountedAlready(_) => "`mica umount` unmounts it",
    E::MountedFolder(_) => "look there, or mount the image",
    E::MountedUpper { .. } =>
        "without `--upper` they are in memory: `mica commit` makes an image of them",
    E::MountedReadOnly(_) => "`mica mount --rw` mounts one that can be changed",
    E::NotByKernel { .. } => "omit `--with kernel`: a process of mica's then serves it",
    E::NotMounted(_) => "`mica mount` lists what is; `umount` unmounts what is not mica's",
};

/// Returns what to do about an error.
pub fn hint(error: &E) -> Option<&str> {
    // Of a backend, the machine's own check knows the cause.
    if let E::Machine(error) = error
        && let Some(remedy) = error.remedy()
    {
        return Some(remedy);
    }
    let cause = CAUSES.iter().find(|cause| (cause.is)(error));
    cause.map(|cause| cause.hint)
}

/// Whether a file has other contents than it should, or is gone: not, whether it can't be opened or read.
fn is_damage(source: &Source) -> bool {
    let error = source.downcast_ref::<io::Error>();
    error.is_none_or(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Whether a filesystem is full, or a quota used up.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Whether a filesystem lacks what overlayfs needs of it.
fn lacks_feature(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported)
}

fn lacks_memory(reason: &LostReason) -> bool {
    let no_memory = Errno::NOMEM.raw_os_error();
    matches!(reason, LostReason::BootFailed(failed) if failed.errno == no_memory)
}

fn is_running(user: &VolumeUser) -> bool {
    matches!(user, VolumeUser::Writer(_) | VolumeUser::Reader(_))
}

fn is_virtual_disk(what: &str) -> bool {
    ["VMDK", "VHD", "VDI", "QED", "Parallels"]
        .iter()
        .any(|name| what.contains(name))
}

fn is_compressed(what: &str) -> bool {
    what.starts_with("compressed")
}

#[cfg(test)]
mod tests;
