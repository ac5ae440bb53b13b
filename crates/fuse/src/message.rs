//! FUSE's messages, as far as bytes go (`linux/fuse.h`, version 7.38).

use std::ffi::CStr;
use std::mem;
use std::time::Duration;

use rustix::io::Errno;

use crate::opcode;

/// Bytes of a request's header (`fuse_in_header`).
pub const HEADER: usize = 40;

/// Bytes of a reply's header (`fuse_out_header`).
pub const REPLY_HEADER: usize = 16;

/// Most bytes of data in one request to read or write.
pub const MOST_DATA: u32 = 1 << 20;

/// Most bytes of a request or a reply: data, and a page for all else.
pub const LARGEST: usize = MOST_DATA as usize + 4096;

/// The protocol's version: the one that has `FUSE_STATX`. The kernel leaves out what it lacks.
pub const MAJOR: u32 = 7;
/// Its minor number.
pub const MINOR: u32 = 39;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// One of [`opcode`].
    pub opcode: u32,
    /// The number that its reply repeats.
    pub unique: u64,
    /// The file that it is about.
    pub node: u64,
    /// The user of the process that asks, as the mount maps it. If mounts may map
    /// ([`flag::ALLOW_IDMAP`](crate::flag::ALLOW_IDMAP)), only of a request that makes a file, and
    /// `u32::MAX` in others.
    pub uid: u32,
    /// Its group, likewise.
    pub gid: u32,
    /// The version of the reply's data ([`Until::Version`]): a later change makes the data stale. 0 in a
    /// request that was just read.
    pub version: u64,
    /// What follows the header.
    pub body: Body<'a>,
}

impl<'a> Request<'a> {
    /// Reads a request, which must be as long as its header says.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(HEADER)?;
        let (length, request) = Self::header(header, Body::of(body))?;
        (length == bytes.len()).then_some(request)
    }

    /// Reads a request in three parts: its header, the operation's, of which `first` has at least as much as
    /// the header says, and the rest.
    pub(crate) fn read_parts(header: &[u8], first: &'a [u8], rest: &'a [u8]) -> Option<Self> {
        let (length, request) = Self::header(header, Body(first, rest))?;
        let first = first.get(..length.checked_sub(HEADER + rest.len())?)?;
        let body = Body(first, rest);
        Some(Self { body, ..request })
    }

    /// Calls `forget` with each file that a request to forget names, and the number of lookups that are
    /// forgotten.
    ///
    /// # Errors
    /// `EINVAL` if it names fewer than it says.
    pub fn forgotten(&self, mut forget: impl FnMut(u64, u64)) -> Result<(), Errno> {
        let mut body = self.body;
        if self.opcode == opcode::FORGET {
            forget(self.node, body.u64()?);
            return Ok(());
        }
        let count = body.u32()?;
        body.u32()?;
        for _ in 0..count {
            forget(body.u64()?, body.u64()?);
        }
        Ok(())
    }

    /// Reads a header; returns the length of the request, and the request.
    fn header(header: &[u8], body: Body<'a>) -> Option<(usize, Self)> {
        let mut header = Body::of(header);
        let length = header.u32().ok()?;
        let request = Self {
            opcode: header.u32().ok()?,
            unique: header.u64().ok()?,
            node: header.u64().ok()?,
            uid: header.u32().ok()?,
            gid: header.u32().ok()?,
            version: 0,
            body,
        };
        Some((length as usize, request))
    }
}

/// The bytes of a request that were not read yet, in two parts. No number or text is in both.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a>(&'a [u8], &'a [u8]);

impl<'a> Body<'a> {
    /// Begins to read a body.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(bytes, &[])
    }

    /// Returns whether all has been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty() && self.1.is_empty()
    }

    /// Goes on to the second part after the first.
    fn next_part(&mut self) {
        if self.0.is_empty() {
            self.0 = mem::take(&mut self.1);
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        self.next_part();
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads 4 bytes.
    ///
    /// # Errors
    /// `EINVAL` if there are fewer.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads 8 bytes.
    ///
    /// # Errors
    /// `EINVAL` if there are fewer.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    /// `EINVAL` if there are fewer.
    pub fn bytes(&mut self, count: u32) -> Result<&'a [u8], Errno> {
        self.next_part();
        let (first, rest) = self
            .0
            .split_at_checked(count as usize)
            .ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(first)
    }

    /// Reads a text that ends with a zero byte.
    ///
    /// # Errors
    /// `EINVAL` if none does.
    pub fn text(&mut self) -> Result<&'a CStr, Errno> {
        self.next_part();
        let text = CStr::from_bytes_until_nul(self.0).map_err(|_| Errno::INVAL)?;
        let length = text.to_bytes_with_nul().len();
        self.0 = self.0.get(length..).unwrap_or_default();
        Ok(text)
    }

    /// Reads a file's attributes (`fuse_attr`).
    ///
    /// # Errors
    /// `EINVAL` if there are fewer bytes.
    pub fn attributes(&mut self) -> Result<Attributes, Errno> {
        let (number, size, blocks) = (self.u64()?, self.u64()?, self.u64()?);
        let seconds = [self.u64()?, self.u64()?, self.u64()?].map(u64::cast_signed);
        let nanos = [self.u32()?, self.u32()?, self.u32()?];
        Ok(Attributes {
            number,
            size,
            blocks,
            atime: (seconds[0], nanos[0]),
            mtime: (seconds[1], nanos[1]),
            ctime: (seconds[2], nanos[2]),
            mode: self.u32()?,
            links: self.u32()?,
            uid: self.u32()?,
            gid: self.u32()?,
            device: device_of(self.u32()?),
            block_size: self.u32()?,
            is_unsettled: self.u32()? & UNSETTLED != 0,
        })
    }

    /// Reads the name of one directory entry: never a path, and neither of the entries that lead
    /// elsewhere.
    ///
    /// # Errors
    /// `EINVAL`, or `ENAMETOOLONG` above 255 bytes.
    pub fn name(&mut self) -> Result<&'a CStr, Errno> {
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
pub struct Reply(Vec<u8>);

impl Reply {
    /// Begins a reply.
    #[must_use]
    pub fn new() -> Self {
        Self(vec![0; REPLY_HEADER])
    }

    /// Ends a reply, with an error in place of its body if there is one.
    pub fn finish(mut self, unique: u64, error: Option<Errno>) -> Vec<u8> {
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

    /// Returns the body.
    pub(crate) fn body(&self) -> &[u8] {
        self.0.get(REPLY_HEADER..).unwrap_or_default()
    }

    /// Returns the number of bytes of the body.
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.len().saturating_sub(REPLY_HEADER)
    }

    /// Adds 2 bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    /// Adds 4 bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Adds 8 bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds `size` bytes that `fill` writes the first of; returns how many it wrote.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn fill(
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

    /// Adds a file and what is known of it (`fuse_entry_out`), valid for as long as `names` and
    /// `attributes` say.
    pub fn entry(&mut self, node: u64, file: &Attributes, names: Until, attributes: Until) {
        let ((name, name_nanos), (attribute, attribute_nanos)) =
            (names.fields(), attributes.fields());
        self.u64(node);
        self.u64(0); // The generation.
        self.u64(name);
        self.u64(attribute);
        self.u32(name_nanos);
        self.u32(attribute_nanos);
        self.attributes(file);
    }

    /// Adds an answer about a file's attributes (`fuse_attr_out`).
    pub fn only_attributes(&mut self, file: &Attributes, valid: Until) {
        let (seconds, nanos) = valid.fields();
        self.u64(seconds);
        self.u32(nanos);
        self.u32(0);
        self.attributes(file);
    }

    /// Adds a file's attributes (`fuse_attr`).
    fn attributes(&mut self, file: &Attributes) {
        self.u64(file.number);
        self.u64(file.size);
        self.u64(file.blocks);
        // Seconds before 1970 are negative, as the kernel has them.
        for (seconds, _) in file.times() {
            self.u64(seconds as u64);
        }
        for (_, nanos) in file.times() {
            self.u32(nanos);
        }
        self.u32(file.mode);
        self.u32(file.links);
        self.u32(file.uid);
        self.u32(file.gid);
        self.u32(device(file.device));
        self.u32(file.block_size);
        self.u32(if file.is_unsettled { UNSETTLED } else { 0 });
    }

    /// Adds an entry of a directory (`fuse_dirent`).
    pub fn directory_entry(&mut self, entry: &Entry<'_>) {
        self.u64(entry.number);
        self.u64(entry.after);
        self.u32(u32::try_from(entry.name.len()).unwrap_or_default());
        // As in `dirent.d_type`.
        self.u32(entry.mode >> 12);
        self.bytes(entry.name);
        let padding = entry.name.len().next_multiple_of(8) - entry.name.len();
        self.bytes([0; 8].get(..padding).unwrap_or_default());
    }
}

/// A file's attributes (`fuse_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number.
    pub number: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Times since 1970-01-01 UTC: seconds, and nanoseconds below 1,000,000,000.
    pub atime: (i64, u32),
    /// Of the last change of the contents.
    pub mtime: (i64, u32),
    /// Of the last change of anything.
    pub ctime: (i64, u32),
    /// Type, permissions, set-id and sticky bits.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Bytes that programs should read and write at a time.
    pub block_size: u32,
    /// What the kernel has cached of the contents must not outlive these attributes
    /// (`FUSE_ATTR_UNSETTLED` of `kernel/patches`; other kernels ignore it).
    pub is_unsettled: bool,
}

/// How long the kernel may cache names or attributes of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// For so long.
    Time(Duration),
    /// Until its table has a higher version in the slot of the cached data (`FUSE_VERSIONS` of
    /// `kernel/patches`).
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

/// Nanoseconds of a validity that is a version (`FUSE_VALID_VERSION`).
const VERSION: u32 = u32::MAX;

/// The flag of unsettled attributes.
const UNSETTLED: u32 = 1 << 31;

impl Attributes {
    fn times(&self) -> [(i64, u32); 3] {
        [self.atime, self.mtime, self.ctime]
    }
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The inode's number.
    pub number: u64,
    /// The place behind it in the directory.
    pub after: u64,
    /// The file's mode, of which the type is used.
    pub mode: u32,
    /// Its name.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Returns the number of bytes of the entry, after the file's attributes if `is_plus`
    /// (`fuse_direntplus`).
    #[must_use]
    pub fn length(&self, is_plus: bool) -> usize {
        let before = if is_plus { ENTRY_ATTRIBUTES } else { 0 };
        let name = self.name.len().next_multiple_of(8);
        name.saturating_add(ENTRY_HEADER).saturating_add(before)
    }
}

/// Bytes of an entry before its name (`fuse_dirent`).
const ENTRY_HEADER: usize = 24;

/// Bytes of what [`Reply::entry`] adds (`fuse_entry_out`).
pub const ENTRY_ATTRIBUTES: usize = 128;

/// Returns a device's number as FUSE has it (`new_encode_dev`).
fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Returns the device of a number as FUSE has it (`new_decode_dev`): major and minor number.
#[must_use]
pub fn device_of(number: u32) -> (u32, u32) {
    let minor = (number & 0xff) | ((number >> 12) & 0xf_ff00);
    ((number >> 8) & 0xfff, minor)
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
        assert!(Request::read(&request(42, b"a\0")).is_some());
        for wrong in [0, 41, 43, u32::MAX] {
            assert!(Request::read(&request(wrong, b"a\0")).is_none());
        }
        assert!(Request::read(&[0; HEADER - 1]).is_none());
    }

    #[test]
    fn a_request_in_parts_is_read_as_the_same_in_one() {
        let mut header = 54_u32.to_le_bytes().to_vec();
        header.resize(HEADER, 0);
        let first = [7, 0, 0, 0, 8, 0, 0, 0, 0xee, 0xee];
        let rest = *b"name\0\x01";
        let request = Request::read_parts(&header, &first, &rest).unwrap();
        let mut body = request.body;
        assert_eq!((body.u32(), body.u32()), (Ok(7), Ok(8)));
        assert_eq!(body.name(), Ok(c"name"));
        assert_eq!(body.bytes(1), Ok(&[1][..]));
        assert!(body.is_empty());
        assert_eq!(body.u32(), Err(Errno::INVAL));
        // Its header says more than there is, or less than the rest is.
        assert!(Request::read_parts(&header, &first[..7], &rest).is_none());
        assert!(Request::read_parts(&header, &first, &[0; 15]).is_none());
    }

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let file = Attributes {
            number: 7,
            size: 1 << 40,
            mtime: (-2, 999_999_999),
            mode: 0o20644,
            device: (0xfff, 0xf_ffff),
            is_unsettled: true,
            ..Attributes::default()
        };
        let mut reply = Reply::new();
        reply.only_attributes(&file, Until::Version(0));
        let mut body = Body::of(reply.body());
        body.bytes(16).unwrap();
        assert_eq!(body.attributes(), Ok(file));
        assert!(body.is_empty());
    }

    #[test]
    fn a_request_that_names_fewer_files_than_it_says_forgets_those_that_it_names() {
        let body = [2_u64, 7, 1, 8].map(u64::to_le_bytes).concat();
        let mut bytes = request((HEADER + body.len()) as u32, &body);
        bytes[4..8].copy_from_slice(&opcode::BATCH_FORGET.to_le_bytes());
        let mut forgotten = Vec::new();
        let request = Request::read(&bytes).unwrap();
        let done = request.forgotten(|node, count| forgotten.push((node, count)));
        assert_eq!((done, forgotten), (Err(Errno::INVAL), vec![(7, 1)]));
    }

    #[test]
    fn a_name_is_never_a_path() {
        let name = |bytes: &[u8]| Body::of(bytes).name().map(|name| name.to_bytes().to_vec());
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
