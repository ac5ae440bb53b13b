//! Archives made byte by byte, in ways that no archiver makes them.

use std::collections::BTreeMap;

pub const BLOCK: usize = 512;

/// An archive that is being built. Every method adds one member, with the values set by
/// [`Archive::pax`] and [`Archive::header`] for it.
#[derive(Default, Clone)]
pub struct Archive {
    bytes: Vec<u8>,
    /// Bytes of the next header to overwrite, by offset.
    overrides: BTreeMap<usize, Vec<u8>>,
}

impl Archive {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn directory(self, path: &str) -> Self {
        self.member(b'5', path.as_bytes(), b"", 0o755, b"")
    }

    pub fn file(self, path: &str, contents: impl AsRef<[u8]>) -> Self {
        self.member(b'0', path.as_bytes(), b"", 0o644, contents.as_ref())
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.member(b'2', path.as_bytes(), target.as_bytes(), 0o777, b"")
    }

    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.member(b'1', path.as_bytes(), target.as_bytes(), 0o644, b"")
    }

    pub fn fifo(self, path: &str) -> Self {
        self.member(b'6', path.as_bytes(), b"", 0o600, b"")
    }

    pub fn device(self, kind: u8, path: &str, major: u32, minor: u32) -> Self {
        self.header(329, format!("{major:07o}\0"))
            .header(337, format!("{minor:07o}\0"))
            .member(kind, path.as_bytes(), b"", 0o600, b"")
    }

    /// Adds a whiteout: an empty file with a special name.
    pub fn whiteout(self, path: &str) -> Self {
        self.file(path, "")
    }

    /// Adds an extended header for the next member.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut contents = Vec::new();
        for (key, value) in records {
            contents.extend(record(key.as_bytes(), value));
        }
        self.member(b'x', b"PaxHeaders/x", b"", 0o644, &contents)
    }

    /// Adds GNU's header for a name or link target longer than 100 bytes.
    pub fn gnu_long(self, kind: u8, text: &[u8]) -> Self {
        self.member(kind, b"././@LongLink", b"", 0, &[text, b"\0"].concat())
    }

    /// Overwrites bytes of the next member's header.
    pub fn header(mut self, offset: usize, bytes: impl Into<Vec<u8>>) -> Self {
        self.overrides.insert(offset, bytes.into());
        self
    }

    /// Adds a member of any type. The header's size is that of the contents.
    pub fn member(
        mut self,
        kind: u8,
        path: &[u8],
        target: &[u8],
        mode: u32,
        contents: &[u8],
    ) -> Self {
        let mut header = [0; BLOCK];
        let mut put = |offset: usize, bytes: &[u8]| {
            header[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put(0, path);
        put(100, format!("{mode:07o}\0").as_bytes());
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", contents.len()).as_bytes());
        put(136, b"00000000000\0");
        put(156, &[kind]);
        put(157, target);
        put(257, b"ustar\x0000");
        for (offset, bytes) in std::mem::take(&mut self.overrides) {
            put(offset, &bytes);
        }
        put(148, b"        ");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(header);
        self.blocks(contents)
    }

    /// Adds bytes as they are, padded to a block.
    pub fn blocks(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.bytes
            .resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        self
    }

    /// Returns the archive without its end.
    pub fn unfinished(self) -> Vec<u8> {
        self.bytes
    }

    pub fn finish(self) -> Vec<u8> {
        [self.bytes, vec![0; 2 * BLOCK]].concat()
    }
}

/// Returns a PAX record, with its length, which includes itself.
pub fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key, b"=", value, b"\n"].concat();
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    [length.to_string().as_bytes(), &rest].concat()
}
