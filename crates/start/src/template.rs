//! Warm templates: machines that were saved right after their boot, so that later ones like them
//! need not boot.
//!
//! ```text
//! templates/<key>/    the files of a snapshot with memory; complete as soon as it exists
//! templates/.<key>/   one under construction, its lock (flock) held
//! ```
//!
//! The key is a digest of everything that a machine is made of. A template that no longer matches
//! is therefore never found, and is removed when there are too many. A template is never resumed
//! itself: each restored machine has its own copy. A template is valid for one boot of the host, so
//! it is not synced to disk.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use micabox_disks::snapshot as memory;
use micabox_disks::snapshot::claim;
use micabox_image::Digest;
use micabox_image::store::Image;
use micabox_state::{SavedMachine, Stamp};
use serde::Serialize;
use serde_json::json;

use crate::GuestFiles;
use crate::plan::Plan;

/// Must be raised with every change to a machine that no other part of the key reflects.
const FORMAT: u32 = 1;

/// Most templates, of some 50 MiB each; the least recently used one is removed first.
const MOST: usize = 16;

/// The place of a template, whether it exists or not.
#[derive(Clone, Debug)]
pub struct Template {
    directory: PathBuf,
}

impl Template {
    /// Returns the place of the template for machines of `image` with `plan`, started from
    /// `guest`'s files and with `settings`, in the store at `root`. None if a part of the key can't
    /// be read.
    pub fn place(
        root: &Path,
        image: &Image,
        plan: &Plan,
        guest: &GuestFiles,
        settings: &impl Serialize,
    ) -> Option<Self> {
        let ingredients = json!({
            "format": FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "host": fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?,
            "program": Stamp::of(Path::new("/proc/self/exe")).ok()?,
            "kernel": Stamp::of(&guest.kernel).ok()?,
            "agent": Stamp::of(&guest.initrd).ok()?,
            "cmdline": guest.cmdline,
            "image": image.manifest_digest.to_string(),
            "plan": format!("{:?} {:?}", plan.pmem, plan.disks),
            "settings": settings,
        });
        let key = Digest::of(ingredients.to_string().as_bytes());
        Some(Self {
            directory: root.join("templates").join(key.hex()),
        })
    }

    /// Returns the machine in the template, if the template exists.
    pub fn machine(&self) -> Option<SavedMachine> {
        let machine = memory::description(&self.directory).ok()?;
        // Marks the template as used now.
        let directory = File::open(&self.directory).ok()?;
        let _ = directory.set_modified(SystemTime::now());
        Some(machine)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the template with `save` in an unfinished directory, unless it exists or another
    /// process is making it. If anything fails there is no template, and machines boot.
    pub fn make<E>(&self, save: impl FnOnce(&Path) -> Result<(), E>) {
        let (Some(parent), Some(key)) = (self.directory.parent(), self.directory.file_name())
        else {
            return;
        };
        let key = key.to_string_lossy();
        let unfinished = parent.join(format!(".{key}"));
        let Ok(_lock) = claim(&unfinished, &key) else {
            return;
        };
        let is_made = !self.directory.exists()
            && save(&unfinished).is_ok()
            && fs::rename(&unfinished, &self.directory).is_ok();
        if !is_made {
            let _ = fs::remove_dir_all(&unfinished);
        }
        let _ = make_room(parent);
    }

    /// Removes a template that could not be restored.
    pub fn discard(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Removes the least recently used templates from `directory` if there are too many.
fn make_room(directory: &Path) -> io::Result<()> {
    let mut templates = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            templates.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    templates.sort();
    let excess = templates.len().saturating_sub(MOST);
    for (_, path) in templates.into_iter().take(excess) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn make(parent: &Path, number: usize) -> Template {
        let template = Template {
            directory: parent.join(format!("{number:064x}")),
        };
        template.make(|directory| fs::write(directory.join("machine"), "saved"));
        template
    }

    #[test]
    fn templates_in_use_are_kept() {
        let parent = tempfile::tempdir().unwrap();
        let used = |template: &Template, second| {
            let directory = File::open(template.directory()).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            directory.set_modified(time).unwrap();
        };
        let first = make(parent.path(), 0);
        for number in 1..MOST + 3 {
            let second = number as u64;
            used(&first, second + 1);
            // The newest has the time of now while it looks for the oldest.
            used(&make(parent.path(), number), second);
        }
        assert!(first.directory().join("machine").exists());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), MOST);
    }

    #[test]
    fn a_failed_template_leaves_nothing_and_is_made_once() {
        let parent = tempfile::tempdir().unwrap();
        let template = make(parent.path(), 1);
        template.make(|_| -> Result<(), ()> { panic!("made twice") });
        let other = Template {
            directory: parent.path().join("other"),
        };
        other.make(|directory| {
            // Meanwhile no other process makes it.
            other.make(|_| -> Result<(), ()> { panic!("made twice") });
            fs::write(directory.join("machine"), "half").and(Err(io::ErrorKind::Other.into()))
        });
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
