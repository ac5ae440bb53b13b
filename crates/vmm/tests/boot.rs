//! Machines that really boot, under QEMU: with KVM where it works, emulated elsewhere.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use micabox_vmm::{Backend, Exit, MachineConfig, PmemFile, PmemRegion, Qemu};

/// Far longer than any boot takes: only a hang ends it.
const PATIENCE: Duration = Duration::from_secs(300);

/// The first bytes that the agent sends.
const MAGIC: &[u8; 8] = b"MICABOX\n";

fn guest(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest");
    let directory = std::env::var_os("MICABOX_GUEST").map_or(built, PathBuf::from);
    directory.join(name)
}

fn config() -> MachineConfig {
    MachineConfig {
        name: "test".into(),
        kernel: guest("vmlinux"),
        initrd: guest("initrd.cpio"),
        memory_mib: 256,
        cpus: 1,
        pmem: Vec::new(),
        disks: Vec::new(),
        network: None,
        vsock: None,
        cmdline_extra: Vec::new(),
        lifeline: None,
        resumed: None,
    }
}

/// Waits for the agent's first bytes.
fn expect_agent(config: &MachineConfig) {
    let backend = Qemu::probe().unwrap();
    println!("{}", backend.describe());
    let machine = backend.start(config).unwrap();
    let mut agent = machine.agent().unwrap();
    agent.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut magic = [0; MAGIC.len()];
    match agent.read_exact(&mut magic) {
        Ok(()) => assert_eq!(&magic, MAGIC),
        Err(error) => panic!(
            "{error}; {:?}\n{}",
            machine.wait(Duration::from_secs(1)),
            machine.console_tail()
        ),
    }
    machine.kill();
    let exit = machine.wait(PATIENCE).unwrap();
    assert!(matches!(exit, Exit::Killed { by_us: true, .. }), "{exit}");
}

#[test]
#[ignore = "needs a built guest"]
fn the_agent_speaks() {
    expect_agent(&config());
}

#[test]
#[ignore = "needs a built guest"]
fn forty_regions_and_two_processors() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(2 << 20).unwrap();
    let region = PmemRegion {
        files: vec![PmemFile {
            path: file.path().to_owned(),
            size: 2 << 20,
        }],
    };
    expect_agent(&MachineConfig {
        cpus: 2,
        pmem: vec![region; 40],
        ..config()
    });
}

#[test]
#[ignore = "needs a built guest"]
fn a_kernel_without_an_agent_panics_with_a_reason() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let machine = Qemu::probe()
        .unwrap()
        .start(&MachineConfig {
            initrd: empty.path().to_owned(),
            ..config()
        })
        .unwrap();
    let exit = machine.wait(PATIENCE).expect("it ends");
    assert!(matches!(exit, Exit::Panicked { .. }), "{exit}");
    assert!(machine.console_tail().contains("Kernel panic"));
}

#[test]
#[ignore = "needs a built guest"]
fn what_qemu_refuses_is_told_in_its_words() {
    let not_a_kernel = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(not_a_kernel.path(), [0; 8192]).unwrap();
    let machine = Qemu::probe()
        .unwrap()
        .start(&MachineConfig {
            kernel: not_a_kernel.path().to_owned(),
            ..config()
        })
        .unwrap();
    match machine.wait(PATIENCE) {
        Some(Exit::Failed { message, .. }) => assert!(!message.is_empty()),
        other => panic!("{other:?}"),
    }
}
