//! An archive out of a sandbox, which nobody trusts, as files of the host's.

use std::fs::{self, File, FileTimes, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid};
use tar::{Archive, Entry, EntryType};

use crate::failure::Failure;
use crate::whole_file::WholeFile;

/// What the archive calls what is copied.
pub const ROOT: &[u8] = b"root";

/// Why nothing, or not everything, was unpacked.
#[derive(Debug)]
pub enum Problem {
    /// The archive ends early or makes no sense.
    Archive(io::Error),
    /// The host.
    Host(Failure),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Archive(error) => Self::of(&error).context("reading the sandbox's archive"),
            Problem::Host(failure) => failure,
        }
    }
}

type Result<T> = std::result::Result<T, Problem>;

/// A directory whose attributes are set when everything is in it.
struct Later {
    path: PathBuf,
    mode: u32,
    mtime: u64,
    owner: Option<(u32, u32)>,
}

/// Unpacks an archive whose only top is called [`ROOT`]. `place` says where that goes, once it
/// is known whether it is a directory. Nobody becomes somebody else by what is unpacked: there
/// are no set-id bits, and no owners but whoever copies unless `owners`. Nothing is written
/// through a symbolic link, nor outside of that place.
pub fn unpack(
    from: impl Read,
    owners: bool,
    place: impl FnOnce(bool) -> std::result::Result<PathBuf, String>,
) -> Result<()> {
    let mut archive = Archive::new(from);
    let mut place = Some(place);
    let mut root = PathBuf::new();
    let mut later = Vec::new();
    for entry in archive.entries().map_err(Problem::Archive)? {
        let mut entry = entry.map_err(Problem::Archive)?;
        let path = below(&entry.path().map_err(Problem::Archive)?)?;
        let is_directory = entry.header().entry_type() == EntryType::Directory;
        if let Some(place) = place.take() {
            if path != Path::new("") {
                return Err(wrong("it begins in the middle"));
            }
            root = place(is_directory).map_err(|text| Problem::Host(Failure::new(text)))?;
            // Merged into one that is there, which keeps its attributes.
            if is_directory && root.is_dir() {
                continue;
            }
        }
        let at = match path == Path::new("") {
            true => root.clone(),
            false => root.join(&path),
        };
        check_parents(&root, &path)?;
        one(&mut entry, &root, &at, owners, &mut later)?;
    }
    if place.is_some() {
        return Err(wrong("it is empty"));
    }
    for Later {
        path,
        mode,
        mtime,
        owner,
    } in later.into_iter().rev()
    {
        let at = |error| host(&path, error);
        if let Some((uid, gid)) = owner {
            chown(&path, uid, gid).map_err(at)?;
        }
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(at)?;
        let directory = File::open(&path).map_err(at)?;
        directory.set_times(times(mtime)).map_err(at)?;
    }
    Ok(())
}

fn one(
    entry: &mut Entry<'_, impl Read>,
    root: &Path,
    at: &Path,
    owners: bool,
    later: &mut Vec<Later>,
) -> Result<()> {
    let header = entry.header();
    let mode = header.mode().map_err(Problem::Archive)? & 0o777;
    let mtime = header.mtime().map_err(Problem::Archive)?;
    let id = |id: io::Result<u64>| id.map(|id| u32::try_from(id).unwrap_or(u32::MAX));
    let ids = id(header.uid()).and_then(|uid| Ok((uid, id(header.gid())?)));
    let ids = ids.map_err(Problem::Archive)?;
    let owner = owners.then_some(ids);
    let failed = |error: io::Error| host(at, error);
    match header.entry_type() {
        EntryType::Directory => {
            match fs::create_dir(at) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let is_directory = at.symlink_metadata().is_ok_and(|it| it.is_dir());
                    if !is_directory {
                        return Err(failed(error));
                    }
                }
                result => result.map_err(failed)?,
            }
            // Until everything is in it.
            fs::set_permissions(at, Permissions::from_mode(mode | 0o700)).map_err(failed)?;
            later.push(Later {
                path: at.to_owned(),
                mode,
                mtime,
                owner,
            });
        }
        EntryType::Regular | EntryType::Continuous => {
            let whole = WholeFile::create(at).map_err(failed)?;
            let mut file = whole.file();
            io::copy(entry, &mut file).map_err(failed)?;
            if let Some((uid, gid)) = owner {
                rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                    .map_err(|error| failed(error.into()))?;
            }
            file.set_permissions(Permissions::from_mode(mode))
                .and_then(|()| file.set_times(times(mtime)))
                .map_err(failed)?;
            whole.publish(at).map_err(failed)?;
        }
        EntryType::Symlink => {
            let target = entry.link_name().map_err(Problem::Archive)?;
            let target = target.ok_or_else(|| wrong("a link to nothing"))?;
            replace(at)?;
            std::os::unix::fs::symlink(target, at).map_err(failed)?;
            set_link_times(at, mtime).map_err(failed)?;
            if let Some((uid, gid)) = owner {
                chown(at, uid, gid).map_err(failed)?;
            }
        }
        EntryType::Link => {
            let target = entry.link_name().map_err(Problem::Archive)?;
            let target = below(&target.ok_or_else(|| wrong("a link to nothing"))?)?;
            check_parents(root, &target)?;
            let target = root.join(target);
            if !target.symlink_metadata().is_ok_and(|it| it.is_file()) {
                return Err(wrong("a hard link to what is no file"));
            }
            replace(at)?;
            fs::hard_link(target, at).map_err(failed)?;
        }
        // Devices and the like have no business here.
        _ => {}
    }
    Ok(())
}

/// A member's path below [`ROOT`].
fn below(path: &Path) -> Result<PathBuf> {
    let is_plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let mut parts = path.components();
    let root = parts.next().map(|part| part.as_os_str().as_encoded_bytes());
    if root != Some(ROOT) || !parts.clone().all(|part| is_plain(&part)) {
        return Err(wrong("a member outside of what was to be copied"));
    }
    Ok(parts.collect())
}

/// Fails unless all directories on the way from `root` are directories themselves.
fn check_parents(root: &Path, path: &Path) -> Result<()> {
    let mut at = root.to_owned();
    let parts = path.parent().into_iter().flat_map(Path::components);
    for part in parts {
        at.push(part);
        if !at.symlink_metadata().is_ok_and(|it| it.is_dir()) {
            let problem = "it is on the way and no directory";
            return Err(host(&at, io::Error::other(problem)));
        }
    }
    Ok(())
}

/// Removes what a link is to replace, unless that is a directory.
fn replace(at: &Path) -> Result<()> {
    match fs::remove_file(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(host(at, error)),
        _ => Ok(()),
    }
}

fn chown(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(rustix::fs::chownat(
        CWD,
        path,
        uid,
        gid,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Of a symbolic link itself.
fn set_link_times(path: &Path, mtime: u64) -> io::Result<()> {
    let moment = Timespec {
        tv_sec: i64::try_from(mtime).unwrap_or(0),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: moment,
        last_modification: moment,
    };
    Ok(rustix::fs::utimensat(
        CWD,
        path,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn times(mtime: u64) -> FileTimes {
    let moment = UNIX_EPOCH.checked_add(Duration::from_secs(mtime));
    FileTimes::new().set_modified(moment.unwrap_or(UNIX_EPOCH))
}

fn wrong(what: &str) -> Problem {
    Problem::Archive(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

fn host(path: &Path, error: io::Error) -> Problem {
    Problem::Host(Failure::of(&error).context(&format!("writing {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of members: type, path, and contents or a link's target.
    fn archive(members: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, path, text) in members {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o4755);
            header.set_mtime(1_700_000_000);
            header.set_uid(1);
            header.set_gid(1);
            let is_file = *kind == EntryType::Regular;
            header.set_size(if is_file { text.len() as u64 } else { 0 });
            // As they are: a library would refuse some.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            if !is_file {
                header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
            }
            header.set_cksum();
            let data = if is_file { text.as_bytes() } else { b"" };
            builder.append(&header, data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_hostile_archive_reaches_nothing_else() {
        use EntryType::{Directory, Link, Regular, Symlink};
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let secret = secret.to_str().unwrap();
        let outside = directory.path().to_str().unwrap();
        let place = directory.path().join("place");
        let top = (Directory, "root", "");
        for members in [
            &[top, (Regular, "root/../secret", "x")][..],
            &[top, (Regular, "secret", "x")],
            &[top, (Regular, secret, "x")],
            &[
                top,
                (Symlink, "root/l", outside),
                (Regular, "root/l/secret", "x"),
            ],
            &[
                top,
                (Symlink, "root/l", outside),
                (Directory, "root/l/new", ""),
            ],
            &[top, (Symlink, "root/l", outside), (Directory, "root/l", "")],
            &[top, (Link, "root/l", secret)],
            &[top, (Link, "root/l", "root/../secret")],
            &[
                top,
                (Symlink, "root/l", outside),
                (Link, "root/h", "root/l/secret"),
            ],
            &[top, (Symlink, "root/l", secret), (Link, "root/h", "root/l")],
            &[(Regular, "root/a", "x")],
            &[],
        ] {
            let unpacked = unpack(&*archive(members), false, |_| Ok(place.clone()));
            assert!(unpacked.is_err(), "{members:?}");
            assert_eq!(fs::read_to_string(secret).unwrap(), "secret");
            assert!(!directory.path().join("new").exists());
            let _ = fs::remove_dir_all(&place);
        }
        // What is in order, over a link that is in the way.
        let members = [
            top,
            (Symlink, "root/file", secret),
            (Regular, "root/file", "x"),
            (Link, "root/hard", "root/file"),
        ];
        unpack(&*archive(&members), false, |_| Ok(place.clone())).unwrap();
        assert_eq!(fs::read_to_string(secret).unwrap(), "secret");
        assert_eq!(fs::read_to_string(place.join("hard")).unwrap(), "x");
        let mode = fs::metadata(place.join("file"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
    }
}
