//! Tests how machines end: each way is distinguished from the others.

use std::fs::File;
use std::os::unix::net::UnixStream;

use libtest_mimic::{Failed, Trial};
use micabox_testing::{PATIENCE, wait_until};
use micabox_vmm::{Backend, Exit, Kvm, Machine, MachineConfig, MachineFile, PmemRegion};
use tempfile::NamedTempFile;

use super::{boot, config, greeting, guest};

pub fn tests() -> Vec<Trial> {
    vec![
        Trial::test("a_reset_is_an_orderly_end", reset),
        Trial::test("a_panic_is_reported_with_the_kernels_message", panics),
        Trial::test("a_triple_fault_is_told_from_a_reset", triple_fault),
        Trial::test("a_killed_worker_is_told_from_a_guests_end", killed),
        Trial::test("a_truncated_layer_ends_its_machine_by_name", truncated),
        Trial::test("a_machine_has_the_files_that_were_opened", replaced),
        Trial::test("a_missing_kernel_is_named", no_kernel),
        Trial::test("too_much_memory_is_an_error", too_much_memory),
    ]
}

fn start(config: &MachineConfig) -> Result<Box<dyn Machine>, Failed> {
    Ok(Kvm::probe()?.start(config)?)
}

fn end(machine: &dyn Machine) -> Result<Exit, Failed> {
    let console = || format!("it does not end\n{}", machine.console_tail());
    Ok(machine.wait(PATIENCE).ok_or_else(console)?)
}

/// Closes the agent's channel, so that the agent ends the machine by a reset.
fn hang_up(machine: &dyn Machine) -> Result<(), Failed> {
    let agent: UnixStream = machine.agent()?;
    Ok(agent.shutdown(std::net::Shutdown::Both)?)
}

fn reset() -> Result<(), Failed> {
    let machine = start(&config())?;
    greeting(&*machine)?;
    hang_up(&*machine)?;
    let exit = end(&*machine)?;
    assert_eq!(exit, Exit::PoweredOff, "{}", machine.console_tail());
    Ok(())
}

fn panics() -> Result<(), Failed> {
    let empty = NamedTempFile::new()?;
    let machine = start(&MachineConfig {
        begin: boot(&guest("vmlinux"), empty.path()),
        ..config()
    })?;
    let exit = end(&*machine)?;
    assert!(matches!(exit, Exit::Panicked { .. }), "{exit}");
    assert!(machine.console_tail().contains("Kernel panic"));
    Ok(())
}

fn triple_fault() -> Result<(), Failed> {
    // The kernel resets by loading an empty interrupt table and raising an exception.
    let machine = start(&MachineConfig {
        cmdline_extra: vec!["reboot=t".into()],
        ..config()
    })?;
    greeting(&*machine)?;
    hang_up(&*machine)?;
    assert_eq!(end(&*machine)?, Exit::TripleFault);
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let machine = start(&config())?;
    greeting(&*machine)?;
    let pid = rustix::process::Pid::from_raw(machine.pid().cast_signed()).ok_or("no pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let exit = end(&*machine)?;
    let killed = Exit::Killed {
        signal: 9,
        by_us: false,
        message: String::new(),
    };
    assert_eq!(exit, killed);
    Ok(())
}

/// The size of a layer.
const SIZE: u64 = 2 << 20;

/// Truncates a layer of a new machine before its kernel reads that, which it does with the start of every new disk.
/// Returns how the machine failed.
fn cut(config: &MachineConfig, layer: &File) -> Result<String, Failed> {
    let mut machine = None;
    wait_until("the kernel reads a layer that is cut", || {
        layer.set_len(SIZE).unwrap();
        let started = start(config).unwrap();
        layer.set_len(0).unwrap();
        // The agent greets if the kernel was faster.
        let is_read = greeting(&*started).is_err();
        machine = Some(started);
        is_read
    });
    let machine = machine.ok_or("no machine")?;
    match end(&*machine)? {
        Exit::Failed { message, .. } => Ok(message),
        exit => Err(format!("{exit}\n{}", machine.console_tail()).into()),
    }
}

fn truncated() -> Result<(), Failed> {
    let file = || -> Result<NamedTempFile, Failed> {
        let file = NamedTempFile::new()?;
        file.as_file().set_len(SIZE)?;
        Ok(file)
    };
    let with = |files: &[&NamedTempFile]| {
        let files = files
            .iter()
            .map(|file| MachineFile::open(file.path()).unwrap());
        MachineConfig {
            pmem: vec![PmemRegion {
                files: files.collect(),
            }],
            ..config()
        }
    };
    let (doomed, shared) = (file()?, file()?);
    let other = start(&with(&[&shared]))?;
    greeting(&*other)?;
    let message = cut(&with(&[&doomed, &shared]), doomed.as_file())?;
    let name = doomed.path().display().to_string();
    assert!(message.contains(&name), "{message}");
    assert!(message.contains("truncated"), "{message}");
    // Another machine with a file of the same region does not notice.
    assert_eq!(other.wait(std::time::Duration::ZERO), None);
    Ok(())
}

/// The machine has the files that were opened, whatever their names lead to when it starts. That a
/// region's file is the first one shows in what the owner of that file can do.
fn replaced() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let (kernel, initrd, layer) = (path("kernel"), path("initrd"), path("layer"));
    std::fs::copy(guest("vmlinux"), &kernel)?;
    std::fs::copy(guest("initrd.cpio"), &initrd)?;
    let first = File::create(&layer)?;
    first.set_len(SIZE)?;
    let config = MachineConfig {
        begin: boot(&kernel, &initrd),
        pmem: vec![PmemRegion {
            files: vec![MachineFile::open(&layer)?],
        }],
        ..config()
    };
    for file in [&kernel, &initrd, &layer] {
        std::fs::write(path("other"), b"another file")?;
        std::fs::rename(path("other"), file)?;
    }
    let machine = start(&config)?;
    greeting(&*machine)?;
    let message = cut(&config, &first)?;
    assert!(message.contains("truncated"), "{message}");
    Ok(())
}

fn no_kernel() -> Result<(), Failed> {
    let file = NamedTempFile::new()?;
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0xff; 8192]] {
        std::fs::write(file.path(), bytes)?;
        let machine = start(&MachineConfig {
            begin: boot(file.path(), &guest("initrd.cpio")),
            ..config()
        })?;
        match end(&*machine)? {
            Exit::Failed { message, .. } => {
                assert!(message.contains("kernel"), "{message}");
                assert!(!message.contains("internal error"), "{message}");
            }
            exit => return Err(exit.to_string().into()),
        }
    }
    Ok(())
}

fn too_much_memory() -> Result<(), Failed> {
    let machine = start(&MachineConfig {
        machine: micabox_spec::Machine {
            memory_mib: u32::MAX,
            ..config().machine
        },
        ..config()
    })?;
    match end(&*machine)? {
        Exit::Failed { message, .. } => assert!(message.contains("memory"), "{message}"),
        exit => return Err(exit.to_string().into()),
    }
    Ok(())
}
