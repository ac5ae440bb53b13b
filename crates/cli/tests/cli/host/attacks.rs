//! What a program in a container does to get out.

use super::*;

#[test]
#[ignore = "needs root and a built guest"]
fn attacks_on_the_host_fail() {
    let home = Home::new();
    let program = home.path().join("try");
    fs::write(home.path().join("try.c"), TRY).unwrap();
    shell(home.path(), "cc -static -o try try.c");
    let with_program = |flags: &[&str], script: &str| {
        let script = format!("cat >/tmp/try; chmod 755 /tmp/try; {script}");
        let mut mica = home.mica(&arguments(
            &[&["--rm", "-i"], flags].concat(),
            &["sh", "-c", &script],
        ));
        mica.stdin(fs::File::open(&program).unwrap());
        Finished::of(mica)
    };
    // x86-64's numbers, with EPERM or ENOSYS for each.
    let calls = [
        ("mount", "165"),
        ("unshare(CLONE_NEWUSER)", "272 0x10000000"),
        ("clone(CLONE_NEWUSER)", "56 0x10000000"),
        ("clone3", "435"),
        ("setns", "308"),
        ("bpf", "321"),
        ("keyctl", "250"),
        ("add_key", "248"),
        ("io_uring_setup", "425 8"),
        ("userfaultfd", "323"),
        ("perf_event_open", "298"),
        ("open_by_handle_at", "304"),
        ("init_module", "175"),
        ("reboot", "169"),
        ("fsopen", "430"),
        ("move_mount", "429"),
        ("pivot_root", "155"),
        ("swapon", "167"),
        ("syslog", "103 3"),
        ("socket(AF_VSOCK)", "41 40 1"),
        ("socket(AF_ALG)", "41 38 5"),
        ("personality(READ_IMPLIES_EXEC)", "135 0x400000"),
    ];
    let tries: String = calls
        .iter()
        .map(|(_, call)| format!("/tmp/try {call};"))
        .collect();
    let tried = with_program(&[], &tries).ok();
    for ((name, _), errno) in calls.iter().zip(tried.lines()) {
        assert!(matches!(errno, "1" | "38"), "{name}: {errno}");
    }
    assert_eq!(tried.lines().count(), calls.len());
    let status = sh(
        &home,
        "grep -E '^(NoNewPrivs|Seccomp|CapEff|CapBnd):' /proc/self/status",
    )
    .ok();
    let words: Vec<_> = status.split_whitespace().collect();
    assert_eq!(
        words,
        [
            "CapEff:",
            "00000000a80425fb",
            "CapBnd:",
            "00000000a80425fb",
            "NoNewPrivs:",
            "1",
            "Seccomp:",
            "2"
        ]
    );
    // The capability to trace reaches the sandbox's processes, and not its agent.
    let trace = "sleep 100 & /tmp/try 101 16 $!; /tmp/try 101 16 1; /tmp/try 434 1 0";
    let traced = with_program(&["--cap-add", "SYS_PTRACE"], trace).ok();
    assert_eq!(traced, "0\n1\n0\n");
    let looked = "cat /proc/1/maps /proc/1/environ; ls /proc/1/fd; readlink /proc/1/exe";
    let looked = run(
        &home,
        &["--cap-add", "SYS_PTRACE"],
        &["sh", "-c", &format!("{looked} 2>/dev/null")],
    );
    assert_eq!(looked.stdout(), "");
    // With every capability, the user namespace still holds.
    for (flags, script) in [
        (&[][..], "echo x > /proc/sys/kernel/core_pattern"),
        (&[], "echo x > /proc/sysrq-trigger"),
        (&[], "echo 1 > /sys/kernel/mm/ksm/run"),
        (&[], "cat /proc/kcore | grep -q ."),
        (&[], "cat /proc/keys | grep -q ."),
        (&[], "ls /sys/firmware | grep -q ."),
        (&[], "mknod /tmp/vda b 254 0"),
        (&[], "mknod /tmp/kmsg c 1 11"),
        (&[], "ls /proc/1/root/work"),
        (&[], "mount -t tmpfs x /mnt"),
        (&[], "umount /proc/kcore"),
        (&[], "chroot /proc/1/root ls /work"),
        (
            &[],
            "ls /dev | grep -vxE 'fd|full|mqueue|null|ptmx|pts|random|shm|stderr|stdin|stdout|tty|urandom|zero'",
        ),
        (
            &["--cap-add", "ALL"],
            "umount /proc/sys; echo x > /proc/sys/kernel/core_pattern",
        ),
        (&["--cap-add", "ALL"], "mknod /tmp/vda b 254 0"),
        (&["--cap-add", "ALL"], "mount -t ext4 /dev/vda /mnt"),
        (&["--cap-add", "ALL"], "dmesg"),
        (
            &["--cap-add", "ALL"],
            "mount -o remount,rw /sys; echo 1 > /sys/kernel/mm/ksm/run",
        ),
        (&["--cap-add", "ALL"], "nsenter -t 1 -m ls /work"),
        (
            &["--cap-add", "ALL"],
            "date -s 2000-01-01; test $(date +%Y) = 2000",
        ),
    ] {
        let tried = run(
            &home,
            flags,
            &["sh", "-c", &format!("{{ {script}; }} >/dev/null 2>&1")],
        );
        assert_ne!(tried.code(), 0, "{flags:?} {script}");
        // It ran, and was not refused by mica.
        assert!(
            !(125..=127).contains(&tried.code()),
            "{script}: {} {}",
            tried.code(),
            tried.stderr()
        );
    }
    // Nothing outside is seen, and so neither traced nor killed.
    let bystander = Command::new("sleep").arg("1000").spawn();
    let mut bystander = bystander.unwrap();
    let seen = sh(&home, "ls -d /proc/[0-9]* | wc -l; kill -9 -1; echo on");
    assert!(
        seen.stdout()
            .trim()
            .lines()
            .next()
            .unwrap()
            .trim()
            .parse::<u32>()
            .unwrap()
            < 6
    );
    assert!(exists(bystander.id().to_string()));
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    // A set-user-ID program gives its caller nothing.
    let script =
        "cp /bin/busybox /tmp/id; chown 0 /tmp/id; chmod 4755 /tmp/id; exec su app -c '/tmp/id -u'";
    let script = run(&home, &[], &["sh", "-c", script]);
    assert_eq!(script.stdout().trim(), "1000", "{}", script.stderr());
    home.assert_nothing_left();
}
