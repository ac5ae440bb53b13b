//! Archives in the dialects of all archivers.

mod sparse;

use micabox_image::convert::convert_layer;
use micabox_image::{Digest, Limits};

use crate::layer::archive::{Archive, BLOCK, record};
use crate::layer::{convert, expect, fast_store, layer, refusal, store};

#[test]
fn pax_records_override_everything_in_the_header() {
    let long = "long/".repeat(60) + "name";
    let archive = Archive::new()
        .pax(&[
            ("path", long.as_bytes()),
            ("size", b"5"),
            ("uid", b"4294967294"),
            ("gid", b"3000000"),
            ("mtime", b"1700000000.123456789"),
            ("atime", b"1"),
            ("uname", b"nobody in particular"),
            ("comment", b"\xff anything"),
        ])
        .header(124, "00000000000\0")
        .member(b'0', b"short", b"", 0o644, b"12345")
        .pax(&[("linkpath", long.as_bytes())])
        .symlink("s", "x")
        .pax(&[("linkpath", long.as_bytes())])
        .hard_link("h", "x");
    let layer = layer(&archive.finish());
    let inode = layer.inode(&long);
    assert_eq!(layer.read(&long), b"12345");
    assert_eq!((inode.uid, inode.gid), (4_294_967_294, 3_000_000));
    assert_eq!(
        (inode.mtime.seconds, inode.mtime.nanos),
        (1_700_000_000, 123_456_789)
    );
    assert_eq!(
        &*layer.reader.read_link(&layer.inode("s")).unwrap(),
        long.as_bytes()
    );
    assert_eq!(layer.inode("h"), inode);
}

#[test]
fn an_empty_pax_record_takes_the_override_back() {
    let archive = Archive::new()
        .pax(&[("path", b"other"), ("uid", b"7"), ("path", b"")])
        .file("header", "")
        .file("next", "");
    let layer = layer(&archive.finish());
    assert_eq!(layer.paths(), ["d/", "f/header", "f/next"]);
    assert_eq!((layer.inode("header").uid, layer.inode("next").uid), (7, 0));
}

#[test]
fn gnu_long_names_beat_pax_and_hold_for_one_member() {
    let long = "g".repeat(200);
    let archive = Archive::new()
        .pax(&[("path", b"from-pax")])
        .gnu_long(b'L', long.as_bytes())
        .gnu_long(b'K', b"target/of/the/link")
        .symlink("short", "x")
        .symlink("plain", "y");
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.paths(),
        ["d/".to_owned(), format!("l/{long}"), "l/plain".to_owned()]
    );
    let target = layer.reader.read_link(&layer.inode(&long)).unwrap();
    assert_eq!(&*target, b"target/of/the/link");
}

#[test]
fn names_of_the_ustar_the_star_and_the_v7_header_are_read() {
    let archive = Archive::new()
        .header(345, "some/prefix")
        .file("ustar", "")
        // star's prefix is shorter, because times follow it.
        .header(345, "p")
        .header(476, "12345670123\0")
        .header(508, "tar\0")
        .file("star", "")
        .header(257, "\0\0\0\0\0\0\0\0")
        .header(345, "no prefix at all")
        .file("v7", "")
        .header(257, "\0\0\0\0\0\0\0\0")
        .member(0, b"v7-directory/", b"", 0o755, b"");
    assert_eq!(
        layer(&archive.finish()).paths(),
        [
            "d/",
            "d/p",
            "f/p/star",
            "d/some",
            "d/some/prefix",
            "f/some/prefix/ustar",
            "f/v7",
            "d/v7-directory",
        ]
    );
}

#[test]
fn names_need_not_be_utf8() {
    let archive = Archive::new()
        .member(b'0', b"caf\xe9", b"", 0o644, b"latin")
        .pax(&[("path", b"\xff\xfe/\x01\n")])
        .file("x", "");
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.paths(),
        ["d/", "d/\\xff\\xfe", "f/\\xff\\xfe/\\x01\\n", "f/caf\\xe9"]
    );
}

#[test]
fn numbers_in_base_256_are_read() {
    let mut owner = vec![0x80, 0, 0, 0];
    owner.extend(3_000_000_000u32.to_be_bytes());
    let mut size = vec![0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    size.push(3);
    let archive = Archive::new()
        .header(108, owner.clone())
        .header(116, owner)
        .header(124, size)
        .header(136, [0xff; 12])
        .file("f", "abc");
    let layer = layer(&archive.finish());
    let inode = layer.inode("f");
    assert_eq!((inode.uid, inode.gid), (3_000_000_000, 3_000_000_000));
    assert_eq!((inode.mtime.seconds, inode.mtime.nanos), (-1, 0));
    assert_eq!(layer.read("f"), b"abc");
}

#[test]
fn times_before_1970_and_between_seconds_are_kept() {
    let archive = Archive::new()
        .pax(&[("mtime", b"-1.25")])
        .file("a", "")
        .pax(&[("mtime", b"-62135596800")])
        .directory("b")
        .pax(&[("mtime", b"253402300799.999999999")])
        .symlink("c", "x");
    let layer = layer(&archive.finish());
    let time = |path| {
        (
            layer.inode(path).mtime.seconds,
            layer.inode(path).mtime.nanos,
        )
    };
    assert_eq!(time("a"), (-2, 750_000_000));
    assert_eq!(time("b"), (-62_135_596_800, 0));
    assert_eq!(time("c"), (253_402_300_799, 999_999_999));
}

#[test]
fn global_headers_are_ignored_as_docker_and_containerd_do() {
    let archive = Archive::new()
        .member(
            b'g',
            b"pax_global_header",
            b"",
            0o644,
            &record(b"uid", b"42"),
        )
        .file("f", "");
    let layer = layer(&archive.finish());
    assert_eq!(layer.paths(), ["d/", "f/f"]);
    assert_eq!(layer.inode("f").uid, 0);
}

#[test]
fn links_and_directories_have_no_contents_whatever_their_size_says() {
    let sized = |archive: Archive| archive.header(124, "00000001750\0");
    let archive = Archive::new().file("f", "x");
    let archive = sized(archive).hard_link("h", "f");
    let archive = sized(archive).symlink("s", "f");
    let archive = sized(archive).directory("d/");
    let archive = sized(archive).fifo("p").file("end", "");
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.paths(),
        ["d/", "d/d", "f/end", "f/f", "f/h", "p/p", "l/s"]
    );
}

#[test]
fn xattrs_of_both_dialects_are_kept_on_every_type() {
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let archive = Archive::new()
        .pax(&[("SCHILY.xattr.security.capability", capability)])
        .file("ping", "")
        .pax(&[("LIBARCHIVE.xattr.user.key%3D", b"AP8")])
        .directory("d")
        .pax(&[("SCHILY.xattr.trusted.of-a-link", b"1")])
        .symlink("s", "d")
        .pax(&[("SCHILY.xattr.security.of-a-device", b"2")])
        .device(b'3', "null", 1, 3);
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.xattr("ping", "security.capability").as_deref(),
        Some(&capability[..])
    );
    assert_eq!(
        layer.xattr("d", "user.key=").as_deref(),
        Some(&b"\0\xff"[..])
    );
    assert_eq!(
        layer.xattr("s", "trusted.of-a-link").as_deref(),
        Some(&b"1"[..])
    );
    assert_eq!(
        layer.xattr("null", "security.of-a-device").as_deref(),
        Some(&b"2"[..])
    );
}

#[test]
fn acls_in_text_form_become_attributes() {
    let archive = Archive::new()
        .pax(&[
            (
                "SCHILY.acl.access",
                b"user::rwx,user:joe:r--:1000,group::r-x,mask::r-x,other::---",
            ),
            (
                "SCHILY.acl.default",
                b"user::rwx\nuser:7:r--\ngroup::---\nmask::r--\nother::---",
            ),
        ])
        .directory("d");
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.xattr("d", "system.posix_acl_access").unwrap().len(),
        4 + 5 * 8
    );
    assert_eq!(
        layer.xattr("d", "system.posix_acl_default").unwrap().len(),
        4 + 5 * 8
    );
}

#[test]
fn acls_that_name_users_are_left_out_and_counted() {
    let acl = b"user::rwx,user:joe:r--,group::---,mask::r--,other::---";
    let archive = Archive::new()
        .pax(&[("SCHILY.acl.access", acl)])
        .file("f", "");
    let layer = layer(&archive.finish());
    assert_eq!(layer.xattr("f", "system.posix_acl_access"), None);
    assert_eq!(layer.layer.record.dropped_xattrs, 1);
    let nonsense = Archive::new()
        .pax(&[("SCHILY.acl.access", b"user")])
        .file("f", "");
    // Like Docker, containerd and GNU tar with an invalid ACL.
    assert_eq!(
        self::layer(&nonsense.finish()).layer.record.dropped_xattrs,
        1
    );
}

#[test]
fn attributes_of_overlayfs_cannot_be_smuggled_in() {
    let archive = Archive::new()
        .pax(&[
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("LIBARCHIVE.xattr.trusted.overlay.redirect", b"L2V0Yw"),
        ])
        .directory("d");
    let layer = layer(&archive.finish());
    assert!(!layer.is_opaque("d"));
    assert_eq!(
        layer
            .xattr("d", "trusted.overlay.overlay.opaque")
            .as_deref(),
        Some(&b"y"[..])
    );
    assert!(layer.xattr("d", "trusted.overlay.redirect").is_none());
}

#[test]
fn attributes_that_linux_has_no_namespace_for_are_left_out_and_counted() {
    let archive = Archive::new()
        .pax(&[
            ("SCHILY.xattr.com.apple.quarantine", b"x"),
            ("SCHILY.xattr.user.kept", b"y"),
        ])
        .file("f", "");
    let layer = layer(&archive.finish());
    assert_eq!(layer.layer.record.dropped_xattrs, 1);
    assert_eq!(layer.xattr("f", "user.kept").as_deref(), Some(&b"y"[..]));
}

#[test]
fn bytes_after_the_archives_end_count_for_the_diff_id_only() {
    let archive = Archive::new().file("f", "x").finish();
    let padded = [&archive[..], &[0; 9000]].concat();
    let littered = [&archive[..], b"this is no archive"].concat();
    let second = [&archive[..], &Archive::new().file("g", "y").finish()].concat();
    for bytes in [&padded, &littered, &second] {
        let layer = layer(bytes);
        assert_eq!(layer.paths(), ["d/", "f/f"]);
        assert_eq!(layer.layer.record.uncompressed_size, bytes.len() as u64);
        let mut lie = expect(bytes, bytes);
        lie.diff_id = Digest::of(&archive);
        lie.blob = None;
        let store = store();
        assert!(convert_layer(&store, &bytes[..], &lie, &Limits::default()).is_err());
    }
}

#[test]
fn archives_may_end_at_once_or_with_one_block() {
    let archive = Archive::new().file("f", "x").unfinished();
    for end in [0, BLOCK, 2 * BLOCK, 20 * BLOCK] {
        let bytes = [&archive[..], &vec![0; end]].concat();
        assert_eq!(layer(&bytes).paths(), ["d/", "f/f"]);
    }
    let more = Archive::new().file("g", "y").finish();
    let lone = [&archive[..], &[0; BLOCK], &more].concat();
    assert!(refusal(&lone).contains("neither another one nor the archive's end"));
}

#[test]
fn damaged_archives_are_refused_by_place_and_name() {
    let mut corrupt = Archive::new()
        .file("first", "x")
        .file("second", "y")
        .finish();
    corrupt[2 * BLOCK + 3] ^= 1;
    let message = refusal(&corrupt);
    assert!(message.contains("checksum"), "{message}");
    assert!(
        message.contains("at byte 1536") && message.contains("`first`"),
        "{message}"
    );

    for (archive, expected) in [
        (Archive::new().member(b'M', b"m", b"", 0, b""), "type `M`"),
        (
            Archive::new().header(108, "notanum\0").file("f", ""),
            "owner",
        ),
        (
            Archive::new().header(136, "99999999999\0").file("f", ""),
            "modification time",
        ),
        (
            Archive::new().pax(&[("size", b"-1")]).file("f", ""),
            "`size`",
        ),
        (
            Archive::new().pax(&[("mtime", b"noon")]).file("f", ""),
            "`mtime`",
        ),
        (
            Archive::new().pax(&[("uid", b"4294967296")]).file("f", ""),
            "owner",
        ),
        (
            Archive::new().pax(&[("uid", b"4294967295")]).file("f", ""),
            "owner",
        ),
        (
            Archive::new().pax(&[("path", b"a\0b")]).file("f", ""),
            "NUL",
        ),
        (
            Archive::new()
                .member(b'x', b"p", b"", 0, b"nonsense")
                .file("f", ""),
            "malformed",
        ),
        (Archive::new().file("", "x"), "no name"),
        (Archive::new().file(".", "x"), "no name"),
        (
            Archive::new().pax(&[("path", &[b'n'; 256])]).file("f", ""),
            "longer than 255",
        ),
    ] {
        let message = refusal(&archive.finish());
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let only_header = Archive::new().pax(&[("path", b"x")]).finish();
    assert!(refusal(&only_header).contains("only its extended header"));
}

#[test]
fn an_archive_cut_anywhere_is_refused_or_ends_between_members() {
    let archive = Archive::new()
        .directory("d/")
        .pax(&[("path", b"d/with-a-header")])
        .file("x", "y".repeat(1500))
        .file("last", "z".repeat(600))
        .unfinished();
    let whole = BLOCK..archive.len();
    let boundaries = [0, BLOCK, 3 * BLOCK + 4 * BLOCK, archive.len()];
    let store = fast_store();
    for end in (0..archive.len())
        .step_by(300)
        .chain(whole.step_by(BLOCK))
        .chain(boundaries)
    {
        let cut = &archive[..end];
        match convert(&store, cut) {
            Ok(_) => assert!(boundaries.contains(&end), "{end}"),
            Err(error) => {
                let message = error.to_string();
                assert!(!boundaries.contains(&end), "{end}: {message}");
                assert!(message.contains("end"), "{message}");
            }
        }
    }
}

#[test]
fn an_entry_of_unknown_type_is_named_and_not_called_damage() {
    let message = refusal(
        &Archive::new()
            .member(b'Q', b"queer", b"", 0o644, b"")
            .finish(),
    );
    assert!(
        message.contains("entry `queer`") && message.contains("type `Q`"),
        "{message}"
    );
    assert!(!message.contains("damaged"), "{message}");
}

#[test]
fn messages_show_a_bounded_part_of_what_is_foreign() {
    let long = "x".repeat(15_000);
    let archive = Archive::new()
        .pax(&[("path", long.as_bytes())])
        .member(b'Q', b"short", b"", 0o644, b"");
    assert!(refusal(&archive.finish()).len() < 1000);
    let archive = Archive::new()
        .pax(&[("linkpath", format!("../{long}").as_bytes())])
        .hard_link("l", "short");
    assert!(refusal(&archive.finish()).len() < 1500);
}
