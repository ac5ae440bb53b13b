//! Boots machines under QEMU: with KVM where it works, emulated elsewhere.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use micabox_testing::{PATIENCE, wait_until};
use micabox_vmm::{Backend, Begin, Disk, Exit, MachineConfig, MachineFile, PmemRegion, Qemu};

/// The first bytes that the agent sends.
const MAGIC: &[u8; 8] = b"MICABOX\n";

fn guest(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest");
    let directory = std::env::var_os("MICABOX_GUEST").map_or(built, PathBuf::from);
    directory.join(name)
}

fn open(path: &Path) -> MachineFile {
    MachineFile::open(path).unwrap()
}

/// Begins a machine with these files.
fn boot(kernel: &Path, initrd: &Path) -> Begin {
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
            memory_mib: 256,
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

// QEMU is started by a worker.
micabox_jail::run_if_worker_before_main!(&[micabox_vmm::QEMU_WORKER]);

/// Creates a file that QEMU, which is not root, can open itself.
fn file_for_everyone() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let everyone = std::fs::Permissions::from_mode(0o644);
    file.as_file().set_permissions(everyone).unwrap();
    file
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
fn a_machine_boots_to_the_agent() {
    expect_agent(&config());
}

#[test]
#[ignore = "needs a built guest"]
fn a_machine_with_forty_regions_and_two_processors_boots() {
    let file = file_for_everyone();
    file.as_file().set_len(2 << 20).unwrap();
    let region = PmemRegion {
        files: vec![open(file.path())],
    };
    expect_agent(&MachineConfig {
        machine: micabox_spec::Machine {
            cpus: Some(2),
            ..config().machine
        },
        pmem: vec![region; 40],
        ..config()
    });
}

#[test]
#[ignore = "needs a built guest"]
fn a_kernel_without_an_agent_panics_with_a_reason() {
    let empty = file_for_everyone();
    let machine = Qemu::probe()
        .unwrap()
        .start(&MachineConfig {
            begin: boot(&guest("vmlinux"), empty.path()),
            ..config()
        })
        .unwrap();
    let exit = machine.wait(PATIENCE).expect("it ends");
    assert!(matches!(exit, Exit::Panicked { .. }), "{exit}");
    assert!(machine.console_tail().contains("Kernel panic"));
}

#[test]
#[ignore = "needs a built guest"]
fn an_error_of_qemu_is_reported_in_its_words() {
    let not_a_kernel = file_for_everyone();
    std::fs::write(not_a_kernel.path(), [0; 8192]).unwrap();
    let machine = Qemu::probe()
        .unwrap()
        .start(&MachineConfig {
            begin: boot(not_a_kernel.path(), &guest("initrd.cpio")),
            ..config()
        })
        .unwrap();
    match machine.wait(PATIENCE) {
        Some(Exit::Failed { message, .. }) => assert!(!message.is_empty()),
        other => panic!("{other:?}"),
    }
}

/// QEMU opens a kernel by its path. It boots the one that was opened before, or none.
#[test]
#[ignore = "needs a built guest"]
fn a_kernel_that_is_replaced_meanwhile_is_not_booted() {
    let [kernel, other] = [file_for_everyone(), file_for_everyone()];
    std::fs::copy(guest("vmlinux"), kernel.path()).unwrap();
    std::fs::write(other.path(), [0; 8192]).unwrap();
    let begin = boot(kernel.path(), &guest("initrd.cpio"));
    std::fs::rename(other.path(), kernel.path()).unwrap();
    let started = Qemu::probe()
        .unwrap()
        .start(&MachineConfig { begin, ..config() });
    match started.unwrap().wait(PATIENCE) {
        Some(Exit::Failed { message, .. }) => {
            assert!(message.contains("was replaced meanwhile"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// Checks the kernel's status of QEMU's process, and what the process sees.
#[test]
#[ignore = "needs a built guest"]
fn qemu_is_in_jail() {
    let mut machine_config = config();
    let region = file_for_everyone();
    region.as_file().set_len(2 << 20).unwrap();
    machine_config.pmem.push(PmemRegion {
        files: vec![open(region.path())],
    });
    // Other users may not open it: it is passed as a descriptor.
    let disk = tempfile::NamedTempFile::new().unwrap();
    disk.as_file().set_len(1 << 20).unwrap();
    machine_config.disks.push(Disk {
        files: vec![MachineFile::open_for_writing(disk.path()).unwrap()],
        read_only: false,
        serial: "x".into(),
    });
    // SAFETY: no other test reads this variable.
    unsafe { std::env::set_var("MICABOX_TEST_SECRET", "secret") };
    let machine = Qemu::probe().unwrap().start(&machine_config).unwrap();
    let mut agent = machine.agent().unwrap();
    agent.set_read_timeout(Some(PATIENCE)).unwrap();
    agent.read_exact(&mut [0; 8]).unwrap();

    let proc = PathBuf::from(format!("/proc/{}", machine.pid()));
    assert!(
        proc.join("exe")
            .read_link()
            .unwrap()
            .to_string_lossy()
            .contains("qemu")
    );
    let status = std::fs::read_to_string(proc.join("status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&field(capabilities), 16), Ok(0));
    }
    assert_eq!(
        (field("NoNewPrivs:"), field("Seccomp:")),
        ("1".into(), "2".into())
    );
    assert_eq!(std::fs::read(proc.join("environ")).unwrap(), b"");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for ids in [field("Uid:"), field("Gid:")] {
        let mut ids = ids.split_whitespace().map(|id| id.parse::<u32>().unwrap());
        assert!(ids.all(|id| id > 65534), "{status}");
    }
    assert_eq!(field("Groups:"), "");
    for name in ["user", "mnt", "net", "ipc", "uts"] {
        let link = |of: &Path| std::fs::read_link(of.join("ns").join(name)).unwrap();
        assert_ne!(link(&proc), link(Path::new("/proc/self")), "{name}");
    }
    let root = proc.join("root");
    for gone in [
        "etc/shadow",
        "etc/passwd",
        "root",
        "home",
        "tmp",
        "sys",
        "proc/1",
    ] {
        let found = root.join(gone).symlink_metadata();
        assert!(found.is_err(), "{gone}: {found:?}");
    }
    for device in root.join("dev").read_dir().unwrap() {
        let name = device.unwrap().file_name();
        assert!(name == "null" || name == "kvm", "{name:?}");
    }
    let mounts = std::fs::read_to_string(proc.join("mounts")).unwrap();
    for line in mounts.lines() {
        let flags = line.split(' ').nth(3).unwrap();
        assert!(flags.split(',').any(|flag| flag == "ro"), "{line}");
    }
    // Each machine has a user of its own.
    let other = Qemu::probe().unwrap().start(&config()).unwrap();
    let owner = |pid: String| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        line.unwrap().trim().to_owned()
    };
    let ours = owner("self".into());
    for machine in [&machine, &other] {
        wait_until("it is in the jail", || {
            owner(machine.pid().to_string()) != ours
        });
    }
    assert_ne!(
        owner(other.pid().to_string()),
        owner(machine.pid().to_string())
    );
}
