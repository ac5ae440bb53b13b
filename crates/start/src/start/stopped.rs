//! Makes what a sandbox has before its first start: its record and its disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use micabox_disks as patch;
use micabox_disks::{Patch, snapshot as memory, upper};
use micabox_error::{Error, random};
use micabox_spec::Upper;
use micabox_spec::words::Hostname;
use micabox_state::{Directory, Status, is_valid_name as is_valid, upper_disk};
use tracing::{debug, info_span};

use super::Start;
use crate::share;

/// Most bytes of a sandbox's labels.
const MAX_LABELS: usize = 64 << 10;

impl Start {
    /// Creates the sandbox without starting it. Returns its ID.
    ///
    /// # Errors
    /// [`Error`]; nothing of the sandbox is left behind.
    pub fn create_stopped(self) -> Result<String, Error> {
        let _span = info_span!("create", base = %self.base.name()).entered();
        self.check()?;
        let backend = micabox_vmm::expect(self.spec.backend)?;
        // Keeps the image in the store until the sandbox has a lease on it.
        let shared = self.store.shared()?;
        let plan = self.plan(&*backend)?.plan;
        let mut record = self.record(&plan, &*backend)?;
        let command = match &self.spec.command {
            Some(command) => command.clone(),
            None => self.defaults()?,
        };
        record.spec.command = Some(command);
        let directory = Directory::open(self.store.root())?;
        // Dropped after a failure, this leaves nothing.
        let mut registration = directory.register(self.name.as_deref(), record)?;
        self.lease(registration.record())?;
        drop(shared);
        self.make_upper(registration.path())?;
        registration.update(|record| {
            record.auto_remove = false;
            record.owner = None;
            record.creator = None;
            record.status = Status::Created;
        })?;
        let id = registration.record().id.clone();
        drop(registration);
        Ok(id)
    }

    /// Checks what can be checked without the machine's files.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(name) = self.name.as_deref().filter(|name| !is_valid(name)) {
            return Err(Error::BadName(name.to_owned()));
        }
        if let Some(name) = &self.spec.hostname
            && name.parse::<Hostname>().is_err()
        {
            return Err(Error::BadHostname(name.clone()));
        }
        let size = self.spec.machine.check();
        size.map_err(micabox_vmm::Error::from)?;
        self.spec.setup.check()?;
        // Before anything is made for it.
        share::open(&self.spec.setup)?;
        self.check_folder()?;
        let sizes = self
            .spec
            .labels
            .iter()
            .map(|(name, value)| name.len() + value.len());
        if sizes.sum::<usize>() > MAX_LABELS {
            return Err(Error::BadLabels("they have more than 64 KiB"));
        }
        if self.spec.labels.keys().any(String::is_empty) {
            return Err(Error::BadLabels("one has no name"));
        }
        self.check_in_place()
    }

    /// Checks the folder of a new sandbox's changes.
    fn check_folder(&self) -> Result<(), Error> {
        let Upper::Folder { path } = &self.spec.upper else {
            return Ok(());
        };
        if !self.patches.is_empty() {
            return Err(Error::NotInFolder(path.into()));
        }
        match self.resumed {
            None => self.open_folder(path, Duration::ZERO).map(drop),
            Some(_) => Ok(()),
        }
    }

    /// Opens the folder with the sandbox's changes. Later starts don't make it again.
    pub(super) fn open_folder(&self, path: &str, patience: Duration) -> Result<File, Error> {
        let make = self.resumed.is_none() || self.is_first;
        upper::folder::open(Path::new(path), &self.base.name(), make, patience)
    }

    /// Returns the file with the sandbox's changes or patches, and the disk's serial number; none if
    /// there is no such file.
    pub(super) fn upper_file(&self, directory: &Path) -> Option<(PathBuf, &'static str)> {
        match self.spec.upper {
            Upper::Disk { .. } => Some((upper_disk(directory), upper::SERIAL)),
            Upper::Tmpfs if self.has_patches() => {
                Some((upper::patches(directory), upper::PATCHES_SERIAL))
            }
            Upper::Tmpfs | Upper::Folder { .. } | Upper::InPlace => None,
        }
    }

    /// Makes that file.
    pub(super) fn make_upper(
        &self,
        directory: &Path,
    ) -> Result<Option<(PathBuf, &'static str)>, Error> {
        let Some((path, serial)) = self.upper_file(directory) else {
            return Ok(None);
        };
        let size = match self.spec.upper {
            Upper::Disk { size } => size,
            _ => {
                let contents = self.patches.iter().map(Patch::size);
                let contents = contents.sum::<Result<u64, Error>>()?;
                // The file is sparse, so ample room costs nothing.
                contents.saturating_mul(2).saturating_add(256 << 20)
            }
        };
        debug!(size, is_copy = self.origin.is_some(), "making the disk");
        match &self.origin {
            None => upper::make_disk(&path, size, random()?, upper::LABEL)?,
            Some(origin) => {
                let original = memory::open_disk(&self.store, &origin.directory)?;
                upper::copy_disk(&original, &memory::disk(&origin.directory), &path)?;
            }
        }
        if !self.patches.is_empty() {
            patch::apply(&path, &self.base, &self.patches)?;
        }
        Ok(Some((path, serial)))
    }
}
