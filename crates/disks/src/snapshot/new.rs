//! Snapshots that are to be made, and those that replace others: these are made under another name, so that the other
//! one is there until its successor is complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;

use micabox_error::{Error, random};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::Snapshots;
use super::{RECORD, Snapshot};

/// The first character of a directory's name that is no snapshot's.
const HIDDEN: char = '.';

/// Decides whether a snapshot may be replaced.
pub(super) type Replaces = fn(&Snapshot) -> bool;

/// What a snapshot is to be called, and what is noted with it.
#[derive(Clone, Debug, Default)]
pub struct NewSnapshot {
    /// Its name, as a sandbox's.
    pub name: String,
    /// For programs that find snapshots by them.
    pub labels: BTreeMap<String, String>,
    /// Whether it replaces a snapshot of this name for which this is true. That one is there until the new one is
    /// complete; without this, a snapshot of this name is an error.
    pub replaces: Option<fn(&Snapshot) -> bool>,
}

impl From<&str> for NewSnapshot {
    fn from(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }
}

impl From<&String> for NewSnapshot {
    fn from(name: &String) -> Self {
        name.as_str().into()
    }
}

/// Makes a name that no snapshot can have.
pub(super) fn hidden() -> Result<String, Error> {
    Ok(format!("{HIDDEN}{:016x}", u64::from_le_bytes(random()?)))
}

/// Returns whether a directory of this name has no snapshot for others: one in the making, or one that was replaced.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with(HIDDEN)
}

impl Snapshots<'_> {
    /// Fails if there is a snapshot of this name that may not be replaced.
    pub(super) fn check_replaced(
        &self,
        name: &str,
        replaces: Option<Replaces>,
    ) -> Result<(), Error> {
        let directory = self.directory_of(name);
        let is_free = match self.get(name) {
            Ok(snapshot) => replaces.is_some_and(|may_replace| may_replace(&snapshot)),
            // Perhaps of another version of mica.
            Err(_) => !directory.join(RECORD).exists(),
        };
        if is_free {
            return Ok(());
        }
        Err(Error::SnapshotExists(name.to_owned()))
    }

    /// Gives a complete snapshot its name, in place of another one.
    pub(super) fn put_in_place(
        &self,
        snapshot: &mut Snapshot,
        replaces: Option<Replaces>,
    ) -> Result<(), Error> {
        // Leases are looked for by directory.
        let _shared = self.0.store().shared()?;
        let _names = self.0.directory().lock()?;
        self.check_replaced(&snapshot.name, replaces)?;
        let hidden = snapshot.directory.clone();
        let place = self.directory_of(&snapshot.name);
        let rename = |flags| renameat_with(CWD, &hidden, CWD, &place, flags);
        let replaced = match rename(RenameFlags::NOREPLACE) {
            Ok(()) => false,
            Err(rustix::io::Errno::EXIST) => {
                rename(RenameFlags::EXCHANGE)
                    .map_err(|error| Error::state("replacing", &place)(error.into()))?;
                true
            }
            Err(error) => return Err(Error::state("making", &place)(error.into())),
        };
        snapshot.directory = place;
        let parent = self.0.directory().path();
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(Error::state("writing", parent))?;
        if replaced {
            // The one that was replaced. What can't be removed now is when snapshots are listed.
            let _: io::Result<()> = fs::remove_dir_all(&hidden);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use micabox_image::Store;
    use serde_json::json;

    use super::*;
    use micabox_state::Sandboxes;

    /// A snapshot of a sandbox on a root disk, which needs no image.
    fn snapshot(name: &str, label: &str) -> Snapshot {
        let disk = json!({"path": "/d", "format": "erofs", "in_place": false, "size": 4096,
            "uuid": vec![1; 16], "modified": [1, 2]});
        let snapshot = json!({"name": name, "image": {"reference": "/d", "digest": ""}, "root_disk": disk,
            "sandbox": "it", "created": 1, "size": 0, "labels": {"of": label}});
        serde_json::from_value(snapshot).unwrap()
    }

    fn add(all: Snapshots<'_>, label: &str, then: Result<(), Error>) -> Result<Snapshot, Error> {
        let is_mine: Replaces = |other| other.labels["of"] == "me";
        let added = all.add(
            snapshot("past", label),
            Some(is_mine),
            super::super::claim,
            |new| {
                fs::write(new.directory.join("file"), label).unwrap();
                then
            },
        );
        added.map(|(snapshot, _lock)| snapshot)
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory.join("sandboxes")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("snapshot-")).collect()
    }

    #[test]
    fn a_snapshot_is_there_until_its_successor_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let all = Sandboxes::open(&store).unwrap();
        let all = Snapshots(&all);
        let add = |label: &str, then| add(all, label, then);
        let file = || fs::read_to_string(all.get("past").unwrap().directory.join("file"));
        add("me", Ok(())).unwrap();
        assert_eq!(file().unwrap(), "me");
        let failed = add("me", Err(Error::NotRunning("it".to_owned())));
        assert!(matches!(failed, Err(Error::NotRunning(_))), "{failed:?}");
        assert_eq!(file().unwrap(), "me");
        let later = add("other", Ok(())).unwrap();
        assert_eq!(later.directory, all.get("past").unwrap().directory);
        assert_eq!(file().unwrap(), "other");
        // Another's is not replaced.
        let taken = add("me", Ok(()));
        assert!(matches!(taken, Err(Error::SnapshotExists(_))), "{taken:?}");
        assert_eq!(file().unwrap(), "other");
        assert_eq!(names(directory.path()), ["snapshot-past"]);
        // What a killed process has left is no snapshot.
        fs::rename(
            directory.path().join("sandboxes/snapshot-past"),
            directory.path().join("sandboxes/snapshot-.left"),
        )
        .unwrap();
        assert_eq!(all.list().unwrap().len(), 0);
        assert_eq!(names(directory.path()), Vec::<String>::new());
    }
}
