//! Tests the CPUID of a guest's processors.

use libtest_mimic::{Failed, Trial};
use micabox_testing::wait_until;
use micabox_vmm::{Backend, Kvm, Machine, MachineConfig, Snapshot};

use super::snapshots::{SAY_EBX, kernel};
use super::{boot, config, guest};

pub fn tests() -> Vec<Trial> {
    vec![
        Trial::test("a_guest_sees_no_virtualisation_and_no_counters", masked),
        Trial::test("a_guest_with_nested_virtualisation_has_it", whole),
    ]
}

/// Prints ECX of leaves 1 and 0x8000_0001 and EAX of leaf 0xa: eight letters each, `a` for 0.
fn code() -> Vec<u8> {
    const TO_EBX_FROM_ECX: [u8; 2] = [0x89, 0xcb];
    const TO_EBX_FROM_EAX: [u8; 2] = [0x89, 0xc3];
    let mut code = Vec::new();
    for (leaf, what) in [
        (1_u32, TO_EBX_FROM_ECX),
        (0x8000_0001, TO_EBX_FROM_ECX),
        (0xa, TO_EBX_FROM_EAX),
    ] {
        code.push(0xb8); // mov eax, leaf
        code.extend(leaf.to_le_bytes());
        code.extend([0x31, 0xc9, 0x0f, 0xa2]); // xor ecx, ecx; cpuid
        code.extend(what);
        code.extend(SAY_EBX);
    }
    code.extend([0xf4, 0xeb, 0xfd]); // stop: hlt; jmp stop
    code
}

fn start(nested_virtualization: bool) -> Result<(Box<dyn Machine>, [u32; 3]), Failed> {
    let file = kernel(&code());
    let machine = Kvm::probe()?.start(&MachineConfig {
        begin: boot(file.path(), &guest("initrd.cpio")),
        machine: micabox_spec::Machine {
            nested_virtualization,
            ..config().machine
        },
        ..config()
    })?;
    let mut said = String::new();
    wait_until("it has printed three lines", || {
        said = machine.console_tail();
        said.lines().count() >= 3 && said.ends_with('\n')
    });
    let number = |line: &str| {
        line.bytes()
            .fold(0, |sum, letter| sum << 4 | u32::from(letter - b'a'))
    };
    let mut numbers = said.lines().map(number);
    Ok((machine, std::array::from_fn(|_| numbers.next().unwrap())))
}

fn masked() -> Result<(), Failed> {
    let (_machine, [features, extended, counters]) = start(false)?;
    assert_eq!(features & (1 << 5 | 1 << 15), 0, "{features:#x}");
    assert_eq!(
        extended & (1 << 2 | 1 << 23 | 1 << 24 | 1 << 28),
        0,
        "{extended:#x}"
    );
    assert_eq!(counters, 0);
    // Other bits are unchanged: a hypervisor, and 64 bits.
    assert_ne!(features & 1 << 31, 0);
    Ok(())
}

fn whole() -> Result<(), Failed> {
    let (machine, [features, extended, _]) = start(true)?;
    assert!(
        features & 1 << 5 != 0 || extended & 1 << 2 != 0,
        "{features:#x} {extended:#x}"
    );
    let saved = machine.save(&Snapshot::in_memory()?, &mut || ());
    let error = saved.err().ok_or("it was saved")?.to_string();
    assert!(error.contains("virtual machines of its own"), "{error}");
    Ok(())
}
