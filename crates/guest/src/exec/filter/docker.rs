//! The filter against Docker's profile, `default.json`: each call, with each condition, for each capability.

use std::collections::{BTreeMap, BTreeSet};

use micabox_seccomp::interpret;
use serde_json::Value;

use super::*;
use crate::exec::calls::NAMED;

/// Calls of the profile that are refused here.
const REFUSED_HERE: [(&str, &str); 4] = [
    ("epoll_ctl_old", "no kernel has it"),
    ("epoll_wait_old", "no kernel has it"),
    ("lookup_dcookie", "no kernel since 6.7 has it"),
    (
        "uretprobe",
        "programs don't make it: the kernel has them make it while they are traced, and exempts it from filters",
    ),
];

/// First family of sockets that no kernel has: Docker's profile refuses it and the later ones, here the kernel does.
const NO_FAMILY: u32 = 46;

/// Calls that x86-64 lacks.
const OF_OTHERS: &str = "_llseek _newselect arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush chown32 \
    clock_adjtime64 clock_getres_time64 clock_gettime64 clock_nanosleep_time64 clock_settime64 fadvise64_64 fchown32 \
    fcntl64 fstat64 fstatat64 fstatfs64 ftruncate64 futex_time64 getegid32 geteuid32 getgid32 getgroups32 getresgid32 \
    getresuid32 getuid32 io_pgetevents_time64 ipc lchown32 lstat64 mmap2 mq_timedreceive_time64 mq_timedsend_time64 \
    ppoll_time64 pselect6_time64 recv recvmmsg_time64 riscv_flush_icache riscv_hwprobe rt_sigtimedwait_time64 \
    s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr sched_rr_get_interval_time64 semtimedop_time64 send \
    sendfile64 set_tls setfsgid32 setfsuid32 setgid32 setgroups32 setregid32 setresgid32 setresuid32 setreuid32 \
    setuid32 sigprocmask sigreturn socketcall stat64 statfs64 stime swapcontext sync_file_range2 timer_gettime64 \
    timer_settime64 timerfd_gettime64 timerfd_settime64 truncate64 ugetrlimit umount utimensat_time64 waitpid";

/// The capabilities that the profile names, by number (`linux/capability.h`).
const CAPABILITIES: [(&str, u32); 14] = [
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_SYS_MODULE", 16),
    ("CAP_SYS_RAWIO", 17),
    ("CAP_SYS_CHROOT", 18),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_PACCT", 20),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_BOOT", 22),
    ("CAP_SYS_NICE", 23),
    ("CAP_SYS_TIME", 25),
    ("CAP_SYS_TTY_CONFIG", 26),
    ("CAP_SYSLOG", 34),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

fn capability(name: &str) -> u64 {
    let known = CAPABILITIES.iter().find(|(known, _)| *known == name);
    1 << known.unwrap().1
}

/// Returns the strings in a list, which may be missing.
fn strings(list: &Value) -> impl Iterator<Item = &str> {
    let list = list.as_array().into_iter().flatten();
    list.map(|text| text.as_str().unwrap())
}

fn has_only(object: &Value, keys: &[&str]) -> bool {
    let mut own = object.as_object().into_iter().flatten();
    own.all(|(key, _)| keys.contains(&key.as_str()))
}

/// The profile's rules for each call, by its name, and the default.
struct Profile {
    rules: BTreeMap<String, Vec<Value>>,
    otherwise: Verdict,
}

impl Profile {
    fn read() -> Self {
        let profile: Value = serde_json::from_str(include_str!("default.json")).unwrap();
        let mut rules: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for rule in profile["syscalls"].as_array().unwrap() {
            let keys = [
                "names", "action", "errnoRet", "args", "includes", "excludes", "comment",
            ];
            assert!(has_only(rule, &keys), "{rule}");
            for when in [&rule["includes"], &rule["excludes"]] {
                assert!(has_only(when, &["caps", "arches", "minKernel"]), "{rule}");
            }
            for name in strings(&rule["names"]) {
                rules.entry(name.to_owned()).or_default().push(rule.clone());
            }
        }
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let otherwise = Verdict::Fail(profile["defaultErrnoRet"].as_u64().unwrap() as u16);
        Self { rules, otherwise }
    }

    /// Returns the verdict on a call with this first argument, on x86-64 and a kernel that is new enough for all rules.
    fn verdict(&self, name: &str, capabilities: u64, argument: u32) -> Verdict {
        let rules = self.rules.get(name).into_iter().flatten();
        let mut rules = rules.filter(|rule| is_for(rule, capabilities) && holds(rule, argument));
        let Some(rule) = rules.next() else {
            return self.otherwise;
        };
        match rule["action"].as_str().unwrap() {
            "SCMP_ACT_ALLOW" => Verdict::Allow,
            "SCMP_ACT_ERRNO" => Verdict::Fail(rule["errnoRet"].as_u64().unwrap() as u16),
            action => panic!("{action}"),
        }
    }
}

/// Returns whether a rule is in the profile of a process.
fn is_for(rule: &Value, capabilities: u64) -> bool {
    let has = |name: &str| capabilities & capability(name) != 0;
    let (includes, excludes) = (&rule["includes"], &rule["excludes"]);
    let mut arches = strings(&includes["arches"]).peekable();
    let is_ours = arches.peek().is_none() || arches.any(|arch| arch == "amd64");
    is_ours
        && strings(&includes["caps"]).all(has)
        && !strings(&excludes["caps"]).any(has)
        && !strings(&excludes["arches"]).any(|arch| arch == "amd64")
}

fn holds(rule: &Value, argument: u32) -> bool {
    let mut tests = rule["args"].as_array().into_iter().flatten();
    tests.all(|test| {
        assert_eq!(test["index"], 0, "{rule}");
        let value = test["value"].as_u64().unwrap();
        match test["op"].as_str().unwrap() {
            "SCMP_CMP_EQ" => u64::from(argument) == value,
            "SCMP_CMP_LT" => u64::from(argument) < value,
            "SCMP_CMP_MASKED_EQ" => {
                u64::from(argument) & value == test["valueTwo"].as_u64().unwrap_or_default()
            }
            op => panic!("{op}"),
        }
    })
}

/// Returns the calls of the table, and those with rules of their own, by Docker's names.
fn named() -> BTreeMap<String, u32> {
    let own = [
        ("SYS_socket", libc::SYS_socket),
        ("SYS_personality", libc::SYS_personality),
        ("SYS_clone", libc::SYS_clone),
        ("SYS_clone3", libc::SYS_clone3),
    ];
    let all = NAMED.iter().chain(&own);
    all.map(|(constant, number)| {
        let name = constant.strip_prefix("SYS_").unwrap_or(constant);
        (name.to_lowercase(), u32::try_from(*number).unwrap())
    })
    .collect()
}

#[test]
fn each_call_has_dockers_verdict() {
    let (profile, named) = (Profile::read(), named());
    let bits = (0..32).map(|bit| 1_u32 << bit);
    let values = PERSONALITIES.iter().copied();
    let arguments: BTreeSet<_> = (0..64).chain(bits).chain(values).collect();
    let single = (0..64).map(|capability| 1 << capability);
    for capabilities in single.chain([0, u64::MAX]) {
        let program = filter(capabilities).program().unwrap();
        let ours = |number, argument: u32| {
            let call = interpret::Call::new(number, [argument.into(), 0, 0, 0, 0, 0]);
            interpret::verdict(&program, &call).unwrap()
        };
        for (name, number) in &named {
            for argument in &arguments {
                if name == "socket" && *argument >= NO_FAMILY {
                    continue;
                }
                let docker = profile.verdict(name, capabilities, *argument).value();
                assert_eq!(
                    ours(*number, *argument),
                    docker,
                    "{name}({argument:#x}) with the capabilities {capabilities:#x}"
                );
            }
        }
        let known: BTreeSet<_> = named.values().collect();
        for number in (0..KNOWN).filter(|number| !known.contains(number)) {
            assert_eq!(ours(number, 0), profile.otherwise.value(), "{number}");
        }
    }
}

#[test]
fn dockers_calls_are_in_the_table_or_left_out_for_a_reason() {
    let (profile, named) = (Profile::read(), named());
    let left_out = REFUSED_HERE.iter().map(|(name, _)| *name);
    let left_out: BTreeSet<_> = left_out.chain(OF_OTHERS.split(' ')).collect();
    let missing: Vec<_> = profile
        .rules
        .keys()
        .filter(|name| !named.contains_key(*name))
        .collect();
    assert_eq!(missing, left_out.into_iter().collect::<Vec<_>>());
}
