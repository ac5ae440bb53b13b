//! Archives: read member by member, and converted to layers.

use std::fs::File;
use std::io::{BufRead, Cursor, Read};
use std::os::unix::fs::FileExt;

use micabox_erofs::check::check;
use micabox_erofs::merge;
use micabox_image::Limits;
use micabox_image::fuzzing;
use micabox_tar::{Kind, Member, Members, Segment};

const BLOCK: usize = 512;
/// Bytes of an image that one block of an archive may account for: an inode, a name and its own
/// body at a block boundary, attributes, and a directory for each part of a path.
const GROWTH: usize = 64 << 10;

fn limits() -> Limits {
    Limits {
        layer_size: 4 << 20,
        entries: 1000,
        path_length: 300,
        path_depth: 12,
        header_size: 8 << 10,
        xattr_size: 4 << 10,
        sparse_segments: 30,
        ..Limits::default()
    }
}

/// Reads members: they must not depend on the pieces in which the archive arrives, and stay within
/// the limits.
pub fn tar(bytes: &[u8]) {
    let archive = with_checksums(bytes);
    let whole = read(&archive[..], archive.len());
    let pieces = read(Pieces(&archive), archive.len());
    assert_eq!(whole, pieces, "pieces make a difference");
}

/// Converts an archive to a layer: its image must be sound, and its recipe must rebuild the
/// archive.
pub fn layer(bytes: &[u8]) {
    let archive = with_checksums(bytes);
    let (image, recipe) = (file(), file());
    let (to_image, to_recipe) = (clone(&image), clone(&recipe));
    match fuzzing::archive(&archive, &limits(), to_image, to_recipe) {
        Ok(()) => {}
        Err(problem) => return is_readable(&problem),
    }
    let image = contents(&image);
    let blocks = archive.len().div_ceil(BLOCK) + 1;
    assert!(image.len() <= blocks * GROWTH, "{} bytes", image.len());
    assert_eq!(check(&image), [], "an image of ours is unsound");
    let recipe = contents(&recipe);
    let mut again = Vec::new();
    fuzzing::rebuild(&recipe, &image, archive.len() as u64)
        .and_then(|mut rebuilt| rebuilt.read_to_end(&mut again))
        .expect("what was recorded can be had back");
    assert!(again == archive, "the archive is another one");
}

/// Converts a foreign EROFS image to a layer: the result must be sound, and no larger than a layer
/// may be.
pub fn native(bytes: &[u8]) {
    let (spool, image) = (file(), file());
    let limits = Limits {
        layer_size: 256 << 10,
        ..limits()
    };
    match fuzzing::erofs(bytes, &limits, spool, clone(&image)) {
        Ok(()) => {}
        Err(problem) => return is_readable(&problem),
    }
    let image = contents(&image);
    assert_eq!(check(&image), [], "an image of ours is unsound");
    let most = 2 * limits.layer_size as usize;
    assert!(image.len() <= most, "{} bytes", image.len());
}

/// Takes over an EROFS image as it is: what is taken must be sound, the same bytes, and mergeable or an error.
pub fn device(bytes: &[u8]) {
    let image = file();
    let limits = Limits {
        layer_size: 256 << 10,
        ..limits()
    };
    match fuzzing::device(bytes, &limits, clone(&image)) {
        Ok(()) => {}
        Err(problem) => return is_readable(&problem),
    }
    let image = contents(&image);
    assert!(bytes.starts_with(&image), "other bytes were taken");
    assert_eq!(check(&image), [], "an unsound image was taken");
    let layer = merge::Layer {
        image: &image,
        tag: b"fuzz",
    };
    if let Ok(merge) = merge::Merge::of(&[layer], 512) {
        let (merged, _) = merge
            .write_fsmeta(Cursor::new(Vec::new()), [0; 16])
            .expect("what is in memory can be written");
        assert_eq!(
            check(&merged.into_inner()),
            [],
            "an image of ours is unsound"
        );
    }
}

/// Returns descriptions and bodies of an archive's members, or the problem.
fn read(archive: impl BufRead, length: usize) -> Vec<String> {
    let limits = limits();
    let mut members = Members::new(archive, limits.member());
    let mut found = Vec::new();
    let mut bodies = 0;
    loop {
        match members.next_member() {
            Ok(Some(member)) => {
                is_bounded(&member, &limits);
                let mut body = Vec::new();
                if members.body().read_to_end(&mut body).is_err() {
                    return found;
                }
                bodies += body.len();
                assert!(bodies <= length, "more than the archive has");
                if let Kind::File {
                    segments: Some(segments),
                    ..
                } = &member.kind
                {
                    let stored: u64 = segments.iter().map(|part| part.length).sum();
                    assert!(body.len() as u64 <= stored);
                }
                found.push(format!("{member:?} {body:?}"));
            }
            Ok(None) => return found,
            Err(problem) => {
                is_readable(&problem.reason);
                assert!(problem.offset <= length as u64);
                found.push(problem.to_string());
                return found;
            }
        }
        assert!(found.len() <= length / BLOCK, "more members than blocks");
    }
}

fn is_bounded(member: &Member, limits: &Limits) {
    for text in [&*member.path, member.kind.target()] {
        assert!(!text.contains(&0) && text.len() as u64 <= limits.path_length);
    }
    let attributes = &member.attributes;
    assert!(attributes.mode <= 0o7777 && attributes.mtime.nanos < 1_000_000_000);
    let xattrs = attributes.xattrs.iter();
    let length: usize = xattrs.map(|(name, value)| name.len() + value.len()).sum();
    // The kernel's form of an access control list is a little longer.
    assert!(length as u64 <= 3 * limits.xattr_size, "{length} bytes");
    let Kind::File { size, segments } = &member.kind else {
        return;
    };
    let mut end = 0;
    for Segment { offset, length } in segments.iter().flatten() {
        assert!(*offset >= end && *length > 0, "parts overlap");
        end = offset + length;
        assert!(end <= *size, "a part outside of the file");
    }
}

/// Checks that an error's text can be shown on a terminal.
fn is_readable(problem: &str) {
    assert!(!problem.contains(char::is_control), "{problem:?}");
    assert!(problem.len() < 4000, "{} bytes", problem.len());
}

/// Returns the archive with valid checksums, which mutation always breaks first.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut archive = bytes.to_vec();
    for block in archive.chunks_exact_mut(BLOCK) {
        if &block[257..262] != b"ustar" {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    archive
}

/// A reader that returns a few bytes at a time.
struct Pieces<'a>(&'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Pieces<'_> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        Ok(&self.0[..self.0.len().min(97)])
    }

    fn consume(&mut self, count: usize) {
        self.0 = &self.0[count..];
    }
}

/// Creates a file in memory.
fn file() -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("fuzz", flags)
        .expect("a file")
        .into()
}

fn clone(file: &File) -> File {
    file.try_clone().expect("another descriptor")
}

fn contents(file: &File) -> Vec<u8> {
    let length = file.metadata().expect("a length").len() as usize;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).expect("it was written");
    bytes
}

/// Archives with one instance of everything that has a parser.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let pax = |records: &[(&str, &str)]| {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let digits = (rest + rest.to_string().len()).to_string().len();
            let length = rest + digits;
            body.extend(format!("{length} {key}={value}\n").bytes());
        }
        member("pax", b'x', &body)
    };
    let plain = [
        member("dir/", b'5', b""),
        member("dir/file", b'0', b"some data"),
        member("link", b'2', b""),
        member("dir/hard", b'1', b""),
        member("dir/.wh.gone", b'0', b""),
        member("dir/.wh..wh..opq", b'0', b""),
        member("null", b'3', b""),
        member("fifo", b'6', b""),
    ];
    let records = [
        pax(&[
            ("path", "a/long/name"),
            ("mtime", "1700000000.25"),
            ("uid", "100000"),
            ("SCHILY.xattr.user.a", "value"),
            (
                "SCHILY.acl.access",
                "user::rw-,user:5:r--,group::r--,mask::r--,other::---",
            ),
            ("LIBARCHIVE.xattr.user.b", "dmFsdWU"),
        ]),
        member("short", b'0', b"body"),
        pax(&[
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.name", "sparse"),
            ("GNU.sparse.realsize", "9000"),
        ]),
        member("GNUSparseFile.0/sparse", b'0', &sparse()),
        pax(&[
            ("GNU.sparse.map", "0,4,8192,4"),
            ("GNU.sparse.size", "9000"),
        ]),
        member("sparse-0.1", b'0', b"datadata"),
    ];
    let gnu = [
        member("././@LongLink", b'L', b"a/name/that/is/long\0"),
        member("././@LongLink", b'K', b"target\0"),
        member("cut", b'2', b""),
        member("global", b'g', b"20 comment=whatever\n"),
        member("last", b'0', &[7; 1000]),
    ];
    let end = vec![0; 2 * BLOCK];
    let archive = |members: &[Vec<u8>]| [&members.concat()[..], &end].concat();
    vec![
        ("plain", archive(&plain)),
        ("pax", archive(&records)),
        ("gnu", archive(&gnu)),
        (
            "all",
            archive(&[plain.concat(), records.concat(), gnu.concat()]),
        ),
    ]
}

/// A sparse file's map as a part of the data, followed by the data.
fn sparse() -> Vec<u8> {
    let mut body = b"2\n0\n4\n8192\n4\n".to_vec();
    body.resize(BLOCK, 0);
    body.extend(b"datadata");
    body
}

fn member(name: &str, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut header = vec![0; BLOCK];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    put(0, name);
    put(100, "0000644");
    put(108, "0001750");
    put(116, "0001750");
    put(124, &format!("{:011o}", body.len()));
    put(136, "14523500000");
    put(157, "dir/file");
    put(257, "ustar\u{0}00");
    put(329, "0000001");
    put(337, "0000003");
    header[156] = kind;
    header.extend(body);
    header.resize(header.len().next_multiple_of(BLOCK), 0);
    with_checksums(&header)
}
