//! A machine's configuration, checked before a backend starts it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use micabox_spec::Machine;
use serde::{Deserialize, Serialize};

use crate::{Error, MachineFile, Snapshot};

/// virtio-pmem's rule: a region's size is a multiple of 2 MiB.
pub const PMEM_ALIGNMENT: u64 = 2 << 20;

/// virtio-blk's limit on a serial number (`VIRTIO_BLK_ID_BYTES`).
const MAX_SERIAL: usize = 20;

/// Most bytes of the name of a virtio-fs device.
const LONGEST_TAG: usize = 36;

/// A machine, independent of the backend that runs it.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The name that `ps` and the backend's messages show; letters, digits, `-`.
    pub name: String,
    /// How the machine begins.
    pub begin: Begin,
    /// Its size and its limits; one processor if `cpus` is None.
    pub machine: Machine,
    /// Read-only persistent-memory regions.
    pub pmem: Vec<PmemRegion>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Trees that are mounted already, for a backend whose machines have no kernel of their own. All
    /// have the same users.
    pub trees: Vec<Tree>,
    /// Connects to the servers of files of which only a part is here, if there are such files.
    pub parts: Option<Arc<dyn PartServers>>,
    /// A network interface.
    pub network: Option<NetworkInterface>,
    /// Sockets between the guest's programs and the host's (virtio-vsock), where the backend has
    /// them.
    pub vsock: Option<Sockets>,
    /// Folders of the host, each a device that the guest's kernel mounts by its tag (virtio-fs).
    pub shares: Vec<Share>,
    /// Words to append to the kernel command line.
    pub cmdline_extra: Vec<String>,
    /// A file that the machine's process keeps open until all of it has ended, even if its owner
    /// ends first: a lock (`flock`) on the file lasts as long.
    pub lifeline: Option<Arc<File>>,
    /// Processes and threads of all commands together, where the kernel is not the machine's own
    /// ([`Limits::own_kernel`](crate::Limits::own_kernel)); otherwise the guest limits them.
    pub max_processes: Option<u64>,
}

/// The servers of files of which only a part is here.
pub trait PartServers: std::fmt::Debug + Send + Sync {
    /// Returns a connection to a server, which has greeted, for [`Asker`](micabox_layerfs::ask::Asker). A server that has
    /// ended is started again. Only a [`Part`](crate::Part) of the machine's files names it.
    ///
    /// # Errors
    /// Why there is none, for a user.
    fn connect(&self, server: &str) -> std::io::Result<std::os::unix::net::UnixStream>;
}

/// A tree that a kernel shared by many has mounted for a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tree<F = Arc<File>> {
    /// The serial number by which the agent knows it, as it knows a disk.
    pub serial: String,
    /// A detached mount.
    pub mount: F,
    /// The user namespace that the mounted filesystem is in; none for this machine's own.
    pub users: Option<F>,
    /// What the machine keeps open, so that the tree stays. If it ends first (POLLHUP), the tree is gone.
    pub holder: F,
}

impl<F> Tree<F> {
    /// Converts the files.
    pub fn map<G>(self, mut convert: impl FnMut(F) -> G) -> Tree<G> {
        Tree {
            serial: self.serial,
            mount: convert(self.mount),
            users: self.users.map(&mut convert),
            holder: convert(self.holder),
        }
    }

    /// Converts the files, unless one can't be.
    ///
    /// # Errors
    /// The first of `convert`.
    pub fn try_map<G, E>(self, mut convert: impl FnMut(F) -> Result<G, E>) -> Result<Tree<G>, E> {
        Ok(Tree {
            serial: self.serial,
            mount: convert(self.mount)?,
            users: self.users.map(&mut convert).transpose()?,
            holder: convert(self.holder)?,
        })
    }
}

/// How a machine begins.
#[derive(Clone, Debug)]
pub enum Begin {
    /// By booting a kernel.
    Boot {
        /// An uncompressed ELF kernel with a PVH entry (`vmlinux`).
        kernel: MachineFile,
        /// An initramfs for it.
        initrd: MachineFile,
    },
    /// By restoring a saved machine, if the backend [can](crate::Limits::snapshots). The rest of
    /// the configuration must be the saved machine's, except for the network interface's link and
    /// address, the host's end of its sockets, and the contents of the disks' files.
    Restore(Snapshot),
}

/// The host's end of a guest's sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sockets {
    /// Programs that connect to this path, and programs that listen at `PATH_PORT`.
    At(PathBuf),
    /// No programs: for a copy of a machine that had sockets.
    Nowhere,
}

/// A folder of the host, by virtio-fs.
#[derive(Clone, Debug)]
pub struct Share {
    /// The device's name, by which the guest mounts it: at most 36 letters and digits.
    pub tag: String,
    /// The socket to the server. Where the backend's limits say so
    /// ([`Limits::vhost_user`](crate::Limits::vhost_user)), vhost-user is spoken on it; otherwise it
    /// is a stream of FUSE requests, and of replies to them, with `unique` of the sender's choice.
    pub socket: Arc<OwnedFd>,
    /// The server, which is dropped when the machine has ended.
    pub server: Arc<dyn ShareServer>,
}

/// What serves a share.
pub trait ShareServer: std::fmt::Debug + Send + Sync {}

impl<T: std::fmt::Debug + Send + Sync> ShareServer for T {}

/// A virtio network device.
#[derive(Clone, Debug)]
pub struct NetworkInterface {
    /// The socket for frames, which must preserve message boundaries (`SOCK_SEQPACKET`). Each frame
    /// begins with an ethernet header. Where the backend's limits require it (`frame_header`),
    /// frames for the machine have 12 bytes before that, which the driver gets unchanged (`struct
    /// virtio_net_hdr_v1`: one buffer, checksums left to the guest or not, no segmentation). Frames
    /// from the machine have no such header.
    pub link: Arc<OwnedFd>,
    /// The interface's ethernet address, in the order of transmission.
    pub address: [u8; 6],
    /// Size in bytes of the largest IP packet, at least 1280.
    pub mtu: u16,
}

/// One read-only persistent-memory device: files mapped back to back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PmemRegion<F = MachineFile> {
    /// The files in the order of their addresses, each of a multiple of 2 MiB, not 0. They must not
    /// change while the machine runs. More than one only where
    /// [`FilesPerRegion::Many`](crate::FilesPerRegion::Many) allows it.
    pub files: Vec<F>,
}

/// One virtio block device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Disk<F = MachineFile> {
    /// The files with its bytes, one after another. Only a single file can be written to; it must
    /// be open for writing.
    pub files: Vec<F>,
    /// Whether the guest may only read it.
    pub read_only: bool,
    /// The serial number, by which the guest recognises the disk; 1 to 20 printable ASCII
    /// characters.
    pub serial: String,
}

impl PmemRegion {
    /// Returns the bytes of address space that the region takes.
    pub fn size(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.length()))
    }
}

impl<F> PmemRegion<F> {
    /// Returns the region with each file converted.
    ///
    /// # Errors
    /// The first that `convert` returns.
    pub fn try_map<G, E>(self, convert: impl FnMut(F) -> Result<G, E>) -> Result<PmemRegion<G>, E> {
        let files = self.files.into_iter().map(convert);
        Ok(PmemRegion {
            files: files.collect::<Result<_, _>>()?,
        })
    }
}

impl<F> Disk<F> {
    /// Returns the disk with each file converted.
    ///
    /// # Errors
    /// The first that `convert` returns.
    pub fn try_map<G, E>(self, convert: impl FnMut(F) -> Result<G, E>) -> Result<Disk<G>, E> {
        let files = self.files.into_iter().map(convert);
        Ok(Disk {
            files: files.collect::<Result<_, _>>()?,
            read_only: self.read_only,
            serial: self.serial,
        })
    }
}

/// Returns how much processor time the process of a machine with so many virtual processors may use,
/// in thousandths of a processor.
pub(crate) fn processor_time(cpus: u8, quota: Option<u32>) -> u64 {
    // One more for the devices' thread.
    let whole = (u64::from(cpus) + 1) * 1000;
    quota.map_or(whole, u64::from)
}

impl MachineConfig {
    /// Returns the number of virtual processors.
    pub(crate) fn cpus(&self) -> u8 {
        self.machine.cpus.unwrap_or(1)
    }

    /// Returns how much processor time its process may use, in thousandths of a processor.
    pub(crate) fn processor_time(&self) -> u64 {
        processor_time(self.cpus(), self.machine.cpu_quota)
    }

    /// Returns the bytes of address space that the machine's memory takes in its process.
    pub(crate) fn address_space(&self) -> u64 {
        self.pmem
            .iter()
            .fold(self.ram(), |sum, region| sum.saturating_add(region.size()))
    }

    /// Returns the bytes of RAM.
    pub(crate) fn ram(&self) -> u64 {
        u64::from(self.machine.memory_mib) << 20
    }

    /// Returns the length in bytes of the largest file that the machine may write to; 0 if there is
    /// none.
    pub(crate) fn largest_written_file(&self) -> u64 {
        let written = self.disks.iter().filter(|disk| !disk.read_only);
        let lengths = written.flat_map(|disk| disk.files.iter().map(MachineFile::length));
        lengths.max().unwrap_or_default()
    }

    /// Returns the servers of its shares.
    pub(crate) fn servers(&self) -> Vec<Arc<dyn ShareServer>> {
        let servers = self.shares.iter().map(|share| &share.server);
        servers.map(Arc::clone).collect()
    }

    /// Checks what every backend relies on.
    ///
    /// # Errors
    /// [`Error::Config`] or [`Error::File`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.machine.check()?;
        let name_is_plain = self
            .name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !name_is_plain {
            return Err(Error::Config(format!("machine name {:?}", self.name)));
        }
        for share in &self.shares {
            let is_plain = share.tag.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !is_plain || share.tag.is_empty() || share.tag.len() > LONGEST_TAG {
                return Err(Error::Config(format!("share tag {:?}", share.tag)));
            }
        }
        for region in &self.pmem {
            if region.files.is_empty() {
                return Err(Error::Config("a pmem region without files".into()));
            }
            for file in &region.files {
                let length = file.length();
                if length == 0 || !length.is_multiple_of(PMEM_ALIGNMENT) {
                    let why = format!("its {length} bytes are not a multiple of 2 MiB");
                    return Err(file.failed(why));
                }
            }
        }
        for disk in &self.disks {
            match disk.files.len() {
                0 => return Err(Error::Config("a disk without files".into())),
                1 => {}
                _ if disk.read_only => {}
                _ => return Err(Error::Config("a disk of several files to write to".into())),
            }
            let serial = disk.serial.as_bytes();
            if serial.is_empty()
                || serial.len() > MAX_SERIAL
                || !serial.iter().all(u8::is_ascii_graphic)
            {
                return Err(Error::Config(format!("disk serial {:?}", disk.serial)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u64) -> MachineFile {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        MachineFile::new(file, "/store/layer.erofs").unwrap()
    }

    fn config() -> MachineConfig {
        MachineConfig {
            name: "test".into(),
            begin: Begin::Boot {
                kernel: file(1),
                initrd: file(1),
            },
            machine: Machine {
                memory_mib: 256,
                ..Machine::default()
            },
            pmem: Vec::new(),
            disks: Vec::new(),
            trees: Vec::new(),
            parts: None,
            network: None,
            vsock: None,
            shares: Vec::new(),
            cmdline_extra: Vec::new(),
            lifeline: None,
            max_processes: None,
        }
    }

    #[test]
    fn a_layer_of_another_length_is_named() {
        let mut config = config();
        config.check().unwrap();
        for (length, is_good) in [(0, false), (4096, false), (PMEM_ALIGNMENT, true)] {
            let files = vec![file(PMEM_ALIGNMENT), file(length)];
            config.pmem = vec![PmemRegion { files }];
            let checked = config.check();
            assert_eq!(checked.is_ok(), is_good);
            if let Err(error) = checked {
                let error = error.to_string();
                assert!(error.contains("layer.erofs"), "{error}");
                assert!(error.contains("2 MiB"), "{error}");
            }
        }
    }

    #[test]
    fn a_configuration_that_no_backend_can_run_is_refused() {
        let disk = |files: u64, read_only, serial: usize| Disk {
            files: (0..files).map(|_| file(512)).collect(),
            read_only,
            serial: "x".repeat(serial),
        };
        let mut good = config();
        good.disks = vec![disk(1, false, 1), disk(2, true, 20)];
        good.check().unwrap();
        for (files, read_only, serial) in [(1, true, 21), (1, true, 0), (2, false, 1), (0, true, 1)]
        {
            let mut config = good.clone();
            config.disks = vec![disk(files, read_only, serial)];
            config.check().unwrap_err();
        }
        for spoil in [
            (|config| config.machine.cpus = Some(0)) as fn(&mut MachineConfig),
            |config| config.machine.memory_mib = 16,
            |config| config.name = "a,b".into(),
            |config| config.pmem = vec![PmemRegion { files: Vec::new() }],
        ] {
            let mut config = good.clone();
            spoil(&mut config);
            config.check().unwrap_err();
        }
    }
}
