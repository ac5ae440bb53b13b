//! Tests machines that are saved, and others that are restored from them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use micabox_testing::{PATIENCE, wait_until};
use micabox_vmm::{Backend, Begin, Exit, Kvm, Machine, MachineConfig, Snapshot};
use micabox_wire::{
    Boot, Identity, Init, Setup, ToGuest, ToHost, Upper, preamble, read_message, write_message,
};
use tempfile::NamedTempFile;

use super::{boot, config, guest};

const COPIES: usize = 8;

pub fn tests() -> Vec<Trial> {
    vec![
        Trial::test("copies_count_on_from_the_same_number", count_on),
        Trial::test("copies_of_copies_count_on", copies_of_copies),
        Trial::test("copies_of_deltas_count_on", copies_of_deltas),
        Trial::test("an_altered_delta_is_refused", altered_delta),
        Trial::test("a_paused_machine_stands_still", paused),
        Trial::test("a_kernel_continues_in_eight_copies", kernel_goes_on),
        Trial::test("copies_with_three_processors_continue", three_processors),
        Trial::test("a_killed_original_takes_no_copy_along", killed_original),
        Trial::test("an_altered_snapshot_is_refused", altered),
        Trial::test("a_state_is_read_behind_a_filter", filtered),
        Trial::test("another_machines_snapshot_is_refused", another_machine),
    ]
}

/// Creates a kernel that counts in memory and prints each number: eight letters, `a` for 0.
fn counter() -> NamedTempFile {
    #[rustfmt::skip]
    const COUNT: [u8; 9] = [
        0xbf, 0x00, 0x00, 0x30, 0x00, //       mov edi, 0x300000
        0xff, 0x07,                   // next: inc dword [edi]
        0x8b, 0x1f,                   //       mov ebx, [edi]
    ];
    const AGAIN: [u8; 2] = [0xeb, 0xe2]; //    jmp next
    kernel(&[&COUNT[..], &SAY_EBX, &AGAIN].concat())
}

/// Prints EBX: eight letters, `a` for 0, and a line feed. Changes EAX, ECX and EDX.
#[rustfmt::skip]
pub const SAY_EBX: [u8; 24] = [
    0xb9, 0x08, 0x00, 0x00, 0x00, //       mov ecx, 8
    0xc1, 0xc3, 0x04,             // digit: rol ebx, 4
    0x88, 0xd8,                   //       mov al, bl
    0x24, 0x0f,                   //       and al, 15
    0x04, 0x61,                   //       add al, 'a'
    0x66, 0xba, 0xf8, 0x03,       //       mov dx, 0x3f8
    0xee,                         //       out dx, al
    0xe2, 0xf0,                   //       loop digit
    0xb0, 0x0a,                   //       mov al, 10
    0xee,                         //       out dx, al
];

/// Creates a kernel that consists of this 32-bit code.
pub fn kernel(code: &[u8]) -> NamedTempFile {
    const ENTRY: u64 = 0x20_0000;
    let note_at = 64 + 2 * 56;
    let code_at = 4096;
    let mut file = vec![0; code_at];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    for (at, value) in [(16, 2_u16), (18, 62), (52, 64), (54, 56), (56, 2)] {
        put(at, &value.to_le_bytes());
    }
    put(20, &1_u32.to_le_bytes());
    put(24, &ENTRY.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    // Segments: kind and flags; offset, two addresses, two sizes, alignment.
    let length = code.len() as u64;
    let load = [code_at as u64, ENTRY, ENTRY, length, length, 4096];
    let note = [note_at as u64, 0, 0, 24, 24, 4];
    for (at, kind, fields) in [(64, 1_u64 | 7 << 32, load), (120, 4 | 4 << 32, note)] {
        put(at, &kind.to_le_bytes());
        for (index, field) in fields.iter().enumerate() {
            put(at + 8 + index * 8, &field.to_le_bytes());
        }
    }
    // XEN_ELFNOTE_PHYS32_ENTRY.
    for (index, value) in [4_u32, 8, 18].iter().enumerate() {
        put(note_at + index * 4, &value.to_le_bytes());
    }
    put(note_at + 12, b"Xen\0");
    put(note_at + 16, &ENTRY.to_le_bytes());
    file.extend(code);
    let mut kernel = NamedTempFile::new().unwrap();
    kernel.write_all(&file).unwrap();
    kernel
}

/// Starts a machine that counts; returns it, its configuration and its kernel's file.
fn counting() -> Result<(Box<dyn Machine>, MachineConfig, NamedTempFile), Failed> {
    let kernel = counter();
    let config = MachineConfig {
        begin: boot(kernel.path(), &guest("initrd.cpio")),
        ..config()
    };
    let machine = start(&config)?;
    counts(&*machine)?;
    Ok((machine, config, kernel))
}

fn start(config: &MachineConfig) -> Result<Box<dyn Machine>, Failed> {
    Ok(Kvm::probe()?.start(config)?)
}

/// Restores a machine from `snapshot`.
fn resume(config: &MachineConfig, snapshot: &Snapshot) -> Result<Box<dyn Machine>, Failed> {
    start(&MachineConfig {
        begin: Begin::Restore(snapshot.clone()),
        ..config.clone()
    })
}

fn save(machine: &dyn Machine) -> Result<Snapshot, Failed> {
    let snapshot = Snapshot::in_memory()?;
    let mut is_still = false;
    machine.save(&snapshot, &mut || is_still = true)?;
    assert!(is_still);
    Ok(snapshot)
}

/// Returns the numbers in a counter's output, without the first line, whose beginning the original
/// may have printed.
fn numbers(machine: &dyn Machine) -> Vec<u32> {
    let text = machine.console_tail();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let number = |line: &str| {
        let digits = line.bytes().map(|byte| u32::from(byte - b'a'));
        digits.fold(0, |number, digit| number * 16 + digit)
    };
    whole.lines().skip(1).map(number).collect()
}

/// Waits until a counter has printed more than one number.
fn counts(machine: &dyn Machine) -> Result<Vec<u32>, Failed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let numbers = numbers(machine);
        if numbers.len() > 8 {
            return Ok(numbers);
        }
        if let Some(exit) = machine.wait(Duration::from_millis(2)) {
            return Err(format!("{exit}\n{}", machine.console_tail()).into());
        }
        if Instant::now() > deadline {
            return Err(format!("it does not count: {:?}", machine.console_tail()).into());
        }
    }
}

fn paused() -> Result<(), Failed> {
    let (machine, config, _kernel) = counting()?;
    for _ in 0..8 {
        let mut said = String::new();
        machine.pause(&mut || {
            // Earlier output may still be on its way.
            wait_until("it is still", || {
                said = machine.console_tail();
                // Sleep: nothing may come meanwhile.
                std::thread::sleep(Duration::from_millis(50));
                machine.console_tail() == said
            });
        })?;
        assert!(!said.is_empty());
        wait_until("it goes on", || machine.console_tail() != said);
    }
    // A pause does not affect a later save, nor the other way round.
    let snapshot = save(&*machine)?;
    machine.pause(&mut || ())?;
    counts(&*resume(&config, &snapshot)?)?;
    machine.kill();
    machine.wait(PATIENCE).ok_or("it does not end")?;
    machine.pause(&mut || unreachable!()).unwrap_err();
    Ok(())
}

fn count_on() -> Result<(), Failed> {
    let (original, config, _kernel) = counting()?;
    let snapshot = save(&*original)?;
    // Few pages were ever written to.
    let blocks = snapshot.memory.metadata()?.blocks();
    assert!(blocks * 512 < 8 << 20, "{blocks}");

    // Of a tail that is full, the first numbers may be gone.
    let numbers = loop {
        let first = resume(&config, &snapshot)?;
        let numbers = counts(&*first)?;
        if first.console_tail().len() < 8 << 10 {
            break numbers;
        }
    };
    let begin = numbers[0];
    assert!(begin > 1, "{numbers:?}");
    for pair in numbers.windows(2) {
        assert_eq!(pair[1], pair[0] + 1);
    }
    // However far the original has come, the next copy begins at the same number.
    let others = (1..COPIES).map(|_| resume(&config, &snapshot));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    for other in &others {
        let all = || other.console_tail();
        counts(&**other)?;
        // The tail is bounded, so the first numbers may be gone from it already.
        let text = all();
        if text.len() < 8 << 10 {
            assert_eq!(numbers_from(&text), begin);
        }
    }
    // The original continues too.
    let before = counts(&*original)?;
    let after = original.console_tail();
    assert!(before.last() > Some(&begin) || after.len() > 8);
    Ok(())
}

fn numbers_from(text: &str) -> u32 {
    let line = text.lines().nth(1).unwrap_or_default();
    let digits = line.bytes().map(|byte| u32::from(byte - b'a'));
    digits.fold(0, |number, digit| number * 16 + digit)
}

fn copies_of_copies() -> Result<(), Failed> {
    let (mut machine, config, _kernel) = counting()?;
    let mut last = 0;
    for _ in 0..3 {
        let numbers = counts(&*machine)?;
        assert!(numbers[0] > last, "{numbers:?} after {last}");
        last = numbers[0];
        let snapshot = save(&*machine)?;
        machine = resume(&config, &snapshot)?;
    }
    Ok(())
}

/// Saves only what differs from the machine's base.
fn save_delta(machine: &dyn Machine) -> Result<Snapshot, Failed> {
    let mut snapshot = Snapshot::in_memory()?;
    snapshot.base = Some(machine.base().ok_or("it has no base")?);
    machine.save(&snapshot, &mut || ())?;
    Ok(snapshot)
}

fn copies_of_deltas() -> Result<(), Failed> {
    let (original, config, _kernel) = counting()?;
    assert!(original.base().is_none());
    let whole = save(&*original)?;
    drop(original);
    let mut machine = resume(&config, &whole)?;
    let first = machine.base().ok_or("it has no base")?.metadata()?;
    assert_eq!(first.ino(), whole.memory.metadata()?.ino());
    let all = whole.memory.metadata()?.blocks();
    drop(whole);
    let mut last = 0;
    for _ in 0..3 {
        let numbers = counts(&*machine)?;
        assert!(numbers[0] > last, "{numbers:?} after {last}");
        last = numbers[0];
        let delta = save_delta(&*machine)?;
        let written = delta.memory.metadata()?.blocks();
        assert!(written < all / 4, "{written} of {all}");
        machine = resume(&config, &delta)?;
        let base = machine.base().ok_or("it has no base")?.metadata()?;
        assert_eq!(base.ino(), first.ino());
    }
    // All of it again.
    let numbers = counts(&*resume(&config, &save(&*machine)?)?)?;
    assert!(numbers[0] > last, "{numbers:?} after {last}");
    Ok(())
}

fn altered_delta() -> Result<(), Failed> {
    let (original, config, _kernel) = counting()?;
    let machine = resume(&config, &save(&*original)?)?;
    let good = save_delta(&*machine)?;
    let with = |change: &dyn Fn(&mut Snapshot)| -> Result<(), Failed> {
        let mut snapshot = good.clone();
        change(&mut snapshot);
        let why = refusal(&config, &snapshot)?;
        assert!(why.contains("damaged; make it again"), "{why}");
        Ok(())
    };
    with(&|snapshot| snapshot.base = None)?;
    with(&|snapshot| snapshot.base = Some(snapshot.memory.clone()))?;
    // A range that ends behind the RAM.
    let mut before = [0; 8];
    good.memory.read_exact_at(&mut before, 8)?;
    good.memory.write_all_at(&[0xff; 8], 8)?;
    with(&|_| ())?;
    good.memory.write_all_at(&before, 8)?;
    counts(&*resume(&config, &good)?).map(drop)
}

/// Sends the agent an invalid description of a sandbox, and checks that it answers, so it lives.
fn speaks(machine: &dyn Machine) -> Result<(), Failed> {
    let mut agent = machine.agent()?;
    agent.set_read_timeout(Some(PATIENCE))?;
    let boot = Boot {
        lowers: Vec::new(),
        upper: Upper::Tmpfs {
            size_bytes: None,
            patches: None,
        },
        init: Init::Reaper,
        identity: Identity {
            hostname: "copy".into(),
            machine_id: "0".repeat(32),
            resolv_conf: Vec::new(),
            network: None,
            wall_clock: (1_800_000_000, 0),
            entropy: [1; 32],
        },
        setup: Setup::default(),
    };
    write_message(&mut agent, &ToGuest::Boot(Box::new(boot)))?;
    match read_message::<ToHost>(&mut agent) {
        Ok(Some(ToHost::BootFailed(failed))) => {
            assert!(failed.to_string().contains("no layers"), "{failed}");
            Ok(())
        }
        other => {
            let exit = machine.wait(Duration::from_secs(1));
            Err(format!("{other:?}; {exit:?}\n{}", machine.console_tail()).into())
        }
    }
}

/// Boots a machine and reads the agent's greeting.
fn booted(config: &MachineConfig) -> Result<Box<dyn Machine>, Failed> {
    let machine = start(config)?;
    let mut agent = machine.agent()?;
    agent.set_read_timeout(Some(PATIENCE))?;
    preamble::read(&mut agent)?;
    match read_message::<ToHost>(&mut agent)? {
        Some(ToHost::Hello(_)) => Ok(machine),
        other => Err(format!("{other:?}\n{}", machine.console_tail()).into()),
    }
}

fn kernel_goes_on() -> Result<(), Failed> {
    let original = booted(&config())?;
    let snapshot = save(&*original)?;
    let copies = (0..COPIES).map(|_| resume(&config(), &snapshot));
    let copies = copies.collect::<Result<Vec<_>, _>>()?;
    for copy in &copies {
        speaks(&**copy)?;
    }
    speaks(&*original)
}

fn three_processors() -> Result<(), Failed> {
    let config = MachineConfig {
        machine: micabox_spec::Machine {
            cpus: Some(3),
            ..config().machine
        },
        ..config()
    };
    let original = booted(&config)?;
    for _ in 0..3 {
        let snapshot = save(&*original)?;
        speaks(&*resume(&config, &snapshot)?)?;
    }
    speaks(&*original)
}

fn killed_original() -> Result<(), Failed> {
    let original = booted(&config())?;
    let snapshot = save(&*original)?;
    let copy = resume(&config(), &snapshot)?;
    original.kill();
    original.wait(PATIENCE).ok_or("it does not end")?;
    let unsaved = Snapshot::in_memory()?;
    original.save(&unsaved, &mut || unreachable!()).unwrap_err();
    speaks(&*copy)?;
    let again = resume(&config(), &snapshot)?;
    speaks(&*again)
}

/// Copies a file to a new one, and changes it.
fn changed(file: &File, change: impl FnOnce(&File)) -> Result<std::sync::Arc<File>, Failed> {
    let mut bytes = Vec::new();
    let mut reader = file.try_clone()?;
    std::io::Seek::rewind(&mut reader)?;
    reader.read_to_end(&mut bytes)?;
    let copy = tempfile::tempfile()?;
    copy.write_all_at(&bytes, 0)?;
    change(&copy);
    Ok(copy.into())
}

fn refusal(config: &MachineConfig, snapshot: &Snapshot) -> Result<String, Failed> {
    let machine = resume(config, snapshot)?;
    let exit = machine.wait(PATIENCE).ok_or("it does not end")?;
    assert!(matches!(exit, Exit::BadSnapshot { .. }), "{exit}");
    let text = exit.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    Ok(text)
}

fn altered() -> Result<(), Failed> {
    let (original, config, _kernel) = counting()?;
    let good = save(&*original)?;
    let with_state = |change: &dyn Fn(&File)| -> Result<String, Failed> {
        let state = changed(&good.state, change)?;
        let memory = good.memory.clone();
        refusal(
            &config,
            &Snapshot {
                state,
                memory,
                ..good.clone()
            },
        )
    };
    let damaged = with_state(&|file| file.write_all_at(b"x", 100).unwrap())?;
    assert!(damaged.contains("damaged; make it again"), "{damaged}");
    let short = with_state(&|file| file.set_len(1000).unwrap())?;
    assert!(short.contains("damaged"), "{short}");
    let other = with_state(&|file| file.write_all_at(&[9], 16).unwrap())?;
    assert!(other.contains("another version"), "{other}");

    let state = good.state.clone();
    let memory = changed(&good.memory, |file| file.set_len(64 << 20).unwrap())?;
    let short = refusal(
        &config,
        &Snapshot {
            state,
            memory,
            ..good.clone()
        },
    )?;
    assert!(short.contains("damaged"), "{short}");
    counts(&*resume(&config, &good)?).map(drop)
}

/// Restores from an invalid state that takes long to read, and checks that its process has a filter
/// meanwhile.
fn filtered() -> Result<(), Failed> {
    const LONGEST: u64 = 16 << 20;
    let (original, config, _kernel) = counting()?;
    let good = save(&*original)?;
    let state = changed(&good.state, |file| file.set_len(LONGEST).unwrap())?;
    let memory = good.memory.clone();
    let bad = Snapshot {
        state,
        memory,
        ..good.clone()
    };
    // On a busy machine it may have been read before this looks.
    for _ in 0..20 {
        let machine = resume(&config, &bad)?;
        let mut is_seen = false;
        let exit = loop {
            is_seen |= has_filter(machine.pid());
            let time = if is_seen { PATIENCE } else { Duration::ZERO };
            match machine.wait(time) {
                Some(exit) => break exit,
                None => assert!(!is_seen, "it does not end"),
            }
        };
        assert!(matches!(exit, Exit::BadSnapshot { .. }), "{exit}");
        if is_seen {
            return Ok(());
        }
    }
    Err("it was read without a filter".into())
}

/// Returns whether a process or one of its children has a filter.
fn has_filter(pid: u32) -> bool {
    let children = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let status = std::fs::read_to_string(entry.ok()?.path().join("status")).ok()?;
        let is_its = |name| status.contains(&format!("\n{name}:\t{pid}\n"));
        (is_its("Pid") || is_its("PPid")).then_some(status)
    });
    children
        .into_iter()
        .any(|status| status.contains("\nSeccomp:\t2\n"))
}

fn another_machine() -> Result<(), Failed> {
    let (original, config, _kernel) = counting()?;
    let snapshot = save(&*original)?;
    for (other, what) in [
        (
            MachineConfig {
                machine: micabox_spec::Machine {
                    memory_mib: 256,
                    ..config.machine
                },
                ..config.clone()
            },
            "memory",
        ),
        (
            MachineConfig {
                machine: micabox_spec::Machine {
                    cpus: Some(2),
                    ..config.machine
                },
                ..config.clone()
            },
            "processors",
        ),
    ] {
        let refusal = refusal(&other, &snapshot)?;
        assert!(refusal.contains(what), "{refusal}");
        assert!(refusal.contains("make it again"), "{refusal}");
    }
    Ok(())
}
