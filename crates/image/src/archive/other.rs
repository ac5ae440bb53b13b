//! Recognises files that are no archives of images, to say what they are.

/// How many of a file's first bytes [`kind`] needs.
pub(super) const HEAD: usize = 64;

/// Returns what a file is that begins with `head`, if it is something that is often taken for an
/// archive.
pub(super) fn kind(head: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 8] = [
        (b"PK\x03\x04", "a zip archive"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"!<arch>\n", "an ar archive, like a Debian package"),
        (b"\x7fELF", "a program"),
        (b"#!", "a script"),
        (b"hsqs", "a squashfs image"),
        (
            b"micabox snapshot",
            "a snapshot, which `mica snapshot import` takes",
        ),
        (b"version https://git-lfs", "a pointer of Git LFS"),
    ];
    if head.is_empty() {
        return Some("empty");
    }
    let found = known.iter().find(|(magic, _)| head.starts_with(magic));
    found
        .map(|(_, name)| *name)
        .or_else(|| match head.trim_ascii_start().first() {
            Some(b'<') => Some("HTML or XML, as proxies and login pages send it"),
            Some(b'{' | b'[') => Some("JSON"),
            _ => None,
        })
}
