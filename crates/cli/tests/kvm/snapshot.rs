//! Copies of a disk that a machine on our own monitor writes to continuously. `scripts/test-kvm`
//! runs this.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::support::{Holding, Home, PATIENCE, Running, assert_clean, image, wait_until};

const COPIES: usize = 25;

/// Offsets of the file's two numbers. On the disk they are equally far apart.
const HEAD: u64 = 0;
const END: u64 = 0x1f_f000;

/// A program that writes a number to both places of `/srv/counter` again and again, the next
/// one each time, past all caches: first to `HEAD`, then to `END`.
fn writer() -> Vec<u8> {
    const CODE_AT: u64 = 0x40_0000 + 120;
    #[rustfmt::skip]
    const CODE: [u8; 86] = [
        0xbf, 0xce, 0x00, 0x40, 0x00,       //       mov edi, 0x4000ce ("/srv/counter")
        0xbe, 0x02, 0x40, 0x00, 0x00,       //       mov esi, O_RDWR | O_DIRECT
        0xb8, 0x02, 0x00, 0x00, 0x00,       //       mov eax, open
        0x0f, 0x05,                         //       syscall
        0x41, 0x89, 0xc4,                   //       mov r12d, eax
        0x48, 0xff, 0x04, 0x25, 0x00, 0x10, // next: inc qword ptr [0x401000]
        0x40, 0x00,
        0x45, 0x31, 0xd2,                   //       xor r10d, r10d
        0xe8, 0x0d, 0x00, 0x00, 0x00,       //       call put
        0x41, 0xba, 0x00, 0xf0, 0x1f, 0x00, //       mov r10d, 0x1ff000
        0xe8, 0x02, 0x00, 0x00, 0x00,       //       call put
        0xeb, 0xe3,                         //       jmp next
        0x44, 0x89, 0xe7,                   // put:  mov edi, r12d
        0xbe, 0x00, 0x10, 0x40, 0x00,       //       mov esi, 0x401000
        0xba, 0x00, 0x10, 0x00, 0x00,       //       mov edx, 4096
        0xb8, 0x12, 0x00, 0x00, 0x00,       //       mov eax, pwrite64
        0x0f, 0x05,                         //       syscall
        0x39, 0xd0,                         //       cmp eax, edx
        0x75, 0x01,                         //       jne out
        0xc3,                               //       ret
        0xbf, 0x01, 0x00, 0x00, 0x00,       // out:  mov edi, 1
        0xb8, 0x3c, 0x00, 0x00, 0x00,       //       mov eax, exit
        0x0f, 0x05,                         //       syscall
    ];
    let mut file = vec![0; 120];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    for (at, value) in [(16, 2_u16), (18, 62), (52, 64), (54, 56), (56, 1)] {
        put(at, &value.to_le_bytes());
    }
    put(20, &1_u32.to_le_bytes());
    put(24, &CODE_AT.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    // One segment that may be read, written and executed, with room for a page behind the code.
    let length = 120 + CODE.len() as u64 + 13;
    let segment = [1 | 7 << 32, 0, 0x40_0000, 0x40_0000, length, 0x2000, 0x1000];
    for (index, field) in segment.iter().enumerate() {
        put(64 + 8 * index, &u64::to_le_bytes(*field));
    }
    file.extend(CODE);
    file.extend(b"/srv/counter\0");
    file
}

/// Starts a sandbox `it` whose guest writes continuously.
fn writing(home: &Home) -> Running {
    let mut layers = image::layers();
    layers.push(image::program("bin/writer", &writer()));
    home.load(&layers, &image::config());
    // Full of data, so that a copy takes a while.
    let script = "for n in 1 2; do cat /bin/busybox; done \
                  > /srv/counter; sync; echo ready; exec /bin/writer";
    let run = ["run", "--name", "it", "--backend", "kvm", "--net", "none"];
    let disk = ["--upper", "disk:64m", "box", "sh", "-c", script];
    let mut running = home.start(&[&run[..], &disk].concat());
    assert_eq!(running.line(), "ready");
    running
}

#[test]
fn copies_of_a_running_sandboxs_disk_are_consistent() {
    let home = Home::empty();
    let running = writing(&home);
    let numbers = || {
        home.output(&["snapshot", "create", "it", "copy"]).ok();
        let disk = home.store().join("sandboxes/snapshot-copy/disk.ext4");
        let file = format!("{}:/root/srv/counter", disk.display());
        let out = home.path().join("counter");
        home.output(&["ext4", "cp", &file, out.to_str().unwrap()])
            .ok();
        home.output(&["snapshot", "rm", "copy"]).ok();
        let file = fs::read(out).unwrap();
        [HEAD, END].map(|at| {
            let bytes = &file[at as usize..][..8];
            u64::from_le_bytes(bytes.try_into().unwrap())
        })
    };
    // Before the program's first write, the file has other contents.
    let deadline = Instant::now() + PATIENCE;
    let mut first = numbers()[0];
    while !(2..1 << 32).contains(&first) {
        assert!(Instant::now() < deadline);
        first = numbers()[0];
    }
    let mut last = first;
    for copy in 0..COPIES {
        let [head, end] = numbers();
        assert!(
            end <= head && head <= end + 1,
            "copy {copy}: {head} at the file's head, {end} at its end"
        );
        last = head;
    }
    // The guest ran between the copies.
    assert!(last > first + COPIES as u64, "{first} to {last}");

    // Through `mica`, and with the leftovers of an interrupted copy.
    assert!(home.output(&["diff", "it"]).ok().contains(" /srv/counter"));
    let there = home.files_of("it");
    home.output(&["snapshot", "create", "it", "moment"]).ok();
    assert_eq!(home.files_of("it"), there);
    home.output(&["stop", "-t", "0", "it"]).ok();
    running.wait();
}

#[test]
fn a_stop_ends_a_paused_machine() {
    let home = Home::empty();
    let running = writing(&home);
    let disk = home.directory_of("it").join("upper.ext4");
    let written = || {
        let file = fs::metadata(&disk).unwrap();
        (file.mtime(), file.mtime_nsec())
    };
    for _ in 0..3 {
        let held = Holding::new(&home, "it");
        let before = written();
        // Sleep: nothing may be written meanwhile.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(written(), before);
        drop(held);
        wait_until("it writes on", || written() != before);
    }
    let _held = Holding::new(&home, "it");
    let begun = Instant::now();
    home.output(&["stop", "-t", "0", "it"]).ok();
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    running.wait();
    assert_clean(&disk);
}
