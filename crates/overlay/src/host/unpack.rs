//! Unpacks an archive from a sandbox or a disk, which is not trusted, into host files.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use micabox_tar::{Kind, Limits, Member, Members, MembersError, Segment, Timestamp};
use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid};

use super::WholeFile;

/// Name of the archive's top entry.
pub const ROOT: &[u8] = b"root";

/// Bytes of the archive, and of contents, that are copied at a time.
const PIECE: usize = 256 << 10;

/// Why unpacking failed; a part may be unpacked then.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The archive ends early or is malformed.
    #[error(transparent)]
    Archive(#[from] MembersError),
    /// The archive is valid, but not one of ours.
    #[error("{0}")]
    Foreign(&'static str),
    /// The destination is invalid.
    #[error("{0}")]
    Place(String),
    /// The host's filesystem failed.
    #[error("writing {}", path.display())]
    Host {
        /// The host's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, Problem>;

/// Files that were left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Host path of the first device or FIFO.
    pub special: Option<PathBuf>,
}

/// A directory whose attributes are set once all its entries are written.
struct Open {
    path: PathBuf,
    mode: u32,
    mtime: Timestamp,
    owner: Option<(u32, u32)>,
}

/// Unpacks an archive whose only top entry is called [`ROOT`]. `place` returns the destination, given
/// whether the top is a directory. Unpacked files grant no privileges: they have no set-id bits,
/// and no owner but the caller unless `owners`. Nothing is written through a symbolic link, nor
/// outside of the destination. Holes stay holes. Devices and FIFOs are left out.
///
/// # Errors
/// [`Problem`]; a part may be unpacked then.
pub fn unpack(
    from: impl Read,
    owners: bool,
    place: impl FnOnce(bool) -> std::result::Result<PathBuf, String>,
) -> Result<Unpacked> {
    let from = BufReader::with_capacity(PIECE, from);
    let mut members = Members::new(from, Limits::default());
    let mut place = Some(place);
    let mut unpacking = Unpacking {
        root: PathBuf::new(),
        owners,
        open: Vec::new(),
        buffer: vec![0; PIECE],
        unpacked: Unpacked::default(),
    };
    while let Some(member) = members.next_member().map_err(Problem::Archive)? {
        let path = below(&member.path)?;
        let is_directory = member.kind == Kind::Directory;
        if let Some(place) = place.take() {
            if path != Path::new("") {
                return Err(Problem::Foreign("it begins in the middle"));
            }
            let root = place(is_directory).map_err(Problem::Place)?;
            unpacking.root = root;
            // Merged into the existing directory, which keeps its attributes.
            if is_directory && unpacking.root.is_dir() {
                continue;
            }
        }
        unpacking.one(&path, &member, &mut members.body())?;
    }
    if place.is_some() {
        return Err(Problem::Foreign("it is empty"));
    }
    unpacking.leave(Path::new(""), true)?;
    Ok(unpacking.unpacked)
}

struct Unpacking {
    root: PathBuf,
    owners: bool,
    /// Directories that contain the last member, outermost first.
    open: Vec<Open>,
    buffer: Vec<u8>,
    unpacked: Unpacked,
}

impl Unpacking {
    fn one(&mut self, path: &Path, member: &Member, body: &mut dyn Read) -> Result<()> {
        let at = self.at(path);
        self.leave(&at, false)?;
        check_parents(&self.root, path)?;
        let attributes = &member.attributes;
        let owner = self.owners.then_some((attributes.uid, attributes.gid));
        let mode = u32::from(attributes.mode) & 0o777;
        let failed = |error: io::Error| host(&at, error);
        match &member.kind {
            Kind::Directory => {
                match fs::create_dir(&at) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        let is_directory = at.symlink_metadata().is_ok_and(|it| it.is_dir());
                        if !is_directory {
                            return Err(failed(error));
                        }
                    }
                    result => result.map_err(failed)?,
                }
                // Writable until all its entries are written.
                fs::set_permissions(&at, Permissions::from_mode(mode | 0o700)).map_err(failed)?;
                self.open.push(Open {
                    mode: u32::from(attributes.mode) & 0o1777,
                    mtime: attributes.mtime,
                    owner,
                    path: at,
                });
            }
            Kind::File { size, segments } => {
                let whole = WholeFile::create(&at).map_err(failed)?;
                let file = whole.file();
                let segments = segments.as_deref();
                self.contents(*size, segments, body, file).map_err(failed)?;
                if let Some((uid, gid)) = owner {
                    rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                        .map_err(|error| failed(error.into()))?;
                }
                file.set_permissions(Permissions::from_mode(mode))
                    .and_then(|()| file.set_times(times(attributes.mtime)))
                    .map_err(failed)?;
                whole.publish(&at).map_err(failed)?;
            }
            Kind::Symlink(target) => {
                replace(&at)?;
                let target = OsStr::from_bytes(target);
                std::os::unix::fs::symlink(target, &at).map_err(failed)?;
                set_link_times(&at, attributes.mtime).map_err(failed)?;
                if let Some((uid, gid)) = owner {
                    chown(&at, uid, gid).map_err(failed)?;
                }
            }
            Kind::HardLink(target) => {
                let target = below(target)?;
                check_parents(&self.root, &target)?;
                let target = self.at(&target);
                if !target.symlink_metadata().is_ok_and(|it| it.is_file()) {
                    return Err(Problem::Foreign(
                        "a hard link to something that is not a regular file",
                    ));
                }
                // Two names of one file can't replace each other.
                if target != at {
                    replace(&at)?;
                    fs::hard_link(target, &at).map_err(failed)?;
                }
            }
            // Devices and FIFOs of a sandbox have no use on the host.
            Kind::CharDevice(..) | Kind::BlockDevice(..) | Kind::Fifo => {
                self.unpacked.special.get_or_insert(at);
            }
        }
        Ok(())
    }

    /// Writes a file's contents, with its holes.
    fn contents(
        &mut self,
        size: u64,
        segments: Option<&[Segment]>,
        body: &mut dyn Read,
        file: &File,
    ) -> io::Result<()> {
        for segment in segments.unwrap_or(&[Segment::whole(size)]) {
            let mut at = segment.offset;
            let end = segment.end();
            while at < end {
                let count = (end - at).min(PIECE as u64) as usize;
                let piece = self.buffer.get_mut(..count).unwrap_or_default();
                body.read_exact(piece)?;
                file.write_all_at(piece, at)?;
                at += count as u64;
            }
        }
        file.set_len(size)
    }

    /// Returns a member's path on the host.
    fn at(&self, path: &Path) -> PathBuf {
        if path == Path::new("") {
            self.root.clone()
        } else {
            self.root.join(path)
        }
    }

    /// Closes the open directories that don't contain `next`, or all of them: sets their
    /// attributes.
    fn leave(&mut self, next: &Path, all: bool) -> Result<()> {
        while let Some(last) = self
            .open
            .pop_if(|last| all || last.path == next || !next.starts_with(&last.path))
        {
            last.close().map_err(|error| host(&last.path, error))?;
        }
        Ok(())
    }
}

impl Open {
    fn close(&self) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner {
            chown(&self.path, uid, gid)?;
        }
        let directory = File::open(&self.path)?;
        directory.set_permissions(Permissions::from_mode(self.mode))?;
        directory.set_times(times(self.mtime))
    }
}

/// Returns a member's path below [`ROOT`].
fn below(path: &[u8]) -> Result<PathBuf> {
    let is_plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let mut parts = Path::new(OsStr::from_bytes(path)).components();
    let root = parts.next().map(|part| part.as_os_str().as_encoded_bytes());
    if root != Some(ROOT) || !parts.clone().all(|part| is_plain(&part)) {
        let what = "a member outside of what was to be copied";
        return Err(Problem::Foreign(what));
    }
    Ok(parts.collect())
}

/// Fails unless every parent of `path` below `root` is a directory and not a link.
fn check_parents(root: &Path, path: &Path) -> Result<()> {
    let mut at = root.to_owned();
    let parts = path.parent().into_iter().flat_map(Path::components);
    for part in parts {
        at.push(part);
        if !at.symlink_metadata().is_ok_and(|it| it.is_dir()) {
            let problem = "a parent of the path, and not a directory";
            return Err(host(&at, io::Error::other(problem)));
        }
    }
    Ok(())
}

/// Removes the file that a link replaces; fails on a directory.
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

/// Sets the times of a symbolic link itself.
fn set_link_times(path: &Path, mtime: Timestamp) -> io::Result<()> {
    let moment = Timespec {
        tv_sec: mtime.seconds,
        tv_nsec: mtime.nanos.into(),
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

fn times(Timestamp { seconds, nanos }: Timestamp) -> FileTimes {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second: Option<SystemTime> = if seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    let moment = second.and_then(|second| second.checked_add(Duration::from_nanos(nanos.into())));
    FileTimes::new().set_modified(moment.unwrap_or(UNIX_EPOCH))
}

fn host(path: &Path, error: io::Error) -> Problem {
    Problem::Host {
        path: path.to_owned(),
        source: error,
    }
}

#[cfg(test)]
mod tests {
    use tar::EntryType;

    use super::*;

    /// Builds an archive of members: type, path, and contents or a link's target.
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
            // Written byte by byte: a library would refuse some paths.
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
    fn a_hostile_archive_changes_nothing_outside_its_target() {
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
        // Valid members, over an existing link.
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
