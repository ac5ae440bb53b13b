//! `mica ext4`, judged by e2fsck, GNU tar and the kernel.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use micabox_testing::shell;

const MICA: &str = env!("CARGO_BIN_EXE_mica");

fn mica(words: &[&str]) -> Output {
    let mut command = Command::new(MICA);
    command
        .arg("ext4")
        .args(words)
        .env_remove("SOURCE_DATE_EPOCH");
    command.output().unwrap()
}

/// Runs a command that must succeed and returns its output.
#[track_caller]
fn done(words: &[&str]) -> String {
    let output = mica(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "mica ext4 {words:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn assert_sound(image: &str) {
    assert_eq!(done(&["check", image]), "clean\n");
    let path = "PATH=$PATH:/usr/sbin:/sbin e2fsck -fn";
    let said = shell(Path::new("/"), &format!("{path} {image} 2>&1"));
    assert!(!said.contains("? no"), "{said}");
}

#[test]
fn a_filesystem_is_made_listed_changed_and_grown() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let image = path("image");
    let wish = ["mkfs", &image, "--size", "64M", "--label", "mine", "--json"];
    let made: serde_json::Value = serde_json::from_str(&done(&wish)).unwrap();
    assert_eq!(made["blocks"], 16384);
    assert_eq!(made["journal_blocks"], 1024);
    assert_sound(&image);

    // An existing file is not overwritten by accident.
    let again = mica(&["mkfs", &image, "--size", "64M"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));

    let source = directory.path().join("tree");
    fs::create_dir_all(source.join("inner")).unwrap();
    fs::write(source.join("inner/text"), "hello\n").unwrap();
    fs::set_permissions(source.join("inner/text"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("inner/text", source.join("link")).unwrap();
    done(&["cp", source.to_str().unwrap(), &format!("{image}:/")]);
    assert_eq!(done(&["ls", &image]), "lost+found\ntree\n");
    assert_eq!(done(&["cat", &image, "/tree/link"]), "hello\n");
    let listed: serde_json::Value =
        serde_json::from_str(&done(&["ls", &image, "/tree/inner", "--json"])).unwrap();
    assert_eq!(listed[0]["name"], "text");
    assert_eq!(listed[0]["mode"], "-rwxr-x--x");
    let shown: serde_json::Value =
        serde_json::from_str(&done(&["stat", &image, "/tree/link", "--json"])).unwrap();
    assert_eq!(shown["target"], "inner/text");
    assert_sound(&image);

    let grown = done(&["resize", &image, "--size", "9G"]);
    assert!(grown.contains("16384 before"), "{grown}");
    assert_sound(&image);
    let back = path("back");
    done(&["cp", &format!("{image}:/tree"), &back]);
    assert_eq!(
        fs::read_to_string(Path::new(&back).join("inner/text")).unwrap(),
        "hello\n"
    );
    shell(directory.path(), "diff -r tree back");

    let missing = mica(&["cat", &image, "/nothing"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no such file"));
}

#[test]
fn the_same_options_of_mkfs_give_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "for name in a b; do SOURCE_DATE_EPOCH=1 '{MICA}' ext4 mkfs $name --size 20M \
         --uuid 01234567-89ab-4def-8123-456789abcdef; done; cmp a b"
    );
    shell(directory.path(), &script);
}

#[test]
fn check_reports_damage() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let image = image.to_str().unwrap();
    done(&["mkfs", image, "--size", "20M"]);
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    // The number of free blocks.
    file.write_all_at(&[1], 1024 + 12).unwrap();
    let output = mica(&["check", image, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(findings.as_array().unwrap().len() >= 2);
}

/// The state that a guest's kernel leaves when its disk can't be written to any more.
#[test]
fn a_filesystem_with_an_error_mark_is_only_read_until_replay_clears_it() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let image = image.to_str().unwrap();
    done(&["mkfs", image, "--size", "20M"]);
    let debugfs = "PATH=$PATH:/usr/sbin:/sbin debugfs -w -R";
    shell(directory.path(), &format!("{debugfs} 'ssv state 2' image"));

    let listed = mica(&["ls", image]);
    assert!(listed.status.success());
    assert!(String::from_utf8_lossy(&listed.stderr).contains("marked as having errors"));
    let copied = mica(&["cp", "/etc/hostname", &format!("{image}:/")]);
    assert_eq!(copied.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&copied.stderr).contains("marked as having errors"));

    let replayed = mica(&["replay", image]);
    assert!(replayed.status.success(), "{replayed:?}");
    assert!(String::from_utf8_lossy(&replayed.stderr).contains("nothing is wrong"));
    assert_sound(image);
    assert!(mica(&["ls", image]).stderr.is_empty());

    // With a problem, the mark stays.
    shell(
        directory.path(),
        &format!("{debugfs} 'ssv state 2' image; {debugfs} 'sif lost+found links_count 7' image"),
    );
    let replayed = mica(&["replay", image]);
    assert!(replayed.status.success(), "{replayed:?}");
    assert!(String::from_utf8_lossy(&replayed.stderr).contains("e2fsck -p"));
    assert!(String::from_utf8_lossy(&mica(&["ls", image]).stderr).contains("marked"));
}

/// Makes files of every kind, with all attributes.
const TREE: &str = r#"
    mkdir src && cd src
    mkdir -p a/b "with space" many; echo hi > a/f; ln a/f a/b/hard; ln -s ../x a/sym
    ln -s "$(printf 'l%.0s' $(seq 150))" longlink
    mkfifo fifo; mknod char c 5 260; mknod block b 300 70000
    truncate -s 5M sparse; echo x | dd of=sparse bs=1 seek=2000000 conv=notrunc status=none
    touch -d '1965-03-04 05:06:07.123456789' old; touch -d '2100-01-01 00:00:00.5' new
    setfattr -n user.x -v "$(printf 'a\nb=c')" a/f; setfattr -n trusted.t -v 1 many
    cp /bin/true capable; setcap cap_net_raw+ep capable
    setfacl -m u:1000:rwx,g:50:r a; setfacl -d -m u:7:rx a; setfacl -m u:99:r old
    chown 70000:4000000 old; chmod 6755 new; chmod 1777 many
    touch "$(printf 'not\xff utf8')" "$(printf 'n%.0s' $(seq 250))"
    mkdir -p $(printf 'deep%.0s/' $(seq 60)); echo d > $(printf 'deep%.0s/' $(seq 60))end
    for number in $(seq 500); do echo $number > many/$number; done
    head -c 3000000 /dev/urandom > random
"#;

/// Lists names, types, owners, times, sizes; contents; attributes.
const TELL: &str = r#"
    find . -path ./lost+found -prune -o ! -type d -printf '%p %M %n %U %G %s %T@ %l\n' | sort
    find . -mindepth 1 -path ./lost+found -prune -o -type d -printf '%p %M %U %G %T@\n' | sort
    find . -type f -print0 | sort -z | xargs -0 md5sum
    find . -path ./lost+found -prune -o -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex
    stat -c '%t %T' char block
"#;

/// Compares line by line; panics with the first difference.
#[track_caller]
fn assert_same(one: &str, other: &str) {
    for (one, other) in one.lines().zip(other.lines()) {
        assert_eq!(one, other);
    }
    assert_eq!(one.lines().count(), other.lines().count());
}

#[test]
#[ignore = "needs root"]
fn archives_carry_every_attribute() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    shell(here, TREE);
    let told = shell(&here.join("src"), TELL);
    let tar = "tar --xattrs --xattrs-include='*' --acls --numeric-owner";
    for format in [
        "--format=pax --sparse",
        "--format=pax --sparse --sparse-version=0.1",
    ] {
        shell(
            here,
            &format!("{tar} {format} -C src -cf in.tar . && rm -f image"),
        );
        let path = |name: &str| here.join(name).to_str().unwrap().to_owned();
        let image = path("image");
        done(&["mkfs", &image, "--size", "200M"]);
        done(&["import", &image, &path("in.tar")]);
        assert_sound(&image);

        // As the kernel sees it.
        shell(here, "mkdir -p mount && mount -o loop,ro image mount");
        let seen = shell(&here.join("mount"), TELL);
        let holes = shell(here, "du -k mount/sparse | cut -f1");
        shell(here, "umount mount");
        assert_same(&told, &seen);
        assert!(holes.trim().parse::<u32>().unwrap() < 20);

        // As GNU tar unpacks what we export.
        done(&["export", &image, &path("out.tar")]);
        shell(
            here,
            &format!("rm -rf out; mkdir out; {tar} -C out -xpf out.tar 2>/dev/null"),
        );
        assert_same(&told, &shell(&here.join("out"), TELL));
        assert!(!shell(here, "tar -tf out.tar").contains("GNUSparseFile"));

        // And a round trip.
        done(&["mkfs", &path("second"), "--size", "200M", "--force"]);
        done(&["import", &path("second"), &path("out.tar")]);
        done(&["export", &path("second"), &path("again.tar")]);
        shell(here, "cmp out.tar again.tar");
        // What was secret in the filesystem still is.
        assert_eq!(shell(here, "stat -c %a out.tar second"), "600\n600\n");
    }
}

#[test]
fn an_imported_archive_writes_only_inside_the_filesystem() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let path = |name: &str| here.join(name).to_str().unwrap().to_owned();
    done(&["mkfs", &path("image"), "--size", "20M"]);
    shell(
        here,
        "mkdir a; echo x > a/f; tar -P --transform='s,a/f,../f,' -cf up.tar a/f",
    );
    let refused = mica(&["import", &path("image"), &path("up.tar")]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("could lead out"));
    // A link that would lead out of the filesystem leads to its own root.
    shell(
        here,
        "mkdir t; ln -s / t/out; tar -C t -cf one.tar out; mkdir -p u/out; echo x > u/out/f; tar -C u -cf two.tar out/f",
    );
    done(&["import", &path("image"), &path("one.tar")]);
    done(&["import", &path("image"), &path("two.tar")]);
    assert_eq!(done(&["cat", &path("image"), "/f"]), "x\n");
    assert_sound(&path("image"));
}

/// overlayfs's whiteout, a device, is no more than that in a filesystem of its own.
#[test]
fn a_device_gives_way_to_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    done(&["mkfs", &path("image"), "--size", "20M"]);
    let mut archive = tar::Builder::new(fs::File::create(path("in.tar")).unwrap());
    for (kind, name) in [
        (tar::EntryType::Char, "x"),
        (tar::EntryType::Directory, "x"),
        (tar::EntryType::Regular, "x/y"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_mtime(1);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        header.set_device_major(0).unwrap();
        header.set_device_minor(0).unwrap();
        archive.append_data(&mut header, name, &[][..]).unwrap();
    }
    archive.finish().unwrap();
    done(&["import", &path("image"), &path("in.tar")]);
    assert_eq!(done(&["ls", &path("image"), "/x"]), "y\n");
    let attributes = format!(
        "PATH=$PATH:/usr/sbin:/sbin debugfs -R 'ea_list /x' {}",
        path("image")
    );
    let said = shell(Path::new("/"), &format!("{attributes} 2>&1"));
    assert!(!said.contains("opaque"), "{said}");
    assert_sound(&path("image"));
}
