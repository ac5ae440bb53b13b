//! The system calls of a command on the host's kernel: what Docker's default profile (`seccomp/default.json`
//! of moby/profiles) allows, with its exceptions for capabilities.
//!
//! A refused call fails with EPERM. One that the profile doesn't know, and `clone3`, whose flags a filter
//! can't read, fail with ENOSYS: libraries then use an older call.

use std::collections::BTreeMap;

use libc::{sock_filter, sock_fprog};
use micabox_seccomp::{Filter, Instruction, Rule, Test, Verdict};
use rustix::io::Errno;

use super::calls::{ALLOWED, KNOWN, OF_CAPABILITIES};
use crate::errno::last_errno;

const ALLOW: Rule = Rule::Always(Verdict::Allow);
const REFUSED: Verdict = Verdict::Fail(libc::EPERM as u16);
const UNKNOWN: Verdict = Verdict::Fail(libc::ENOSYS as u16);

/// `CAP_SYS_ADMIN`.
const ADMIN: u64 = 1 << 21;

/// Flags of clone(2) that make namespaces.
const NAMESPACES: u32 = 0x7e02_0000;

/// Families of sockets that reach the host: its virtual machines and hypervisor, and its kernel's
/// cryptography.
const FAMILIES: [u32; 2] = [libc::AF_VSOCK.unsigned_abs(), libc::AF_ALG.unsigned_abs()];

/// Values of personality(2) that change nothing of importance: Linux, with or without 2.6's version
/// (`UNAME26`) or another order of addresses (`PER_LINUX32`), and a question.
const PERSONALITIES: [u32; 5] = [0, 8, 0x2_0000, 0x2_0008, u32::MAX];

/// Restricts the calling process, and what it executes, to the calls of a process with these capabilities.
/// It must not be able to gain privileges (`PR_SET_NO_NEW_PRIVS`).
pub fn install(capabilities: u64) -> rustix::io::Result<()> {
    const SET_MODE_FILTER: libc::c_long = 1;
    let program = filter(capabilities).program().map_err(|_| Errno::TOOBIG)?;
    let mut program: Vec<_> = program.into_iter().map(kernels).collect();
    let length = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let program = sock_fprog {
        len: length,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the program, which lives until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, &raw const program) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

fn kernels(instruction: Instruction) -> sock_filter {
    let Instruction { code, jt, jf, k } = instruction;
    sock_filter { code, jt, jf, k }
}

/// Returns the rules for a process with these capabilities. On other architectures, which 32-bit programs use, the
/// numbers mean other calls: none works.
fn filter(capabilities: u64) -> Filter {
    // Those that the profile knows and does not allow are refused.
    let mut rules: BTreeMap<_, _> = (0..KNOWN)
        .map(|number| (number, Rule::Always(REFUSED)))
        .collect();
    let mut set = |call: libc::c_long, rule| {
        if let Some(known) = u32::try_from(call)
            .ok()
            .and_then(|call| rules.get_mut(&call))
        {
            *known = rule;
        }
    };
    for call in ALLOWED {
        set(*call, ALLOW);
    }
    set(
        libc::SYS_socket,
        if_first_is(&FAMILIES, REFUSED, Verdict::Allow),
    );
    set(
        libc::SYS_personality,
        if_first_is(&PERSONALITIES, Verdict::Allow, REFUSED),
    );
    set(libc::SYS_clone, without_first(NAMESPACES));
    set(libc::SYS_clone3, Rule::Always(UNKNOWN));
    for (capability, calls) in OF_CAPABILITIES {
        if capabilities & 1 << capability != 0 {
            for call in *calls {
                set(*call, ALLOW);
            }
        }
    }
    if capabilities & ADMIN != 0 {
        set(libc::SYS_clone, ALLOW);
        set(libc::SYS_clone3, ALLOW);
    }
    Filter {
        rules,
        otherwise: UNKNOWN,
        foreign: UNKNOWN,
    }
}

/// Returns a rule for calls whose first argument is one of `values`, and for the others.
fn if_first_is(values: &[u32], then: Verdict, otherwise: Verdict) -> Rule {
    let test = |value: &u32| Test {
        argument: 0,
        mask: u32::MAX,
        value: *value,
    };
    Rule::If {
        tests: values.iter().map(test).collect(),
        then,
        otherwise,
    }
}

/// Returns a rule that allows a call without these bits in its first argument.
fn without_first(bits: u32) -> Rule {
    let test = Test {
        argument: 0,
        mask: bits,
        value: 0,
    };
    Rule::If {
        tests: vec![test],
        then: Verdict::Allow,
        otherwise: REFUSED,
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod docker;

#[cfg(test)]
mod tests {
    use micabox_seccomp::interpret::{self, Call};

    use super::*;

    fn run(program: &[Instruction], number: u32, argument: u32) -> u32 {
        let call = Call::new(number, [argument.into(), 0, 0, 0, 0, 0]);
        interpret::verdict(program, &call).unwrap()
    }

    fn judged(capabilities: u64, call: libc::c_long, argument: u32) -> u32 {
        let program = filter(capabilities).program().unwrap();
        run(&program, u32::try_from(call).unwrap(), argument)
    }

    #[test]
    fn each_call_has_the_verdict_of_the_table() {
        for capabilities in [0, ADMIN, 1 << 18, u64::MAX] {
            let filter = filter(capabilities);
            let program = filter.program().unwrap();
            for (number, rule) in &filter.rules {
                for argument in [0, 8, 9, 40, 38, 0x1000_0000, u32::MAX] {
                    let expected = match rule {
                        Rule::Always(verdict) => *verdict,
                        Rule::If {
                            tests,
                            then,
                            otherwise,
                        } => {
                            let mut tests = tests.iter();
                            let holds = tests.any(|test| argument & test.mask == test.value);
                            if holds { *then } else { *otherwise }
                        }
                    };
                    let result = run(&program, *number, argument);
                    assert_eq!(result, expected.value(), "{number} {argument}");
                    let mut call = Call::new(*number, [argument.into(); 6]);
                    call.architecture = 0x4000_0003;
                    let result = interpret::verdict(&program, &call).unwrap();
                    assert_eq!(result, UNKNOWN.value());
                }
            }
            for number in [KNOWN, 1000, 0x4000_0000, u32::MAX] {
                assert_eq!(run(&program, number, 0), UNKNOWN.value());
            }
        }
    }

    #[test]
    fn what_reaches_the_host_is_refused_unless_a_capability_allows_it() {
        for call in [
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_init_module,
            libc::SYS_kexec_load,
            libc::SYS_open_by_handle_at,
            libc::SYS_reboot,
            libc::SYS_swapon,
        ] {
            assert_eq!(judged(0, call, 0), REFUSED.value(), "{call}");
        }
        for call in [
            libc::SYS_keyctl,
            libc::SYS_kexec_load,
            libc::SYS_io_uring_setup,
        ] {
            assert_eq!(judged(u64::MAX, call, 0), REFUSED.value(), "{call}");
        }
        assert_eq!(judged(ADMIN, libc::SYS_mount, 0), Verdict::Allow.value());
        let new_user = libc::CLONE_NEWUSER.cast_unsigned();
        assert_eq!(judged(0, libc::SYS_clone, new_user), REFUSED.value());
        assert_eq!(
            judged(0, libc::SYS_clone, 0x0001_0f00),
            Verdict::Allow.value()
        );
        assert_eq!(judged(0, libc::SYS_clone3, 0), UNKNOWN.value());
        assert_eq!(judged(0, libc::SYS_socket, 40), REFUSED.value());
        assert_eq!(judged(0, libc::SYS_socket, 2), Verdict::Allow.value());
    }
}
