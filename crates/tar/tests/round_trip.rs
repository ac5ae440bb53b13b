//! Checks that the reader and GNU tar read what the writer writes.

use std::fs;
use std::io::Read;
use std::process::Command;

use micabox_tar::{Attributes, Kind, Limits, Member, Members, Segment, Timestamp, Writer};

fn attributes() -> Attributes {
    Attributes {
        mode: 0o4751,
        uid: 3_000_000,
        gid: 5,
        mtime: Timestamp {
            seconds: 1_700_000_000,
            nanos: 123_456_789,
        },
        xattrs: Vec::new(),
    }
}

fn acl() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (0x01u16, 6u16, u32::MAX),
        (0x02, 6, 1000),
        (0x04, 4, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ] {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn members() -> Vec<(Member, Vec<u8>)> {
    let member = |path: &str, kind| Member {
        path: path.into(),
        kind,
        attributes: attributes(),
    };
    let mut rich = member("dir/rich", Kind::file(5));
    rich.attributes.xattrs = vec![
        (b"security.capability".to_vec(), vec![0, 1, 2, 255]),
        (b"system.posix_acl_access".to_vec(), acl()),
        (b"trusted.overlay.opaque".to_vec(), b"y".to_vec()),
        (b"user.a=b %".to_vec(), b"equals\n".to_vec()),
        (b"user.empty".to_vec(), Vec::new()),
    ];
    let mut early = member("early", Kind::Fifo);
    early.attributes.mtime = Timestamp {
        seconds: -2,
        nanos: 500_000_000,
    };
    let segments = vec![
        Segment {
            offset: 4096,
            length: 3,
        },
        Segment {
            offset: 1 << 20,
            length: 4,
        },
    ];
    let sparse = Kind::File {
        size: 5 << 30,
        segments: Some(segments),
    };
    let long = "long/".repeat(60);
    vec![
        (member("dir", Kind::Directory), Vec::new()),
        (rich, b"plain".to_vec()),
        (
            member("dir/hard", Kind::HardLink(b"dir/rich".to_vec())),
            Vec::new(),
        ),
        (
            member("soft", Kind::Symlink(long.clone().into_bytes())),
            Vec::new(),
        ),
        (
            member("char", Kind::CharDevice(4095, 1_048_575)),
            Vec::new(),
        ),
        (member("block", Kind::BlockDevice(8, 1)), Vec::new()),
        (early, Vec::new()),
        (member("sparse", sparse), b"onetwo!".to_vec()),
        (member(&format!("{long}\u{e4}"), Kind::file(0)), Vec::new()),
    ]
}

fn archive(members: &[(Member, Vec<u8>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for (member, stored) in members {
        let mut stored = &stored[..];
        let read = |_: u64, piece: &mut [u8]| stored.read_exact(piece);
        writer.add_file(member, read).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn members_come_back_as_they_were() {
    let written = members();
    let archive = archive(&written);
    let mut reader = Members::new(&archive[..], Limits::default());
    for (member, stored) in written {
        let mut expected = member;
        if expected.kind == Kind::Directory {
            expected.path.push(b'/');
        }
        assert_eq!(reader.next_member().unwrap(), Some(expected));
        let mut body = Vec::new();
        reader.body().read_to_end(&mut body).unwrap();
        assert_eq!(body, stored);
    }
    assert_eq!(reader.next_member().unwrap(), None);
}

#[test]
fn the_same_members_give_the_same_bytes() {
    assert_eq!(archive(&members()), archive(&members()));
}

#[test]
fn gnu_tar_takes_every_member() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("archive.tar");
    fs::write(&path, archive(&members())).unwrap();
    let listed = Command::new("tar")
        .args(["--list", "--verbose", "--full-time", "--file"])
        .arg(&path)
        .output()
        .expect("GNU tar is there");
    assert!(listed.status.success());
    // GNU tar warns about libarchive's records, which repeat what it can't read in another form.
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(
        said.lines().all(|line| line.contains("LIBARCHIVE.xattr")),
        "{said}"
    );
    let text = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(text.lines().count(), members().len(), "{text}");
    for part in [
        "5368709120",
        "4095,1048575",
        "link to dir/rich",
        "3000000/5",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
