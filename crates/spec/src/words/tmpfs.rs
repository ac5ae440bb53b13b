//! Filesystems in memory, as `docker run --tmpfs` has them.

use std::str::FromStr;

use micabox_wire::Tmpfs;

use super::WordError;
use super::mount::{absolute, mode, size};
use crate::{Mount, MountSource};

/// A mount of an empty filesystem in memory: a path, and options of mount(8) after a colon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfsWord(pub Mount);

impl FromStr for TmpfsWord {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        tmpfs(text).map(Self)
    }
}

fn tmpfs(text: &str) -> Result<Mount, WordError> {
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    let mut mount = Mount::tmpfs(absolute(target)?, Tmpfs::default());
    let mut tmpfs = Tmpfs::default();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || {
            value
                .parse()
                .map_err(|_| format!("`{option}`: expected a number"))
        };
        match (name, value) {
            ("ro", "") => mount.read_only = true,
            ("rw", "") => mount.read_only = false,
            ("exec" | "noexec", "") => tmpfs.exec = name == "exec",
            ("suid" | "nosuid", "") => tmpfs.suid = name == "suid",
            ("dev" | "nodev", "") => tmpfs.dev = name == "dev",
            ("size", _) => tmpfs.size_bytes = Some(size(value)?),
            ("mode", _) => tmpfs.mode = Some(mode(value)?),
            ("uid", _) => tmpfs.uid = number()?,
            ("gid", _) => tmpfs.gid = number()?,
            ("nr_inodes", _) => tmpfs.inodes = Some(number()?.into()),
            _ => {
                return Err(format!(
                    "`{option}`: expected ro, rw, [no]exec, [no]suid, [no]dev, size=, mode=, \
                     uid=, gid= or nr_inodes="
                )
                .into());
            }
        }
    }
    mount.source = MountSource::Tmpfs(tmpfs);
    Ok(mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mount: &Mount) -> &Tmpfs {
        match &mount.source {
            MountSource::Tmpfs(tmpfs) => tmpfs,
            _ => panic!("{mount:?}"),
        }
    }

    #[test]
    fn tmpfs_has_dockers_defaults_and_options() {
        let plain = tmpfs("/run").unwrap();
        assert_eq!(plain, Mount::tmpfs("/run", Tmpfs::default()));
        let mount =
            tmpfs("/a:ro,size=64k,mode=1770,uid=5,gid=6,exec,suid,dev,nr_inodes=9").unwrap();
        assert!(mount.read_only);
        let wanted = Tmpfs {
            size_bytes: Some(64 << 10),
            inodes: Some(9),
            mode: Some(0o1770),
            uid: 5,
            gid: 6,
            exec: true,
            suid: true,
            dev: true,
        };
        assert_eq!(options(&mount), &wanted);
        assert!(!tmpfs("/a:ro,exec,rw,noexec").unwrap().read_only);
        for bad in [
            "",
            "run",
            "/a:x",
            "/a:size=",
            "/a:size=0",
            "/a:mode=8",
            "/a:mode=10000",
        ] {
            tmpfs(bad).unwrap_err();
        }
    }
}
