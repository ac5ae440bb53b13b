//! Starts that fail because a file is missing or has changed: one clear message, and nothing left.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use micabox::GuestFiles;

use crate::support::{Finished, Home, wait_until};

/// Finds the files below a directory whose names end with `suffix`.
fn find(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(find(&path, suffix));
        } else if path.to_str().unwrap().ends_with(suffix) {
            found.push(path);
        }
    }
    found
}

/// Returns the message of a run that fails before its command starts.
#[track_caller]
fn message(home: &Home, run: &Finished) -> String {
    assert_eq!(run.code(), 125, "{}", run.stderr());
    home.assert_nothing_left();
    let text = run.stderr();
    assert!(text.starts_with("mica: "), "{text}");
    text
}

#[test]
fn a_missing_layer_is_named() {
    let home = Home::new();
    let layer = &find(&home.store().join("layers"), ".erofs")[0];
    fs::remove_file(layer).unwrap();
    let run = home.output(&["run", "--rm", "--pull", "never", "box", "true"]);
    let text = message(&home, &run);
    let name = layer.file_stem().unwrap().to_str().unwrap();
    assert!(text.contains(name) && text.contains("fsck"), "{text}");
}

#[test]
#[ignore = "needs a built guest"]
fn a_layer_of_another_length_or_identity_is_named() {
    for spoil in [
        (|file: &fs::File| file.set_len(4096).unwrap()) as fn(&fs::File),
        // The superblock's UUID; its checksum is at 1028.
        |file| file.write_all_at(&[0xff; 16], 1072).unwrap(),
        |file| file.write_all_at(&[0; 1024], 1024).unwrap(),
    ] {
        let home = Home::new();
        let layer = &find(&home.store().join("layers"), ".erofs")[0];
        spoil(&fs::File::options().write(true).open(layer).unwrap());
        let run = home.output(&["run", "--rm", "--pull", "never", "box", "true"]);
        let text = message(&home, &run);
        assert!(
            text.contains(layer.file_stem().unwrap().to_str().unwrap()),
            "{text}"
        );
        assert!(text.contains("fsck"), "{text}");
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_guest_that_can_not_mount_says_which_step_failed() {
    for transport in ["pmem", "blk"] {
        let home = Home::new();
        let fsmeta = &find(&home.store().join("images"), "fsmeta.erofs")[0];
        let file = fs::File::options().write(true).open(fsmeta).unwrap();
        // Everything but the superblock, whose damage mica itself would detect.
        let length = file.metadata().unwrap().len();
        file.write_all_at(&vec![0xff; (length - 4096) as usize], 4096)
            .unwrap();
        let run = home.output(&["run", "--rm", "--transport", transport, "box", "true"]);
        let text = message(&home, &run);
        assert!(text.contains("mount EROFS"), "{text}");
        assert!(text.contains("fsck"), "{text}");
        assert!(text.lines().count() < 8, "{text}");
        // fsck finds it, too.
        assert_eq!(home.output(&["store", "fsck"]).code(), 1);
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_kernel_that_panics_shows_its_last_words() {
    let home = Home::new();
    let kernel = GuestFiles::find_for(Path::new(env!("CARGO_BIN_EXE_mica")));
    let kernel = kernel.unwrap().kernel;
    let spoiled = home.path().join("guest");
    fs::create_dir(&spoiled).unwrap();
    fs::copy(kernel, spoiled.join("vmlinux")).unwrap();
    fs::write(spoiled.join("initrd.cpio"), "").unwrap();
    let mut command = home.mica(&["run", "--rm", "box", "true"]);
    let run = command.env("MICABOX_GUEST", &spoiled).output().unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(125));
    assert!(text.contains("panicked") && text.contains("| "), "{text}");
    home.assert_nothing_left();
}

/// Makes an initrd for a guest that never answers: its first process waits for a signal.
fn hanging_initrd() -> Vec<u8> {
    // pause(), again and again.
    const CODE: [u8; 9] = [0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + CODE.len() as u64;
    let mut program = b"\x7fELF\x02\x01\x01".to_vec();
    program.resize(16, 0);
    // An executable for x86-64, with its entry, and its program headers behind this one.
    for half in [2, 0x3e, 1, 0_u16] {
        program.extend(half.to_le_bytes());
    }
    for word in [BASE + HEADERS, 64, 0] {
        program.extend(word.to_le_bytes());
    }
    for half in [0, 0, 64, 56, 1, 0, 0, 0_u16] {
        program.extend(half.to_le_bytes());
    }
    // One segment, to read and to execute: all of the file.
    for word in [5 << 32 | 1, 0, BASE, BASE, size, size, 0x1000] {
        program.extend(word.to_le_bytes());
    }
    program.extend(CODE);
    let mut archive = Vec::new();
    for (name, mode, data) in [("init", 0o100_755, &*program), ("TRAILER!!!", 0, &[])] {
        let (size, name_size) = (data.len(), name.len() + 1);
        let fields = [0, mode, 1, 0, 0, 0, size, 0, 0, 0, 0, name_size, 0];
        archive.extend(b"070701");
        archive.extend(
            fields
                .iter()
                .flat_map(|field| format!("{field:08x}").into_bytes()),
        );
        archive.extend(name.bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(data);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

#[test]
#[ignore = "needs a built guest"]
fn a_start_that_is_stopped_says_so() {
    let home = Home::new();
    let kernel = GuestFiles::find_for(Path::new(env!("CARGO_BIN_EXE_mica")));
    let guest = home.path().join("guest");
    fs::create_dir(&guest).unwrap();
    fs::copy(kernel.unwrap().kernel, guest.join("vmlinux")).unwrap();
    fs::write(guest.join("initrd.cpio"), hanging_initrd()).unwrap();
    let stops = [
        &["stop", "it"][..],
        &["kill", "it"],
        &["rm", "-f", "it"],
        &["kill", "-s", "TERM", "it"],
    ];
    for stop in stops {
        let run = ["run", "--backend", "qemu", "--name", "it", "box", "true"];
        let mut run = home.mica(&run);
        let run = run.env("MICABOX_GUEST", &guest).stderr(Stdio::piped());
        let run = run.spawn().unwrap();
        wait_until("its machine runs", || home.machines().len() == 1);
        let stopped = home.output(stop);
        if stop.contains(&"TERM") {
            // There is no command yet that could handle it.
            let refused = stopped.stderr();
            assert_eq!(stopped.code(), 1, "{refused}");
            assert!(refused.contains("it still starts"), "{refused}");
            home.output(&["rm", "-f", "it"]).ok();
        } else {
            assert_eq!(stopped.ok(), "it\n");
        }
        let run = run.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(125), "{text}");
        assert_eq!(
            text,
            "mica: the sandbox did not start: it was stopped before it was ready\n"
        );
        home.assert_nothing_left();
    }
}

#[test]
fn a_machine_without_qemu_or_guest_says_what_to_do() {
    let home = Home::new();
    for (variable, word) in [("MICABOX_QEMU", "install"), ("MICABOX_GUEST", "make guest")] {
        let mut command = home.mica(&["run", "--rm", "box", "true"]);
        let run = command.env(variable, "/proc/none").output().unwrap();
        let text = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(125));
        assert!(text.contains(word), "{text}");
        home.assert_nothing_left();
    }
}

#[test]
#[ignore = "needs a built guest"]
fn a_pool_needs_machines_that_can_be_restored() {
    let home = Home::new();
    let pool = home.output(&["pool", "--backend", "qemu", "box"]);
    let text = message(&home, &pool);
    assert!(text.contains("qemu") && text.contains("doctor"), "{text}");
    let pool = home.output(&["pool", "-n", "0", "box"]);
    assert_eq!(pool.code(), 2, "{}", pool.stderr());
    let pool = home.output(&["pool", "absent", "--pull", "never"]);
    assert_eq!(pool.code(), 125, "{}", pool.stderr());
}
