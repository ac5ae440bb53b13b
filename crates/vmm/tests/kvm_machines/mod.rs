//! The tests.

mod endings;
mod here;
mod limits;
mod processors;
mod snapshots;
pub mod sockets;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use micabox_testing::PATIENCE;
use micabox_vmm::{Backend, Begin, Exit, Kvm, Machine, MachineConfig, MachineFile};

/// The first bytes that the agent sends.
const MAGIC: &[u8; 8] = b"MICABOX\n";

pub fn tests() -> Vec<Trial> {
    let mut tests = vec![
        Trial::test("a_processor_executes_what_it_is_given", here::executes),
        Trial::test("our_kernel_boots_to_the_agent", || boots("vmlinux", 1)),
        Trial::test("a_bzimage_boots_to_the_agent", || boots("bzImage", 1)),
        Trial::test("a_kernel_boots_on_three_processors", || boots("vmlinux", 3)),
        Trial::test("the_test_of_kvm_leaves_no_descriptor", probe),
    ];
    tests.extend(endings::tests());
    tests.extend(limits::tests());
    tests.extend(processors::tests());
    tests.extend(snapshots::tests());
    tests.extend(sockets::tests());
    tests
}

fn guest(name: &str) -> PathBuf {
    let directory = std::env::var_os("MICABOX_GUEST").expect("MICABOX_GUEST");
    Path::new(&directory).join(name)
}

/// Begins a machine with these files.
fn boot(kernel: &Path, initrd: &Path) -> Begin {
    let open = |path| MachineFile::open(path).unwrap();
    Begin::Boot {
        kernel: open(kernel),
        initrd: open(initrd),
    }
}

fn config() -> MachineConfig {
    MachineConfig {
        name: "test".into(),
        begin: boot(&guest("vmlinux"), &guest("initrd.cpio")),
        machine: micabox_spec::Machine {
            memory_mib: 128,
            cpus: Some(1),
            ..micabox_spec::Machine::default()
        },
        pmem: Vec::new(),
        disks: Vec::new(),
        trees: Vec::new(),
        parts: None,
        network: None,
        vsock: None,
        shares: Vec::new(),
        cmdline_extra: Vec::new(),
        lifeline: None,
        max_processes: None,
    }
}

fn boots(kernel: &str, cpus: u8) -> Result<(), Failed> {
    let machine = Kvm::probe()?.start(&MachineConfig {
        begin: boot(&guest(kernel), &guest("initrd.cpio")),
        machine: micabox_spec::Machine {
            cpus: Some(cpus),
            ..config().machine
        },
        ..config()
    })?;
    greeting(&*machine)?;
    machine.kill();
    let exit = machine.wait(PATIENCE).ok_or("it does not end")?;
    assert!(matches!(exit, Exit::Killed { by_us: true, .. }), "{exit}");
    Ok(())
}

/// A program that is executed closes what it inherits, and the process that closes a
/// machine's last descriptor waits until the machine is removed.
fn probe() -> Result<(), Failed> {
    let of_machines = || -> Result<usize, Failed> {
        let links = std::fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.path()));
        let links = links.collect::<std::io::Result<Vec<_>>>()?;
        let targets = links
            .iter()
            .filter_map(|link| std::fs::read_link(link).ok());
        Ok(targets
            .filter(|target| target.to_string_lossy().contains("kvm-vm"))
            .count())
    };
    let machine = kvm_ioctls::Kvm::new()?.create_vm()?;
    assert_eq!(of_machines()?, 1);
    drop(machine);
    Kvm::probe()?;
    assert_eq!(of_machines()?, 0);
    Ok(())
}

/// Waits for the agent's first bytes.
fn greeting(machine: &dyn Machine) -> Result<(), Failed> {
    let mut agent = machine.agent()?;
    agent.set_read_timeout(Some(PATIENCE))?;
    let mut magic = [0; MAGIC.len()];
    if let Err(error) = agent.read_exact(&mut magic) {
        let exit = machine.wait(Duration::from_secs(1));
        return Err(format!("{error}; {exit:?}\n{}", machine.console_tail()).into());
    }
    assert_eq!(&magic, MAGIC);
    Ok(())
}
