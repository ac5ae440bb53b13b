//! A machine's configuration, checked before a backend starts it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Error, Snapshot};

/// virtio-pmem's rule: a region's size is a multiple of 2 MiB.
pub const PMEM_ALIGNMENT: u64 = 2 << 20;

/// virtio-blk's limit on a serial number (`VIRTIO_BLK_ID_BYTES`).
const MAX_SERIAL: usize = 20;

/// A machine, independent of the backend that runs it.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The name that `ps` and the backend's messages show; letters, digits, `-`.
    pub name: String,
    /// An uncompressed ELF kernel with a PVH entry (`vmlinux`).
    pub kernel: PathBuf,
    /// An initramfs for it.
    pub initrd: PathBuf,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// Virtual processors, at least 1.
    pub cpus: u8,
    /// Whether the guest may run virtual machines itself, and use performance counters. Both expose
    /// large parts of the host's kernel to a guest that may be hostile. Such a machine can't be
    /// saved.
    pub nested_virtualization: bool,
    /// Whether the machine must not start without a control group that limits its process.
    pub require_limits: bool,
    /// Read-only persistent-memory regions.
    pub pmem: Vec<PmemRegion>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// A network interface.
    pub network: Option<NetworkInterface>,
    /// Sockets between the guest's programs and the host's (virtio-vsock), where the backend has
    /// them.
    pub vsock: Option<Sockets>,
    /// Words to append to the kernel command line.
    pub cmdline_extra: Vec<String>,
    /// A file that the machine's process keeps open until all of it has ended, even if its owner
    /// ends first: a lock (`flock`) on the file lasts as long.
    pub lifeline: Option<Arc<File>>,
    /// A saved machine to restore in place of a boot, if the backend
    /// [can](crate::Limits::snapshots). The rest of the configuration must be the saved machine's,
    /// except for the network interface's link and address, the host's end of its sockets, and the
    /// contents of the disks' files. Kernel and initrd are not used.
    pub resumed: Option<Snapshot>,
}

/// The host's end of a guest's sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sockets {
    /// Programs that connect to this path, and programs that listen at `PATH_PORT`.
    At(PathBuf),
    /// No programs: for a copy of a machine that had sockets.
    Nowhere,
}

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmemRegion {
    /// The files in the order of their addresses. More than one only where
    /// [`FilesPerRegion::Many`](crate::FilesPerRegion::Many) allows it.
    pub files: Vec<PmemFile>,
}

/// One file in a [`PmemRegion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmemFile {
    /// The file. It must not change while the machine runs.
    pub path: PathBuf,
    /// Its exact length in bytes: a multiple of 2 MiB, not 0.
    pub size: u64,
}

/// One virtio block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Where the bytes are.
    pub source: DiskSource,
    /// Whether the guest may only read it. Only a single file can be written to.
    pub read_only: bool,
    /// The serial number, by which the guest recognises the disk; 1 to 20 printable ASCII
    /// characters.
    pub serial: String,
}

/// Where a [`Disk`]'s bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskSource {
    /// In one file, without a format.
    Raw(PathBuf),
    /// In several files, one after another; read-only.
    Files {
        /// The files.
        files: Vec<PmemFile>,
        /// A VMDK descriptor that lists the same files, for backends that need one.
        vmdk: PathBuf,
    },
}

impl PmemRegion {
    /// Returns the bytes of address space that the region takes.
    pub fn size(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.size))
    }
}

impl MachineConfig {
    /// Returns the bytes of RAM.
    pub(crate) fn memory(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }

    /// Returns the bytes of address space that the machine's memory takes in its process.
    pub(crate) fn address_space(&self) -> u64 {
        self.pmem.iter().fold(self.memory(), |sum, region| {
            sum.saturating_add(region.size())
        })
    }

    /// Returns the bytes of RAM.
    pub(crate) fn ram(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }

    /// Returns the length in bytes of the largest file that the machine may write to; 0 if there is
    /// none.
    pub(crate) fn largest_written_file(&self) -> u64 {
        let written = self.disks.iter().filter(|disk| !disk.read_only);
        let lengths = written.map(|disk| match &disk.source {
            DiskSource::Raw(path) => std::fs::metadata(path).map_or(0, |meta| meta.len()),
            DiskSource::Files { .. } => 0,
        });
        lengths.max().unwrap_or_default()
    }

    /// Duplicates the descriptor of the network interface's link for the machine's process.
    ///
    /// # Errors
    /// [`Error::System`] if no descriptors are left.
    pub(crate) fn link(&self) -> Result<Option<OwnedFd>, Error> {
        let interface = self.network.as_ref();
        let link = interface.map(|interface| interface.link.try_clone());
        link.transpose().map_err(|source| Error::System {
            what: "handing over the network's link",
            source,
        })
    }

    /// Duplicates the descriptor of the lifeline for the machine's process.
    ///
    /// # Errors
    /// [`Error::System`] if no descriptors are left.
    pub(crate) fn lifeline(&self) -> Result<Option<OwnedFd>, Error> {
        let lifeline = self
            .lifeline
            .as_ref()
            .map(|file| file.try_clone())
            .transpose()
            .map_err(|source| Error::System {
                what: "sharing a lock",
                source,
            })?;
        Ok(lifeline.map(OwnedFd::from))
    }

    /// Checks what every backend relies on, and that the files exist with the given lengths, so
    /// that a missing layer is reported by name before anything starts.
    ///
    /// # Errors
    /// [`Error::Config`] or [`Error::File`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cpus == 0 {
            return Err(Error::Config("a machine needs at least one CPU".into()));
        }
        if self.memory_mib < 64 {
            return Err(Error::Config(format!(
                "{} MiB of memory are not enough to boot; give at least 64",
                self.memory_mib
            )));
        }
        let name_is_plain = self
            .name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !name_is_plain {
            return Err(Error::Config(format!("machine name {:?}", self.name)));
        }
        for file in [&self.kernel, &self.initrd] {
            if self.resumed.is_none() {
                length(file)?;
            }
        }
        for region in &self.pmem {
            if region.files.is_empty() {
                return Err(Error::Config("a pmem region without files".into()));
            }
            for file in &region.files {
                check_length(file)?;
                if file.size == 0 || file.size % PMEM_ALIGNMENT != 0 {
                    return Err(Error::File {
                        path: file.path.clone(),
                        why: format!("its {} bytes are not a multiple of 2 MiB", file.size),
                    });
                }
            }
        }
        for disk in &self.disks {
            let (DiskSource::Raw(path) | DiskSource::Files { vmdk: path, .. }) = &disk.source;
            length(path)?;
            if let DiskSource::Files { files, .. } = &disk.source {
                if !disk.read_only {
                    return Err(Error::Config("a disk of several files to write to".into()));
                }
                files.iter().try_for_each(check_length)?;
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

fn check_length(file: &PmemFile) -> Result<(), Error> {
    let actual = length(&file.path)?;
    if actual == file.size {
        return Ok(());
    }
    Err(Error::File {
        path: file.path.clone(),
        why: format!("it has {actual} bytes and should have {}", file.size),
    })
}

/// Returns the length of a regular file that can be opened for reading.
fn length(path: &std::path::Path) -> Result<u64, Error> {
    let failed = |why: String| Error::File {
        path: path.to_owned(),
        why,
    };
    // Opening a FIFO would wait for a writer, so look first.
    let kind = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !kind.is_file() {
        return Err(failed("it is not a regular file".into()));
    }
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
    Ok(metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &std::path::Path) -> MachineConfig {
        let kernel = dir.join("vmlinux");
        std::fs::write(&kernel, b"kernel").unwrap();
        MachineConfig {
            name: "test".into(),
            initrd: kernel.clone(),
            kernel,
            memory_mib: 256,
            cpus: 1,
            nested_virtualization: false,
            require_limits: false,
            pmem: Vec::new(),
            disks: Vec::new(),
            network: None,
            vsock: None,
            cmdline_extra: Vec::new(),
            lifeline: None,
            resumed: None,
        }
    }

    #[test]
    fn a_layer_of_another_length_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.check().unwrap();

        let path = dir.path().join("layer.erofs");
        let file = PmemFile {
            path: path.clone(),
            size: PMEM_ALIGNMENT,
        };
        config.pmem = vec![PmemRegion { files: vec![file] }];
        let missing = config.check().unwrap_err().to_string();
        assert!(missing.contains("layer.erofs"), "{missing}");

        let layer = std::fs::File::create(&path).unwrap();
        layer.set_len(4096).unwrap();
        let short = config.check().unwrap_err().to_string();
        assert!(short.contains("4096 bytes"), "{short}");

        layer.set_len(PMEM_ALIGNMENT).unwrap();
        config.check().unwrap();

        config.pmem[0].files[0].size = 4096;
        layer.set_len(4096).unwrap();
        let unaligned = config.check().unwrap_err().to_string();
        assert!(unaligned.contains("2 MiB"), "{unaligned}");
    }

    #[test]
    fn a_configuration_that_no_backend_can_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let good = config(dir.path());
        for spoil in [
            (|config| config.cpus = 0) as fn(&mut MachineConfig),
            |config| config.memory_mib = 16,
            |config| config.name = "a,b".into(),
            |config| config.initrd = "/dev/null".into(),
            |config| config.pmem = vec![PmemRegion { files: Vec::new() }],
            |config| {
                config.disks = vec![Disk {
                    source: DiskSource::Raw(config.kernel.clone()),
                    read_only: true,
                    serial: "x".repeat(21),
                }];
            },
        ] {
            let mut config = good.clone();
            spoil(&mut config);
            config.check().unwrap_err();
        }
    }
}
