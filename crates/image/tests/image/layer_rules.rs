//! OCI's rules for layers, and the decisions of `docs/oci.md`.

use micabox_erofs::format::{FileType, decode_device};

use crate::layer::archive::Archive;
use crate::layer::{layer, refusal};

#[test]
fn a_whiteout_hides_a_name_of_lower_layers() {
    let layer = layer(&Archive::new().whiteout("d/.wh.gone").finish());
    assert_eq!(layer.paths(), ["d/", "d/d", "c/d/gone"]);
    assert!(layer.is_whiteout("d/gone"));
    // Otherwise overlayfs would list it where there are no lower files.
    assert!(layer.xattr("d", "trusted.overlay.origin").is_some());
}

#[test]
fn a_whiteout_spares_what_its_own_layer_has_in_any_order() {
    let before = Archive::new().whiteout(".wh.f").file("f", "new");
    let after = Archive::new().file("f", "new").whiteout(".wh.f");
    for archive in [before, after] {
        let layer = layer(&archive.finish());
        assert_eq!(layer.paths(), ["d/", "f/f"]);
        assert_eq!(layer.read("f"), b"new");
    }
}

#[test]
fn a_whiteout_and_a_directory_of_one_name_are_an_opaque_directory_in_any_order() {
    let before = Archive::new()
        .whiteout(".wh.d")
        .directory("d/")
        .file("d/f", "");
    let between = Archive::new()
        .directory("d/")
        .whiteout(".wh.d")
        .file("d/f", "");
    let after = Archive::new()
        .directory("d/")
        .file("d/f", "")
        .whiteout(".wh.d");
    let implied = Archive::new().whiteout(".wh.d").file("d/f", "");
    for archive in [before, between, after, implied] {
        let layer = layer(&archive.finish());
        assert_eq!(layer.paths(), ["d/", "d/d", "f/d/f"]);
        assert!(layer.is_opaque("d"));
    }
}

#[test]
fn a_whiteout_and_whiteouts_below_it_are_one_whiteout_in_any_order() {
    let before = Archive::new()
        .whiteout(".wh.d")
        .whiteout("d/.wh.a")
        .whiteout("d/e/.wh.b");
    let after = Archive::new()
        .whiteout("d/e/.wh.b")
        .whiteout("d/.wh.a")
        .whiteout(".wh.d");
    for archive in [before, after] {
        let layer = layer(&archive.finish());
        assert_eq!(layer.paths(), ["d/", "c/d"]);
    }
    // With a new entry below it, it is a new directory.
    let archive = Archive::new()
        .whiteout(".wh.d")
        .whiteout("d/.wh.a")
        .file("d/e/f", "");
    let layer = layer(&archive.finish());
    assert_eq!(layer.paths(), ["d/", "d/d", "c/d/a", "d/d/e", "f/d/e/f"]);
    assert!(layer.is_opaque("d") && !layer.is_opaque("d/e"));
}

#[test]
fn an_opaque_directory_keeps_what_its_own_layer_has_in_any_order() {
    let before = Archive::new().whiteout("d/.wh..wh..opq").file("d/f", "new");
    let after = Archive::new()
        .directory("d")
        .file("d/f", "new")
        .whiteout("d/.wh..wh..opq");
    for archive in [before, after] {
        let layer = layer(&archive.finish());
        assert_eq!(layer.paths(), ["d/", "d/d", "f/d/f"]);
        assert!(layer.is_opaque("d"));
        assert!(!layer.is_opaque(""));
    }
}

#[test]
fn the_root_of_a_layer_may_be_opaque() {
    let layer = layer(
        &Archive::new()
            .whiteout(".wh..wh..opq")
            .file("f", "")
            .finish(),
    );
    assert!(layer.is_opaque(""));
}

#[test]
fn a_directorys_entry_after_its_marker_does_not_take_it_back() {
    let archive = Archive::new()
        .whiteout("d/.wh..wh..opq")
        .file("d/f", "")
        .directory("d/");
    let layer = layer(&archive.finish());
    assert!(layer.is_opaque("d"));
    assert!(!layer.is_implied("d"));
}

#[test]
fn a_whiteout_may_hide_the_longest_name() {
    let name = "n".repeat(255);
    let archive = Archive::new().pax(&[("path", format!("d/.wh.{name}").as_bytes())]);
    let layer = layer(&archive.whiteout("x").finish());
    assert!(layer.is_whiteout(&format!("d/{name}")));
    // The same length is too much for a directory's own name.
    let archive = Archive::new().pax(&[("path", format!(".wh.{name}/x").as_bytes())]);
    assert!(refusal(&archive.file("x", "").finish()).contains("longer than 255 bytes"));
}

#[test]
fn the_type_of_a_whiteouts_entry_does_not_matter() {
    let archive = Archive::new()
        .file(".wh.a", "contents that nobody wants")
        .directory(".wh.b/")
        .symlink(".wh.c", "a")
        .hard_link(".wh.d", ".wh.a");
    let layer = layer(&archive.finish());
    assert_eq!(layer.paths(), ["d/", "c/a", "c/b", "c/c", "c/d"]);
}

#[test]
fn a_character_device_0_0_is_a_whiteout() {
    let archive = Archive::new()
        .file("f", "x")
        .device(b'3', "f", 0, 0)
        .device(b'3', "g", 0, 0);
    let layer = layer(&archive.finish());
    assert!(layer.is_whiteout("f"));
    assert!(layer.is_whiteout("g"));
}

#[test]
fn whiteouts_without_a_name_are_refused() {
    for name in [".wh.", "d/.wh.", ".wh..", ".wh..."] {
        let message = refusal(&Archive::new().whiteout(name).finish());
        assert!(message.contains("whiteout without a name"), "{message}");
    }
}

#[test]
fn the_files_of_aufs_are_ignored_but_its_hard_links_work() {
    let archive = Archive::new()
        .directory(".wh..wh.plnk/")
        .file(".wh..wh.plnk/12.34", "linked")
        .file(".wh..wh.aufs", "")
        .directory(".wh..wh.orph/")
        .file("d/.wh..wh.something", "")
        .hard_link("a", ".wh..wh.plnk/12.34")
        .hard_link("b", "/.wh..wh.plnk/12.34");
    let layer = layer(&archive.finish());
    assert_eq!(layer.paths(), ["d/", "f/a", "f/b", "d/d"]);
    assert_eq!(layer.read("b"), b"linked");
    assert_eq!(layer.inode("a").nlink, 2);
}

#[test]
fn directories_without_an_entry_are_implied_until_one_comes() {
    let early = layer(&Archive::new().file("a/b/f", "").finish());
    assert_eq!(early.paths(), ["d/", "d/a", "d/a/b", "f/a/b/f"]);
    for path in ["", "a", "a/b"] {
        assert!(early.is_implied(path));
        let inode = early.inode(path);
        assert_eq!((inode.mode, inode.uid, inode.mtime.seconds), (0o755, 0, 0));
    }
    let late = Archive::new()
        .file("a/b/f", "")
        .header(100, "0001700\0")
        .header(136, "00000000007\0")
        .directory("a/b/")
        .directory("./");
    let late = layer(&late.finish());
    assert!(late.is_implied("a") && !late.is_implied("a/b") && !late.is_implied(""));
    assert_eq!(
        (late.inode("a/b").mode, late.inode("a/b").mtime.seconds),
        (0o1700, 7)
    );
    assert_eq!(late.read("a/b/f"), b"");
}

#[test]
fn names_that_sort_below_a_dot_are_found() {
    let names = [
        "+page.svelte",
        "(group)",
        "$x",
        "-x",
        "#x",
        "!",
        " ",
        "..x",
        ".a",
        "a",
    ];
    let mut archive = Archive::new();
    for name in names {
        archive = archive.file(&format!("d/{name}"), name);
    }
    let layer = layer(&archive.finish());
    for name in names {
        assert_eq!(layer.read(&format!("d/{name}")), name.as_bytes());
    }
}

#[test]
fn paths_are_relative_to_the_layers_root_however_they_are_written() {
    let archive = Archive::new()
        .file("./a", "")
        .file("/b", "")
        .file("//x//../c/./d", "")
        .file("/../e", "")
        .directory("./f/");
    assert_eq!(
        layer(&archive.finish()).paths(),
        ["d/", "f/a", "f/b", "d/c", "f/c/d", "f/e", "d/f"]
    );
}

#[test]
fn paths_out_of_the_layer_are_refused() {
    for archive in [
        Archive::new().file("../etc/passwd", "evil"),
        Archive::new().file("a/../../etc/passwd", "evil"),
        Archive::new().directory("..").file("../x", ""),
        Archive::new().symlink("..", "/etc"),
        Archive::new().hard_link("passwd", "../../etc/passwd"),
        Archive::new().whiteout("../.wh.x"),
    ] {
        let message = refusal(&archive.finish());
        assert!(message.contains("`..` lead out of the layer"), "{message}");
        assert!(message.contains("entry `"), "{message}");
    }
}

#[test]
fn symlinks_may_have_any_target_as_none_is_followed_outside() {
    let archive = Archive::new()
        .symlink("up", "../../../../etc")
        .symlink("host", "/etc")
        .file("up/a", "1")
        .file("host/b", "2")
        .symlink("etc/up", "../../..")
        .file("etc/up/c", "3");
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.paths(),
        [
            "d/", "f/c", "d/etc", "f/etc/a", "f/etc/b", "l/etc/up", "l/host", "l/up"
        ]
    );
    assert!(layer.is_implied("etc"));
}

#[test]
fn an_entry_below_a_symlink_of_its_layer_goes_where_that_leads() {
    let archive = Archive::new()
        .directory("usr/lib/")
        .symlink("lib", "usr/lib")
        .symlink("lib64", "lib")
        .file("lib/a", "1")
        .file("lib64/x86/b", "2")
        .whiteout("lib/.wh.c");
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.paths(),
        [
            "d/",
            "l/lib",
            "l/lib64",
            "d/usr",
            "d/usr/lib",
            "f/usr/lib/a",
            "c/usr/lib/c",
            "d/usr/lib/x86",
            "f/usr/lib/x86/b",
        ]
    );
}

#[test]
fn cycles_of_symlinks_are_refused() {
    let archive = Archive::new()
        .symlink("a", "b")
        .symlink("b", "a")
        .file("a/f", "");
    assert!(refusal(&archive.finish()).contains("symbolic links"));
    let archive = Archive::new().symlink("a", "a/a").file("a/f", "");
    assert!(refusal(&archive.finish()).contains("symbolic links"));
}

#[test]
fn an_entry_below_a_file_is_refused() {
    let message = refusal(&Archive::new().file("a/b", "").file("a/b/c/d", "").finish());
    assert!(
        message.contains("entry `a/b/c/d`") && message.contains("`b`"),
        "{message}"
    );
}

#[test]
fn the_last_entry_of_a_path_wins() {
    let archive = Archive::new()
        .file("f", "old")
        .file("f", "new")
        .directory("dir/")
        .file("dir/sub/x", "")
        .file("dir", "a file now")
        .file("file", "")
        .directory("file/")
        .file("file/x", "")
        .symlink("link", "elsewhere")
        .directory("link/")
        .file("link/x", "")
        .directory("kept/")
        .file("kept/x", "")
        .header(100, "0000700\0")
        .directory("kept/");
    let layer = layer(&archive.finish());
    assert_eq!(
        layer.paths(),
        [
            "d/", "f/dir", "f/f", "d/file", "f/file/x", "d/kept", "f/kept/x", "d/link", "f/link/x",
        ]
    );
    assert_eq!(layer.read("f"), b"new");
    assert_eq!(layer.inode("kept").mode, 0o700);
    assert_eq!(layer.inode("").nlink, 5);
}

#[test]
fn a_replaced_file_lives_on_under_its_other_names() {
    let archive = Archive::new()
        .file("a", "old")
        .hard_link("b", "a")
        .file("a", "new");
    let layer = layer(&archive.finish());
    assert_eq!(
        (layer.read("a"), layer.read("b")),
        (b"new".to_vec(), b"old".to_vec())
    );
    assert_eq!((layer.inode("a").nlink, layer.inode("b").nlink), (1, 1));
}

#[test]
fn hard_links_share_the_inode_and_its_targets_attributes() {
    let archive = Archive::new()
        .header(100, "0004755\0")
        .header(136, "00000000007\0")
        .file("a", "x")
        .hard_link("d/b", "./a")
        .symlink("s", "anywhere")
        .hard_link("t", "s")
        .fifo("p")
        .hard_link("q", "/p");
    let layer = layer(&archive.finish());
    for (one, other) in [("a", "d/b"), ("s", "t"), ("p", "q")] {
        assert_eq!(layer.inode(one), layer.inode(other));
        assert_eq!(layer.inode(one).nlink, 2);
    }
    assert_eq!(
        (layer.inode("d/b").mode, layer.inode("d/b").mtime.seconds),
        (0o4755, 7)
    );
}

#[test]
fn hard_links_may_come_before_their_targets() {
    let archive = Archive::new()
        .hard_link("z", "y")
        .hard_link("d/y", "x")
        .hard_link("y", "d/y")
        .file("x", "contents");
    let layer = layer(&archive.finish());
    for name in ["x", "y", "z", "d/y"] {
        assert_eq!(layer.read(name), b"contents", "{name}");
        assert_eq!(layer.inode(name).nlink, 4);
        assert_eq!(layer.lower_target(name), None);
    }
}

#[test]
fn a_hard_link_that_is_replaced_before_its_target_comes_is_gone() {
    let archive = Archive::new()
        .hard_link("b", "a")
        .file("b", "own")
        .file("a", "x");
    let layer = layer(&archive.finish());
    assert_eq!(layer.read("b"), b"own");
    assert_eq!((layer.inode("a").nlink, layer.inode("b").nlink), (1, 1));
}

#[test]
fn a_hard_link_to_a_lower_layers_file_says_where_that_is() {
    let archive = Archive::new()
        .symlink("lib", "usr/lib")
        .header(100, "0000600\0")
        .hard_link("new/b", "lib/a")
        .hard_link("c", "new/b");
    let layer = layer(&archive.finish());
    for path in ["new/b", "c"] {
        assert_eq!(layer.lower_target(path).as_deref(), Some("/usr/lib/a"));
    }
    assert_eq!(layer.inode("new/b"), layer.inode("c"));
    assert_eq!((layer.inode("c").mode, layer.inode("c").nlink), (0o600, 2));
    assert!(layer.find("usr").is_none());
}

#[test]
fn cycles_of_hard_links_mean_a_lower_layers_file() {
    let archive = Archive::new()
        .hard_link("tail", "a")
        .hard_link("a", "b")
        .hard_link("b", "c")
        .hard_link("c", "a")
        .hard_link("self", "self");
    let layer = layer(&archive.finish());
    assert_eq!(layer.lower_target("a").as_deref(), Some("/b"));
    for path in ["b", "c", "tail"] {
        assert_eq!(layer.inode(path), layer.inode("a"));
    }
    assert_eq!(layer.lower_target("self").as_deref(), Some("/self"));
}

#[test]
fn hard_links_to_directories_are_refused() {
    let early = Archive::new().directory("d").hard_link("e", "d");
    let late = Archive::new().hard_link("e", "d").directory("d");
    let root = Archive::new().hard_link("e", "/");
    for archive in [early, late, root] {
        let message = refusal(&archive.finish());
        assert!(
            message.contains("entry `e`") && message.contains("a directory"),
            "{message}"
        );
    }
}

#[test]
fn devices_and_fifos_are_kept() {
    let archive = Archive::new()
        .device(b'3', "null", 1, 3)
        .device(b'4', "disk", 259, 65_000)
        .fifo("pipe");
    let layer = layer(&archive.finish());
    let device = |path| {
        (
            layer.inode(path).kind,
            decode_device(layer.inode(path).device),
        )
    };
    assert_eq!(device("null"), (FileType::CharDevice, (1, 3)));
    assert_eq!(device("disk"), (FileType::BlockDevice, (259, 65_000)));
    assert_eq!(layer.inode("pipe").kind, FileType::Fifo);
    let message = refusal(&Archive::new().device(b'3', "x", 4096, 0).finish());
    assert!(message.contains("4096:0"), "{message}");
}

#[test]
fn symlinks_without_a_target_are_refused() {
    let message = refusal(&Archive::new().symlink("s", "").finish());
    assert!(
        message.contains("entry `s`") && message.contains("0 bytes"),
        "{message}"
    );
}

#[test]
fn an_archive_without_entries_is_an_empty_layer() {
    for archive in [
        Archive::new().finish(),
        Archive::new().unfinished(),
        vec![0; 512],
    ] {
        assert_eq!(layer(&archive).paths(), ["d/"]);
    }
}

#[test]
fn the_same_archive_gives_the_same_bytes() {
    let archive = Archive::new()
        .whiteout(".wh.z")
        .whiteout("d/.wh.y")
        .pax(&[("SCHILY.xattr.user.b", b"1"), ("SCHILY.xattr.user.a", b"2")])
        .file("d/f", "x".repeat(10_000))
        .hard_link("later", "even/later")
        .file("even/later", "x")
        .finish();
    let (one, other) = (layer(&archive), layer(&archive));
    assert_eq!(one.reader.source(), other.reader.source());
    assert_eq!(one.layer.record, other.layer.record);
}

#[test]
fn a_device_whiteout_and_a_later_directory_of_its_name_are_the_directory() {
    for archive in [
        Archive::new().device(b'3', "c", 0, 0).directory("c/"),
        Archive::new()
            .directory("c/")
            .file("c/old", "")
            .device(b'3', "c", 0, 0)
            .directory("c/"),
    ] {
        let layer = layer(&archive.finish());
        assert_eq!(layer.paths(), ["d/", "d/c"]);
        assert!(!layer.is_opaque("c"));
    }
    // Also a directory that its contents imply.
    let archive = Archive::new().device(b'3', "c", 0, 0).file("c/f", "");
    let implied = layer(&archive.finish());
    assert_eq!(implied.paths(), ["d/", "d/c", "f/c/f"]);
    assert!(!implied.is_opaque("c"));
    // The other way round.
    let archive = Archive::new().directory("c/").device(b'3', "c", 0, 0);
    assert!(layer(&archive.finish()).is_whiteout("c"));
}

#[test]
fn symbolic_links_have_the_mode_that_linux_gives_them() {
    let archive = Archive::new()
        .member(b'2', b"l", b"target", 0o644, b"")
        .hard_link("again", "l");
    let layer = layer(&archive.finish());
    for name in ["l", "again"] {
        assert_eq!(layer.inode(name).mode, 0o777, "{name}");
    }
}

#[test]
fn an_attributes_name_is_taken_as_it_stands() {
    let archive = Archive::new()
        .pax(&[
            ("SCHILY.xattr.user.a%3Db", b"literal"),
            ("LIBARCHIVE.xattr.user.c%3Dd", b"AP8="),
        ])
        .file("f", "");
    let layer = layer(&archive.finish());
    assert_eq!(layer.xattr("f", "user.a%3Db").unwrap(), b"literal");
    assert_eq!(layer.xattr("f", "user.c=d").unwrap(), b"\0\xff");
}

#[test]
fn a_malformed_acl_is_left_out_and_counted() {
    let archive = Archive::new()
        .pax(&[("SCHILY.acl.access", b"user:1:rwq,nonsense")])
        .file("f", "contents");
    let layer = layer(&archive.finish());
    assert_eq!(layer.read("f"), b"contents");
    assert_eq!(layer.layer.record.dropped_xattrs, 1);
    assert!(layer.xattr("f", "system.posix_acl_access").is_none());
}
