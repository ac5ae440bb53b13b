//! Names that images, disks, snapshots and guests use, on a terminal: all of them visible, and none
//! acted on.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use micabox::GuestFiles;
use micabox_wire::{BootFailed, BootPart, ToHost};
use pty_process::Size;
use pty_process::blocking::Command;
use serde_json::json;

use crate::support::{Home, image, snapshot, wait};

/// A title, a colour, the same with C1's introducer, letters from right to left, letters without
/// width, and what looks like a message of mica's.
const TEXT: &str = "e\x1b]0;t\x07\x1b[31m\u{9b}2J\u{202e}\u{200b}\u{7f}\nmica: x";

/// The same as a file's name, with bytes that are not UTF-8, one of them C1's introducer.
fn name() -> Vec<u8> {
    [TEXT.as_bytes(), b"\xff\x9b31m"].concat()
}

/// How the text must be shown.
const SEEN: &str = "\\x1b]0;t\\x07\\x1b[31m\\u009b2J\\u202e\\u200b\\x7f\\nmica: x";

/// The beginning of that: messages may have several lines, and escapes of their own.
const LINE: &str = "\\x1b]0;t\\x07\\x1b[31m";

/// How a message about a wrong command line begins.
const USAGE: &str = "error: ";

/// The same as JSON has it.
const JSON: &str = "\\u001b]0;t\\u0007\\u001b[31m\\u009b2J\\u202e\\u200b\\u007f\\nmica: x";

/// The bytes that are not UTF-8.
const BYTES: &str = "mica: x\\xff\\x9b31m";

/// Runs `mica` on a terminal and returns all its output.
fn on_terminal(home: &Home, words: &[OsString], guest: &Path) -> Vec<u8> {
    let (mut terminal, slave) = pty_process::blocking::open().unwrap();
    terminal.resize(Size::new(50, 2000)).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_mica"))
        .args(words)
        .current_dir(home.path())
        .env("TERM", "xterm-256color")
        .env("MICABOX_HOME", home.store())
        .env("MICABOX_CONFIG", "/dev/null")
        .env("MICABOX_GUEST", guest)
        .spawn(slave)
        .unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    // When no process has the terminal open any more, reading from it fails.
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..count]);
    }
    wait(&mut child);
    seen
}

/// Fails if a terminal would do more than show letters in lines. Progress may move the cursor.
#[track_caller]
fn assert_harmless(words: &[OsString], seen: &[u8]) -> String {
    let text = String::from_utf8(seen.to_vec());
    let text = text.unwrap_or_else(|error| panic!("{words:?} wrote raw bytes: {error}"));
    let mut shown = String::new();
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("\x1b[").and_then(after_movement) {
            rest = after;
            continue;
        }
        let is_harmless = matches!(c, '\r' | '\n') || !c.is_control();
        assert!(is_harmless, "{words:?}: {text:?}");
        assert!(!"\u{202e}\u{200b}".contains(c), "{words:?}: {text:?}");
        if c != '\r' {
            shown.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    // A wrong command line is shown as it is, except for what a terminal would act on.
    let is_usage = shown.starts_with("error: ");
    for line in shown.lines().filter(|_| !is_usage) {
        assert!(!line.starts_with("mica: x"), "{words:?}: {shown}");
    }
    shown
}

/// Returns what follows a sequence that moves the cursor or clears a line, without its introducer.
fn after_movement(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.strip_prefix(['A', 'B', 'C', 'D', 'K'])
}

/// Makes a disk with files of all kinds with the name.
fn evil_disk(home: &Home) -> PathBuf {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |kind, name: &[u8], target: Option<&[u8]>| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        let path = OsStr::from_bytes(name);
        match target {
            None => archive.append_data(&mut header, path, &[][..]).unwrap(),
            Some(target) => {
                let target = OsStr::from_bytes(target);
                archive.append_link(&mut header, path, target).unwrap();
            }
        }
    };
    use tar::EntryType::{Fifo, Regular, Symlink};
    add(Regular, &name(), None);
    add(Symlink, &[b"link", &name()[..]].concat(), Some(&name()));
    add(Fifo, &[b"fifo", &name()[..]].concat(), None);
    let file = home.path().join("in.tar");
    fs::write(&file, archive.into_inner().unwrap()).unwrap();
    let disk = home.path().join("disk");
    let path = disk.to_str().unwrap();
    home.output(&["ext4", "mkfs", path, "--size", "16M"]).ok();
    let imported = home.output(&["ext4", "import", path, file.to_str().unwrap()]);
    assert_eq!(imported.code(), 0, "{}", imported.stderr());
    disk
}

/// Makes a store with an image, a snapshot and a record of a sandbox that have the text wherever
/// they can.
fn evil_home() -> Home {
    let home = Home::empty();
    let config = json!({"Cmd": ["true", TEXT], "Labels": {TEXT: TEXT}, "User": TEXT});
    home.load(&[image::one_file("a", b"")], &config);
    let digest = home.output(&["images", "--json"]).json()[0]["manifest_digest"]
        .as_str()
        .unwrap()
        .to_owned();

    let disk = fs::read(evil_disk(&home)).unwrap();
    let mut head = snapshot::snapshot("shot", &digest, disk.len());
    head["sandbox"] = TEXT.into();
    head["image"]["reference"] = TEXT.into();
    let file = home.path().join("shot");
    snapshot::write(&file, &head, &disk);
    home.output(&["snapshot", "import", file.to_str().unwrap()])
        .ok();
    fs::write(home.store().join("images/sha256").join(TEXT), "").unwrap();

    let id = "ab".repeat(16);
    let directory = home.store().join("sandboxes").join(&id);
    fs::create_dir(&directory).unwrap();
    File::create(directory.join("lock")).unwrap();
    let record = json!({
        "id": id, "name": "box", "image": {"reference": TEXT, "digest": digest},
        "command": TEXT, "created": 0, "memory_mib": 1, "cpus": 1, "transport": "pmem",
        "root": "merged", "auto_remove": false, "owner": null, "machine": null,
        "status": {"state": "exited", "code": 1, "at": 0, "error": TEXT},
    });
    fs::write(directory.join("state.json"), record.to_string()).unwrap();
    home
}

/// Makes the words of a command line; `@` stands for the text, `%` for the file's name, `~` for the
/// digest of nothing.
fn words(line: &str) -> Vec<OsString> {
    let word = |word: &str| {
        let mut bytes = Vec::new();
        for byte in word.bytes() {
            match byte {
                b'@' => bytes.extend(TEXT.as_bytes()),
                b'%' => bytes.extend(name()),
                byte => bytes.push(byte),
            }
        }
        OsString::from_vec(bytes)
    };
    line.split(' ').map(word).collect()
}

/// Every command, and how the text must be shown; empty if none of it is shown.
const COMMANDS: [(&str, &str); 111] = [
    ("ext4 ls disk", SEEN),
    ("ext4 ls disk", BYTES),
    ("ext4 ls -l disk", SEEN),
    ("ext4 ls --json disk", JSON),
    ("ext4 stat disk /link%", "target"),
    ("ext4 stat --json disk /link%", "target"),
    ("ext4 cat disk /%x", LINE),
    ("ext4 ls disk-%", LINE),
    ("ext4 cp disk:/fifo% out", ""),
    ("ext4 cp disk:/ out-%", LINE),
    ("ext4 check disk", "clean"),
    ("ext4 check disk-%", LINE),
    ("ext4 replay disk-%", LINE),
    ("ext4 resize disk-% --size 1G", LINE),
    ("ext4 mkfs % --size x@", USAGE),
    ("ext4 import disk %", LINE),
    ("ext4 export disk -", "terminal"),
    ("mount", "MOUNTPOINT"),
    ("mount @ .", LINE),
    ("mount box %", LINE),
    ("umount %", LINE),
    ("memfs %", LINE),
    ("memfs . --load %", LINE),
    ("images", "box"),
    ("images --json", "box"),
    ("history box", "IMAGE"),
    ("history @", LINE),
    ("inspect box", JSON),
    ("inspect @", LINE),
    ("ps -a", SEEN),
    ("ps -a --json", JSON),
    ("ps -a --format {{.Image}}", SEEN),
    ("ps -f name=@", LINE),
    ("create --pull never @", LINE),
    ("create -l =@ box", LINE),
    ("rename @ box", LINE),
    ("restart @", LINE),
    ("port @", LINE),
    ("stats --no-stream @", LINE),
    ("metrics", "mica_sandboxes"),
    ("events -f sandbox=@ --until 0s", ""),
    ("events --since @", USAGE),
    ("pause @", LINE),
    ("unpause @", LINE),
    ("start box", ""),
    ("start @", LINE),
    ("stop @", LINE),
    ("logs @", LINE),
    ("rm @", LINE),
    ("cp box:/@ out", ""),
    ("cp @:/x out", ""),
    ("cp - box:/@", ""),
    ("diff @", LINE),
    ("commit @ name", LINE),
    ("commit box @", ""),
    ("snapshot ls", SEEN),
    ("snapshot ls --json", JSON),
    ("snapshot create @ name", LINE),
    ("snapshot create box @", ""),
    ("snapshot export @ out", LINE),
    ("snapshot export shot %/out", LINE),
    ("snapshot import shot @", LINE),
    ("snapshot rm @", LINE),
    ("volume create @", LINE),
    ("volume create -l @ labelled", "labelled"),
    ("volume ls", "labelled"),
    ("volume inspect labelled", JSON),
    ("volume inspect @", LINE),
    ("volume rm @", LINE),
    ("volume resize @ 1G", LINE),
    ("fork @", LINE),
    ("pool --pull never @", LINE),
    ("exec @ true", LINE),
    ("exec -u @ box true", ""),
    ("attach @", LINE),
    ("wait @", LINE),
    ("kill @", LINE),
    ("kill -s @ box", USAGE),
    ("top @", LINE),
    ("update --idle-timeout 1s @", LINE),
    ("pull @", USAGE),
    ("load %", LINE),
    ("load disk", ""),
    ("save -o %/out box", LINE),
    ("save -o out @", LINE),
    ("push @", LINE),
    ("push box @", USAGE),
    ("convert @", LINE),
    ("convert box @", USAGE),
    ("convert --verify @", "is not an image reference"),
    ("tag box @", USAGE),
    ("rmi @", LINE),
    ("store fsck", SEEN),
    ("store df", "box"),
    ("store pack @", LINE),
    ("store unpack @", LINE),
    ("store prune --dry-run", "freed"),
    ("doctor", "store"),
    ("info", "store"),
    ("version --format {{.Client.Version}}", "."),
    ("login -u name -p word @", USAGE),
    ("logout @", USAGE),
    ("help @", USAGE),
    ("serve --stdio", "terminal"),
    ("serve @", USAGE),
    ("mcp @", USAGE),
    ("run --pull never @", LINE),
    ("run --name @ box", LINE),
    ("run --trim @ box", USAGE),
    ("run --from shot -w @ true", "not an absolute path"),
    ("@", USAGE),
];

#[test]
fn no_command_lets_a_control_character_through() {
    let home = evil_home();
    let help = home.output(&["--help"]).ok();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in commands.take_while(|line| !line.is_empty()) {
        // Other lines continue the text of the one before.
        let Some(name) = line
            .strip_prefix("  ")
            .and_then(|line| line.split(' ').next())
        else {
            continue;
        };
        if name.is_empty() {
            continue;
        }
        let is_there = COMMANDS
            .iter()
            .any(|(line, _)| line.split(' ').next() == Some(name));
        assert!(is_there, "no line for `mica {name}`");
    }
    let mut unseen = Vec::new();
    for (line, expected) in COMMANDS {
        let words = words(line);
        let seen = on_terminal(&home, &words, Path::new("/proc/none"));
        let shown = assert_harmless(&words, &seen);
        if !shown.contains(expected) {
            unseen.push(format!("{line}: {shown}"));
        }
    }
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
}

#[test]
fn names_are_bytes_for_programs() {
    let home = evil_home();
    let disk = home.path().join("disk");
    let path = disk.to_str().unwrap();
    // As with `ls`: without a terminal, names are written as they are.
    let mut ls = home.mica(&["ext4", "ls", path]);
    let listed = ls.output().unwrap().stdout;
    assert!(listed.windows(name().len()).any(|part| part == name()));
    let entries = home.output(&["ext4", "ls", "--json", path]).json();
    let hex: String = name().iter().map(|byte| format!("{byte:02x}")).collect();
    let entries = entries.as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["name_hex"] == hex);
    assert_eq!(entry.unwrap()["links"], 1);
    assert!(entries.iter().any(|entry| entry["target_hex"] == hex));
    // A name that is text needs none.
    let plain = entries.iter().find(|entry| entry["name"] == "lost+found");
    assert_eq!(plain.unwrap().get("name_hex"), None);
}

/// Makes an archive of files as the kernel unpacks it (cpio, newc).
fn initrd(files: &[(&str, usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let end = ("TRAILER!!!", 0, Vec::new());
    for (name, mode, data) in files.iter().chain([&end]) {
        let fields = [
            1,
            *mode,
            0,
            0,
            1,
            0,
            data.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0,
        ];
        bytes.extend(b"070701");
        for field in fields.map(|field: usize| format!("{field:08X}")) {
            bytes.extend(field.bytes());
        }
        bytes.extend(name.bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

#[test]
#[ignore = "needs a built guest"]
fn a_hostile_agent_and_its_console_say_nothing_to_a_terminal() {
    const INIT: &str = "#!/busybox sh\n\
        /busybox mount -t devtmpfs dev /dev; /busybox mount -t sysfs sys /sys\n\
        /busybox cat /text > /dev/console\n\
        until [ -e /dev/vport0p1 ]; do /busybox sleep 0.05; done\n\
        for port in /dev/vport*; do /busybox cat /message > $port & done\n\
        /busybox sleep 1000\n";
    let home = Home::new();
    let failed = ToHost::BootFailed(BootFailed {
        step: TEXT.into(),
        target: TEXT.into(),
        errno: 0,
        detail: TEXT.into(),
        part: BootPart::Other,
    });
    let mut message = micabox_wire::preamble::encode().to_vec();
    micabox_wire::write_message(&mut message, &failed).unwrap();
    let busybox = fs::read("/bin/busybox").unwrap();
    let files = [
        ("dev", 0o40755, Vec::new()),
        ("sys", 0o40755, Vec::new()),
        ("busybox", 0o100_755, busybox),
        ("init", 0o100_755, INIT.into()),
        ("text", 0o100_644, TEXT.into()),
        ("message", 0o100_644, message),
    ];
    let guest = home.path().join("guest");
    fs::create_dir(&guest).unwrap();
    let kernel = GuestFiles::find_for(Path::new(env!("CARGO_BIN_EXE_mica"))).unwrap();
    fs::copy(kernel.kernel, guest.join("vmlinux")).unwrap();
    fs::write(guest.join("initrd.cpio"), initrd(&files)).unwrap();
    let words = ["run", "--rm", "box", "true"].map(OsString::from);
    let seen = on_terminal(&home, &words, &guest);
    let shown = assert_harmless(&words, &seen);
    assert!(shown.contains(LINE), "{shown}");
}

#[test]
#[ignore = "needs a built guest"]
fn names_that_a_sandbox_gives_are_carried_whole() {
    let home = Home::new();
    // The shell inside makes the name, which can't be an argument of `mica run`.
    let script = "cd /srv; touch \"$(printf 'a\\033]0;t\\007\\377\\233')\"";
    let disk = ["--name", "it", "--upper", "disk:64m"];
    home.output(&[&["run"], &disk[..], &["box", "sh", "-c", script]].concat())
        .ok();
    let guest = GuestFiles::find_for(Path::new(env!("CARGO_BIN_EXE_mica"))).unwrap();
    let guest = guest.kernel.parent().unwrap().to_owned();
    let escaped = "A /srv/a\\x1b]0;t\\x07\\xff\\x9b\n";
    for words in [words("diff it"), words("diff --json it")] {
        let seen = on_terminal(&home, &words, &guest);
        assert_harmless(&words, &seen);
    }
    // Programs get the same escapes, which can be decoded.
    assert!(home.output(&["diff", "it"]).ok().contains(escaped));
    let changes = home.output(&["diff", "--json", "it"]).json();
    let changes = changes.as_array().unwrap();
    let hex: String = b"/srv/a\x1b]0;t\x07\xff\x9b"
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(changes.iter().any(|change| change["path_hex"] == hex));
    assert!(changes[0].get("path_hex").is_none());
    home.output(&["rm", "it"]).ok();
}
