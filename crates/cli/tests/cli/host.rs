//! Sandboxes on this machine's own kernel (`--backend host`).

mod attacks;
mod walls;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use micabox_testing::shell;
use rustix::process::Signal;

use crate::support::host::{
    USERS, arguments, processes_of, run, sh, signal_holders, sleeping, wait_until_gone, with_mount,
};
use crate::support::{Finished, Home, exists, image, wait_until};

#[test]
#[ignore = "needs root and a built guest"]
fn commands_run_as_in_a_machine() {
    let home = Home::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let run = sh(&home, script);
        assert_eq!((run.code(), run.stderr().as_str()), (code, ""), "{script}");
    }
    let missing = run(&home, &[], &["no-such-program"]);
    assert_eq!(missing.code(), 127, "{}", missing.stderr());
    // Owners and modes of the image, the agent's files, and a command's own place.
    let look = "stat -c '%n %a %u:%g' /srv/run /srv/hidden /root /tmp; ls /srv /srv/hidden; pwd; hostname; \
        cat /etc/hostname; echo $FROM_IMAGE; id -u; readlink /proc/self/ns/user | cut -c1-4";
    let there = run(&home, &["--hostname", "here"], &["sh", "-c", look]);
    assert_eq!(
        there.ok(),
        "/srv/run 644 0:0\n/srv/hidden 750 0:0\n/root 700 0:0\n/tmp 1777 0:0\n/srv:\ndata\nhard\nhidden\n\
         kept\nrun\n\n/srv/hidden:\nnew\n/srv\nhere\nhere\nyes\n0\nuser\n"
    );
    let user = run(
        &home,
        &["-u", "app"],
        &[
            "sh",
            "-c",
            "id -u; touch /srv/x || touch /tmp/x; ls -ln /tmp",
        ],
    );
    assert_eq!(user.code(), 0);
    assert!(
        user.stdout().starts_with("1000\n") && user.stdout().contains(" 1000 "),
        "{}",
        user.stdout()
    );
    // Changes are overlayfs's: a directory that replaces one of the image is empty.
    let change = "rm -r hidden && mkdir hidden && ls hidden; rm data && ls; chown 1000:50 run; \
        stat -c %u:%g run; mv kept moved && ls moved";
    assert_eq!(
        run(&home, &[], &["sh", "-c", change]).ok(),
        "hard\nhidden\nkept\nrun\n1000:50\n+page.svelte\nold\n"
    );
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn what_is_missing_behind_links_of_the_image_is_made() {
    let home = Home::empty();
    let links = [
        ("etc", "usr/etc"),
        ("srv/dangling", "../opt/there"),
        ("srv/far", "/var/../var/made"),
    ];
    let links = image::links(&[".wh.etc"], &links);
    home.load(&[image::layers(), vec![links]].concat(), &image::config());
    let flags = [
        "--hostname",
        "here",
        "-w",
        "/srv/dangling/deep",
        "--tmpfs",
        "/srv/far/x",
    ];
    let look = "cat /etc/hostname; head -1 /usr/etc/hosts | cut -f2; pwd -P; readlink /etc
        readlink /srv/dangling; stat -f -c %T /var/made/x";
    assert_eq!(
        run(&home, &flags, &["sh", "-c", look]).ok(),
        "here\nlocalhost\n/opt/there/deep\nusr/etc\n../opt/there\ntmpfs\n"
    );
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn streams_and_init_are_a_machines() {
    let home = Home::new();
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 3) as u8).collect();
    let mut cat = home.mica(&arguments(&["--rm", "-i"], &["cat"]));
    let mut cat = cat
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = cat.stdin.take().unwrap();
    let sent = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut back = Vec::new();
    cat.stdout.take().unwrap().read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    assert!(cat.wait().unwrap().success() && back == data);
    let first = run(
        &home,
        &["--init=false"],
        &["sh", "-c", "echo $$; cat /proc/1/comm; true"],
    );
    assert_eq!(first.ok(), "1\nsh\n");
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn signals_reach_the_command_as_they_are() {
    let home = Home::new();
    // HUP, INT, QUIT, USR1, USR2, ALRM, CONT, WINCH, and two of the real-time ones.
    for signal in [1, 2, 3, 10, 12, 14, 18, 28, 36, 64] {
        let script = format!(
            "trap 'echo got; exit 7' {signal}; trap 'echo other; exit 8' TERM; \
             echo ready; while :; do sleep 0.05; done"
        );
        let mut running = home.start(&arguments(&["--rm"], &["sh", "-c", &script]));
        assert_eq!(running.line().trim(), "ready");
        let pid = running.pid().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &pid])
            .status();
        assert!(sent.unwrap().success());
        assert_eq!(running.line().trim(), "got", "{signal}");
        assert_eq!(running.wait(), 7, "{signal}");
    }
    // Without that they are for mica, and the sandbox continues.
    let flags = ["--name", "it", "--rm", "--sig-proxy=false"];
    let script = "echo ready; exec sleep 1000";
    let mut left = home.start(&arguments(&flags, &["sh", "-c", script]));
    assert_eq!(left.line().trim(), "ready");
    left.signal(15);
    assert_eq!(left.wait(), 128 + 15);
    assert!(home.output(&["top", "it"]).ok().contains("sleep 1000"));
    home.output(&["stop", "-t", "0", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn without_sig_proxy_a_sandbox_outlives_the_reader_of_its_output_and_its_mica() {
    let home = Home::new();
    let flags = ["--name", "it", "--rm", "--sig-proxy=false"];
    let script = "while :; do echo tick; echo tick >>/ticks; sleep 0.02; done";
    let mut command = home.mica(&arguments(&flags, &["sh", "-c", script]));
    let mut mica = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(mica.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "tick\n");
    let ticks_go_on =
        "n=$(wc -l </ticks); until [ $(wc -l </ticks) -gt $((n + 20)) ]; do sleep 0.02; done";
    home.output(&["exec", "it", "sh", "-c", ticks_go_on]).ok();
    mica.kill().unwrap();
    mica.wait().unwrap();
    home.output(&["exec", "it", "sh", "-c", ticks_go_on]).ok();
    home.output(&["stop", "-t", "0", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn output_that_can_not_be_written_is_a_failure_of_micas() {
    let home = Home::new();
    let to_full = |words: &[&str]| {
        let mut command = home.mica(words);
        command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
        let finished = Finished::of(command);
        assert_eq!(finished.code(), 125, "{words:?}: {}", finished.stderr());
        let said = finished.stderr();
        assert!(
            said.contains("No space left on device"),
            "{words:?}: {said}"
        );
    };
    let endless = "while :; do echo tick; done";
    to_full(&arguments(&["--rm"], &["echo", "once"]));
    to_full(&arguments(&["--rm"], &["sh", "-c", endless]));
    let ticks = "while :; do echo tick; sleep 0.05; done";
    let detached = arguments(&["-d", "--rm", "--name", "it"], &["sh", "-c", ticks]);
    home.output(&detached).ok();
    to_full(&["exec", "it", "echo", "once"]);
    to_full(&["exec", "it", "sh", "-c", endless]);
    to_full(&["attach", "it"]);
    home.output(&["stop", "-t", "0", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn flags_of_dockers_scripts_are_taken() {
    let home = Home::new();
    let id = home.path().join("id");
    let file = ["--cidfile", id.to_str().unwrap()];
    // The devices are the sandbox's own.
    let flags = [
        "-a",
        "STDOUT",
        "-a",
        "stderr",
        "--tty=false",
        "--restart",
        "no",
        "--privileged=false",
        "--network=bridge",
        "--ipc",
        "private",
        "-v",
        "/dev/null:/srv/data:ro",
        "-i=false",
        "--mount",
        "type=bind,src=/dev/zero,dst=/made/zero",
    ];
    let script = "wc -c </srv/data; echo x >/srv/data; head -c 3 /made/zero | wc -c; echo no >&2";
    let seen = run(&home, &[&flags[..], &file].concat(), &["sh", "-c", script]);
    assert_eq!((seen.code(), seen.stderr().as_str()), (0, "no\n"));
    assert_eq!(seen.stdout(), "0\n3\n");
    assert_eq!(fs::read_to_string(&id).unwrap().len(), 32);
    let again = run(&home, &file, &["true"]);
    assert_eq!(again.code(), 125);
    assert!(again.stderr().contains("File exists"), "{}", again.stderr());
    let quiet = run(&home, &["-a", "stderr"], &["sh", "-c", script]);
    assert_eq!(quiet.stdout(), "");
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn no_kernel_of_a_guest_is_needed() {
    let home = Home::new();
    let guest = micabox::GuestFiles::find_for(std::path::Path::new(env!("CARGO_BIN_EXE_mica")));
    let there = home.path().join("guest");
    fs::create_dir(&there).unwrap();
    fs::copy(guest.unwrap().initrd, there.join("initrd.cpio")).unwrap();
    let mut mica = home.mica(&arguments(&["--rm"], &["echo", "in"]));
    mica.env("MICABOX_GUEST", &there);
    assert_eq!(Finished::of(mica).ok(), "in\n");
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_shared_kernel_is_said_and_what_it_takes_away_is_refused() {
    let home = Home::new();
    let said = home.output(&["run", "--rm", "--backend", "host", "box", "true"]);
    assert_eq!(said.code(), 0);
    assert_eq!(said.stderr().lines().count(), 1, "{}", said.stderr());
    assert!(
        said.stderr().contains("shares this machine's kernel"),
        "{}",
        said.stderr()
    );
    let here = home.path().to_str().unwrap();
    let socket = home.path().join("vsock");
    for (flags, word) in [
        (&["--upper", "disk:64m"][..], "memory only"),
        (&["--root", "stacked"], "merged"),
        (&["--transport", "pmem"], "memory"),
        (&["-v", &format!("{here}:/mnt")], "folders"),
        (&["-v", "volume:/mnt"], "volumes"),
        (&["--nested-virtualization"], "virtualised"),
        (&["--vsock", socket.to_str().unwrap()], "vsock"),
        (&["--remove", "/srv/data"], "before the start"),
        (&["--disk-rate", "read=1m"], "rate"),
    ] {
        let refused = run(&home, flags, &["true"]);
        assert_eq!(refused.code(), 125, "{flags:?}: {}", refused.stderr());
        assert!(
            refused.stderr().contains(word),
            "{flags:?}: {}",
            refused.stderr()
        );
        assert!(
            refused.stderr().contains("host backend"),
            "{}",
            refused.stderr()
        );
    }
    let (running, first) = sleeping(&home, &["--rm"]);
    let fork = home.output(&["fork", "it"]);
    assert!(
        fork.code() != 0 && fork.stderr().contains("host"),
        "{}",
        fork.stderr()
    );
    home.output(&["kill", "it"]).ok();
    assert_eq!(running.wait(), 137);
    wait_until_gone(&home, first);
}

#[test]
#[ignore = "needs root and a built guest"]
fn a_running_sandbox_is_worked_with_as_a_machine_is() {
    let home = Home::new();
    let (running, first) = sleeping(&home, &["--rm", "--tmpfs", "/scratch"]);
    let exec = |script: &str| home.output(&["exec", "it", "sh", "-c", script]);
    assert_eq!(exec("echo in; exit 3").stdout(), "in\n");
    assert_eq!(exec("exit 3").code(), 3);
    assert_eq!(exec("touch /scratch/x; ls /scratch").ok(), "x\n");
    let file = home.path().join("file");
    fs::write(&file, "contents").unwrap();
    home.output(&["cp", file.to_str().unwrap(), "it:/tmp/there"])
        .ok();
    assert_eq!(exec("cat /tmp/there").ok(), "contents");
    let back = home.path().join("back");
    home.output(&["cp", "it:/tmp/there", back.to_str().unwrap()])
        .ok();
    assert_eq!(fs::read(&back).unwrap(), b"contents");
    assert!(home.output(&["top", "it"]).ok().contains("sleep 1000"));
    // Frozen processes use no time.
    let ticks = || {
        let counts = processes_of(first).into_iter().filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            fields[11].parse::<u64>().ok()
        });
        counts.sum::<u64>()
    };
    home.output(&["exec", "-d", "it", "sh", "-c", "while :; do :; done"]);
    home.output(&["pause", "it"]).ok();
    let before = ticks();
    // Sleep: nothing may happen meanwhile.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(ticks(), before);
    home.output(&["unpause", "it"]).ok();
    wait_until("it runs again", || ticks() > before);
    home.output(&["stop", "it"]).ok();
    assert!(running.wait() > 128);
    wait_until_gone(&home, first);
}

/// A program that makes the system call of its arguments' numbers, and prints its error's number.
const TRY: &str = "#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int n, char **a) {
    long v[7] = {0};
    for (int i = 1; i < n && i < 8; i++) v[i - 1] = strtol(a[i], 0, 0);
    long r = syscall(v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
    printf(\"%d\\n\", r < 0 ? errno : 0);
}
";

#[test]
#[ignore = "needs root and a built guest"]
fn its_network_is_a_machines() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(&vec![b'x'; 300_000]);
        }
    });
    // The host's own loopback is closed unless a rule opens it.
    let fetch = format!("nc host.mica.internal {port} | wc -c");
    let closed = run(&home, &[], &["sh", "-c", &fetch]);
    assert_eq!(closed.stdout().trim(), "0", "{}", closed.stderr());
    let rule = ["--net-allow", "127.0.0.0/8"];
    let open = run(&home, &rule, &["sh", "-c", &fetch]);
    assert_eq!(open.stdout().trim(), "300000", "{}", open.stderr());
    let none = run(
        &home,
        &["--net", "none"],
        &["sh", "-c", "ls /sys/class/net"],
    );
    assert_eq!(none.ok(), "lo\n");
    let script = format!("{USERS}; echo from inside | nc -l -p 80; sleep 1000");
    // Not an ephemeral port: the kernel could give that to another test.
    let free = (22_000..)
        .find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok())
        .unwrap();
    let published = free.local_addr().unwrap();
    drop(free);
    let port = format!("{}:80", published.port());
    let flags = ["--rm", "--name", "it", "-p", &port];
    let mut running = home.start(&arguments(&flags, &["sh", "-c", &script]));
    let first: u32 = running.line().trim().parse().unwrap();
    let mut text = String::new();
    wait_until("the port answers", || {
        text.clear();
        let stream = TcpStream::connect(published);
        stream.is_ok_and(|mut stream| stream.read_to_string(&mut text).is_ok()) && !text.is_empty()
    });
    assert_eq!(text, "from inside\n");
    home.output(&["kill", "it"]).ok();
    running.wait();
    wait_until_gone(&home, first);
}

#[test]
#[ignore = "needs root and a built guest"]
fn nothing_is_left_however_it_ends() {
    let home = Home::new();
    for _ in 0..10 {
        let first: u32 = sh(&home, &format!("{USERS}; sleep 1000 & :"))
            .ok()
            .trim()
            .parse()
            .unwrap();
        wait_until_gone(&home, first);
    }
    let (running, first) = sleeping(&home, &["--rm"]);
    assert!(!processes_of(first).is_empty());
    home.kill_owner();
    assert_ne!(running.wait(), 0);
    wait_until("the container is gone", || processes_of(first).is_empty());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(home.path().to_str().unwrap()), "{mounts}");
}

#[test]
#[ignore = "needs root and a built guest"]
fn containers_of_an_image_share_its_pages() {
    let home = Home::new();
    let start = |name: &str| {
        let flags = ["--rm", "--name", name];
        let script = format!("{USERS}; exec sleep 1000");
        let mut running = home.start(&arguments(&flags, &["sh", "-c", &script]));
        let first: u32 = running.line().trim().parse().unwrap();
        (running, first)
    };
    let (one, first) = start("one");
    let [held] = home.held_images().try_into().unwrap();
    let (two, second) = start("two");
    assert_eq!(home.held_images(), [held]);
    assert_ne!(first, second);
    // An overlay shows its own device; a mapping is of the file below: one file of one filesystem.
    let mapped = |first: u32| {
        let sleeping = || {
            processes_of(first).into_iter().find(|pid| {
                let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
                line.is_ok_and(|line| line.starts_with("sleep"))
            })
        };
        wait_until("it sleeps", || sleeping().is_some());
        let pid = sleeping().unwrap();
        // The file of the program's page in the page cache, as the kernel knows it.
        page_frame(&pid)
    };
    let (one_page, two_page) = (mapped(first), mapped(second));
    assert!(one_page.is_some());
    assert_eq!(one_page, two_page);
    home.output(&["kill", "one"]).ok();
    one.wait();
    // The other one still has it.
    assert_eq!(home.held_images().len(), 1);
    assert_eq!(
        home.output(&["exec", "two", "cat", "/srv/kept/old"]).code(),
        0
    );
    home.output(&["kill", "two"]).ok();
    two.wait();
    wait_until_gone(&home, first);
    wait_until_gone(&home, second);
}

/// Returns the number of the page of memory that has the first page of a process's program
/// (`/proc/PID/pagemap`), if it is there.
fn page_frame(pid: &str) -> Option<u64> {
    use std::os::unix::fs::FileExt;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let start = maps.split('-').next().unwrap();
    let page = u64::from_str_radix(start, 16).unwrap() / 4096;
    let mut entry = [0; 8];
    let file = fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    file.read_exact_at(&mut entry, page * 8).unwrap();
    let entry = u64::from_le_bytes(entry);
    (entry >> 63 == 1).then_some(entry & ((1 << 55) - 1))
}

#[test]
#[ignore = "needs root and a built guest"]
fn an_image_is_held_once_however_holders_end() {
    let home = Home::new();
    // Many at once, some while a holder ends.
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..5 {
                        assert_eq!(sh(&home, "cat /srv/kept/old").code(), 0);
                    }
                })
            })
            .collect();
        for run in runs {
            run.join().unwrap();
        }
    });
    home.assert_nothing_left();
    // After a holder was killed, its containers run on, and the next one has another.
    let (running, first) = sleeping(&home, &["--rm"]);
    signal_holders(&home, Signal::KILL);
    wait_until("the holder is gone", || {
        home.processes("mica-lower").is_empty()
    });
    assert_eq!(home.held_images().len(), 1);
    assert_eq!(
        home.output(&["exec", "it", "cat", "/srv/kept/old"]).code(),
        0
    );
    home.output(&["ps"]).ok();
    assert!(home.held_images().is_empty());
    assert_eq!(sh(&home, "cat /srv/kept/old").code(), 0);
    home.output(&["kill", "it"]).ok();
    running.wait();
    wait_until_gone(&home, first);
}

#[test]
#[ignore = "needs root and a built guest"]
fn an_image_is_removed_once_its_holder_has_ended() {
    let home = Home::new();
    let (running, _) = sleeping(&home, &["--rm"]);
    // They don't come to their end.
    assert_ne!(signal_holders(&home, Signal::STOP), 0);
    home.output(&["kill", "it"]).ok();
    running.wait();
    wait_until("the sandbox is gone", || {
        home.sandboxes() == home.held_images()
    });
    let refused = home.output(&["rmi", "box"]);
    assert_ne!(refused.code(), 0);
    let text = refused.stderr();
    assert!(
        text.contains("the process that serves its layers"),
        "{text}"
    );
    let removing = home.start(&["rmi", "box"]);
    signal_holders(&home, Signal::CONT);
    assert_eq!(removing.wait(), 0);
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn files_that_the_kernel_does_not_mount_are_served() {
    let home = Home::empty();
    shell(home.path(), "mkdir store && mount -t tmpfs store store");
    home.load(&image::layers(), &image::config());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"from outside\n");
        }
    });
    let look = "stat -c %u:%g /srv/run /root; chown 1000:50 /srv/run; stat -c %u:%g /srv/run; \
        cat /srv/hidden/new; awk '{print $1, $2, $3}' /proc/self/uid_map";
    let look = format!("{look}; nc host.mica.internal {port}");
    let words = ["--rm", "--net-allow", "127.0.0.0/8"];
    let mica = home.mica(&arguments(&words, &["sh", "-c", &look]));
    // What makes network interfaces is root's alone, as where no udev has opened it.
    shell(home.path(), "mknod -m 600 tun c 10 200");
    let mica = with_mount(&mica, &home.path().join("tun"), "/dev/net/tun");
    let run = Finished::of(mica);
    let said = run.stderr();
    wait_until("no image is held", || home.held_images().is_empty());
    assert!(home.sandboxes().is_empty());
    wait_until("the store is closed", || {
        let names = ["mica-lower", "mica-owner", "mica-zygote"];
        names.iter().all(|name| home.processes(name).is_empty())
    });
    shell(home.path(), "umount store");
    let expected = "0:0\n0:0\n1000:50\nnew0 0 65536\nfrom outside\n";
    assert_eq!(run.stdout(), expected, "{said}");
}
