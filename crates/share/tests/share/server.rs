//! The server's process, spoken to as a hostile guest could.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use micabox_share::{Client, HEADER, Settings, Transport};

use crate::guest::{EIO, Guest, ROOT};

const EPERM: i32 = 1;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;
const ENOSYS: i32 = 38;

/// Operations (`linux/fuse.h`).
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const MKNOD: u32 = 8;
const OPEN: u32 = 14;
const SETXATTR: u32 = 21;
const GETXATTR: u32 = 22;
const LISTXATTR: u32 = 23;
const RENAME2: u32 = 45;
/// Every operation that changes something, with open as one that may.
const CHANGES: [u32; 17] = [
    4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45, 47, 51, OPEN,
];

/// Renames a directory and a link to one outside over each other while a guest goes through them: it
/// never gets out, neither by a race nor by name. For a minute: `SHARE_RACE_SECONDS=60`.
#[test]
fn nothing_leads_out_of_the_folder() {
    let above = tempfile::tempdir().unwrap();
    let outside = above.path().join("outside");
    let folder = above.path().join("folder");
    fs::create_dir_all(folder.join("place")).unwrap();
    fs::create_dir_all(folder.join("deep/er")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "secret").unwrap();
    fs::write(folder.join("place/file"), "inside").unwrap();
    symlink(&outside, folder.join("link")).unwrap();
    symlink("../outside", folder.join("up")).unwrap();
    let secret = fs::metadata(outside.join("file")).unwrap().ino();
    let mut guest = Guest::new(&folder, false);
    for name in [
        &b".."[..],
        b".",
        b"",
        b"../outside",
        b"/etc",
        b"place/file",
        b"/",
    ] {
        assert_eq!(guest.look_up(ROOT, name), Err(EINVAL), "{name:?}");
    }
    // A link is not a directory, and can't be opened.
    for name in [&b"link"[..], b"up"] {
        let (link, _) = guest.look_up(ROOT, name).unwrap();
        guest.look_up(link, b"file").unwrap_err();
        guest.ask(OPEN, link, &[0; 8]).unwrap_err();
    }
    let seconds = std::env::var("SHARE_RACE_SECONDS").ok();
    let seconds = seconds.map_or(2, |seconds| seconds.parse().unwrap());
    let begin = Instant::now();
    // Longer on a busy machine: until the guest has seen both that change places.
    let is_over = |[all, inside]: [usize; 2]| {
        let is_race = all > inside && inside > 0;
        begin.elapsed() > Duration::from_secs(if is_race { seconds } else { 300 })
    };
    // Closed, even by a panic, when the changes are to end.
    let (changes, go_on) = channel::<()>();
    let mut tries = [0, 0];
    std::thread::scope(|scope| {
        let folder = &folder;
        scope.spawn(move || {
            let [place, link, other] = ["place", "link", "other"].map(|name| folder.join(name));
            while go_on.try_recv() == Err(TryRecvError::Empty) {
                fs::rename(&place, &other).unwrap();
                fs::rename(&link, &place).unwrap();
                fs::rename(&place, &link).unwrap();
                fs::rename(&other, &place).unwrap();
                // A directory that the guest is in leaves, and returns elsewhere.
                fs::rename(folder.join("deep/er"), folder.join("er")).unwrap();
                fs::rename(folder.join("er"), folder.join("deep/er")).unwrap();
            }
        });
        let _changes = changes;
        while !is_over(tries) {
            let Ok((place, _)) = guest.look_up(ROOT, b"place") else {
                continue;
            };
            tries[0] += 1;
            if let Ok((file, number)) = guest.look_up(place, b"file") {
                tries[1] += 1;
                assert_ne!(number, secret);
                guest.ask(GETATTR, file, &[0; 16]).unwrap();
            }
        }
    });
    assert!(tries[0] > tries[1] && tries[1] > 0, "no race: {tries:?}");
}

#[test]
fn a_read_only_folder_refuses_every_change() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "kept").unwrap();
    let mut guest = Guest::new(folder.path(), true);
    let (file, _) = guest.look_up(ROOT, b"file").unwrap();
    // Access modes to write, and to truncate.
    for flags in [1_u32, 2, 0o1000] {
        let body = [flags, 0].map(u32::to_le_bytes).concat();
        assert_eq!(guest.ask(OPEN, file, &body), Err(EROFS));
    }
    let mut body = [0_u8; 128];
    body[24..30].copy_from_slice(b"user.a");
    for operation in CHANGES.into_iter().filter(|operation| *operation != OPEN) {
        for node in [ROOT, file] {
            assert_eq!(guest.ask(operation, node, &body), Err(EROFS), "{operation}");
        }
    }
    guest.ask(OPEN, file, &[0; 8]).unwrap();
}

#[test]
fn garbage_in_requests_is_answered() {
    for is_upper in [false, true] {
        answers_garbage(is_upper);
    }
}

fn answers_garbage(is_upper: bool) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("directory")).unwrap();
    let mut guest = Guest::with(folder.path(), false, is_upper);
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..4000 {
        let operation = (next() % 64) as u32;
        // Those that have no reply, and one that takes as much of the disk as it is told.
        if [2, 36, 42, 43].contains(&operation) {
            continue;
        }
        let length = (next() % 200) as usize;
        let small = next() % 2 == 0;
        let body: Vec<u8> = (0..length)
            .map(|_| {
                if small {
                    next() as u8 & 1
                } else {
                    next() as u8
                }
            })
            .collect();
        let result = guest.ask(operation, next() % 4, &body);
        assert_ne!(
            result,
            Err(EIO),
            "round {round}, operation {operation}: the server is gone"
        );
    }
    assert_eq!(guest.ask(99, ROOT, &[]), Err(ENOSYS));
    // A frame that is not a request ends the server, and nothing else.
    guest.stream.write_all(&[0; HEADER]).unwrap();
    assert_eq!(guest.stream.read(&mut [0; 1]).unwrap(), 0);
}

/// What is made belongs to this user, without a bit that means more to the host than to its owner.
#[test]
fn files_outside_are_the_users_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(folder.path(), false);
    // Directory of mode 06755.
    let body = [&0o6755_u32.to_le_bytes()[..], &[0; 4], b"made\0"].concat();
    guest.ask(9, ROOT, &body).unwrap();
    let made = fs::metadata(folder.path().join("made")).unwrap();
    assert_eq!(made.permissions().mode() & 0o7777, 0o755);
    assert_eq!(made.uid(), rustix::process::geteuid().as_raw());
}

/// Makes the body of a request to make a whiteout.
fn whiteout(name: &[u8]) -> Vec<u8> {
    let numbers = [0o020_000_u32, 0, 0, 0].map(u32::to_le_bytes).concat();
    [&numbers, name, &[0]].concat()
}

#[test]
fn only_an_upper_has_whiteouts_and_no_share_has_devices() {
    let folder = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(folder.path(), false);
    assert_eq!(guest.ask(MKNOD, ROOT, &whiteout(b"gone")), Err(EPERM));
    // A file that is renamed, with a whiteout in its place.
    fs::write(folder.path().join("file"), "text").unwrap();
    let rename = [
        &ROOT.to_le_bytes()[..],
        &[4, 0, 0, 0],
        &[0; 4],
        b"file\0other\0",
    ]
    .concat();
    assert_eq!(guest.ask(RENAME2, ROOT, &rename), Err(EINVAL));

    let mut guest = Guest::of_upper(folder.path());
    guest.ask(MKNOD, ROOT, &whiteout(b"gone")).unwrap();
    guest.ask(RENAME2, ROOT, &rename).unwrap();
    for name in ["gone", "file"] {
        let made = fs::symlink_metadata(folder.path().join(name)).unwrap();
        assert!(
            made.file_type().is_char_device() && made.rdev() == 0,
            "{name}"
        );
    }
    // Of /dev/null, and of a disk.
    for (mode, device) in [(0o020_666_u32, 0x103_u32), (0o060_666, 0x800)] {
        let numbers = [mode, device, 0, 0].map(u32::to_le_bytes).concat();
        let body = [&numbers[..], b"device\0"].concat();
        assert_eq!(guest.ask(MKNOD, ROOT, &body), Err(EPERM));
    }
}

/// Makes the body of a request to set an extended attribute.
fn attribute(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap().to_le_bytes();
    [&length[..], &[0; 4], name, &[0], value].concat()
}

#[test]
fn an_uppers_attributes_are_kept_under_names_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("directory")).unwrap();
    symlink("x", folder.path().join("link")).unwrap();
    let mut guest = Guest::of_upper(folder.path());
    let (directory, _) = guest.look_up(ROOT, b"directory").unwrap();
    let names = [
        ("trusted.overlay.opaque", "user.overlay.opaque"),
        ("user.overlay.opaque", "user.micabox.user.overlay.opaque"),
        ("security.capability", "user.micabox.security.capability"),
        (
            "user.containers.override_stat",
            "user.micabox.user.containers.override_stat",
        ),
    ];
    for (inside, _) in names {
        let body = attribute(inside.as_bytes(), inside.as_bytes());
        guest.ask(SETXATTR, directory, &body).unwrap();
    }
    let place = fs::File::open(folder.path().join("directory")).unwrap();
    for (inside, outside) in names {
        let mut value = [0; 64];
        let length = rustix::fs::fgetxattr(&place, outside, &mut value[..]).unwrap();
        assert_eq!(&value[..length], inside.as_bytes(), "{outside}");
    }
    let list = [1 << 12_u32, 0].map(u32::to_le_bytes).concat();
    let list = guest.ask(LISTXATTR, directory, &list).unwrap();
    let mut seen: Vec<_> = list.split(|byte| *byte == 0).collect();
    seen.sort_unstable();
    let mut all = names.map(|(inside, _)| inside.as_bytes()).to_vec();
    all.push(b"");
    all.sort_unstable();
    assert_eq!(seen, all);
    // overlayfs takes an error here for a filesystem without attributes.
    let (link, _) = guest.look_up(ROOT, b"link").unwrap();
    let origin = attribute(b"trusted.overlay.origin", b"x");
    guest.ask(SETXATTR, link, &origin).unwrap();
}

#[test]
fn an_uppers_access_control_list_and_permission_bits_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let mut guest = Guest::of_upper(folder.path());
    let (node, _) = guest.look_up(ROOT, b"file").unwrap();
    let list = |mask: u16| {
        let entries = [(1, 6, u32::MAX), (2, 7, 1000), (4, 4, u32::MAX)];
        let entries = entries
            .into_iter()
            .chain([(0x10, mask, u32::MAX), (0x20, 0, u32::MAX)]);
        let entries = entries.flat_map(|(kind, permissions, id): (u16, u16, u32)| {
            let [kind, permissions] = [kind, permissions].map(u16::to_le_bytes);
            [kind, permissions]
                .concat()
                .into_iter()
                .chain(id.to_le_bytes())
        });
        2_u32
            .to_le_bytes()
            .into_iter()
            .chain(entries)
            .collect::<Vec<u8>>()
    };
    let name = b"system.posix_acl_access";
    guest
        .ask(SETXATTR, node, &attribute(name, &list(5)))
        .unwrap();
    let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o650);
    // chmod(2) to 0640.
    let mut body = [0; 88];
    body[0] = 1;
    body[68..72].copy_from_slice(&0o640_u32.to_le_bytes());
    guest.ask(SETATTR, node, &body).unwrap();
    let get = [&4096_u32.to_le_bytes()[..], &[0; 4], name, &[0]].concat();
    assert_eq!(guest.ask(GETXATTR, node, &get).unwrap(), list(4));
    assert_eq!(
        guest.ask(SETXATTR, node, &attribute(name, b"x")),
        Err(EINVAL)
    );
}

/// The client that reads an upper for `diff` and `commit` gets what was put there, holes included.
/// A filesystem that is mounted until the end of a test.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
#[ignore = "needs root"]
fn what_is_mounted_below_a_folder_is_there_unless_it_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "none"]).arg(&place);
    assert!(mount.status().unwrap().success());
    let _mounted = Mounted(place.clone());
    fs::write(place.join("file"), "").unwrap();
    for with_mounts in [true, false] {
        let settings = Settings {
            read_only: true,
            cached: false,
            with_mounts,
            upper: false,
            as_it_is: false,
            only: None,
            transport: Transport::Stream,
        };
        let open = fs::File::open(folder.path()).unwrap();
        let (_server, socket) = micabox_share::start(open.into(), &settings).unwrap();
        let mut client = Client::new(socket).unwrap();
        let place = client.lookup(ROOT, b"place").unwrap().unwrap();
        let file = client.lookup(place, b"file").unwrap();
        assert_eq!(file.is_some(), with_mounts);
    }
}

#[test]
fn a_client_reads_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let many = folder.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..2000 {
        fs::write(
            many.join(format!("a-rather-long-name-of-a-file-{number}")),
            "",
        )
        .unwrap();
    }
    let data = vec![7; (3 << 20) + 5];
    let sparse = fs::File::create(folder.path().join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&data, 16 << 20).unwrap();
    symlink("target", folder.path().join("link")).unwrap();
    let settings = Settings {
        read_only: true,
        cached: false,
        with_mounts: true,
        upper: true,
        as_it_is: false,
        only: None,
        transport: Transport::Stream,
    };
    let open = fs::File::open(folder.path()).unwrap();
    let (_server, socket) = micabox_share::start(open.into(), &settings).unwrap();
    let mut client = Client::new(socket).unwrap();
    let mut find = |name: &[u8]| client.lookup(ROOT, name).unwrap();
    let (many, sparse, link) = (find(b"many"), find(b"sparse"), find(b"link"));
    assert_eq!(find(b"none"), None);
    let names = client.entries(many.unwrap()).unwrap();
    assert_eq!(names.len(), 2000);
    let sparse = sparse.unwrap();
    assert_eq!(client.attributes(sparse).unwrap().size, 64 << 20);
    let (start, end) = client.data(sparse, 0).unwrap().unwrap();
    assert!(start <= 16 << 20 && end >= (16 << 20) + data.len() as u64);
    assert_eq!(client.data(sparse, end).unwrap(), None);
    let mut read = vec![0; data.len()];
    assert_eq!(
        client.read(sparse, 16 << 20, &mut read).unwrap(),
        data.len()
    );
    assert!(read == data);
    assert_eq!(client.read(sparse, 64 << 20, &mut read).unwrap(), 0);
    assert_eq!(client.read_link(link.unwrap()).unwrap(), b"target");
    assert!(client.read(link.unwrap(), 0, &mut read).is_err());
    assert_eq!(client.xattr(sparse, b"user.none").unwrap(), None);
}
