//! Requests of FUSE from a hostile guest, to the server of a folder.
//!
//! An input is a byte that says how the folder is served, and requests: an operation, a file and a handle among those
//! that the server has named so far, the length of the body, and the body.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use micabox_file::acl::Acl;
use micabox_share::fuzzing::Folder;
use micabox_share::{HEADER, LARGEST};

/// Most requests of an input.
const REQUESTS: usize = 64;

/// Bytes of a reply's header: its length, an error, and the request's number.
const REPLY: usize = 16;

/// Operations whose replies begin with a file's number (`fuse_entry_out`), and with a handle (`fuse_open_out`).
const NAME: [u8; 5] = [1, 6, 8, 9, 13];
const OPEN: [u8; 2] = [14, 27];
const CREATE: [u8; 2] = [35, 51];

/// Bytes of `fuse_entry_out`, behind which a new file's handle is.
const ENTRY: usize = 128;

/// Operations whose bodies begin with a handle.
const WITH_HANDLE: [u8; 10] = [15, 16, 18, 20, 28, 29, 30, 43, 46, 47];

/// The folder and what is beside it, in a directory in memory that ends with this.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = PathBuf::from(format!("/dev/shm/mica-fuzz-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let folder = path.join("folder");
        fs::create_dir_all(folder.join("sub")).expect("there is memory");
        for (name, text) in [
            ("outside", "secret"),
            ("folder/file", "text"),
            ("folder/sub/deep", ""),
        ] {
            fs::write(path.join(name), text).expect("there is memory");
        }
        std::os::unix::fs::symlink("../outside", folder.join("link")).expect("there is memory");
        Self(path)
    }

    fn folder(&self) -> PathBuf {
        self.0.join("folder")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Has a folder's server answer a guest's requests. Nothing outside is read or changed, nothing at all of a folder that
/// is read-only; replies are as long as they say.
pub fn requests(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    let (is_read_only, is_upper) = (how & 1 != 0, how & 2 != 0);
    // What the server finds files by. The corpus has an absolute path.
    std::env::set_current_dir("/proc/self/fd").expect("there is /proc");
    let place = Place::new();
    let before = tree_of(&place.folder());
    let root = File::open(place.folder()).expect("it was made");
    let folder = Folder::new(root.into(), is_read_only, is_upper).expect("a directory is served");
    let (mut nodes, mut handles) = (vec![1_u64], vec![0_u64]);
    let mut rest = bytes;
    for unique in 1..=REQUESTS as u64 {
        let Some(([operation, node, handle, length], after)) = rest.split_first_chunk() else {
            break;
        };
        let (body, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        let among = |all: &[u64], place: u8| all[usize::from(place) % all.len()];
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend((HEADER as u32 + body.len() as u32).to_le_bytes());
        request.extend(u32::from(*operation).to_le_bytes());
        request.extend(unique.to_le_bytes());
        request.extend(among(&nodes, *node).to_le_bytes());
        request.extend([0; 16]);
        request.extend(body);
        if WITH_HANDLE.contains(operation)
            && let Some(place) = request.get_mut(HEADER..HEADER + 8)
        {
            place.copy_from_slice(&among(&handles, *handle).to_le_bytes());
        }
        let Some(reply) = folder.answer(&request) else {
            continue;
        };
        assert!(
            reply.len() >= REPLY && reply.len() <= LARGEST,
            "{}",
            reply.len()
        );
        let number = |at: usize| {
            let bytes = reply.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let first = number(0).expect("a header");
        let (said, error) = (first as u32, (first >> 32) as i32);
        assert_eq!(said as usize, reply.len());
        assert!((-4095..=0).contains(&error), "{error}");
        assert_eq!(number(8), Some(unique));
        if error != 0 {
            continue;
        }
        if NAME.contains(operation) || CREATE.contains(operation) {
            nodes.extend(number(REPLY).filter(|node| *node != 0));
        }
        if OPEN.contains(operation) {
            handles.extend(number(REPLY));
        }
        if CREATE.contains(operation) {
            handles.extend(number(REPLY + ENTRY));
        }
        let text = reply.windows(6).any(|piece| piece == b"secret");
        assert!(
            !text || bytes.windows(6).any(|piece| piece == b"secret"),
            "it leads out"
        );
    }
    drop(folder);
    let outside = fs::read_to_string(place.0.join("outside")).expect("nobody may remove it");
    assert_eq!(outside, "secret");
    assert_eq!(fs::read_dir(&place.0).expect("it is there").count(), 2);
    if is_read_only {
        assert_eq!(tree_of(&place.folder()), before);
    }
}

/// Returns names, modes and contents in the folder.
fn tree_of(folder: &Path) -> Vec<(PathBuf, u32, Option<Vec<u8>>)> {
    use std::os::unix::fs::MetadataExt;
    let mut told = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).expect("it was listed");
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).expect("it was listed");
            left.extend(entries.map(|entry| entry.expect("it was listed").path()));
        }
        let contents = metadata
            .is_file()
            .then(|| fs::read(&path).expect("it was listed"));
        told.push((path, metadata.mode(), contents));
    }
    told.sort();
    told
}

/// Reads an access control list. What is one is written again the same, and its changes are lists.
pub fn list(bytes: &[u8]) {
    let (mode, value) = match bytes.split_first_chunk() {
        Some((mode, value)) => (u32::from(u16::from_le_bytes(*mode)) & 0o777, value),
        None => return,
    };
    let Some(list) = Acl::parse(value) else {
        return;
    };
    assert_eq!(list.value(), value);
    assert!(list.mode() <= 0o777);
    let changed = list.with_mode(mode);
    assert_eq!(changed.mode(), mode);
    let inherited = list.inherited(mode);
    assert_eq!(inherited.mode() & !mode, 0, "more than was asked for");
    for list in [changed, inherited] {
        assert_eq!(Acl::parse(&list.value()), Some(list));
    }
}

/// Conversations with a folder's server.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let request = |operation: u8, node: u8, handle: u8, body: &[u8]| {
        [&[operation, node, handle, body.len() as u8][..], body].concat()
    };
    let init = [7_u32, 38, 0, u32::MAX].map(u32::to_le_bytes).concat();
    let numbers = |numbers: &[u32]| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    };
    let look = [
        request(26, 0, 0, &init),
        request(1, 0, 0, b"sub\0"),
        request(1, 1, 0, b"deep\0"),
        request(1, 0, 0, b"..\0"),
        request(1, 0, 0, b"link\0"),
        request(5, 3, 0, b""),
        request(3, 1, 0, &[0; 16]),
        request(27, 1, 0, &[0; 8]),
        request(44, 1, 1, &numbers(&[0, 0, 0, 0, 4096, 0, 0, 0, 0, 0])),
        request(17, 0, 0, b""),
    ];
    let change = [
        request(26, 0, 0, &init),
        request(
            35,
            0,
            0,
            &[&numbers(&[2, 0o644, 0o22, 0])[..], b"new\0"].concat(),
        ),
        request(
            16,
            1,
            1,
            &[&numbers(&[0, 0, 0, 0, 4, 0, 0, 0, 0, 0])[..], b"text"].concat(),
        ),
        request(15, 1, 1, &numbers(&[0, 0, 0, 0, 16, 0, 0, 0, 0, 0])),
        request(21, 1, 0, &[&numbers(&[1, 0])[..], b"user.a\0v"].concat()),
        request(22, 1, 0, &[&numbers(&[64, 0])[..], b"user.a\0"].concat()),
        request(9, 0, 0, &[&numbers(&[0o755, 0])[..], b"dir\0"].concat()),
        request(
            12,
            0,
            0,
            &[&1_u64.to_le_bytes()[..], b"new\0../out\0"].concat(),
        ),
        request(6, 0, 0, b"away\0/etc\0"),
        request(10, 0, 0, b"file\0"),
        request(18, 1, 1, &[0; 24]),
    ];
    let (look, change) = (look.concat(), change.concat());
    let manner = |how: u8, requests: &[u8]| [&[how][..], requests].concat();
    vec![
        ("look", manner(0, &look)),
        ("read-only", manner(1, &change)),
        ("change", manner(0, &change)),
        ("upper", manner(2, &change)),
    ]
}

/// Lists of a file and of a directory.
pub fn lists() -> Vec<(&'static str, Vec<u8>)> {
    let list = |entries: &[(u16, u16, u32)]| {
        let mut value = vec![0xa4, 1, 2, 0, 0, 0];
        for (kind, permissions, id) in entries {
            value.extend(kind.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    };
    let none = u32::MAX;
    vec![
        (
            "minimal",
            list(&[(1, 7, none), (4, 5, none), (0x20, 4, none)]),
        ),
        (
            "more",
            list(&[
                (1, 7, none),
                (2, 6, 1000),
                (4, 5, none),
                (0x10, 7, none),
                (0x20, 4, none),
            ]),
        ),
    ]
}
