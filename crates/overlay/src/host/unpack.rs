//! Unpacks an archive from a sandbox or a disk, which is not trusted, into host files.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use micabox_tar::{Kind, Limits, Members, MembersError};
use micabox_tree::{Root, Unpacker, Unpacking};
use rustix::fs::{CWD, Mode, OFlags};

/// Name of the archive's top entry.
pub const ROOT: &[u8] = b"root";

/// Bytes of the archive that are read at a time.
const PIECE: usize = 256 << 10;

/// Why unpacking failed; a part may be unpacked then.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The archive ends early or is malformed.
    #[error("{0}")]
    Archive(String),
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

impl From<MembersError> for Problem {
    fn from(error: MembersError) -> Self {
        Self::Archive(error.to_string())
    }
}

type Result<T> = std::result::Result<T, Problem>;

/// What was left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Host path of the first device or FIFO.
    pub special: Option<PathBuf>,
    /// How many devices and FIFOs.
    pub specials: u64,
    /// Host path of the first file with an extended attribute that this user or filesystem can't
    /// have, and the attribute's name.
    pub xattr: Option<(PathBuf, Vec<u8>)>,
    /// How many such attributes.
    pub xattrs: u64,
}

/// Unpacks an archive whose only top entry is called [`ROOT`]. `place` returns the destination, given
/// whether the top is a directory. Files belong to the caller and grant no privileges: they have no
/// set-id bits, no access control lists, no capabilities, and devices and FIFOs are left out. With
/// `owners`, they keep owners and lists, and if the caller is root all the rest. Nothing is written
/// through a symbolic link, nor outside of the destination. Holes stay holes.
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
    let Some(first) = members.next_member()? else {
        return Err(Problem::Foreign("it is empty"));
    };
    if !below(&first.path)?.is_empty() {
        return Err(Problem::Foreign("it begins in the middle"));
    }
    let is_directory = first.kind == Kind::Directory;
    let place = place(is_directory).map_err(Problem::Place)?;
    let is_special = matches!(
        first.kind,
        Kind::CharDevice(..) | Kind::BlockDevice(..) | Kind::Fifo
    );
    if !is_special && is_special_file(&place) {
        let path = place.display();
        let what = format!("cannot copy to `{path}`: neither a directory nor a regular file");
        return Err(Problem::Place(what));
    }
    let target = Target::new(place, is_directory)?;
    let is_root = owners && rustix::process::geteuid().is_root();
    let options = Unpacking {
        owners,
        set_id: is_root,
        special: is_root,
        parents: false,
        whole: true,
        xattrs: match (is_root, owners) {
            (true, _) => |name| !name.starts_with(b"trusted.overlay."),
            (false, true) => |name| name.starts_with(b"user.") || name.starts_with(b"system."),
            (false, false) => |name| name.starts_with(b"user."),
        },
    };
    let mut unpacker = Unpacker::new(Root::without_links(target.open()?), options);
    let mut next = Some(first);
    while let Some(member) = next {
        let path = target.inside(below(&member.path)?);
        let link = match &member.kind {
            Kind::HardLink(link) => target.inside(below(link)?),
            _ => Vec::new(),
        };
        // Merged into the existing directory, which keeps its attributes.
        if !path.is_empty() {
            let added = unpacker.add(&path, &link, &member, &mut members.body());
            added.map_err(|error| target.problem(error))?;
        }
        next = members.next_member()?;
    }
    let unpacked = unpacker.finish().map_err(|error| target.problem(error))?;
    Ok(Unpacked {
        special: unpacked.special.map(|path| target.host(&path)),
        specials: unpacked.specials,
        xattr: unpacked
            .xattr
            .map(|(path, name)| (target.host(&path), name)),
        xattrs: unpacked.xattrs,
    })
}

/// Returns whether a device, a pipe or a socket has this path. A copy would take its place: as root, that of
/// `/dev/null`.
fn is_special_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir() && !metadata.is_file())
}

/// Where the archive goes.
struct Target {
    /// The directory that nothing leads out of.
    directory: PathBuf,
    /// The top's name in it; empty if the directory itself is the top.
    name: Vec<u8>,
}

impl Target {
    fn new(place: PathBuf, is_directory: bool) -> Result<Self> {
        if is_directory && place.is_dir() {
            return Ok(Self {
                directory: place,
                name: Vec::new(),
            });
        }
        let Some(name) = place.file_name() else {
            let source = io::ErrorKind::IsADirectory.into();
            return Err(Problem::Host {
                path: place,
                source,
            });
        };
        let directory = match place.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let name = name.as_bytes().to_vec();
        Ok(Self { directory, name })
    }

    fn open(&self) -> Result<std::os::fd::OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, &self.directory, flags, Mode::empty()).map_err(|errno| {
            Problem::Host {
                path: self.directory.clone(),
                source: errno.into(),
            }
        })
    }

    /// Returns the path from the directory of what is at `path` from the top.
    fn inside(&self, path: &[u8]) -> Vec<u8> {
        match (&*self.name, path) {
            (name, []) => name.to_vec(),
            ([], path) => path.to_vec(),
            (name, path) => [name, b"/", path].concat(),
        }
    }

    fn host(&self, path: &[u8]) -> PathBuf {
        self.directory.join(OsStr::from_bytes(path))
    }

    fn problem(&self, error: micabox_tree::Error) -> Problem {
        match error {
            micabox_tree::Error::File { path, source } => Problem::Host {
                path: self.host(&path),
                source,
            },
            error => Problem::Archive(error.to_string()),
        }
    }
}

/// Returns a member's path below [`ROOT`].
fn below(path: &[u8]) -> Result<&[u8]> {
    let outside = Problem::Foreign("a member outside of what was to be copied");
    let below = match path.strip_prefix(ROOT) {
        Some([]) => return Ok(b""),
        Some([b'/', below @ ..]) => below,
        _ => return Err(outside),
    };
    let end = below.iter().rposition(|byte| *byte != b'/');
    let below = below
        .get(..end.map_or(0, |end| end + 1))
        .unwrap_or_default();
    let is_plain = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
    if below.is_empty() || below.split(|byte| *byte == b'/').all(is_plain) {
        Ok(below)
    } else {
        Err(outside)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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
