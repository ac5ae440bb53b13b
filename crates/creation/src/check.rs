//! What is checked of a sandbox's options before anything is looked for.

use micabox::ErrorKind;
use micabox::words::SecurityOption;
use micabox_spec::options::{MachineOptions, SandboxOptions};

use micabox_program::failure::Failure;
use micabox_program::host_memory::HostMemory;

/// Fails if the options ask for something that does not exist.
pub fn check(options: &SandboxOptions) -> Result<(), Failure> {
    check_memory(&options.machine)?;
    check_processes(options)?;
    check_security(options)?;
    let Some((wanted, host)) = options.machine.memory().zip(HostMemory::now()) else {
        return Ok(());
    };
    if u64::from(wanted) << 20 <= host.most {
        return Ok(());
    }
    Err(Failure::new(format!(
        "cannot give the machine {wanted} MiB of memory: this host has {} MiB, swap included",
        host.most >> 20
    ))
    .hint(format!(
        "{} MiB are available now: ask for less with -m",
        host.available >> 20
    )))
}

/// Fails if processes are to be counted on this machine's own kernel, and can't be.
fn check_processes(options: &SandboxOptions) -> Result<(), Failure> {
    let limit = options.limits.pids_limit;
    let is_limited = limit.is_some_and(|limit| limit.0 != u64::MAX);
    if !is_limited || !options.machine.shares_kernel() {
        return Ok(());
    }
    let why = match micabox_jail::Place::find() {
        Ok(place) if place.controllers.contains(&"pids") => return Ok(()),
        Ok(_) => "there is no pids controller to hand down".to_owned(),
        Err(why) => why.to_string(),
    };
    Err(Failure::of_kind(
        ErrorKind::Unsupported,
        format!(
            "the host backend limits processes and threads by a control group, and can't have one: {why}"
        ),
    )
    .hint(
        "omit --pids-limit, or run it where control groups are delegated (systemd-run --user --scope)",
    ))
}

/// Fails if commands on this machine's own kernel are to be less confined than they are.
fn check_security(options: &SandboxOptions) -> Result<(), Failure> {
    if !options.machine.shares_kernel() {
        return Ok(());
    }
    let refused = |option: &SecurityOption| match option {
        SecurityOption::NoNewPrivileges(false) => Some("no-new-privileges=false".to_owned()),
        SecurityOption::Unconfined(name) => Some(format!("{name}=unconfined")),
        _ => None,
    };
    match options.limits.security_opt.iter().find_map(refused) {
        None => Ok(()),
        Some(option) => Err(Failure::new(format!(
            "`--security-opt {option}` is not supported with --backend host: what shares this machine's \
             kernel is always confined"
        ))
        .hint("a machine of its own has none of this: omit --backend host")),
    }
}

/// Fails if there is to be swap, or if memory is to be limited on this machine's own kernel, and can't be.
fn check_memory(machine: &MachineOptions) -> Result<(), Failure> {
    let both = machine.memory_and_swap();
    if both.is_some_and(|both| machine.memory() != Some(both)) {
        return Err(Failure::new(
            "`--memory-swap` is not supported: a machine has no swap of its own; `-m` is all its memory",
        )
        .hint("omit it, or give it the value of -m"));
    }
    if !machine.shares_kernel() || machine.memory().is_none() {
        return Ok(());
    }
    match micabox_vmm::control_groups() {
        Ok(_) => Ok(()),
        Err(why) => Err(Failure::new(format!(
            "the host backend limits memory by a control group, and can't have one: {why}"
        ))
        .hint(
            "omit -m, or run it where control groups are delegated (systemd-run --user --scope)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[test]
    fn no_memory_and_no_swap_are_the_default_as_in_docker() {
        let options = parse(&["-m", "0", "--memory-swap", "0", "box"]).unwrap();
        check_memory(&options.machine).unwrap();
        let options = parse(&["-m", "128m", "--memory-swap", "256m", "box"]).unwrap();
        check_memory(&options.machine).unwrap_err();
    }

    #[test]
    fn security_options_are_defaults_and_no_new_privileges() {
        let options = |backend: &str, options: &[&str]| {
            let mut words = vec!["--backend", backend];
            words.extend(
                options
                    .iter()
                    .flat_map(|option| ["--security-opt", *option]),
            );
            words.push("box");
            let sandbox = parse(&words).ok()?;
            check_security(&sandbox).ok()?;
            Some(sandbox.confinement().no_new_privileges)
        };
        assert_eq!(options("qemu", &[]), Some(false));
        for on in [
            "no-new-privileges",
            "no-new-privileges:true",
            "no-new-privileges=1",
        ] {
            assert_eq!(options("qemu", &[on]), Some(true), "{on}");
            assert_eq!(options("host", &[on]), Some(true), "{on}");
        }
        let both = ["no-new-privileges", "no-new-privileges=false"];
        assert_eq!(options("qemu", &both), Some(false));
        assert_eq!(options("host", &both), None);
        for own in [
            "seccomp=unconfined",
            "seccomp:unconfined",
            "systempaths=unconfined",
        ] {
            assert_eq!(options("qemu", &[own]), Some(false), "{own}");
            assert_eq!(options("host", &[own]), None, "{own}");
        }
        for anywhere in ["seccomp=builtin", "apparmor=unconfined", "label=disable"] {
            assert_eq!(options("host", &[anywhere]), Some(false), "{anywhere}");
        }
        for bad in [
            "",
            "x",
            "seccomp=p.json",
            "label=type:x",
            "no-new-privileges=x",
        ] {
            assert_eq!(options("qemu", &[bad]), None, "{bad}");
        }
    }
}
