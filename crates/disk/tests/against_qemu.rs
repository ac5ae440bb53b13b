//! Disks that `qemu-img` makes are read as the bytes that they were made of.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use micabox_disk::{Disk, Error, WriteAt, copy, filesystem, partition};

const SIZE: u64 = (40 << 20) + 512 * 3;

fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {said}");
}

/// A disk with holes, text, and what can't be compressed.
fn raw(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(SIZE).unwrap();
    let mut noise = vec![0; 300_000];
    let mut state = 1_u32;
    for byte in &mut noise {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    for (at, bytes) in [
        (0, b"begin".as_slice()),
        (65_000, &b"text ".repeat(50_000)),
        (5 << 20, &noise),
        ((33 << 20) + 1, &noise[..70_000]),
        (SIZE - 9, b"the end.."),
    ] {
        file.write_all_at(bytes, at).unwrap();
    }
}

/// Reads a whole disk, as a copy of it.
fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut disk = Disk::open(File::open(path).unwrap())?;
    let mut copied = tempfile::tempfile().unwrap();
    let size = disk.size();
    copy(&mut disk, 0, size, &mut copied)?;
    let mut bytes = vec![0; copied.metadata().unwrap().len() as usize];
    copied.read_exact_at(&mut bytes, 0).unwrap();
    Ok(bytes)
}

#[test]
fn every_kind_of_disk_is_what_it_was_made_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw");
    raw(&path);
    let expected = fs::read(&path).unwrap();
    assert!(read(&path).unwrap() == expected, "raw");
    let made = directory.path().join("made");
    let [from, to] = [&path, &made].map(|path| path.to_str().unwrap());
    for (format, options, flags) in [
        ("qcow2", "compat=0.10", ""),
        ("qcow2", "compat=1.1", ""),
        ("qcow2", "cluster_size=512", ""),
        ("qcow2", "cluster_size=2M", ""),
        ("qcow2", "extended_l2=on,cluster_size=128k", ""),
        ("qcow2", "compat=0.10", "-c"),
        ("qcow2", "compression_type=zlib", "-c"),
        ("qcow2", "compression_type=zstd", "-c"),
        ("qcow2", "preallocation=metadata", ""),
        ("vmdk", "subformat=monolithicSparse", ""),
        ("vmdk", "subformat=streamOptimized", ""),
    ] {
        let mut words = vec!["convert", "-q", "-f", "raw", "-O", format, "-o", options];
        words.extend(Some(flags).filter(|flags| !flags.is_empty()));
        words.extend([from, to]);
        run("qemu-img", &words);
        let found = read(&made).unwrap_or_else(|error| panic!("{format} {options}: {error}"));
        assert_eq!(found.len(), expected.len(), "{format} {options} {flags}");
        assert!(found == expected, "{format} {options} {flags}");
        // Cut off, it is refused or shorter than it says, and never read as something else.
        let length = fs::metadata(&made).unwrap().len();
        File::options()
            .write(true)
            .open(&made)
            .unwrap()
            .set_len(length / 2)
            .unwrap();
        if options != "preallocation=metadata" {
            read(&made).expect_err(&format!("{format} {options} {flags}, cut off"));
        }
        fs::remove_file(&made).unwrap();
    }
}

#[test]
fn what_is_in_other_files_or_encrypted_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", &at("base.qcow2"), "4M"],
    );
    let backed = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"];
    run(
        "qemu-img",
        &[&backed[..], &[&at("base.qcow2"), &at("backed")]].concat(),
    );
    let external = format!("data_file={},data_file_raw=on", at("data"));
    run(
        "qemu-img",
        &[
            "create",
            "-q",
            "-f",
            "qcow2",
            "-o",
            &external,
            &at("external"),
            "4M",
        ],
    );
    // `qemu-img` measures the processor before it makes LUKS's keys, and fails where time is
    // measured coarsely. Its older method has no such keys; the method is a number in the header.
    let encrypted = [
        "--object",
        "secret,id=s,data=secret",
        "-o",
        "encrypt.format=aes,encrypt.key-secret=s",
    ];
    run(
        "qemu-img",
        &[
            &["create", "-q", "-f", "qcow2"][..],
            &encrypted,
            &[&at("aes"), "4M"],
        ]
        .concat(),
    );
    fs::copy(at("aes"), at("luks")).unwrap();
    let luks = File::options().write(true).open(at("luks")).unwrap();
    luks.write_all_at(&2_u32.to_be_bytes(), 32).unwrap();
    for (name, why) in [
        ("backed", "base.qcow2"),
        ("external", "external data"),
        ("aes", "encrypted"),
        ("luks", "encrypted"),
    ] {
        let error = Disk::open(File::open(at(name)).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
}

/// A disk with partitions, as `sfdisk` reads a script, and filesystems in some of them.
fn partitioned(path: &Path, script: &str, filesystems: &[(u64, &str)]) -> Disk<File> {
    let file = File::create(path).unwrap();
    file.set_len(64 << 20).unwrap();
    let command = format!("sfdisk -q {} <<'E'\n{script}\nE", path.display());
    run("bash", &["-c", &command]);
    for (start, make) in filesystems {
        let part = path.with_extension("part");
        File::create(&part).unwrap().set_len(8 << 20).unwrap();
        run(
            "bash",
            &["-c", &format!("{make} {} >/dev/null 2>&1", part.display())],
        );
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&fs::read(&part).unwrap(), *start)
            .unwrap();
    }
    Disk::open(File::open(path).unwrap()).unwrap()
}

#[test]
fn the_only_partition_that_can_be_a_root_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let ext4 = "mke2fs -q -F -t ext4";
    let choose = |disk: &mut Disk<File>, number| {
        let table = partition::list(disk).unwrap().unwrap();
        let chosen = partition::choose(disk, &table.partitions, number);
        chosen.map(|found| {
            (
                table.kind,
                found.number,
                found.start >> 20,
                found.length >> 20,
            )
        })
    };
    let script = "label: gpt\nstart=4M, size=8M\nstart=1M, size=1M, type=uefi";
    let mut disk = partitioned(&path, script, &[(4 << 20, ext4)]);
    assert_eq!(choose(&mut disk, None).unwrap(), ("GPT", 1, 4, 8));
    assert_eq!(choose(&mut disk, Some(2)).unwrap(), ("GPT", 2, 1, 1));
    choose(&mut disk, Some(3)).unwrap_err();
    // A logical partition, in an extended one.
    let script = "label: dos\nstart=1M, size=8M, type=82\nstart=10M, size=40M, type=5\nstart=12M, size=8M\nstart=24M, size=8M";
    let mut disk = partitioned(&path, script, &[(1 << 20, "mkswap"), (24 << 20, ext4)]);
    assert_eq!(choose(&mut disk, None).unwrap(), ("MBR", 6, 24, 8));
    let mut disk = partitioned(&path, script, &[(12 << 20, ext4), (24 << 20, ext4)]);
    let error = choose(&mut disk, None).unwrap_err().to_string();
    assert!(error.contains("5 is ext4, 6 is ext4"), "{error}");
    // One that mica does not read may be the root as well.
    let btrfs = (b"_BHRfS_M", (12 << 20) + 0x1_0040);
    let mut disk = partitioned(&path, script, &[(24 << 20, ext4)]);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(btrfs.0, btrfs.1)
        .unwrap();
    let error = choose(&mut disk, None).unwrap_err().to_string();
    assert!(error.contains("5 is btrfs, 6 is ext4"), "{error}");
    assert_eq!(choose(&mut disk, Some(6)).unwrap(), ("MBR", 6, 24, 8));
    let mut disk = partitioned(&path, script, &[]);
    choose(&mut disk, None).unwrap_err();
}

/// Counts what is written, and keeps nothing.
struct Counted(u64);

impl WriteAt for Counted {
    fn write_at(&mut self, _: u64, bytes: &[u8]) -> io::Result<()> {
        self.0 += bytes.len() as u64;
        Ok(())
    }

    fn set_length(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn changed_disks_end_in_bytes_or_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&b"contents".repeat(9000), 100_000)
        .unwrap();
    let made = directory.path().join("made");
    let [from, to] = [&path, &made].map(|path| path.to_str().unwrap());
    let mut state = 7_u32;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    for words in [
        ["qcow2", "cluster_size=4k", "-c"],
        ["qcow2", "compression_type=zstd", "-c"],
        ["qcow2", "extended_l2=on", "-q"],
        ["vmdk", "subformat=streamOptimized", "-q"],
        ["vmdk", "subformat=monolithicSparse", "-q"],
    ] {
        let [format, options, flag] = words;
        run(
            "qemu-img",
            &[
                "convert", "-f", "raw", "-O", format, "-o", options, flag, from, to,
            ],
        );
        let bytes = fs::read(&made).unwrap();
        for _ in 0..400 {
            let mut changed = bytes.clone();
            for _ in 0..=random(3) {
                // Most of what is looked at is in front.
                let reach = [120, 1024, changed.len()][random(3)].min(changed.len());
                changed[random(reach)] = [0, 1, 0x7f, 0xff, 0x80][random(5)];
            }
            let Ok(mut disk) = Disk::open(&changed[..]) else {
                continue;
            };
            let size = disk.size();
            let _ = filesystem::at(&mut disk, 0, size);
            let _ = partition::list(&mut disk);
            let mut counted = Counted(0);
            let _ = copy(&mut disk, 0, size.min(64 << 20), &mut counted);
            assert!(counted.0 <= 2 << 30);
        }
        fs::remove_file(&made).unwrap();
    }
}
