//! Mounts a tree.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use micabox_disks::{image_name, upper};
use micabox_error::Error;
use micabox_ground::{clock, lock, random};
use micabox_mount::{Manner, Place, Shown, Target, unmount};
use micabox_owner::socket;
use micabox_state::{BaseName, Lock, ProcessId};
use tracing::info;

use super::record::boot;
use super::serve;
use super::server::{self, Server};
use super::source::Files;
use super::{
    CONTROL, Found, LOCK, MountRecord, Mounts, PREFIX, ServedBy, Tree, is_lacking, kernel, layer,
    table,
};
use crate::mounted::{Below, Serve};

/// How a tree is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Whether it can be changed. Changes are in memory, and gone when it is unmounted, unless there is
    /// an `upper`.
    pub is_writable: bool,
    /// The folder that changes are kept in, in the kernel's overlay's terms. It is made if it is missing.
    pub upper: Option<PathBuf>,
    /// Bytes that changes may take.
    pub size: u64,
    /// Files that may be new or changed.
    pub inodes: u64,
    /// What is to serve it; by default the kernel, if this process is root's, it is a whole image that is
    /// not changed or whose changes are in a folder, and the kernel can.
    pub by: Option<ServedBy>,
    /// Whether this process serves it, and it ends with it.
    pub is_ours: bool,
    /// Whether it is enough if it is seen by this process, which has one thread, and those that it starts.
    pub only_own: bool,
}

/// A tree that was mounted.
#[derive(Debug)]
pub struct MountedTree {
    /// Its record.
    pub record: MountRecord,
    ours: Option<Ours>,
}

/// What this process does for a tree.
#[derive(Debug)]
struct Ours {
    manner: Manner,
    /// None if the kernel serves it, or this process waits for the server already.
    server: Mutex<Option<Server>>,
    directory: PathBuf,
    _lock: Lock,
}

impl MountedTree {
    /// Unmounts a tree that this process has mounted for itself, also if it is in use. Processes that use it
    /// get errors once this process has ended.
    pub fn unmount(&self) {
        if let Some(ours) = &self.ours {
            let _ = unmount(&self.record.place, ours.manner, true);
            let _ = fs::remove_dir_all(&ours.directory);
        }
    }

    /// Waits until a tree that this process serves is unmounted, and no process uses it.
    ///
    /// # Errors
    /// [`Error::NotServed`] if its server was killed.
    pub fn wait(&self) -> Result<(), Error> {
        let server = self.ours.as_ref().and_then(|ours| {
            let mut server = lock(&ours.server);
            server.take()
        });
        let ended = server.map_or(Ok(()), Server::wait);
        ended.map_err(|error| Error::NotServed {
            tree: self.record.source.clone(),
            problem: error.to_string(),
        })
    }

    /// Returns whether the kernel serves it.
    #[must_use]
    pub fn is_kernels(&self) -> bool {
        self.record.by == ServedBy::Kernel
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A directory for a record, which is removed unless the tree is mounted.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) path: PathBuf,
    pub(super) lock: Option<Lock>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.lock.is_some() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Mounts {
    /// Mounts a tree on a directory; `name` is what its user calls it. It answers when this returns.
    ///
    /// # Errors
    /// [`Error::Mount`], [`Error::MountedAlready`], [`Error::NotServed`], [`Error::NotByKernel`]; those of
    /// the tree's files.
    pub fn mount(
        &self,
        tree: &Tree,
        name: &str,
        place: &Path,
        options: &MountOptions,
    ) -> Result<MountedTree, Error> {
        let place = directory(place)?;
        if self.at(&place)?.is_some() {
            return Err(Error::MountedAlready(place));
        }
        if let Some(upper) = &options.upper {
            self.check_upper(upper, tree, options)?;
        }
        let claimed = self.claim()?;
        // The lease comes before the files are opened.
        if let Some(image) = tree.image(&self.sandboxes)? {
            let digests = [image.manifest_digest];
            let id = claimed.path.file_name().unwrap_or_default();
            let store = self.sandboxes.store();
            store.lease(&id.to_string_lossy(), &digests)?;
        }
        let record = MountRecord {
            place,
            source: name.to_owned(),
            kind: tree.kind(),
            by: ServedBy::Fuse,
            is_writable: options.is_writable,
            upper: options.upper.clone(),
            created: clock::now_as_parts().0,
            base: None,
            process: None,
            helper: false,
            boot: boot(),
            device: None,
        };
        match self.by_kernel(tree, record.clone(), &claimed, options)? {
            Some(record) => {
                let mut claimed = claimed;
                let mut lock = claimed.lock.take();
                if let Some(lock) = lock.as_mut().filter(|_| record.process.is_some()) {
                    lock.outlive_us();
                }
                let ours = lock.filter(|_| options.is_ours).map(|lock| Ours {
                    manner: Manner::Kernel,
                    server: Mutex::new(None),
                    directory: claimed.path.clone(),
                    _lock: lock,
                });
                Ok(MountedTree { record, ours })
            }
            None => self.by_fuse(tree, record, claimed, options),
        }
    }

    /// Has the kernel serve the tree; none if it can't, and need not.
    fn by_kernel(
        &self,
        tree: &Tree,
        mut record: MountRecord,
        claimed: &Claimed,
        options: &MountOptions,
    ) -> Result<Option<MountRecord>, Error> {
        let refused = |problem: &str| match (&options.upper, options.by) {
            (Some(upper), _) => Err(Error::MountedUpper {
                upper: upper.clone(),
                problem: problem.to_owned(),
            }),
            (None, Some(ServedBy::Kernel)) => Err(Error::NotByKernel {
                tree: record.source.clone(),
                problem: problem.to_owned(),
            }),
            _ => {
                info!(tree = record.source, problem, "FUSE serves the tree");
                Ok(None)
            }
        };
        let image = match tree {
            _ if options.by == Some(ServedBy::Fuse) => return Ok(None),
            _ if !rustix::process::geteuid().is_root() => {
                return refused("only root may mount without FUSE");
            }
            _ if options.is_writable && options.by.is_none() && options.upper.is_none() => {
                return refused("changes in memory are mica's own");
            }
            Tree::Image(image) => image,
            Tree::Directory(_) => {
                return refused("an overlay over a directory can be mounted with mount(8)");
            }
            Tree::File(_) | Tree::Sandbox(_) | Tree::Snapshot(_) => return refused(FOREIGN),
        };
        // The kernel gets the files' paths.
        micabox_holders::make_whole(image)?;
        let mount = match kernel::erofs(image) {
            Ok(mount) => mount,
            Err(error) if is_lacking(error) => {
                return refused(&format!("it mounts no EROFS of these files ({error})"));
            }
            Err(error) => return refused(&error.to_string()),
        };
        let mut folder = None;
        let mount = if options.is_writable {
            let changes = match &options.upper {
                Some(path) => upper::folder::open_for_tree(path, &image.manifest_digest)?,
                None => {
                    kernel::memory(options.size, options.inodes).map_err(|error| Error::System {
                        what: "mounting a filesystem in memory",
                        source: error.into(),
                    })?
                }
            };
            match kernel::overlay(&mount, &changes) {
                Ok(mount) => {
                    folder = Some(changes);
                    mount
                }
                Err(error) if is_lacking(error) => {
                    return refused(&format!(
                        "it overlays nothing that is mounted nowhere ({error}; Linux 6.15 does)"
                    ));
                }
                Err(error) => return refused(&format!("mounting an overlay: {error}")),
            }
        } else {
            mount
        };
        if let Err(error) = kernel::attach(&mount, &record.place) {
            return refused(&error.to_string());
        }
        drop(mount);
        record.by = ServedBy::Kernel;
        record.base = Some(BaseName::Image(image_name(image)));
        let written = with_device(&mut record).and_then(|()| record.write(&claimed.path));
        let kept = written
            .map_err(Error::state("writing", &claimed.path))
            .and_then(|()| match &folder {
                Some(folder) => keep_changes(&mut record, claimed, folder),
                None => Ok(()),
            });
        if let Err(error) = kept {
            let _ = unmount(&record.place, Manner::Kernel, true);
            return Err(error);
        }
        info!(tree = record.source, "the kernel serves the tree");
        Ok(Some(record))
    }

    /// Checks that a folder can be the upper of a tree.
    fn check_upper(&self, upper: &Path, tree: &Tree, options: &MountOptions) -> Result<(), Error> {
        let refused = |problem: &str| {
            Err(Error::MountedUpper {
                upper: upper.to_owned(),
                problem: problem.to_owned(),
            })
        };
        if !rustix::process::geteuid().is_root() {
            return refused("the kernel's overlay keeps them there, which only root may mount");
        }
        if options.by == Some(ServedBy::Fuse) {
            return refused(
                "the kernel's overlay keeps them there, and not what answers over FUSE",
            );
        }
        if !matches!(tree, Tree::Image(_)) {
            return refused("only those over an image can be");
        }
        let is_used = |found: &Found| found.record.upper.as_deref() == Some(upper);
        if self.scan()?.iter().any(is_used) {
            return Err(Error::UpperInUse(upper.to_owned()));
        }
        Ok(())
    }

    fn by_fuse(
        &self,
        tree: &Tree,
        mut record: MountRecord,
        mut claimed: Claimed,
        options: &MountOptions,
    ) -> Result<MountedTree, Error> {
        let Files {
            base,
            disk,
            format,
            below,
        } = tree.open(&self.sandboxes)?;
        record.base = base;
        // In namespaces of its own, a process can't hand on a directory that it opened outside.
        let only_own = options.only_own && format != Below::Folder;
        let shown = Shown::Tree {
            is_read_only: !options.is_writable,
        };
        let place = Place::mount(&record.place, only_own, shown)?;
        let manner = place.manner();
        record.helper = manner == Manner::Helper;
        let undo = Undo(Some(&place));
        let channels = place.channels()?;
        let serve = Serve {
            channels: u32::try_from(channels.len()).unwrap_or(1),
            has_disk: disk.is_some(),
            lower: format,
            is_writable: options.is_writable,
            is_for_one_user: place.is_for_one_user(),
            shown: serve::Shown::AsItIs,
            room: (options.size, options.inodes),
        };
        let listener = if options.is_writable {
            let listener = socket::listen(&claimed.path, CONTROL.as_ref());
            Some(listener.map_err(Error::state("listening in", &claimed.path))?)
        } else {
            None
        };
        let mut files: Vec<File> = Vec::new();
        files.extend(listener.map(|listener| File::from(OwnedFd::from(listener))));
        files.extend(channels.into_iter().map(File::from));
        files.extend(disk);
        files.extend(below);
        with_device(&mut record)
            .and_then(|()| record.write(&claimed.path))
            .map_err(Error::state("writing", &claimed.path))?;
        let source = record.source.clone();
        let not_served = |problem: String| Error::NotServed {
            tree: source.clone(),
            problem,
        };
        if options.is_ours {
            let files = files.into_iter().map(OwnedFd::from).collect();
            let server = Server::start(&serve, files);
            let server = server.map_err(|error| not_served(error.to_string()))?;
            record.process = ProcessId::own();
            let _ = record.write(&claimed.path);
            undo.keep();
            let directory = claimed.path.clone();
            let lock = claimed.lock.take().ok_or(Error::NoPlace)?;
            return Ok(MountedTree {
                record,
                ours: Some(Ours {
                    manner,
                    server: Mutex::new(Some(server)),
                    directory,
                    _lock: lock,
                }),
            });
        }
        let lock = claimed.lock.as_ref().ok_or(Error::NoPlace)?;
        let started = server::start(serve, claimed.path.clone(), lock.file(), &files);
        drop(files);
        let started = started.map_err(|source| Error::System {
            what: "starting the server of the tree",
            source,
        })?;
        record.process = Some(started.map_err(not_served)?);
        undo.keep();
        let _ = record.write(&claimed.path);
        if let Some(mut lock) = claimed.lock.take() {
            lock.outlive_us();
        }
        Ok(MountedTree { record, ours: None })
    }

    /// Makes a directory for a record, and locks it.
    pub(super) fn claim(&self) -> Result<Claimed, Error> {
        let id = u64::from_le_bytes(random().map_err(Error::system("choosing an ID"))?);
        let all = self.sandboxes.directory();
        let path = all.path().join(format!("{PREFIX}{id:016x}"));
        let _names = all.lock()?;
        let make = || {
            fs::DirBuilder::new().mode(0o700).create(&path)?;
            Lock::wait(&path.join(LOCK))
        };
        let lock = make().map_err(Error::state("making", &path))?;
        Ok(Claimed {
            path,
            lock: Some(lock),
        })
    }
}

/// Starts the process that keeps a tree's changes.
fn keep_changes(record: &mut MountRecord, claimed: &Claimed, folder: &File) -> Result<(), Error> {
    let listener = socket::listen(&claimed.path, CONTROL.as_ref());
    let listener = listener.map_err(Error::state("listening in", &claimed.path))?;
    let listener = File::from(OwnedFd::from(listener));
    let lock = claimed.lock.as_ref().ok_or(Error::NoPlace)?;
    let started = layer::keep(record, &claimed.path, lock.file(), &listener, folder);
    let started = started.map_err(|source| Error::System {
        what: "starting the process that keeps the changes",
        source,
    })?;
    record.process = Some(started.map_err(|problem| Error::NotServed {
        tree: record.source.clone(),
        problem,
    })?);
    record
        .write(&claimed.path)
        .map_err(Error::state("writing", &claimed.path))
}

/// Why the kernel does not serve what mica did not make itself.
const FOREIGN: &str = "its parsers of filesystems are not made for hostile ones; an EROFS of your own \
     can be mounted with mount(8)";

/// Unmounts unless it is kept.
struct Undo<'a>(Option<&'a Place>);

impl Undo<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.unmount();
        }
    }
}

/// Adds the device of what was mounted to a record.
pub(super) fn with_device(record: &mut MountRecord) -> io::Result<()> {
    let device = table::device_at(&record.place)?;
    record.device = Some(device.ok_or(io::ErrorKind::NotFound)?);
    Ok(())
}

/// Returns a directory without links.
fn directory(path: &Path) -> Result<PathBuf, Error> {
    let place = |source| {
        Error::Mount(micabox_mount::Error::Place {
            path: path.to_owned(),
            source,
        })
    };
    let found = Target::find(path).map_err(place)?;
    Ok(found.path().to_owned())
}
