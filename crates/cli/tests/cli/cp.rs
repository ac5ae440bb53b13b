//! `mica cp`: copies files and directories into sandboxes and out of them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::{Home, assert_clean, wait_until};

#[test]
#[ignore = "needs a built guest"]
fn files_go_into_a_stopped_sandbox_and_out_of_it() {
    let home = Home::new();
    let script = "if [ -e new ]; then cat new named; stat -c '%a %u' new; exit; fi; \
        echo mine > own; chmod 6751 own; ln -s own link; while :; do sleep 0.05; done";
    let run = [
        "run",
        "--upper",
        "disk:256m",
        "--name",
        "it",
        "box",
        "sh",
        "-c",
    ];
    let running = home.start(&[&run[..], &[script]].concat());
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("named"), "in\n").unwrap();
    let copy = |from: &str, to: &str| home.output(&["cp", from, to]);
    wait_until("the sandbox is up", || {
        home.output(&["ps"]).ok().contains("Up ")
    });
    wait_until("its files are there", || {
        home.output(&["diff", "it"]).stdout().contains("link")
    });
    home.output(&["stop", "-t", "0", "it"]).ok();
    running.wait();

    copy("it:/srv/link", &at("link")).ok();
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("own"));
    home.output(&["cp", "-L", "it:/srv/link", &at("out")]).ok();
    assert_eq!(fs::read(at("out")).unwrap(), b"mine\n");
    assert_eq!(fs::metadata(at("out")).unwrap().mode() & 0o7777, 0o751);
    // A file of the image, into a directory.
    copy("it:/srv/data", home.path().to_str().unwrap()).ok();
    assert_eq!(
        fs::read(at("data")).unwrap(),
        b"0123456789abcdef".repeat(10_000)
    );
    let refused = copy("it:/srv/gone", &at("never"));
    assert!(
        refused.stderr().contains("no such file"),
        "{}",
        refused.stderr()
    );
    assert!(!Path::new(&at("never")).exists());

    copy(&at("named"), "it:/srv/new").ok();
    copy(&at("named"), "it:/srv").ok();
    let again = home.output(&["start", "-a", "it"]);
    assert_eq!(
        again.stdout().lines().take(3).collect::<Vec<_>>(),
        ["in", "in", "644 0"]
    );
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs root and a built guest"]
fn the_root_of_a_running_sandbox_is_copied_without_the_kernels_filesystems() {
    let home = Home::new();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("folder/kept"), "kept\n").unwrap();
    let volume = format!("{}:/shared", at("folder"));
    let script = "echo own > /own; echo scratch > /scratch/file; echo ready; \
                  while :; do sleep 0.05; done";
    for backend in ["host", "qemu"] {
        let run = ["run", "--rm", "--backend", backend, "--name", "it"];
        let scratch = ["--tmpfs", "/scratch"];
        // Containers share no folders.
        let shared = ["-v", &volume];
        let shared = if backend == "qemu" { &shared[..] } else { &[] };
        let command = ["box", "sh", "-c", script];
        let mut running = home.start(&[&run[..], &scratch, shared, &command].concat());
        assert_eq!(running.line(), "ready");
        let copied = at(backend);
        home.output(&["cp", "it:/", &copied]).ok();
        let read = |name: &str| fs::read_to_string(Path::new(&copied).join(name)).unwrap();
        assert_eq!(read("own"), "own\n");
        if !shared.is_empty() {
            assert_eq!(read("shared/kept"), "kept\n");
        }
        assert_eq!(read("scratch/file"), "scratch\n");
        for mounted in ["proc", "sys", "dev"] {
            let mut entries = fs::read_dir(Path::new(&copied).join(mounted)).unwrap();
            assert!(entries.next().is_none(), "{mounted}");
        }
        // What is named is copied.
        home.output(&["cp", "it:/proc/sys/kernel/ostype", &at("ostype")])
            .ok();
        assert_eq!(fs::read(at("ostype")).unwrap(), b"Linux\n");
        home.output(&["rm", "-f", "it"]).ok();
        running.wait();
    }
    home.assert_nothing_left();
}

/// Makes a directory with entries of every kind.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::write(root.join("file"), "file\n").unwrap();
    fs::write(root.join("sub/program"), vec![b'x'; 300_000]).unwrap();
    fs::set_permissions(root.join("sub/program"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::hard_link(root.join("file"), root.join("sub/hard")).unwrap();
    symlink("../nowhere", root.join("sub/link")).unwrap();
    fs::write(root.join("n".repeat(200)), "long").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"odd \xff")), "odd").unwrap();
    fs::set_permissions(root.join("sub/empty"), fs::Permissions::from_mode(0o500)).unwrap();
}

/// Lists what is below a directory with find.
#[track_caller]
fn listed(root: &Path) -> String {
    let output = Command::new("find")
        .arg(root)
        .args(["-mindepth", "1", "-printf", "%P %y %m %n %l %Ts\n"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// What to look at in a sandbox after [`copies`].
const LOOK: &str = "cd /srv; find new tree kept -type d | sort; cat new/file tree/file \
    kept/file; stat -c '%a %u %h' new/sub/program new/file; readlink new/sub/link; \
    stat -c %a kept new/sub/empty; md5sum < tree/sub/program; cat deep/er/tree/file; \
    cat piped/x; stat -c %s piped/holes; tail -c 4 piped/holes";

#[test]
#[ignore = "needs a built guest"]
fn directories_are_copied_by_dockers_rules() {
    let home = Home::new();
    home.output(&["run", "--name", "it", "--upper", "disk:256m", "box", "true"])
        .ok();
    let seen = copies(&home);
    assert_clean(&home.sandboxes()[0].join("upper.ext4"));
    home.output(&["commit", "it", "copied"]).ok();
    let look = home.output(&["run", "--rm", "copied", "sh", "-c", LOOK]);
    assert_eq!(look.ok(), seen);
    home.output(&["rm", "it"]).ok();
    home.assert_nothing_left();
}

#[test]
#[ignore = "needs a built guest"]
fn a_running_sandbox_is_copied_into_and_out_of_by_the_same_rules() {
    let home = Home::new();
    home.output(&["run", "-d", "--idle", "--name", "it", "box"])
        .ok();
    let seen = copies(&home);
    let inside = |script: &str| home.output(&["exec", "it", "sh", "-c", script]).ok();
    assert_eq!(inside(LOOK), seen);

    // With all that files have: compared by GNU tar, which both makes and reads the archives.
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let source = home.path().join("all");
    tree(&source);
    fs::set_permissions(source.join("file"), fs::Permissions::from_mode(0o6751)).unwrap();
    let holes = fs::File::create(source.join("holes")).unwrap();
    holes.write_all_at(b"middle", 3 << 20).unwrap();
    holes.set_len(9 << 20).unwrap();
    std::os::unix::fs::chown(source.join("sub/program"), Some(1234), Some(70_000)).unwrap();
    let program = fs::File::open(source.join("sub/program")).unwrap();
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let list = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\x2a\0\0\0\x04\0\x04\0\
        \xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    let none = rustix::fs::XattrFlags::empty();
    for (name, value) in [
        ("user.note", &b"a\0b"[..]),
        ("security.capability", capability),
        ("system.posix_acl_access", list),
    ] {
        rustix::fs::fsetxattr(&program, name, value, none).unwrap();
    }
    let times = |path: &str, time: &str| {
        let mut touch = Command::new("touch");
        let touch = touch.args(["-h", "-d", time]).arg(source.join(path));
        assert!(touch.status().unwrap().success());
    };
    times("sub/program", "2001-02-03T04:05:06.123456789Z");
    times("sub/link", "1960-01-01T00:00:00.5Z");
    times("sub", "2030-01-01T00:00:00.000000001Z");
    let fifo = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mkfifoat(rustix::fs::CWD, source.join("fifo"), fifo).unwrap();
    let put = home.output(&["cp", "-a", &at("all"), "it:/tmp/all"]);
    assert_eq!(put.stderr(), "");
    put.ok();
    home.output(&["cp", "-a", "it:/tmp/all", &at("whole")]).ok();
    let all = |root: &str| {
        let pack = format!(
            "tar -C {root} --sort=name --format=posix --pax-option=delete=atime,delete=ctime \
             --xattrs --xattrs-include='*' --acls -c . | tar --xattrs --xattrs-include='*' --acls -tvv --full-time | sort; \
             cd {root}; find . -printf '%p %y %m %U:%G %n %l %T@\\n' | sort; \
             find . -type f | sort | xargs -d '\\n' md5sum"
        );
        let output = Command::new("bash").args(["-c", &pack]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (ours, theirs) = (all(&at("all")), all(&at("whole")));
    assert_eq!(ours, theirs);
    assert!(ours.contains("2001-02-03 04:05:06.123456789"), "{ours}");
    assert!(
        ours.contains("security.capability") && ours.contains("user.note"),
        "{ours}"
    );
    let blocks = fs::metadata(home.path().join("whole/holes"))
        .unwrap()
        .blocks();
    assert!(blocks <= 64, "{blocks} blocks");
    assert!(
        inside("stat -c %b /tmp/all/holes")
            .trim()
            .parse::<u64>()
            .unwrap()
            <= 64
    );

    // Without -a, what grants rights stays behind; devices are named.
    inside("mknod /tmp/all/null c 1 3");
    let plain = home.output(&["cp", "it:/tmp/all", &at("plain")]);
    assert!(
        plain.stderr().contains("2 left out, the first was"),
        "{}",
        plain.stderr()
    );
    assert_eq!(plain.code(), 0);
    let file = fs::metadata(at("plain/file")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid()), (0o751, 0));
    let program = fs::File::open(at("plain/sub/program")).unwrap();
    let size = |name| rustix::fs::fgetxattr(&program, name, &mut [0_u8; 256][..]);
    assert_eq!(size("user.note"), Ok(3));
    assert_eq!(size("security.capability"), Err(rustix::io::Errno::NODATA));
    // What is no regular file is not replaced: root's `cp` to /dev/null would otherwise.
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let refused = home.output(&["cp", "it:/tmp/all/file", &at("pipe")]);
    let what = "neither a directory nor a regular file";
    assert!(refused.stderr().contains(what), "{}", refused.stderr());
    let kind = fs::metadata(at("pipe")).unwrap().file_type();
    assert!(kind.is_fifo());
    let refused = home.output(&["cp", "it:/tmp/all/null", &at("null")]);
    assert!(
        refused.stderr().contains("only by root"),
        "{}",
        refused.stderr()
    );
    assert_eq!(refused.code(), 1);

    // As programs inside see it: other filesystems, and files without a size.
    for path in ["/dev/shm/x", "/tmp/x", "/srv/x"] {
        home.output(&["cp", &at("all/file"), &format!("it:{path}")])
            .ok();
        assert_eq!(inside(&format!("cat {path}")), "file\n");
        home.output(&["cp", &format!("it:{path}"), &at("x")]).ok();
        assert_eq!(fs::read(at("x")).unwrap(), b"file\n");
    }
    home.output(&["cp", "it:/proc/meminfo", &at("x")]).ok();
    assert!(fs::read(at("x")).unwrap().starts_with(b"MemTotal:"));
    home.output(&["rm", "-f", "it"]).ok();
    home.assert_nothing_left();
}

/// As Docker and podman: what a link leads to is written, in a sandbox and on the host.
#[test]
#[ignore = "needs root and a built guest"]
fn copies_onto_links_go_to_what_they_lead_to() {
    let home = Home::new();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    // One that runs, and one with a disk that has not started yet.
    let run = [
        "run",
        "-d",
        "-q",
        "--backend",
        "host",
        "--net",
        "none",
        "--idle",
        "--name",
        "runs",
        "box",
    ];
    home.output(&run).ok();
    let links = "ln -s data /srv/link; ln -s /srv/far/later /srv/dangling; ln -s kept /srv/directory; ln -s link /srv/chain";
    home.output(&["exec", "runs", "sh", "-c", links]).ok();
    let mut create = vec![
        "create",
        "--backend",
        "qemu",
        "--upper",
        "disk:64m",
        "--name",
        "waits",
    ];
    for link in [
        "data:/srv/link",
        "/srv/far/later:/srv/dangling",
        "kept:/srv/directory",
        "link:/srv/chain",
    ] {
        create.extend(["--symlink", link]);
    }
    home.output(&[&create[..], &["box", "true"]].concat()).ok();
    let copy = |from: &str, to: &str| home.output(&["cp", from, to]).ok();
    for name in ["runs", "waits"] {
        let inside = |path: &str| format!("{name}:{path}");
        let read = |path: &str| {
            let to = at("read");
            let _ = fs::remove_file(&to);
            copy(&inside(path), &to);
            match fs::read_link(&to) {
                Ok(target) => format!("-> {}", target.display()),
                Err(_) => fs::read_to_string(&to).unwrap(),
            }
        };
        for (number, (to, at_last)) in [
            ("/srv/link", "/srv/data"),
            ("/srv/chain", "/srv/data"),
            ("/srv/dangling", "/srv/far/later"),
            ("/srv/directory", "/srv/kept/new"),
            ("/srv/directory/", "/srv/kept/new"),
            ("srv/relative", "/srv/relative"),
        ]
        .into_iter()
        .enumerate()
        {
            let text = format!("{name} {number}\n");
            fs::write(at("new"), &text).unwrap();
            copy(&at("new"), &inside(to));
            assert_eq!(read(at_last), text, "{name}: {to}");
        }
        assert_eq!(read("/srv/link"), "-> data", "{name}");
        assert_eq!(read("/srv/dangling"), "-> /srv/far/later", "{name}");

        // Archives on stdin may be compressed.
        for pack in ["gzip", "zstd -q", "cat"] {
            fs::write(at("new"), pack).unwrap();
            let pipe = format!("tar -C {} -c new | {pack}", home.path().display());
            let tar = Command::new("sh").args(["-c", &pipe]).output().unwrap();
            fs::write(at("packed"), tar.stdout).unwrap();
            let mut put = home.mica(&["cp", "-", &inside("srv/kept")]);
            let put = put.stdin(fs::File::open(at("packed")).unwrap()).output();
            let put = put.unwrap();
            assert!(put.status.success(), "{name} {pack}: {put:?}");
            assert_eq!(read("/srv/kept/new"), pack, "{name}");
        }
        // On the host.
        symlink("target", at("onto")).unwrap();
        copy(&inside("/srv/kept/new"), &at("onto"));
        assert_eq!(fs::read_link(at("onto")).unwrap(), Path::new("target"));
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "cat");
        fs::remove_file(at("onto")).unwrap();
        fs::remove_file(at("target")).unwrap();
    }
    let missing = home.output(&["cp", &at("new"), "nosuch:x"]);
    assert!(missing.stderr().contains("./name"), "{}", missing.stderr());
    home.output(&["rm", "-f", "runs", "waits"]).ok();
    home.assert_nothing_left();
}

/// Copies into the sandbox `it` and out of it. Returns what [`LOOK`] must show then.
fn copies(home: &Home) -> String {
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let source = home.path().join("tree");
    tree(&source);
    let copy = |from: &str, to: &str| home.output(&["cp", from, to]);
    // A missing target becomes a copy; an existing directory gets the copy, or the contents.
    copy(&at("tree"), "it:/srv/new").ok();
    copy(&at("tree"), "it:/srv").ok();
    copy(&at("tree/."), "it:/srv/kept").ok();
    copy(&at("tree"), "it:/srv/deep/er/").ok();
    copy(&at("tree"), "it:/srv/deep/er/").ok();
    for (from, to, what) in [
        (at("tree"), "it:/srv/run", "place of a file"),
        (at("tree/file"), "it:/srv/nope/", "no such directory"),
        (at("tree/file"), "it:/srv/run/x", "not a directory"),
        (at("nope"), "it:/srv", "no such file"),
        ("-".to_owned(), "it:/srv/run", "not a directory"),
    ] {
        let refused = copy(&from, to);
        assert_eq!(refused.code(), 1);
        let words = refused.stderr().to_lowercase();
        assert!(words.contains(what), "{from} {to}: {words}");
    }
    // An archive made by GNU tar, and one for GNU tar.
    fs::create_dir(at("t")).unwrap();
    fs::write(at("t/x"), "piped\n").unwrap();
    home.output(&["cp", &at("t"), "it:/srv/piped"]).ok();
    fs::write(at("t/x"), "tar\n").unwrap();
    let holes = fs::File::create(at("t/holes")).unwrap();
    holes.write_all_at(b"end\n", 5 << 20).unwrap();
    let mut tar = Command::new("tar");
    let mut tar = tar
        .args(["-C", &at("t"), "-S", "--format=posix", "-c", "x", "holes"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut put = home.mica(&["cp", "-", "it:/srv/piped"]);
    let put = put.stdin(tar.stdout.take().unwrap()).status().unwrap();
    assert!(put.success() && tar.wait().unwrap().success());
    let mut got = home.mica(&["cp", "it:/srv/new", "-"]);
    let mut got = got.stdout(Stdio::piped()).spawn().unwrap();
    let list = Command::new("tar")
        .args(["-t"])
        .stdin(got.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(got.wait().unwrap().success() && list.status.success());
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(
        list.starts_with("new/\n") && list.contains("new/sub/program\n"),
        "{list}"
    );

    // Out again: what went in.
    let long = "n".repeat(200);
    for (from, to) in [("it:/srv/new", "back"), ("it:/srv/deep/er/tree/.", "back2")] {
        copy(from, &at(to)).ok();
        assert_eq!(listed(Path::new(&at(to))), listed(&source));
        for name in ["file", "sub/program", &long] {
            let same = fs::read(at(to) + "/" + name).unwrap();
            assert!(same == fs::read(source.join(name)).unwrap(), "{name}");
        }
    }
    // Into an existing directory, whose own entries stay.
    fs::create_dir(at("mine")).unwrap();
    fs::write(at("mine/own"), "own").unwrap();
    copy("it:/srv/new", &at("mine")).ok();
    copy("it:/srv/new/.", &at("mine")).ok();
    assert_eq!(listed(Path::new(&at("mine/new"))), listed(&source));
    assert_eq!(fs::read(at("mine/own")).unwrap(), b"own");
    assert_eq!(fs::read(at("mine/file")).unwrap(), b"file\n");
    let refused = copy("it:/srv/new", &at("t/x"));
    assert!(
        refused.stderr().contains("place of a file"),
        "{}",
        refused.stderr()
    );

    let mut sum = Command::new("md5sum");
    sum.stdin(fs::File::open(source.join("sub/program")).unwrap());
    let sum = String::from_utf8(sum.output().unwrap().stdout).unwrap();
    let directories = |name: &str| format!("{name}\n{name}/sub\n{name}/sub/empty\n");
    [
        &directories("kept")[..],
        &directories("new"),
        &directories("tree"),
        "file\nfile\nfile\n750 0 1\n644 0 2\n../nowhere\n711\n500\n",
        &sum,
        "file\ntar\n5242884\nend\n",
    ]
    .concat()
}
