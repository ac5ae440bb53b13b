//! The system calls of a command on the host's kernel: what Docker's default profile (`seccomp/default.json`
//! of moby/profiles) allows, with its exceptions for capabilities. Two families of sockets are refused
//! beside Docker's: both reach the host.
//!
//! A refused call fails with EPERM. One that the profile doesn't know, and `clone3`, whose flags a filter
//! can't read, fail with ENOSYS: libraries then use an older call.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, sock_filter, sock_fprog,
};
use rustix::io::Errno;

use super::calls::{ALLOWED, KNOWN, OF_CAPABILITIES};
use super::child::last_errno;

/// `AUDIT_ARCH_X86_64` or `AUDIT_ARCH_AARCH64` (`linux/audit.h`). On other architectures, which 32-bit
/// programs use, the numbers mean other calls: none works.
const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else {
    0xc000_003e
};

/// Offsets of the call's number, of its architecture and of the lower half of its first argument in
/// `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENT_AT: u32 = 16;

const REFUSED: u32 = SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
const UNKNOWN: u32 = SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();

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

/// What the filter does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Refused,
    Unknown,
    /// Allowed without these bits in the first argument, otherwise refused.
    Without(u32),
    /// Allowed unless the first argument is one of these.
    Not(&'static [u32]),
    /// Allowed only if the first argument is one of these.
    Only(&'static [u32]),
}

/// Restricts the calling process, and what it executes, to the calls of a process with these capabilities.
/// It must not be able to gain privileges (`PR_SET_NO_NEW_PRIVS`).
pub fn install(capabilities: u64) -> rustix::io::Result<()> {
    const SET_MODE_FILTER: libc::c_long = 1;
    let mut program = program(capabilities)?;
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

/// Returns the verdict on each call up to the last one that the profile knows.
fn verdicts(capabilities: u64) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::Refused; KNOWN];
    let mut set = |call: libc::c_long, verdict| {
        let place = usize::try_from(call)
            .ok()
            .and_then(|call| verdicts.get_mut(call));
        if let Some(place) = place {
            *place = verdict;
        }
    };
    for call in ALLOWED {
        set(*call, Verdict::Allowed);
    }
    set(libc::SYS_socket, Verdict::Not(&FAMILIES));
    set(libc::SYS_personality, Verdict::Only(&PERSONALITIES));
    set(libc::SYS_clone, Verdict::Without(NAMESPACES));
    set(libc::SYS_clone3, Verdict::Unknown);
    for (capability, calls) in OF_CAPABILITIES {
        if capabilities & 1 << capability != 0 {
            for call in *calls {
                set(*call, Verdict::Allowed);
            }
        }
    }
    if capabilities & ADMIN != 0 {
        set(libc::SYS_clone, Verdict::Allowed);
        set(libc::SYS_clone3, Verdict::Allowed);
    }
    verdicts
}

/// Returns the kernel's program, which finds a call by bisection: the kernel runs it once for each call
/// when it is installed.
fn program(capabilities: u64) -> rustix::io::Result<Vec<sock_filter>> {
    let verdicts = verdicts(capabilities);
    let mut runs: Vec<(u32, Verdict)> = Vec::new();
    for (number, verdict) in (0..).zip(verdicts.iter().copied().chain([Verdict::Unknown])) {
        if runs.last().is_none_or(|(_, last)| *last != verdict) {
            runs.push((number, verdict));
        }
    }
    let mut program = Backwards::default();
    let ends = Ends {
        allowed: program.put(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        refused: program.put(BPF_RET | BPF_K, REFUSED),
        unknown: program.put(BPF_RET | BPF_K, UNKNOWN),
    };
    // There are several runs, so the search begins with the instruction that is added last.
    program.bisect(&runs, ends)?;
    let load = program.put(BPF_LD | BPF_W | BPF_ABS, NUMBER_AT);
    program.jump(BPF_JEQ, ARCHITECTURE, load, ends.unknown)?;
    program.put(BPF_LD | BPF_W | BPF_ABS, ARCHITECTURE_AT);
    program.0.reverse();
    Ok(program.0)
}

/// Instructions, the last one first, so that a jump's target is known when the jump is added.
#[derive(Default)]
struct Backwards(Vec<sock_filter>);

/// The position of an instruction that was already added.
#[derive(Clone, Copy)]
struct Target(usize);

/// The return instructions that a search ends at.
#[derive(Clone, Copy)]
struct Ends {
    allowed: Target,
    refused: Target,
    unknown: Target,
}

impl Backwards {
    fn put(&mut self, code: u32, k: u32) -> Target {
        self.push(code, k, 0, 0)
    }

    /// Adds a comparison of the loaded value with `k`.
    fn jump(&mut self, test: u32, k: u32, yes: Target, no: Target) -> rustix::io::Result<Target> {
        let distance = |target: Target| {
            let between = self.0.len() - 1 - target.0;
            u8::try_from(between).map_err(|_| Errno::TOOBIG)
        };
        let (yes, no) = (distance(yes)?, distance(no)?);
        Ok(self.push(BPF_JMP | test | BPF_K, k, yes, no))
    }

    fn push(&mut self, code: u32, k: u32, jt: u8, jf: u8) -> Target {
        let code = code as u16; // they have 8 bits
        self.0.push(sock_filter { code, jt, jf, k });
        Target(self.0.len() - 1)
    }

    /// Adds the search for the loaded number among runs of calls with one verdict, each with its first
    /// number; returns its first instruction.
    fn bisect(&mut self, runs: &[(u32, Verdict)], ends: Ends) -> rustix::io::Result<Target> {
        match runs {
            [] => Ok(ends.unknown),
            [(_, verdict)] => self.judge(*verdict, ends),
            _ => {
                let (lower, upper) = runs.split_at(runs.len() / 2);
                let first = upper.first().map_or(0, |(number, _)| *number);
                let lower = self.bisect(lower, ends)?;
                let upper = self.bisect(upper, ends)?;
                self.jump(BPF_JGE, first, upper, lower)
            }
        }
    }

    /// Adds what a verdict takes; returns its first instruction.
    fn judge(&mut self, verdict: Verdict, ends: Ends) -> rustix::io::Result<Target> {
        let (values, found, otherwise) = match verdict {
            Verdict::Allowed => return Ok(ends.allowed),
            Verdict::Refused => return Ok(ends.refused),
            Verdict::Unknown => return Ok(ends.unknown),
            Verdict::Without(bits) => {
                self.jump(BPF_JEQ, 0, ends.allowed, ends.refused)?;
                self.put(BPF_ALU | BPF_AND | BPF_K, bits);
                return Ok(self.put(BPF_LD | BPF_W | BPF_ABS, ARGUMENT_AT));
            }
            Verdict::Not(values) => (values, ends.refused, ends.allowed),
            Verdict::Only(values) => (values, ends.allowed, ends.refused),
        };
        let mut next = otherwise;
        for value in values {
            next = self.jump(BPF_JEQ, *value, found, next)?;
        }
        Ok(self.put(BPF_LD | BPF_W | BPF_ABS, ARGUMENT_AT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kernel's verdict on a call, by interpreting the few instructions in use.
    fn run(program: &[sock_filter], data: &[u32; 16]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let instruction = &program[at];
            let k = instruction.k;
            let mut jump = |yes| {
                at += usize::from(if yes { instruction.jt } else { instruction.jf });
            };
            match u32::from(instruction.code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => loaded = data[k as usize / 4],
                code if code == BPF_ALU | BPF_AND | BPF_K => loaded &= k,
                code if code == BPF_JMP | BPF_JEQ | BPF_K => jump(loaded == k),
                code if code == BPF_JMP | BPF_JGE | BPF_K => jump(loaded >= k),
                code if code == BPF_RET | BPF_K => return k,
                code => panic!("instruction {code:#x}"),
            }
            at += 1;
        }
    }

    fn judged(capabilities: u64, call: libc::c_long, argument: u32) -> u32 {
        let mut data = [0; 16];
        data[..2].copy_from_slice(&[u32::try_from(call).unwrap(), ARCHITECTURE]);
        data[4] = argument;
        run(&program(capabilities).unwrap(), &data)
    }

    #[test]
    fn each_call_has_the_verdict_of_the_table() {
        for capabilities in [0, ADMIN, 1 << 18, u64::MAX] {
            let program = program(capabilities).unwrap();
            let verdicts = verdicts(capabilities);
            for (number, verdict) in (0..).zip(&verdicts) {
                for argument in [0, 8, 9, 40, 38, 0x1000_0000, u32::MAX] {
                    let expected = match verdict {
                        Verdict::Allowed => true,
                        Verdict::Refused | Verdict::Unknown => false,
                        Verdict::Without(bits) => argument & bits == 0,
                        Verdict::Not(values) => !values.contains(&argument),
                        Verdict::Only(values) => values.contains(&argument),
                    };
                    let mut data = [0; 16];
                    data[..2].copy_from_slice(&[number, ARCHITECTURE]);
                    data[4] = argument;
                    let result = run(&program, &data);
                    assert_eq!(result == SECCOMP_RET_ALLOW, expected, "{number} {argument}");
                    data[1] = 0x4000_0003;
                    assert_eq!(run(&program, &data), UNKNOWN);
                }
            }
            for number in [KNOWN as u32, 1000, 0x4000_0000, u32::MAX] {
                let mut data = [0; 16];
                data[..2].copy_from_slice(&[number, ARCHITECTURE]);
                assert_eq!(run(&program, &data), UNKNOWN);
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
            assert_eq!(judged(0, call, 0), REFUSED, "{call}");
        }
        for call in [
            libc::SYS_keyctl,
            libc::SYS_kexec_load,
            libc::SYS_io_uring_setup,
        ] {
            assert_eq!(judged(u64::MAX, call, 0), REFUSED, "{call}");
        }
        assert_eq!(judged(ADMIN, libc::SYS_mount, 0), SECCOMP_RET_ALLOW);
        let new_user = libc::CLONE_NEWUSER.cast_unsigned();
        assert_eq!(judged(0, libc::SYS_clone, new_user), REFUSED);
        assert_eq!(judged(0, libc::SYS_clone, 0x0001_0f00), SECCOMP_RET_ALLOW);
        assert_eq!(judged(0, libc::SYS_clone3, 0), UNKNOWN);
        assert_eq!(judged(0, libc::SYS_socket, 40), REFUSED);
        assert_eq!(judged(0, libc::SYS_socket, 2), SECCOMP_RET_ALLOW);
    }
}
