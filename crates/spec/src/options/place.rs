//! The words of options that may name a place of this machine: `-v`, `--mount` and `--upper`. Paths are as they are
//! written; the caller makes those that are relative absolute, and gives volumes of the sandbox's own a name.

use std::str::FromStr;

use crate::words::{MountWord, VolumeWord, WordError};
use crate::{BindSource, Mount, MountSource, Upper};

/// A value of `-v`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOption(pub Mount);

impl FromStr for VolumeOption {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let VolumeWord(mount) = text.parse()?;
        check_mount(&mount)?;
        Ok(Self(mount))
    }
}

/// A value of `--mount`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOption(pub MountWord);

impl FromStr for MountOption {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let word = text.parse()?;
        if let MountWord::Mount(mount) = &word {
            check_mount(mount)?;
        }
        Ok(Self(word))
    }
}

/// A value of `--upper`: where changes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpperOption(pub Upper);

impl FromStr for UpperOption {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let upper = text.parse()?;
        if let Upper::Folder { path } = &upper {
            check_path(path)?;
        }
        Ok(Self(upper))
    }
}

fn check_mount(mount: &Mount) -> Result<(), WordError> {
    bound(mount).map_or(Ok(()), |source| check_path(&source))
}

/// Refuses what only a shell knows the place of.
fn check_path(path: &str) -> Result<(), WordError> {
    if path.starts_with('~') {
        return Err(format!(
            "`{path}`: a shell replaces ~ only outside quotes: give the whole path, or ./{path}"
        )
        .into());
    }
    Ok(())
}

/// Returns the path of this machine that is mounted, if it is one.
pub(super) fn bound(mount: &Mount) -> Option<String> {
    match &mount.source {
        MountSource::Bind(BindSource { source, .. }) => Some(source.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_a_users_folder_is_the_shells_to_find() {
        let refused = [
            "~/x:/a".parse::<VolumeOption>().unwrap_err(),
            "~:/a".parse::<VolumeOption>().unwrap_err(),
            "type=bind,src=~/a,dst=/b"
                .parse::<MountOption>()
                .unwrap_err(),
            "folder:~/a".parse::<UpperOption>().unwrap_err(),
        ];
        for why in refused {
            assert!(why.to_string().contains("outside quotes"), "{why}");
        }
        let mount = "./~/a:/b".parse::<VolumeOption>();
        assert_eq!(mount, Ok(VolumeOption(Mount::bind("./~/a", "/b"))));
    }

    fn upper(text: &str) -> Result<Upper, WordError> {
        text.parse().map(|UpperOption(upper)| upper)
    }

    #[test]
    fn a_disk_has_a_size() {
        let disk = |size| Ok(Upper::Disk { size });
        assert_eq!(upper("tmpfs"), Ok(Upper::Tmpfs));
        assert_eq!(upper("disk"), disk(8 << 30));
        assert_eq!(upper("disk:16m"), disk(16 << 20));
        assert_eq!(upper("disk:1.5T"), disk(3 << 39));
        for bad in [
            "", "disk:", "disk:1m", "disk:17t", "tmpfs:1g", "folder", "folder:", "x",
        ] {
            upper(bad).unwrap_err();
        }
    }
}
