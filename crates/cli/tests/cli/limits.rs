//! What limits a sandbox: its machine's process, its files, its commands and its disks; and memory
//! that it gives back.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::support::{Home, Running, wait_until};

/// Without a control group, a sandbox that requires one does not start, and the message has the
/// reason.
#[test]
#[ignore = "needs a built guest"]
fn a_sandbox_with_required_limits_does_not_start_without_them() {
    let home = Home::new();
    let whole = micabox_vmm::control_groups();
    let whole = whole.is_ok_and(|(_, controllers)| controllers.len() == 3);
    let run = home.output(&["run", "--rm", "--require-limits", "box", "true"]);
    if whole {
        assert_eq!(run.code(), 0, "{}", run.stderr())
    } else {
        assert_eq!(run.code(), 125);
        assert!(
            run.stderr().contains("can't be limited"),
            "{}",
            run.stderr()
        );
    }
    home.assert_nothing_left();
}

/// Prints what the mounts of the sandbox below allow. `X` is what can't be written.
const LOOK: &str = "\
    for f in / /etc/hosts /sys /srv /deep/er /etc/in; do \
        grep \" $f \" /proc/mounts | cut -d' ' -f2-3; \
        (: >> $f/x || : >> $f) 2>/dev/null || echo X; \
    done; \
    : > /dev/shm/x && : > /run/x && : > /srv/x && echo writable; \
    stat -c '%n %a %u:%g' /srv /scratch /run; \
    grep -E ' (/scratch|/run) ' /proc/mounts | cut -d' ' -f4; \
    head -c 2m /dev/zero 2>/dev/null > /scratch/x; wc -c < /scratch/x; rm /scratch/x; \
    df -k /dev/shm | tail -1 | awk '{print $2}'; \
    ls /deep /etc/in";

const SEEN: &str = "\
    / overlay\nX\n\
    /etc/hosts tmpfs\nX\n\
    /sys sysfs\nX\n\
    /srv tmpfs\n\
    /deep/er tmpfs\nX\n\
    /etc/in tmpfs\nX\n\
    writable\n\
    /srv 755 0:0\n/scratch 700 7:8\n/run 1777 0:0\n\
    rw,relatime,size=1024k,mode=700,uid=7,gid=8\n\
    rw,nosuid,nodev,noexec,relatime\n\
    1048576\n\
    3072\n\
    /deep:\ner\n\n/etc/in:\n";

/// A read-only root, the size of `/dev/shm` and filesystems in memory are as Docker has them, in
/// every start of a sandbox.
#[test]
#[ignore = "needs a built guest"]
fn mounts_and_a_read_only_root_are_there_in_every_start() {
    let home = Home::new();
    let run = home.output(&[
        "run",
        "--name",
        "kept",
        "--upper",
        "disk:64m",
        "--read-only",
        "--shm-size",
        "3m",
        "--tmpfs",
        "/srv",
        "--tmpfs",
        "/scratch:size=1m,mode=700,uid=7,gid=8,exec,suid,dev",
        "--mount",
        "type=tmpfs,dst=/deep/er,ro",
        "--mount",
        "type=tmpfs,dst=/alias/in,ro",
        "--symlink",
        "/etc:/alias",
        "--tmpfs",
        "/run",
        "box",
        "sh",
        "-c",
        LOOK,
    ]);
    assert_eq!(run.ok(), SEEN);
    let record = home.output(&["inspect", "kept"]).json();
    let setup = &record[0]["sandbox"]["setup"];
    assert_eq!(setup["read_only"], true);
    assert_eq!(setup["shm_size"], 3 << 20);
    let targets = setup["mounts"].as_array().unwrap().iter();
    let targets: Vec<_> = targets.map(|mount| mount["target"].as_str()).collect();
    let wanted = ["/srv", "/scratch", "/run", "/deep/er", "/alias/in"];
    assert_eq!(targets, wanted.map(Some));
    assert_eq!(home.output(&["start", "-a", "kept"]).ok(), SEEN);
    home.output(&["rm", "kept"]).ok();

    // A link out of the root leads nowhere, and what can't be mounted is named.
    let run = home.output(&["run", "--rm", "--tmpfs", "/bin/sh/x", "box", "true"]);
    assert_eq!(run.code(), 125);
    let text = run.stderr();
    assert!(
        text.contains("make the directory: /bin/sh/x: Not a directory"),
        "{text}"
    );
    home.assert_nothing_left();
}

/// Prints what limits a process, and tries what the limits forbid.
const LIMITS: &str = "\
    grep -E '^Cap(Inh|Prm|Eff|Bnd)' /proc/self/status; \
    ulimit -Sn; ulimit -Hn; ulimit -c; id -G; cat /sys/fs/cgroup/pids.max; \
    : > /tmp/x$$; chown 5 /tmp/x$$ && echo may chown; \
    mount -t tmpfs none /root; echo 1 > /sys/fs/cgroup/pids.max; true";

const LIMITED: &str = "\
    CapInh:\t0000000000000000\n\
    CapPrm:\t0000000000000001\n\
    CapEff:\t0000000000000001\n\
    CapBnd:\t0000000000000001\n\
    100\n200\n0\n0 50 4242\n20\n\
    may chown\n\
    mount: permission denied (are you root?)\n\
    sh: can't create /sys/fs/cgroup/pids.max: Read-only file system\n";

/// Limits of processes hold for the first command and for those of `mica exec`.
#[test]
#[ignore = "needs a built guest"]
fn limits_of_commands_hold_for_all_of_them() {
    let home = Home::new();
    let first = format!("({LIMITS}) > /tmp/first 2>&1; touch /tmp/done; exec tail -f /dev/null");
    let flags = "run -d --rm --name it --pids-limit 20 --ulimit nofile=100:200 --ulimit core=0 \
                 --cap-drop ALL --cap-add chown --group-add staff --group-add 4242 box sh -c";
    let mut run: Vec<&str> = flags.split_whitespace().collect();
    run.push(&first);
    home.output(&run).ok();
    let exec = |script: &str| home.output(&["exec", "it", "sh", "-c", script]).ok();
    let wait = "while [ ! -e /tmp/done ]; do usleep 10000; done; cat /tmp/first";
    assert_eq!(exec(wait), LIMITED);
    assert_eq!(exec(&format!("({LIMITS}) 2>&1")), LIMITED);

    let bomb = "n=0; while [ $n -lt 40 ]; do sleep 1000 & n=$((n+1)); done";
    let run = home.output(&["exec", "it", "sh", "-c", bomb]);
    assert!(run.stderr().contains("can't fork"), "{}", run.stderr());
    // There is room for one's own command, to clean up with.
    home.output(&["exec", "it", "killall", "sleep"]).ok();

    let record = home.output(&["inspect", "it"]).json();
    let sandbox = &record[0]["sandbox"];
    assert_eq!(sandbox["setup"]["pids_limit"], 20);
    assert_eq!(sandbox["defaults"]["confinement"]["capabilities"], 1);
    home.output(&["stop", "-t", "0", "it"]);

    let run = home.output(&["run", "--rm", "--group-add", "ghosts", "box", "true"]);
    assert_eq!(run.code(), 125);
    let text = run.stderr();
    assert!(
        text.contains("group ghosts is not in the image's /etc/group"),
        "{text}"
    );
    let run = home.output(&["run", "--rm", "--ulimit", "nofile=99999999", "box", "true"]);
    assert_eq!(run.code(), 125);
    let text = run.stderr();
    assert!(
        text.contains("set the resource limit nofile: operation not permitted"),
        "{text}"
    );
    home.assert_nothing_left();
}

/// A disk's writes beyond its rate wait, and the rest of the machine does not.
#[test]
#[ignore = "needs a built guest"]
fn a_disk_has_a_rate_in_every_start() {
    let home = Home::new();
    let flags = "run --name it --upper disk:64m --disk-rate write=2m --net-rate in=1m box sh -c";
    let script = "cat /proc/uptime; dd if=/dev/zero of=/x bs=1M count=4 conv=fsync 2>/dev/null; \
                  cat /proc/uptime";
    let mut run: Vec<&str> = flags.split_whitespace().collect();
    run.push(script);
    for arguments in [&run[..], &["start", "-a", "it"]] {
        let mut running = home.start(arguments);
        // The guest's own clock: a line may be late.
        let mut uptime = || -> f64 {
            let line = running.line();
            line.split(' ').next().unwrap().parse().unwrap()
        };
        let (begun, ended) = (uptime(), uptime());
        assert!(ended - begun >= 1.5, "{begun} {ended}");
        running.wait();
    }
    let record = home.output(&["inspect", "it"]).json();
    let sandbox = &record[0]["sandbox"];
    assert_eq!(sandbox["disk_rate"]["write"], 2 << 20);
    assert_eq!(
        sandbox["spec"]["network"]["user"]["rate"]["incoming"],
        1 << 20
    );
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

/// Memory that the guest frees is the host's again, also where it is shared with the server of a
/// folder.
#[test]
#[ignore = "needs a built guest"]
fn freed_memory_goes_back_to_the_host() {
    const MIB: u64 = 1 << 20;
    let home = Home::new();
    let folder = format!("{}:/w", home.path().display());
    let script = "dd if=/dev/zero of=/dev/shm/x bs=1M count=200 2>/dev/null; echo full; read next; \
                  rm /dev/shm/x; echo freed; read end; exit 7";
    for folders in [&[][..], &["-v", &folder]] {
        let run = "run -i --rm --backend qemu --net none --shm-size 200m";
        let run: Vec<&str> = run.split(' ').collect();
        let mut mica = home.mica(&[&run, folders, &["box", "sh", "-c", script]].concat());
        mica.stdin(Stdio::piped());
        let mut sandbox = Running::new(mica);
        let mut stdin = sandbox.stdin().unwrap();
        assert_eq!(sandbox.line(), "full");
        let full = resident(&home);
        assert!(full > 200 * MIB, "{full}");
        stdin.write_all(b"next\n").unwrap();
        assert_eq!(sandbox.line(), "freed");
        // The guest reports free memory within seconds.
        wait_until("memory is given back", || {
            resident(&home) < full - 150 * MIB
        });
        drop(stdin);
        assert_eq!(sandbox.wait(), 7);
    }
    home.assert_nothing_left();
}

/// Returns the resident bytes of all machines' processes.
fn resident(home: &Home) -> u64 {
    let pages = home.machines().into_iter().filter_map(|process| {
        let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    pages.sum::<u64>() * 4096
}
