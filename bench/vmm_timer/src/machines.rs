//! Machines without an image: one kernel, one initrd, one processor.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use micabox_spec::BackendChoice;
use micabox_vmm::{Backend, Begin, Machine, MachineConfig, MachineFile, choose};
use serde_json::{Value, json};

use crate::trace::Trace;
use crate::{MEMORY_MIB, Result, processes};

/// Who runs a machine.
pub enum Contender {
    /// A backend of ours.
    Ours(&'static str, Box<dyn Backend>),
    /// QEMU's machine without a PC's devices, by hand.
    Microvm,
}

/// What was started; ends when dropped.
enum Started {
    Ours(Box<dyn Machine>),
    Process(Child),
}

impl Started {
    fn pid(&self) -> u32 {
        match self {
            Self::Ours(machine) => machine.pid(),
            Self::Process(child) => child.id(),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Self::Process(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// All of them.
pub fn contenders(files: &Path) -> Result<Vec<Contender>> {
    // SAFETY: there is one thread.
    unsafe { std::env::set_var("MICABOX_WORKER", files.join("mica")) };
    Ok(vec![
        Contender::Ours("ours", choose(BackendChoice::Kvm)?),
        Contender::Ours("QEMU pc", choose(BackendChoice::Qemu)?),
        Contender::Microvm,
    ])
}

impl Contender {
    fn name(&self) -> &'static str {
        match self {
            Self::Ours(name, _) => name,
            Self::Microvm => "QEMU microvm",
        }
    }

    /// Starts a machine up to its kernel's first instruction, and one up to its init.
    pub fn measure(&self, files: &Path, trace: &Trace) -> Result<Vec<Value>> {
        let starts = [("kernel", "stop", "K"), ("init", "vmlinux", "init ")];
        let lines = starts.into_iter().map(|(what, kernel, words)| {
            let others = processes::machines()?;
            trace.begin()?;
            let begun = processes::now();
            let machine = self.start(files.join(kernel), files.join("bare.cpio"))?;
            let at = trace.wait_for(words.as_bytes())?;
            let pids = processes::tree(machine.pid());
            Ok(json!({
                "who": self.name(),
                "what": what,
                "seconds": at - begun,
                "cpu": processes::cpu(&pids),
                "counters": processes::counters(&others)?,
                "memory": processes::memory(&pids),
            }))
        });
        lines.collect()
    }

    fn start(&self, kernel: PathBuf, initrd: PathBuf) -> Result<Started> {
        const HOLD: &str = "hold";
        match self {
            Self::Ours(_, backend) => Ok(Started::Ours(backend.start(&MachineConfig {
                name: "timed".into(),
                begin: Begin::Boot {
                    kernel: MachineFile::open(&kernel)?,
                    initrd: MachineFile::open(&initrd)?,
                },
                machine: micabox_spec::Machine {
                    memory_mib: MEMORY_MIB,
                    cpus: Some(1),
                    ..micabox_spec::Machine::default()
                },
                pmem: Vec::new(),
                disks: Vec::new(),
                network: None,
                vsock: None,
                cmdline_extra: vec![HOLD.into()],
                shares: Vec::new(),
                lifeline: None,
                max_processes: None,
            })?)),
            Self::Microvm => {
                let machine = "microvm,x-option-roms=off,pit=off,pic=off,rtc=off,isa-serial=on";
                let child = Command::new("qemu-system-x86_64")
                    .args(["-no-user-config", "-nodefaults", "-no-reboot"])
                    .args(["-display", "none", "-machine", machine])
                    .args(["-accel", "kvm", "-cpu", "host", "-smp", "1"])
                    .args(["-m", &format!("{MEMORY_MIB}M"), "-serial", "stdio"])
                    .args(["-device", "virtio-serial-device,max_ports=2"])
                    .args(["-chardev", "null,id=agent"])
                    .args(["-device", "virtserialport,nr=1,chardev=agent,name=agent"])
                    .args(["-object", "rng-builtin,id=entropy"])
                    .args(["-device", "virtio-rng-device,rng=entropy"])
                    .arg("-kernel")
                    .arg(kernel)
                    .arg("-initrd")
                    .arg(initrd)
                    .args([
                        "-append",
                        &format!("console=ttyS0 quiet panic=-1 reboot=t pci=off {HOLD}"),
                    ])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .spawn()?;
                Ok(Started::Process(child))
            }
        }
    }
}
