//! Trees as archives and archives as trees, beside GNU tar, and while another process changes them.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use micabox_tar::{Kind, Limits, Members};
use micabox_testing::PATIENCE;
use micabox_tree::{Error, Packing, Root, Source, Unpacked, Unpacker, Unpacking};

const ALL: Packing = Packing {
    owners: true,
    xattrs: |_| true,
    only_plain: false,
    devices: None,
};

fn directory(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

fn pack(root: &Path, path: &str) -> Result<Vec<u8>, Error> {
    let mut archive = Vec::new();
    let root = Root::new(directory(root));
    let source = Source::open(&root, path.as_bytes(), false).map_err(|errno| Error::File {
        path: path.into(),
        source: errno.into(),
    })?;
    source.pack(b"top", ALL, &mut archive, &mut |_| {})?;
    Ok(archive)
}

fn unpack(root: Root, whole: bool, archive: &[u8]) -> Result<Unpacked, Error> {
    let is_root = rustix::process::geteuid().is_root();
    let mut unpacker = Unpacker::new(
        root,
        Unpacking {
            owners: is_root,
            set_id: true,
            special: is_root,
            parents: !whole,
            whole,
            xattrs: |_| true,
        },
    );
    let mut members = Members::new(BufReader::new(archive), Limits::default());
    while let Some(member) = members.next_member().unwrap() {
        let target = member.kind.target().to_vec();
        let target = match &member.kind {
            Kind::HardLink(_) => target,
            _ => Vec::new(),
        };
        unpacker.add(&member.path, &target, &member, &mut members.body())?;
    }
    unpacker.finish()
}

/// Makes a tree with files of all kinds that an archive can hold.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("d/empty")).unwrap();
    fs::write(root.join("d/file"), "contents").unwrap();
    fs::hard_link(root.join("d/file"), root.join("hard")).unwrap();
    symlink("d/file", root.join("link")).unwrap();
    fs::set_permissions(root.join("hard"), fs::Permissions::from_mode(0o6750)).unwrap();
    let holes = File::create(root.join("holes")).unwrap();
    holes.write_all_at(b"first", 1 << 20).unwrap();
    holes.write_all_at(b"second", 5 << 20).unwrap();
    holes.set_len(8 << 20).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&holes, "user.one", b"a\0\n=", none).unwrap();
    rustix::fs::fsetxattr(&holes, "user.two", b"", none).unwrap();
    let fifo = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), fifo).unwrap();
    for (path, time) in [
        ("link", "1960-01-01T00:00:00.5Z"),
        ("d", "2040-01-01T00:00:00.000000001Z"),
    ] {
        let mut touch = Command::new("touch");
        let touch = touch.args(["-h", "-d", time]).arg(root.join(path));
        assert!(touch.status().unwrap().success());
    }
}

/// Describes a tree as GNU tar and find see it.
fn seen(root: &Path) -> String {
    let script = "tar --sort=name --format=posix --xattrs -c . | tar --xattrs -tvv --full-time | sort; \
                  find . -printf '%p %y %m %U:%G %n %l %T@\\n' | sort; cat d/file holes | md5sum";
    let mut bash = Command::new("bash");
    let output = bash
        .args(["-c", script])
        .current_dir(root)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_tree_comes_back_with_all_that_it_had() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    tree(&source);
    let ours = seen(&source);
    assert!(ours.contains("user.one"), "{ours}");
    let archive = pack(place.path(), "source").unwrap();
    // GNU tar reads it.
    let gnu = place.path().join("gnu");
    fs::create_dir(&gnu).unwrap();
    let mut tar = Command::new("tar");
    let tar = tar.args(["--xattrs", "-xpf", "-", "-C"]).arg(&gnu);
    let mut tar = tar.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut tar.stdin.take().unwrap(), &archive).unwrap();
    assert!(tar.wait().unwrap().success());
    assert_eq!(seen(&gnu.join("top")), ours);
    // And so do we, over what is there, in both ways of unpacking.
    for (name, whole) in [("inside", false), ("host", true)] {
        let to = place.path().join(name);
        fs::create_dir(&to).unwrap();
        for _ in 0..2 {
            let root = directory(&to);
            let root = if whole {
                Root::without_links(root)
            } else {
                Root::new(root)
            };
            unpack(root, whole, &archive).unwrap();
            assert_eq!(seen(&to.join("top")), ours);
        }
        assert!(fs::metadata(to.join("top/holes")).unwrap().blocks() <= 64);
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    }
}

#[test]
fn files_without_a_size_are_packed_with_what_they_have() {
    let archive = pack(Path::new("/"), "proc/self/status").unwrap();
    let mut members = Members::new(&*archive, Limits::default());
    let member = members.next_member().unwrap().unwrap();
    assert!(
        matches!(member.kind, Kind::File { size: 100.., .. }),
        "{member:?}"
    );
    assert!(matches!(
        pack(Path::new("/"), "nowhere"),
        Err(Error::File { .. })
    ));
}

/// How long names change, if that is enough.
const AT_LEAST: Duration = Duration::from_secs(3);

#[test]
fn names_that_change_meanwhile_lead_nowhere_else() {
    let place = tempfile::tempdir().unwrap();
    let secret = place.path().join("secret");
    fs::create_dir_all(secret.join("sub")).unwrap();
    fs::write(secret.join("sub/file"), "hidden").unwrap();
    let inside = place.path().join("inside");
    fs::create_dir_all(inside.join("real/sub")).unwrap();
    fs::write(inside.join("real/sub/file"), "public").unwrap();
    symlink(&secret, inside.join("trap")).unwrap();
    symlink("/real", inside.join("real/again")).unwrap();
    let archive = {
        let from = place.path().join("from");
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/file"), "public").unwrap();
        fs::write(from.join("sub/new"), "public").unwrap();
        let bytes = pack(place.path(), "from").unwrap();
        // The same names as the ones that change.
        String::from_utf8(bytes)
            .unwrap()
            .replace("top", "now")
            .into_bytes()
    };
    // Checksums of headers are sums of bytes.
    let archive = checked(archive);
    // Long enough for a change at any moment, and for some trees of each.
    let begin = Instant::now();
    let is_over = |counts: [usize; 2]| {
        let enough = counts.iter().all(|count| *count > 10);
        begin.elapsed() > if enough { AT_LEAST } else { PATIENCE }
    };
    // Closed, even by a panic, when the changes are to end.
    let (changes, go_on) = channel::<()>();
    std::thread::scope(|scope| {
        let inside = &inside;
        scope.spawn(move || {
            let at = |name: &str| inside.join(name);
            while go_on.try_recv() == Err(TryRecvError::Empty) {
                for name in ["real", "trap"] {
                    let _ = fs::rename(at(name), at("now"));
                    let _ = fs::rename(at("now"), at(name));
                    // Whatever unpacking has made under the name makes room.
                    let _ = fs::remove_dir_all(at("now"));
                }
            }
        });
        let _changes = changes;
        let (mut packed, mut unpacked) = (0, 0);
        while !is_over([packed, unpacked]) {
            if let Ok(archive) = pack(inside, "now") {
                assert!(!archive.windows(6).any(|bytes| bytes == b"hidden"));
                packed += 1;
            }
            let root = directory(inside);
            let root = if unpacked % 2 == 0 {
                Root::new(root)
            } else {
                Root::without_links(root)
            };
            let _ = unpack(root, unpacked % 2 == 1, &archive);
            unpacked += 1;
        }
        assert!(packed > 10 && unpacked > 10, "{packed} {unpacked}");
    });
    assert_eq!(
        fs::read_to_string(secret.join("sub/file")).unwrap(),
        "hidden"
    );
    assert_eq!(fs::read_dir(secret.join("sub")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(&secret).unwrap().count(), 1);
}

/// Sets the checksums of an archive's headers again.
fn checked(mut archive: Vec<u8>) -> Vec<u8> {
    for block in archive.chunks_mut(512) {
        if &block[257..262] != b"ustar" {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    archive
}
