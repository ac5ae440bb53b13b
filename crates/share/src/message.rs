//! FUSE's messages, as far as bytes go (`linux/fuse.h`, version 7.38).

use std::ffi::CStr;
use std::time::Duration;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::settled::is_settled;

/// Bytes of a request's header (`fuse_in_header`).
pub const HEADER: usize = 40;

/// Of attributes: what the guest has cached of the contents must not outlive them
/// (`FUSE_ATTR_UNSETTLED`).
const UNSETTLED: u32 = 1 << 31;

/// Bytes of attributes (`fuse_attr`).
const ATTRIBUTES: usize = 88;

/// Nanoseconds of a validity that is a version (`FUSE_VALID_VERSION`).
const VERSION: u32 = u32::MAX;

/// Bytes of a reply's header (`fuse_out_header`).
pub(crate) const REPLY_HEADER: usize = 16;

/// Most bytes of data in one request to read or write.
pub(crate) const MOST_DATA: u32 = 1 << 20;

/// Most bytes of a request or a reply: data, and a page for all else.
pub const LARGEST: usize = MOST_DATA as usize + 4096;

/// The protocol's version that this server has.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 38;

/// What a request asks for (`enum fuse_opcode`).
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    /// The file that it is about.
    pub(crate) node: u64,
    /// The user and group of the process that asks.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The version of what it is told: what changes from now on outdates it.
    pub(crate) version: u64,
    pub(crate) body: Body<'a>,
}

impl<'a> Request<'a> {
    /// Reads a request, which must be as long as its header says. Its answer has this version.
    pub(crate) fn read(bytes: &'a [u8], version: u64) -> Option<Self> {
        let mut body = Body(bytes);
        let length = body.u32().ok()?;
        let request = Self {
            opcode: body.u32().ok()?,
            unique: body.u64().ok()?,
            node: body.u64().ok()?,
            uid: body.u32().ok()?,
            gid: body.u32().ok()?,
            version,
            body: {
                // The process's number and padding.
                body.u64().ok()?;
                body
            },
        };
        (length as usize == bytes.len()).then_some(request)
    }
}

/// The bytes of a request that were not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    /// Begins to read a body.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns whether all has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads `count` bytes.
    pub(crate) fn bytes(&mut self, count: u32) -> Result<&'a [u8], Errno> {
        let (first, rest) = self
            .0
            .split_at_checked(count as usize)
            .ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(first)
    }

    /// Reads a text that ends with a zero byte.
    pub(crate) fn text(&mut self) -> Result<&'a CStr, Errno> {
        let text = CStr::from_bytes_until_nul(self.0).map_err(|_| Errno::INVAL)?;
        let length = text.to_bytes_with_nul().len();
        self.0 = self.0.get(length..).unwrap_or_default();
        Ok(text)
    }

    /// Reads the name of one directory entry: never a path, and neither of the entries that lead
    /// elsewhere.
    pub(crate) fn name(&mut self) -> Result<&'a CStr, Errno> {
        let name = self.text()?;
        match name.to_bytes() {
            b"" | b"." | b".." => Err(Errno::INVAL),
            bytes if bytes.contains(&b'/') => Err(Errno::INVAL),
            bytes if bytes.len() > 255 => Err(Errno::NAMETOOLONG),
            _ => Ok(name),
        }
    }
}

/// A reply: room for its header, and what follows it.
#[derive(Debug, Default)]
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    /// Begins a reply.
    pub(crate) fn new() -> Self {
        Self(vec![0; REPLY_HEADER])
    }

    /// Ends a reply, with an error in place of its body if there is one.
    pub(crate) fn finish(mut self, unique: u64, error: Option<Errno>) -> Vec<u8> {
        if error.is_some() {
            self.0.truncate(REPLY_HEADER);
        }
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let code = error.map_or(0, |error| -error.raw_os_error());
        let header = length.to_le_bytes().into_iter().chain(code.to_le_bytes());
        let header = header.chain(unique.to_le_bytes());
        for (place, byte) in self.0.iter_mut().zip(header) {
            *place = byte;
        }
        self.0
    }

    /// Returns the number of bytes of the body.
    pub(crate) fn length(&self) -> usize {
        self.0.len().saturating_sub(REPLY_HEADER)
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds `size` bytes that `fill` writes the first of; returns how many it wrote.
    pub(crate) fn fill(
        &mut self,
        size: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let start = self.0.len();
        self.0.resize(start.saturating_add(size as usize), 0);
        let filled = fill(self.0.get_mut(start..).unwrap_or_default())?;
        self.0.truncate(start.saturating_add(filled));
        Ok(filled)
    }

    /// Adds a file and what is known of it (`fuse_entry_out`).
    pub(crate) fn entry(&mut self, node: u64, stat: &Stat, shown: &Shown, valid: Valid) {
        self.entry_validity(node, valid);
        self.attributes(stat, shown);
    }

    /// Adds that there is no such file (`fuse_entry_out`).
    pub(crate) fn no_entry(&mut self, valid: Valid) {
        self.entry_validity(0, valid);
        self.bytes(&[0; ATTRIBUTES]);
    }

    fn entry_validity(&mut self, node: u64, valid: Valid) {
        let ((name, name_nsec), (attributes, attributes_nsec)) =
            (valid.name.fields(), valid.attributes.fields());
        self.u64(node);
        self.u64(0); // The generation.
        self.u64(name);
        self.u64(attributes);
        self.u32(name_nsec);
        self.u32(attributes_nsec);
    }

    /// Adds an answer about a file's attributes (`fuse_attr_out`).
    pub(crate) fn only_attributes(&mut self, stat: &Stat, shown: &Shown, valid: Until) {
        let (seconds, nanoseconds) = valid.fields();
        self.u64(seconds);
        self.u32(nanoseconds);
        self.u32(0);
        self.attributes(stat, shown);
    }

    /// Adds a file's attributes (`fuse_attr`).
    fn attributes(&mut self, stat: &Stat, shown: &Shown) {
        // Numbers as the kernel has them: none is negative, but for times before 1970.
        self.u64(stat.st_ino);
        self.u64(stat.st_size as u64);
        self.u64(stat.st_blocks as u64);
        self.u64(stat.st_atime as u64);
        self.u64(stat.st_mtime as u64);
        self.u64(stat.st_ctime as u64);
        self.u32(stat.st_atime_nsec as u32);
        self.u32(stat.st_mtime_nsec as u32);
        self.u32(stat.st_ctime_nsec as u32);
        self.u32(shown.mode);
        self.u32(u32::try_from(stat.st_nlink).unwrap_or(u32::MAX));
        self.u32(shown.uid);
        self.u32(shown.gid);
        self.u32(device(stat.st_rdev));
        self.u32(u32::try_from(stat.st_blksize).unwrap_or(4096));
        self.u32(if is_settled(stat) { 0 } else { UNSETTLED });
    }
}

/// Returns a device's number as FUSE has it (`new_encode_dev`).
fn device(number: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// How long the guest may use something that it was told without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// For so long.
    Time(Duration),
    /// Until a higher version is in its slot (`versions.rs`).
    Version(u64),
}

impl Until {
    /// Returns the seconds and nanoseconds of a message.
    fn fields(self) -> (u64, u32) {
        match self {
            Self::Time(time) => (time.as_secs(), time.subsec_nanos()),
            Self::Version(version) => (version, VERSION),
        }
    }
}

/// How long the guest may use a name and what it leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Valid {
    pub(crate) name: Until,
    pub(crate) attributes: Until,
}

/// How long the guest may use what it was told, where nothing tells of changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// Of the name of a directory.
    pub(crate) directory: Duration,
    /// Of any other name.
    pub(crate) name: Duration,
    /// Of a file's attributes.
    pub(crate) attributes: Duration,
}

impl Validity {
    /// A file is looked up each time that a path to it is used. What comes with an answer serves that
    /// use: the kernel rounds up to a tick of its clock. With zero it would ask for attributes again at
    /// once, and forget directories between two uses.
    pub(crate) const CONSISTENT: Self = Self {
        directory: Duration::from_nanos(1),
        name: Duration::ZERO,
        attributes: Duration::from_nanos(1),
    };

    /// What the host changes may be seen a second late.
    pub(crate) const CACHED: Self = Self {
        directory: Duration::from_secs(1),
        name: Duration::from_secs(1),
        attributes: Duration::from_secs(1),
    };

    /// Only the guest changes the folder: what its kernel knows stays valid.
    pub(crate) const EXCLUSIVE: Self = Self {
        directory: DAY,
        name: DAY,
        attributes: DAY,
    };

    /// Returns that of a file of this type.
    pub(crate) fn of(self, kind: FileType) -> Valid {
        Valid {
            name: Until::Time(match kind {
                FileType::Directory => self.directory,
                _ => self.name,
            }),
            attributes: Until::Time(self.attributes),
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the guest sees of a file's owner and mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The type and all permission bits.
    pub(crate) mode: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(length: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([0; HEADER - 4]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_request_is_as_long_as_it_says() {
        assert!(Request::read(&request(42, b"a\0"), 1).is_some());
        for wrong in [0, 41, 43, u32::MAX] {
            assert!(Request::read(&request(wrong, b"a\0"), 1).is_none());
        }
        assert!(Request::read(&[0; HEADER - 1], 1).is_none());
    }

    #[test]
    fn a_name_is_never_a_path() {
        let name = |bytes: &[u8]| Body(bytes).name().map(|name| name.to_bytes().to_vec());
        assert_eq!(name(b"...\0rest"), Ok(b"...".to_vec()));
        for wrong in [
            &b"..\0"[..],
            b".\0",
            b"\0",
            b"a/b\0",
            b"/\0",
            b"unended",
            b"",
        ] {
            assert_eq!(name(wrong), Err(Errno::INVAL), "{wrong:?}");
        }
        let long = [[b'x'; 256].as_slice(), &[0]].concat();
        assert_eq!(name(&long), Err(Errno::NAMETOOLONG));
    }
}
