//! Sandboxes on this machine's own kernel (`--backend host`) of users who are not root.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use micabox::GuestFiles;
use micabox_testing::shell;
use rustix::process::Signal;

use crate::support::host::{arguments, processes_of, signal_holders};
use crate::support::{Finished, Home, Running, image, wait_until};

/// A user who is not root, on a machine where `/dev/fuse` and `/dev/net/tun` are for all, as udev makes
/// them.
struct User {
    home: Home,
}

/// Runs the program `$2` with the guest in `$3` as the user whose files are in `$1`, where that user can reach
/// both: only root may be able to enter the directory that they were built in, or to execute the program.
const AS_USER: &str = r#"
    set -e; files=$1 program=$2 guest=$3; shift 3
    mount --make-rprivate /
    [ -e "$files/mica" ] || install -m 755 "$program" "$files/mica"; mount --bind "$guest" "$files/guest"
    for device in fuse net/tun; do mount --bind "$files/dev/${device#net/}" /dev/$device; done
    mount -t tmpfs etc "$files/etc"; mkdir "$files/etc/upper" "$files/etc/work"
    mount -t overlay -o "lowerdir=/etc,upperdir=$files/etc/upper,workdir=$files/etc/work" etc /etc
    echo tester:x:1234:1234::/:/bin/sh >> /etc/passwd; chmod 644 /etc/passwd
    cp "$files/subordinate" /etc/subuid; cp "$files/subordinate" /etc/subgid
    exec setpriv --reuid 1234 --regid 1234 --clear-groups "$files/mica" "$@""#;

impl User {
    /// Makes a user with these lines of subuid(5).
    fn new(subordinate: &str) -> Self {
        let home = Home::empty();
        shell(
            home.path(),
            "chmod 755 .; mkdir guest dev etc t t/owned; mknod dev/fuse c 10 229; mknod dev/tun c 10 200; \
             chmod 666 dev/*; echo text >t/owned/file; chown 1000:50 t/owned/file; chmod 640 t/owned/file; \
             echo far >t/owned/far; chown 70000 t/owned/far; tar -C t -cf layer.tar owned",
        );
        fs::write(home.path().join("subordinate"), subordinate).unwrap();
        let mut layers = image::layers();
        layers.push(fs::read(home.path().join("layer.tar")).unwrap());
        home.load(&layers, &image::config());
        shell(home.path(), "chown -R 1234:1234 store");
        Self { home }
    }

    fn mica(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", AS_USER, "sh"]);
        let program = Path::new(env!("CARGO_BIN_EXE_mica"));
        let guest = GuestFiles::find_for(program).unwrap();
        command.arg(self.home.path()).arg(program);
        command.arg(guest.kernel.parent().unwrap()).args(words);
        command
            .env("MICABOX_HOME", self.home.store())
            .env("MICABOX_GUEST", self.home.path().join("guest"))
            .env("MICABOX_CONFIG", "/dev/null")
            .stdin(Stdio::null());
        command
    }

    fn output(&self, words: &[&str]) -> Finished {
        Finished::of(self.mica(words))
    }

    fn run(&self, flags: &[&str], script: &str) -> Finished {
        let flags = [&["--rm"], flags].concat();
        self.output(&arguments(&flags, &["sh", "-c", script]))
    }

    fn start(&self, name: &str) -> Running {
        let flags = ["--rm", "--net", "none", "--name", name];
        let script = "echo runs; exec sleep 1000";
        let mut running = Running::new(self.mica(&arguments(&flags, &["sh", "-c", script])));
        assert_eq!(running.line(), "runs");
        running
    }

    /// Fails unless no process, mount and directory is left.
    fn assert_nothing_left(&self) {
        self.home.assert_nothing_left();
        wait_until("no process is left", || {
            self.home.processes("mica-lower").is_empty() && self.processes().is_empty()
        });
    }

    /// Returns the processes of the user and of their subordinate IDs.
    fn processes(&self) -> Vec<String> {
        let mut all = processes_of(700_000);
        all.extend(processes_of(1234).into_iter().filter(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| status.contains("\nUid:\t1234\t"))
        }));
        all
    }
}

#[test]
#[ignore = "needs root and a built guest: becomes another user"]
fn a_user_with_subordinate_ids_has_all_owners() {
    let user = User::new("tester:700000:65536\n");
    let look = "id -u; stat -c %u:%g /srv/run /owned/file /owned/far; cat /owned/file; \
        echo more >>/owned/file; stat -c %u:%g:%s /owned/file; chown 7:8 /srv/run; stat -c %u:%g /srv/run; \
        cat /proc/self/uid_map | tr -s ' '; rm -r /srv/hidden; mkdir /srv/hidden; ls /srv/hidden; exit 3";
    let run = user.run(&["--net", "none"], look);
    assert_eq!(
        run.stdout(),
        "0\n0:0\n1000:50\n65534:0\ntext\n1000:50:10\n7:8\n 0 0 65536\n",
        "{}",
        run.stderr()
    );
    assert_eq!(run.code(), 3);
    // Permissions hold, and another user is one.
    let denied = user.output(&arguments(
        &["--rm", "--net", "none", "-u", "app:app"],
        &[
            "sh",
            "-c",
            "id -u; cat /owned/file; cat /etc/shadow /srv/hidden/new || echo denied",
        ],
    ));
    assert_eq!(
        denied.stdout(),
        "1000\ntext\ndenied\n",
        "{}",
        denied.stderr()
    );
    let doctor = user.output(&["doctor", "--json"]);
    assert!(
        doctor.stdout().contains("subordinate IDs"),
        "{}",
        doctor.stdout()
    );
    user.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest: becomes another user"]
fn a_user_without_subordinate_ids_is_told_that_all_files_are_roots() {
    let user = User::new("");
    let look = "id -u; stat -c %u:%g /owned/file /owned/far /; cat /owned/file; echo more >>/owned/file; \
        cat /owned/file; chown 1000 /owned/file || echo one user; cat /proc/self/uid_map | tr -s ' '; exit 4";
    let run = user.run(&["--net", "none"], look);
    assert_eq!(
        run.stdout(),
        "0\n0:0\n0:0\n0:0\ntext\ntext\nmore\none user\n 0 0 1\n",
        "{}",
        run.stderr()
    );
    assert_eq!(run.code(), 4);
    let said = user.output(&[
        "run",
        "--rm",
        "--net",
        "none",
        "--backend",
        "host",
        "box",
        "true",
    ]);
    assert_eq!(said.code(), 0, "{}", said.stderr());
    assert_eq!(said.stderr().lines().count(), 1, "{}", said.stderr());
    assert!(said.stderr().contains("/etc/subuid"), "{}", said.stderr());
    let other = user.output(&arguments(
        &["--rm", "--net", "none", "-u", "app"],
        &["true"],
    ));
    assert!(
        other.code() != 0 && other.stderr().contains("only user"),
        "{}",
        other.stderr()
    );
    // The agent is the same user's, so no command may trace it.
    let capabilities = "grep CapEff: /proc/self/status | tr -d '[:space:]'";
    let traces = user.run(&["--net", "none", "--cap-add", "SYS_PTRACE"], capabilities);
    assert_eq!(traces.stdout(), "CapEff:00000000a80425fb");
    // What takes a control group is refused where there is none.
    let limited = user.run(&["--pids-limit", "100"], "true");
    assert!(
        limited.code() == 125 && limited.stderr().contains("control group"),
        "{}",
        limited.stderr()
    );
    let limited = user.run(&["-m", "256m"], "true");
    assert!(
        limited.code() == 125 && limited.stderr().contains("control group"),
        "{}",
        limited.stderr()
    );
    user.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest: becomes another user"]
fn containers_of_a_user_share_a_holder_and_end_with_it() {
    for subordinate in ["tester:700000:65536\n", ""] {
        let user = User::new(subordinate);
        let (one, two) = (user.start("one"), user.start("two"));
        assert_eq!(user.home.held_images().len(), 1);
        assert_eq!(
            user.output(&["exec", "one", "cat", "/srv/kept/old"]).code(),
            0
        );
        let alone = user.output(&["exec", "two", "sh", "-c", "ls -d /proc/[0-9]* | wc -l"]);
        assert!(
            alone.stdout().trim().parse::<u32>().unwrap() < 6,
            "{}",
            alone.stdout()
        );
        let paused = user.output(&["pause", "one"]);
        assert!(
            paused.stderr().contains("control group"),
            "{}",
            paused.stderr()
        );
        user.output(&["kill", "one"]).ok();
        one.wait();
        assert_eq!(user.output(&["exec", "two", "ls", "/srv/kept"]).code(), 0);
        // Without the server of its files, a container is of no use.
        signal_holders(&user.home, Signal::KILL);
        assert_ne!(two.wait(), 0);
        user.output(&["ps"]).ok();
        user.assert_nothing_left();
        let keeper = user.start("three");
        let owner = user.home.sandboxes();
        let owner = owner
            .iter()
            .find(|path| !path.to_str().unwrap().contains("/lower-"));
        let record = fs::read(owner.unwrap().join("state.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let machine = record["machine"]["pid"].as_i64().unwrap();
        let machine = rustix::process::Pid::from_raw(machine.try_into().unwrap()).unwrap();
        rustix::process::kill_process(machine, rustix::process::Signal::KILL).unwrap();
        assert_ne!(keeper.wait(), 0);
        user.output(&["ps"]).ok();
        user.assert_nothing_left();
    }
}

#[test]
#[ignore = "needs root and a built guest: becomes another user"]
fn a_user_has_the_network_of_a_machine() {
    let user = User::new("tester:700000:65536\n");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(&vec![b'x'; 300_000]);
        }
    });
    let fetch = format!("nc host.mica.internal {port} | wc -c");
    let open = user.run(&["--net-allow", "127.0.0.0/8"], &fetch);
    assert_eq!(open.stdout().trim(), "300000", "{}", open.stderr());
    let image = user.run(
        &[
            "--net",
            "none",
            "--mount",
            "type=image,source=box,target=/mnt",
        ],
        "stat -c %u:%g /mnt/owned/file; cat /mnt/owned/file",
    );
    assert_eq!(image.stdout(), "1000:50\ntext\n", "{}", image.stderr());
    user.assert_nothing_left();
    shell(user.home.path(), "chmod 600 dev/tun");
    let refused = user.run(&[], "true");
    assert!(
        refused.code() == 125 && refused.stderr().contains("--network none"),
        "{}",
        refused.stderr()
    );
    shell(user.home.path(), "chmod 600 dev/fuse");
    let refused = user.run(&["--net", "none"], "true");
    assert!(
        refused.code() == 125 && refused.stderr().contains("/dev/fuse"),
        "{}",
        refused.stderr()
    );
    user.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest: becomes another user"]
fn a_guest_that_the_user_may_not_see_is_told_from_one_that_is_missing() {
    let user = User::new("");
    let place = user.home.path().join("private");
    shell(user.home.path(), "mkdir -m 700 private");
    let run = || {
        let mut mica = user.mica(&arguments(&["--net", "none"], &["true"]));
        mica.env("MICABOX_GUEST", &place);
        Finished::of(mica).stderr()
    };
    let denied = run();
    assert!(
        denied.contains("private/initrd.cpio: permission denied"),
        "{denied}"
    );
    assert!(denied.contains("this user may read"), "{denied}");
    shell(user.home.path(), "chmod 755 private");
    let missing = run();
    assert!(
        missing.contains("guest file initrd.cpio not found in"),
        "{missing}"
    );
}
