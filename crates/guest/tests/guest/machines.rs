//! The agent as process 1 of real machines.

use micabox_wire::{
    Exec, ExitStatus, Identity, Init, OutputStream, Reattach, Restore, Setup, StartFailure,
    ToGuest, ToHost, TtySize, Upper,
};

use crate::host::{command, shell};
use crate::machine::{Attach, Machine, disk, lower, plan, userland};

/// Boots a machine with the userland as its only layer, on a disk.
fn booted(init: Init) -> (Machine, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let image = userland().image(directory.path());
    let mut machine = Machine::start(&[Attach::Disk {
        path: &image,
        serial: "image",
    }]);
    let mut boot = plan(vec![lower(disk("image", None))]);
    boot.init = init;
    machine.boot(boot).unwrap();
    (machine, directory)
}

#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_looks_as_docker_makes_it() {
    let directory = tempfile::tempdir().unwrap();
    let image = userland().image(directory.path());
    let mut machine = Machine::start(&[Attach::Disk {
        path: &image,
        serial: "image",
    }]);
    assert!(
        machine.hello.kernel.starts_with("6.12"),
        "{:?}",
        machine.hello
    );
    assert!(machine.hello.memory_bytes > 400 << 20);
    assert_eq!(machine.hello.cpus, 1);
    let mut boot = plan(vec![lower(disk("image", None))]);
    boot.upper = Upper::Tmpfs {
        size_bytes: Some(8 << 20),
        patches: None,
    };
    let timings = machine.boot(boot).unwrap();
    eprintln!("init after {} us", machine.hello.init_uptime_us);
    for phase in timings.phases {
        eprintln!("{:>20} {:>8} us", phase.name, phase.micros);
    }
    let host = &mut machine.host;
    let mounts = host.run(command(&["cat", "/proc/mounts"]));
    let mut mounts: Vec<_> = mounts
        .text()
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>()[1..3].join(" "))
        .collect();
    mounts.sort();
    assert_eq!(
        mounts,
        [
            "/ overlay",
            "/dev tmpfs",
            "/dev/mqueue mqueue",
            "/dev/pts devpts",
            "/dev/shm tmpfs",
            "/etc/hostname tmpfs",
            "/etc/hosts tmpfs",
            "/etc/machine-id tmpfs",
            "/etc/resolv.conf tmpfs",
            "/proc proc",
            "/sys sysfs",
            "/sys/fs/cgroup cgroup2",
        ]
    );
    for (script, wanted) in [
        (
            "cd /dev; echo *",
            "console fd full fuse mqueue null ptmx pts random shm stderr stdin stdout tty urandom vsock zero\n",
        ),
        (
            "cat /etc/hostname; uname -n; echo $HOSTNAME",
            "box\nbox\nbox\n",
        ),
        (
            "grep -c box /etc/hosts; cat /etc/machine-id /etc/resolv.conf",
            "1\n0123456789abcdef0123456789abcdef\nnameserver 192.0.2.1\n",
        ),
        // The clock starts at 22:13:20.
        ("date -u +%Y-%m-%dT%H", "2023-11-14T22\n"),
        ("cat /sys/class/net/lo/operstate", "unknown\n"),
        ("stat -c '%a %u %Y' /", "755 0 1600000000\n"),
        ("stat -c '%a' /tmp /dev/null /dev/shm", "1777\n666\n1777\n"),
        ("ulimit -n; ulimit -Hn; umask", "1024\n524288\n0022\n"),
        // The same device number for all files, changed or not, for tools that stay in one
        // filesystem.
        (
            "echo > /new; stat -c %d / /etc /etc/passwd /new | sort -u | wc -l",
            "1\n",
        ),
        ("head -c 16 /dev/urandom | wc -c", "16\n"),
        (
            "mkdir /sys/fs/cgroup/one && cat /sys/fs/cgroup/one/cgroup.procs | wc -l",
            "0\n",
        ),
        (
            "dd if=/dev/zero of=/big bs=1M 2>&1 | grep -c 'No space left'; rm /big",
            "1\n",
        ),
        (
            "exec 2>&1; echo x > /dev/stdout; echo y > /dev/stderr",
            "x\ny\n",
        ),
        (
            "cat /proc/1/comm; ls -l /proc/1/fd | grep -c null",
            "mica-init\n3\n",
        ),
    ] {
        let run = host.run(shell(script));
        assert_eq!(
            run.text(),
            wanted,
            "{script}: {}",
            String::from_utf8_lossy(&run.stderr)
        );
    }
    let mut spec = shell("id; cd; pwd");
    spec.user = "app".to_owned();
    spec.cwd = b"/home/app".to_vec();
    spec.make_cwd = true;
    assert_eq!(
        host.run(spec).text(),
        "uid=1000(app) gid=1000(app) groups=1000(app),29(audio)\n/home/app\n"
    );
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn an_exit_code_survives_everything_a_sandbox_does_to_itself() {
    let (mut machine, _directory) = booted(Init::Reaper);
    let host = &mut machine.host;
    // The agent is not among the processes.
    let run = host.run(shell("cd /proc; set -- [0-9]*; echo $#; cat 1/comm"));
    assert_eq!(run.text(), "2\nmica-init\n");
    // Kills all processes but the caller and process 1.
    host.exec(7, command(&["sleep", "1000"]));
    host.started(7);
    host.exec(8, shell("kill -9 -1; exit 5"));
    let runs = host.follow(&[7, 8], 65536, None);
    assert_eq!(runs[&7].status(), ExitStatus::Signaled(9));
    assert_eq!(runs[&8].status(), ExitStatus::Exited(5));
    // Orphans are reaped: only process 1 and the shell are left.
    let run = host.run(shell(
        "(true & true & true & exec sleep 0); cd /proc; \
         while set -- [0-9]*; [ $# -gt 2 ]; do sleep 0.05; done; echo $#",
    ));
    assert_eq!(run.text(), "2\n");
    // The agent does not wait for endless account files.
    host.run(shell(
        "rm /etc/passwd /etc/group; mkfifo /etc/passwd; ln -s /dev/zero /etc/group",
    ));
    let failure = host.run(command(&["true"])).failure().clone();
    assert_eq!(failure.reason, StartFailure::NoSuchUser, "{failure:?}");
    host.exec(9, command(&["true"]));
    let failure = host.follow(&[9], 65536, None)[&9].failure().clone();
    assert!(failure.message.starts_with("/etc/passwd: "), "{failure:?}");
    machine.shut_down();

    let (mut machine, _directory) = booted(Init::Reaper);
    let host = &mut machine.host;
    let run = host.run(shell(
        "kill -9 1; kill -TERM 1; umount -a -l; umount -l /; exit 6",
    ));
    assert_eq!(run.status(), ExitStatus::Exited(6));
    let mut spec = shell("test -t 0 && echo still there");
    spec.tty = Some(TtySize {
        rows: 1,
        columns: 80,
    });
    assert_eq!(host.run(spec).text(), "still there\r\n");
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn the_first_command_can_be_process_1() {
    let (mut machine, _directory) = booted(Init::FirstExec);
    let host = &mut machine.host;
    host.exec(1, shell("echo $$; exec sleep 1000"));
    assert_eq!(host.started(1), 1);
    assert_eq!(host.output_with(1, "\n"), "1\n");
    // A signal without a handler has no effect on it.
    host.send(ToGuest::Signal { id: 1, signal: 15 });
    host.exec(2, shell("kill -INT 1; kill -KILL 1; exit 3"));
    assert_eq!(
        host.follow(&[2], 65536, None)[&2].status(),
        ExitStatus::Exited(3)
    );
    // When it ends, all other processes end.
    host.exec(3, command(&["sleep", "1000"]));
    host.started(3);
    host.send(ToGuest::Signal { id: 1, signal: 9 });
    let runs = host.follow(&[1, 3], 65536, None);
    assert_eq!(runs[&1].status(), ExitStatus::Signaled(9));
    assert_eq!(runs[&3].status(), ExitStatus::Signaled(9));
    let run = host.run(command(&["true"]));
    assert_eq!(run.failure().reason, StartFailure::Other);
    assert!(
        run.failure().message.contains("process 1 has ended"),
        "{:?}",
        run.failure()
    );
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn commands_behave_as_on_this_machine() {
    let (mut machine, _directory) = booted(Init::Reaper);
    let host = &mut machine.host;
    for (lines, window) in [(500, 1), (200_000, 4096), (200_000, 1 << 20)] {
        let mut spec = shell(&format!("seq {lines}; exit 3"));
        spec.output_window = window;
        let run = host.run(spec);
        let wanted: String = (1..=lines).map(|line| format!("{line}\n")).collect();
        assert!(run.stdout == wanted.as_bytes(), "window {window}");
        assert_eq!(run.status(), ExitStatus::Exited(3));
    }
    let input: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let run = host.run_with(command(&["cat"]), &input);
    assert!(run.stdout == input);
    let mut spec = shell(
        "stty size; readlink /proc/self/fd/0; stat -c '%u %g' /dev/pts/0; tty=$(cat); echo $tty",
    );
    spec.tty = Some(TtySize {
        rows: 33,
        columns: 99,
    });
    spec.user = "app".to_owned();
    let run = host.run_with(spec, b"typed\n\x04");
    // The terminal echoes the typed text, at any point of the output.
    let text = run.text().replacen("typed\r\n", "", 1);
    assert_eq!(text, "33 99\r\n/dev/pts/0\r\n1000 5\r\ntyped\r\n");
    let mut floods: Vec<u32> = (10..40).collect();
    for &id in &floods {
        let mut spec = command(&["yes"]);
        spec.output_window = 10_000;
        host.exec(id, spec);
    }
    // They use up their windows and block no other command.
    let mut got = 0;
    while got < 30 * 10_000 {
        match host.receive() {
            ToHost::Started { .. } => {}
            ToHost::Output { data, .. } => got += data.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(host.run(shell("echo through")).text(), "through\n");
    for &id in &floods {
        host.send(ToGuest::Signal { id, signal: 9 });
        let stream = OutputStream::Stdout;
        host.send(ToGuest::Credit {
            id,
            stream,
            bytes: 1 << 20,
        });
    }
    while !floods.is_empty() {
        match host.receive() {
            ToHost::Output { .. } => {}
            ToHost::Exited {
                id,
                status: ExitStatus::Signaled(9),
            } => floods.retain(|&other| other != id),
            other => panic!("{other:?}"),
        }
    }
    let run = host.run(command(&["nothing"]));
    assert_eq!(run.failure().exit_code(), 127);
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn a_machine_ends_with_its_host() {
    let (mut machine, _directory) = booted(Init::Reaper);
    machine.host.exec(1, command(&["sleep", "1000"]));
    machine.host.started(1);
    machine
        .host
        .stream
        .shutdown(std::net::Shutdown::Both)
        .unwrap();
    assert!(machine.ended().success());
    assert!(machine.console().contains("mica-guest: the host is gone"));
}

#[test]
#[ignore = "needs a built guest"]
fn commands_that_run_at_the_end_do_not_keep_the_machine() {
    let (mut machine, _directory) = booted(Init::Reaper);
    for id in 1..5 {
        let spec = Exec {
            stdin: true,
            ..shell("trap '' TERM INT HUP; (sleep 1000 &); while :; do echo; done")
        };
        machine.host.exec(id, spec);
    }
    machine.shut_down();
}

/// Quiesces the agent, as before a copy is made.
fn quiesce(machine: &mut Machine) {
    machine.host.send(ToGuest::Quiesce);
    while !matches!(machine.host.receive(), ToHost::Quiesced) {}
}

#[test]
#[ignore = "needs a built guest"]
fn a_restored_copy_is_another_machine_and_keeps_one_command() {
    let (mut machine, _directory) = booted(Init::Reaper);
    for (id, script) in [
        (
            11,
            "trap 'echo kept' USR1; echo ready; while :; do sleep 0.05; done",
        ),
        (
            12,
            "echo ready; n=0; while :; do n=$((n+1)); echo $n > /left; sleep 0.05; done",
        ),
    ] {
        machine.host.exec(id, shell(script));
        machine.host.started(id);
        machine.host.output_with(id, "ready\n");
    }
    let hear = |machine: &mut Machine| {
        machine.host.send(ToGuest::Signal { id: 11, signal: 10 });
        machine.host.output_with(11, "kept\n");
    };
    let before = machine.host.run(shell(
        "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid",
    ));

    // The original continues unchanged, except for the time.
    quiesce(&mut machine);
    machine.host.send(ToGuest::Thaw {
        wall_clock: (1_750_000_000, 0),
        entropy: [8; 32],
    });
    hear(&mut machine);
    let same = machine
        .host
        .run(shell("uname -n; cat /etc/machine-id; date -u +%Y"));
    assert_eq!(same.text(), "box\n0123456789abcdef0123456789abcdef\n2025\n");

    // The agent can't tell whether it really runs in a copy.
    quiesce(&mut machine);
    let output_window = 1 << 20;
    machine.host.send(ToGuest::Restore(Box::new(Restore {
        identity: Identity {
            hostname: "copy".to_owned(),
            machine_id: "f".repeat(32),
            resolv_conf: b"nameserver 192.0.2.9\n".to_vec(),
            network: None,
            wall_clock: (1_800_000_000, 0),
            entropy: [9; 32],
        },
        reattach: Some(Reattach {
            id: 11,
            output_window,
        }),
        setup: Setup::default(),
    })));
    assert_eq!(machine.host.receive(), ToHost::Restored);
    machine.host.started(11);
    hear(&mut machine);
    let other = machine.host.run(shell(
        "uname -n; cat /etc/hostname; echo $HOSTNAME; grep -c copy /etc/hosts; \
         cat /etc/machine-id /etc/resolv.conf; date -u +%Y",
    ));
    assert_eq!(
        other.text(),
        format!(
            "copy\ncopy\ncopy\n1\n{}\nnameserver 192.0.2.9\n2027\n",
            "f".repeat(32)
        )
    );
    let after = machine.host.run(shell(
        "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid",
    ));
    assert_ne!(after.text(), before.text());
    // The other command continues without output to the host, and its id is free.
    let runs = "a=$(cat /left); while [ $(cat /left) = $a ]; do sleep 0.05; done; echo yes";
    machine.host.exec(12, shell(runs));
    machine.host.started(12);
    machine.host.output_with(12, "yes");
    machine.shut_down();
}

#[test]
#[ignore = "needs a built guest"]
fn a_restored_copy_reports_that_its_command_had_ended() {
    let (mut machine, _directory) = booted(Init::Reaper);
    quiesce(&mut machine);
    machine.host.send(ToGuest::Restore(Box::new(Restore {
        identity: plan(Vec::new()).identity,
        reattach: Some(Reattach {
            id: 7,
            output_window: 1,
        }),
        setup: Setup::default(),
    })));
    assert_eq!(machine.host.receive(), ToHost::Restored);
    let answer = machine.host.receive();
    assert!(
        matches!(answer, ToHost::StartFailed { id: 7, .. }),
        "{answer:?}"
    );
    assert_eq!(machine.host.run(shell("echo well")).text(), "well\n");
    machine.shut_down();
}
