//! mica's messages and exit codes for wrong command lines: what failed, on what, and what to do
//! next.

mod dockers;
mod doctor;
mod hints;
mod stores;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Finished, Home};

/// A command line, its exit code, and all its stderr. `HOME` stands for a directory of the test.
type Row = (&'static [&'static str], i32, &'static str);

const NAME_RULE: &str =
    "2 to 63 letters, digits, `_`, `.` and `-`, beginning with a letter or digit";

/// Rows that need no machine.
const ROWS: &[Row] = &[
    (
        &[
            "run",
            "--mount",
            "type=bind,src=/proc/none/x,dst=/data",
            "box",
        ],
        125,
        "mica: cannot share `/proc/none/x`: No such file or directory (os error 2)\n      \
         make it first; `-v` of `mica run` and `mica create` makes a missing folder, `--mount` does not\n",
    ),
    (
        &["run", "--mount", "type=tmpfs,tmpfs-size=1m", "box"],
        125,
        "error: invalid value 'type=tmpfs,tmpfs-size=1m' for '--mount <MOUNT>': target is required\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &["run", "--tmpfs", "/a:size=x", "box"],
        125,
        "error: invalid value '/a:size=x' for '--tmpfs <PATH[:OPTIONS]>': expected a number with \
         b, k, m, g or t\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &[
            "run",
            "--tmpfs",
            "/a",
            "--mount",
            "type=tmpfs,dst=/a/",
            "box",
        ],
        125,
        "mica: cannot mount anything at `/a/`: something else is mounted there as well\n",
    ),
    (
        &["run", "--tmpfs", "/tmp/../..", "box"],
        125,
        "mica: cannot mount anything at `/tmp/../..`: the path has `..` in it\n",
    ),
    (
        &["run", "-v", "~/x:/m", "box"],
        125,
        "error: invalid value '~/x:/m' for '--volume <[HOST|NAME:]PATH[:ro][,cached]>': `~/x`: a shell \
         replaces ~ only outside quotes: give the whole path, or ./~/x\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &["run", "-p", "8080:80-82", "box"],
        125,
        "error: invalid value '8080:80-82' for '--publish <PORTS>': 8080:80-82: the two ranges have \
         different lengths\n\nFor more information, try '--help'.\n",
    ),
    (
        &["run", "--restart", "always", "box"],
        125,
        "mica: `--restart always` is not supported: nothing of mica's runs to do it; `mica start` starts \
         a kept sandbox again, from a systemd unit for one\n",
    ),
    (
        &["create", "--privileged", "box"],
        125,
        "mica: `--privileged` is not supported: root in a sandbox has every capability already, of its own \
         kernel, and nothing gives it more of the host\n",
    ),
    (
        &["run", "-m", "1g", "--memory-swap", "2g", "box"],
        125,
        "mica: `--memory-swap` is not supported: a machine has no swap of its own; `-m` is all its memory\n      \
         omit it, or give it the value of -m\n",
    ),
    (
        &["exec", "box"],
        125,
        "mica: no command to run in box\n      for a shell: `mica exec -it box sh`\n",
    ),
    (
        &["stop", "-t", "abc", "box"],
        2,
        "error: invalid value 'abc' for '--time <SECONDS>': expected a number\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &["--log", "foo", "ps"],
        2,
        "mica: the filter `foo` of the log: `foo` is neither a level nor a part of mica\n      \
         such as `info`, `debug`, or `micabox_net=debug` for one part\n",
    ),
    (
        &["run", "-m", "4000g", "box"],
        125,
        "mica: cannot give the machine 4096000 MiB of memory: this host has N MiB, swap included\n      \
         N MiB are available now: ask for less with -m\n",
    ),
    (
        &["run", "--net-allow", "http://a.test", "box"],
        125,
        "error: invalid value 'http://a.test' for '--net-allow <CIDR|DOMAIN[:PORT]>': \
         http://a.test: expected a name or an address, not a URL; for this one, `a.test:80`\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &["run", "--hostname", "bad host!", "box"],
        125,
        "error: invalid value 'bad host!' for '--hostname <HOSTNAME>': expected up to 64 letters, \
         digits, `-`, `_` and `.`, no part beginning or ending with `-`\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &["run", "--name", "a/b", "box"],
        125,
        "mica: invalid sandbox name `a/b`: RULE\n",
    ),
    (
        &["run", "--root-disk", "/etc/hosts", "true"],
        125,
        "mica: the root disk /etc/hosts: it holds neither an ext4 nor an EROFS filesystem\n      \
         make one with `mke2fs -d DIRECTORY FILE SIZE` or `mkfs.erofs FILE DIRECTORY`\n",
    ),
    (
        &["ext4", "check", "/etc/hosts"],
        2,
        "mica: cannot check `/etc/hosts`: not an ext4 filesystem\n      \
         if it was one, `e2fsck -b 32768 FILE` tries its backup superblock\n",
    ),
    (
        &["ext4", "check", "/proc/none"],
        2,
        "mica: /proc/none: No such file or directory (os error 2)\n",
    ),
    (
        &["load", "--name", "sha256:abc", "box.tar"],
        2,
        "error: invalid value 'sha256:abc' for '--name <REFERENCE>': `sha256:abc` looks like a \
         digest, not a name: for an image by digest write REPOSITORY@sha256:DIGEST\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &["save", "--compression", "lz4", "box"],
        2,
        "error: invalid value 'lz4' for '--compression <HOW>': invalid compression `lz4`: expected \
         gzip, zstd or none\n\nFor more information, try '--help'.\n",
    ),
    (
        &["push", "box"],
        1,
        "mica: cannot push `box`: without a registry, it means docker.io/library/box, which is \
         Docker's own\n      name one: `mica push box REGISTRY/NAME`, or USER/NAME on docker.io\n",
    ),
    (
        &["push", "box", "other:2"],
        1,
        "mica: cannot push `other:2`: without a registry, it means docker.io/library/other, which \
         is Docker's own\n      \
         name one: `mica push box REGISTRY/NAME`, or USER/NAME on docker.io\n",
    ),
    (
        &["stop", "nothing"],
        1,
        "mica: no such sandbox: `nothing`\n      `mica ps -a` lists all sandboxes\n",
    ),
    (
        &["run", "--from", "nothing"],
        125,
        "mica: no such snapshot: `nothing`\n      `mica snapshot ls` lists all snapshots\n",
    ),
    (
        &["cp", "here", "there"],
        1,
        "mica: one path must be in a sandbox, and the other on the host\n      \
         write SANDBOX:PATH, and ./name for a host file with a colon in its name\n",
    ),
    (
        &["snapshot", "import", "/etc/hosts"],
        1,
        "mica: /etc/hosts: importing the snapshot: it is not a mica snapshot\n",
    ),
    (
        &["run", "-m", "-1", "box"],
        125,
        "error: invalid value '-1' for '--memory <SIZE>': expected a number with b, k, m, g or t\n\nFor \
         more information, try '--help'.\n",
    ),
    (
        &["run", "--cpus", "-1", "box"],
        125,
        "error: invalid value '-1' for '--cpus <NUMBER>': expected 0.01 to 64\n\nFor more information, try '--help'.\n",
    ),
    (
        &["run", "--timeout", "-1", "box"],
        125,
        "error: invalid value '-1' for '--timeout <DURATION>': a duration is not negative\n\nFor more \
         information, try '--help'.\n",
    ),
    (
        &["run", "--stop-timeout", "-1", "box"],
        125,
        "error: invalid value '-1' for '--stop-timeout <SECONDS>': expected a number that is not \
         negative\n\nFor more information, try '--help'.\n",
    ),
    (
        &["run", "-p", "-1:80", "box"],
        125,
        "error: invalid value '-1:80' for '--publish <PORTS>': -1:80: expected \
         [[IP:][HOST]:]GUEST[/udp], as in 80 (on any free port of this machine), 8080:80, \
         0.0.0.0:5353:53/udp, [::1]:8080:80 or 8000-8010:8000-8010\n\nFor more information, try \
         '--help'.\n",
    ),
    (
        &["run", "--name", "-x", "box"],
        125,
        "mica: invalid sandbox name `-x`: RULE\n",
    ),
    (
        &["stop", "-t", "-1", "it"],
        2,
        "error: invalid value '-1' for '--time <SECONDS>': expected a number that is not negative\n\n\
         For more information, try '--help'.\n",
    ),
    (
        &["logs", "--tail", "-5", "it"],
        2,
        "error: invalid value '-5' for '--tail <LINES>': expected a number of lines, or all\n\nFor more \
         information, try '--help'.\n",
    ),
    (
        &["fork", "-n", "-1", "it"],
        2,
        "error: invalid value '-1' for '--number <NUMBER>': -1 is not in 1..=65535\n\nFor more \
         information, try '--help'.\n",
    ),
    (
        &["pull", "-a", "box"],
        2,
        "error: unexpected argument '-a' found\n\nUsage: mica pull [OPTIONS] <IMAGE>\n\nFor more \
         information, try '--help'.\n",
    ),
    (
        &["volume", "create", "--name", "vv"],
        2,
        "error: unexpected argument '--name' found\n\nUsage: mica volume create [OPTIONS] <NAME>\n\nFor \
         more information, try '--help'.\n",
    ),
    (
        &["run", "--naem", "x", "box"],
        125,
        "error: unexpected argument '--naem' found\n\n  tip: a similar argument exists: '--name'\n\n\
         Usage: mica run [OPTIONS] IMAGE [COMMAND] [ARG...]\n\nFor more information, try '--help'.\n",
    ),
    (
        &["image", "prune", "-f"],
        2,
        "mica: there is no `mica image prune`\n      `mica store prune` removes images without a name, \
         and with --all those that no sandbox uses\n",
    ),
    (
        &["search", "box"],
        2,
        "mica: there is no `mica search`: registries are searched on their own sites\n      `mica pull \
         NAME` gets an image\n",
    ),
    (
        &["info", "-f", "{{.Foo}}"],
        1,
        "mica: --format: there is no field `.Foo`\n",
    ),
    (
        &["run", "--entrypoint", "", "box"],
        125,
        "mica: no command: an empty --entrypoint discards the image's Entrypoint and Cmd; name a program to run\n",
    ),
    (
        &["rmi", "nothing"],
        1,
        "mica: no image `nothing` in the store\n      `mica images` lists what is there; `mica pull` or \
         `mica load` gets another image\n",
    ),
    (
        &["cp", "it:/etc/passwd", ""],
        1,
        "mica: the destination is empty\n      `.` is the current directory, and `-` a standard stream\n",
    ),
    (
        &["load"],
        1,
        "mica: no archive came on stdin: it is a device\n      \
         name a file, `mica load FILE`, or send one, `mica load <FILE`\n",
    ),
    (
        &["snapshot", "import", "/dev/null"],
        1,
        "mica: /dev/null: importing the snapshot: it is cut short: copy or export it again\n",
    ),
];

/// Fails unless everything is as in the row.
#[track_caller]
fn assert_row(home: &Home, (words, code, expected): Row, finished: &Finished) {
    let text = finished.stderr();
    let text = text.replace(home.path().to_str().unwrap(), "HOME");
    let expected = expected.replace("RULE", NAME_RULE);
    assert_eq!((finished.code(), text), (code, expected), "{words:?}");
    assert_eq!(finished.stdout(), "", "{words:?}");
}

/// Runs `mica` and replaces the host's memory size with `N`, for the same text on every host.
fn run(home: &Home, words: &[&str]) -> Finished {
    let finished = home.output(words);
    finished.replace(|text| {
        let number = |word: &str, next: Option<&&str>| {
            let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            is_number && next.is_some_and(|next| next.starts_with("MiB")) && word != "4096000"
        };
        let words: Vec<_> = text.split(' ').collect();
        let words = words.iter().enumerate().map(|(at, word)| {
            if number(word, words.get(at + 1)) {
                "N"
            } else {
                word
            }
        });
        words.collect::<Vec<_>>().join(" ")
    })
}

#[test]
fn errors_of_a_command_line_say_what_to_do() {
    let home = Home::new();
    for row in ROWS {
        assert_row(&home, *row, &run(&home, row.0));
    }
}

#[test]
fn a_command_whose_output_can_not_be_written_fails() {
    let home = Home::empty();
    for words in [
        &["ps"][..],
        &["ps", "--json"],
        &["images"],
        &["volume", "ls"],
        &["snapshot", "ls"],
        &["doctor"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let mut command = home.mica(words);
        command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
        let finished = Finished::of(command);
        assert_eq!(finished.code(), 1, "{words:?}: {}", finished.stderr());
        let said = finished.stderr();
        assert!(
            said.contains("writing to stdout: No space left"),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn messages_tell_a_damaged_filesystem_from_a_file_without_one() {
    let home = Home::empty();
    let disk = home.path().join("disk");
    let path = disk.to_str().unwrap();
    home.output(&["ext4", "mkfs", path, "--size", "16M"]).ok();
    assert_eq!(home.output(&["ext4", "check", path]).ok(), "clean\n");
    let directory = home.output(&["ext4", "cat", path, "/"]);
    let expected = format!("mica: {path}: `/` is a directory\n");
    assert_eq!((directory.code(), directory.stderr()), (1, expected));
    // The root directory's mode, in the first inode table.
    let mut bytes = fs::read(&disk).unwrap();
    let tables = u32::from_le_bytes(bytes[4096 + 8..4096 + 12].try_into().unwrap());
    let mode = tables as usize * 4096 + 256;
    bytes[mode] ^= 0xff;
    fs::write(&disk, bytes).unwrap();
    let damaged = home.output(&["ext4", "check", path]);
    assert_eq!(damaged.code(), 1);
    assert!(damaged.stdout().contains("inode 2"), "{}", damaged.stdout());
}

/// Runs `mica` in its own mount namespace, after `script`.
fn in_namespace(home: &Home, script: &str, words: &[&str]) -> Finished {
    let mica = home.mica(words);
    let mut command = Command::new("unshare");
    command.arg("--mount");
    // A user namespace with root alone in it would keep workers from leaving root's identity.
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args(["sh", "-euc"])
        .arg(format!("{script}; exec \"$0\" \"$@\""))
        .arg(mica.get_program())
        .args(mica.get_args())
        .env("STORE", home.store())
        .env("MICABOX_HOME", home.store())
        .env("MICABOX_CONFIG", "/dev/null");
    Finished::of(command)
}

/// As where nothing delegates control groups.
#[test]
#[ignore = "needs root and a built guest"]
fn a_change_of_which_a_part_needs_a_control_group_is_not_made_and_says_what_to_leave_out() {
    let home = Home::new();
    let run = "run -d -q --backend host --net none --name it box sleep 1000";
    let run: Vec<&str> = run.split(' ').collect();
    in_namespace(&home, "mount -t tmpfs none /sys/fs/cgroup", &run).ok();
    let sandboxes = micabox::Sandboxes::open(&micabox::Store::open(&home.store()).unwrap());
    let it = sandboxes.unwrap().get("it").unwrap();
    // Nothing that needs another start can help it.
    let memory = home.output(&["update", "-m", "2g", "it"]);
    let said = memory.stderr();
    assert_eq!(memory.code(), 1);
    assert!(
        said.contains("sandbox it runs: its memory can't be changed meanwhile\n")
            && said.contains("run a new one")
            && !said.contains("mica start"),
        "{said}"
    );
    let life = || it.expires().unwrap().expiry.max_life;
    let before = life();
    let both = home.output(&["update", "--max-life", "8h", "--cpus", "0.5", "it"]);
    assert_eq!(both.code(), 1);
    let said = both.stderr();
    assert!(said.contains("nothing was changed"), "{said}");
    assert!(
        said.contains("leave out --cpus, and all else is changed"),
        "{said}"
    );
    assert_eq!(life(), before);
    // As it says.
    home.output(&["update", "--max-life", "8h", "it"]).ok();
    assert_eq!(life(), Some(std::time::Duration::from_secs(8 * 3600)));
    home.output(&["stop", "-t", "0", "it"]).ok();
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

/// Rows about running sandboxes and their commands.
const LIVE: &[Row] = &[
    (
        &["start", "-a", "it"],
        125,
        "mica: sandbox it is running\n      \
         `mica logs -f it` shows what it writes, `mica stop it` ends it\n",
    ),
    (
        &["rm", "it"],
        1,
        "mica: sandbox it is running\n      stop it first with `mica stop`, or use `mica rm -f`\n",
    ),
    (
        &["cp", "it:/no/such", "."],
        1,
        "mica: reading `/no/such` in the sandbox: No such file or directory (os error 2)\n",
    ),
    (
        &["cp", "/etc/hosts", "it:/etc/hosts/x"],
        1,
        "mica: looking at `/etc/hosts/x` in the sandbox: Not a directory (os error 20)\n",
    ),
    (
        &["snapshot", "create", "it", "s"],
        1,
        "mica: invalid snapshot name `s`: RULE\n",
    ),
    (
        &["snapshot", "create", "it", "taken"],
        1,
        "mica: cannot create snapshot `taken`: there is one already\n      \
         choose another name, or remove that one with `mica snapshot rm`\n",
    ),
    (
        &["run", "--rm", "--from", "taken", "box", "true"],
        127,
        "mica: box: executable file not found in PATH (/usr/bin:/bin)\n      \
         `--from` takes no IMAGE: all that follows is the command\n",
    ),
    (
        &["run", "--rm", "-u", "4294967294", "box", "true"],
        125,
        "mica: user ID 4294967294 is too large: the largest is 2147483647\n",
    ),
];

#[test]
#[ignore = "needs a built guest"]
fn messages_tell_running_sandboxes_from_ended_ones() {
    let home = Home::new();
    let run = ["run", "-d", "--name", "it", "--upper", "disk:64m", "box"];
    home.output(&[&run[..], &["sleep", "1000"]].concat()).ok();
    home.output(&["snapshot", "create", "it", "taken"]).ok();
    for row in LIVE {
        assert_row(&home, *row, &home.output(row.0));
    }
    let id = home.output(&["ps", "-q"]).ok();
    let taken = home.output(&["run", "--name", "it", "box", "true"]);
    let expected = format!(
        "mica: cannot call a sandbox `it`: the name is in use by sandbox {}\n      \
         choose another name, or remove that one with `mica rm`\n",
        id.trim()
    );
    assert_eq!((taken.code(), taken.stderr()), (125, expected));
    home.output(&["stop", "-t", "0", "it"]).ok();
    home.output(&["rm", "it"]).ok();
}
