//! This machine's own programs at work in a shared folder, as root and as another user.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Finished, Home, Running};

/// Works in a directory of its own.
const WORK: &str = r#"
set -e
mkdir "$1"; cd "$1"; export HOME=$PWD PATH=/usr/bin:/bin:/usr/sbin
git init -q -b main source; cd source
git config user.name a; git config user.email a@localhost
i=0; mkdir many; while [ $i -lt 20 ]; do echo $i >many/$i; i=$((i+1)); done
echo one >file; chmod 755 file; ln -s file link
git add .; git commit -q -m first; git status --porcelain
echo two >file; git mv many/7 moved; git status --porcelain
git commit -q -a -m second; git checkout -q HEAD~1; git checkout -q main
git gc -q; git fsck --no-progress; git clone -q . ../clone; git -C ../clone status --porcelain
cd ..
mkdir unpacked; tar cf all.tar source; tar xf all.tar -C unpacked; diff -r source unpacked/source
rsync -a source/ copied/; rsync -ain --delete source/ copied/; rsync -a --inplace all.tar second.tar
cmp all.tar second.tar
mkdir -p package/DEBIAN package/usr/share/p root/var/lib/dpkg/info root/var/lib/dpkg/updates
: >root/var/lib/dpkg/status; echo text >package/usr/share/p/text
printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: d\n' >package/DEBIAN/control
dpkg-deb --root-owner-group -b package p.deb >p.log
[ "$(id -u)" != 0 ] || dpkg --log=/dev/null --root="$PWD/root" -i p.deb >>p.log
[ "$(id -u)" != 0 ] || cat root/usr/share/p/text
python3 -I -S -c "$PYTHON"
find . ! -type l -user "$(id -u)" -group "$(id -g)" | wc -l; find . ! -type l | wc -l
"#;

/// Locks between two processes, memory that both map, and a file that gets its name last.
const PYTHON: &str = r#"
import fcntl, mmap, os
def other(work):
    if (child := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        except BlockingIOError:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with open("locked", "w+b") as file:
    file.truncate(2 << 20)
    for lock in fcntl.flock, fcntl.lockf:
        def attempt():
            with open("locked", "r+b") as again:
                lock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock(file, fcntl.LOCK_EX)
        held = other(attempt)
        lock(file, fcntl.LOCK_UN)
        print(lock.__name__, held, other(attempt))
    view = mmap.mmap(file.fileno(), 0)
    def change():
        with open("locked", "r+b") as again, mmap.mmap(again.fileno(), 0) as theirs:
            theirs[1 << 20] = 7
    print("mapped", other(change), view[1 << 20])
    view[0:5] = b"bytes"
    view.flush()
    view.close()
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(unnamed, b"late")
os.link(f"/proc/self/fd/{unnamed}", "named", src_dir_fd=unnamed, follow_symlinks=True)
print("named", open("named").read(), os.fstat(unnamed).st_nlink)
"#;

const SEEN: &str = " M file\nR  many/7 -> moved\n";

const SEEN_OF_PYTHON: &str = "\
flock 3 0
lockf 3 0
mapped 0 7
named late 1
";

#[test]
#[ignore = "needs a built guest"]
fn programs_are_content_in_a_folder_as_root_and_as_another_user() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("work"), WORK).unwrap();
    let volume = format!("{}:/w", path.display());
    // busybox runs its own programs, wherever they are.
    let both =
        "cd /w; chmod 777 .; /usr/bin/sh work root; /bin/su app -c '/usr/bin/sh /w/work app'";
    let python = format!("PYTHON={PYTHON}");
    let seen = run(&home, &["-v", &volume, "-e", &python], both);
    let (root, rest) = seen.split_once(SEEN_OF_PYTHON).unwrap();
    let (app, last) = rest.split_once(SEEN_OF_PYTHON).unwrap();
    assert_eq!(root, [SEEN, "text\n"].concat());
    // All belongs inside to the user who made it.
    for counts in [app.strip_suffix(SEEN).unwrap(), last] {
        let (owned, all) = counts.trim().split_once('\n').unwrap();
        assert_eq!(owned, all);
    }
    outside(&path.join("root"));
    outside(&path.join("app"));
    home.assert_nothing_left();
}

/// What a user inside has made is whole outside, and this user's.
fn outside(made: &Path) {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.env("HOME", made)
            .arg("-C")
            .arg(made.join("source"))
            .args(arguments);
        let output = git.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(git(&["status", "--porcelain"]), "");
    assert_eq!(git(&["log", "--format=%s"]), "second\nfirst\n");
    git(&["fsck", "--no-progress"]);
    let locked = fs::read(made.join("locked")).unwrap();
    assert_eq!((&locked[..5], locked[1 << 20]), (&b"bytes"[..], 7));
    let named = fs::metadata(made.join("named")).unwrap();
    assert_eq!(named.permissions().mode() & 0o777, 0o640);
    assert_eq!(named.uid(), rustix::process::geteuid().as_raw());
}

/// Installs and removes a package from a repository in the folder, on a system in the folder.
const APT: &str = r#"
export PATH=/usr/bin:/bin:/usr/sbin DEBIAN_FRONTEND=noninteractive LC_ALL=C
echo _apt:x:42:65534::/nonexistent:/bin/false >>/etc/passwd
mkdir -p /etc/apt/apt.conf.d repository package/DEBIAN package/usr/share/p
mkdir -p root/etc/apt/preferences.d root/etc/apt/apt.conf.d root/var/lib/apt/lists root/var/log/apt
mkdir -p root/var/cache/apt/archives root/var/lib/dpkg/info root/var/lib/dpkg/updates
: >root/var/lib/dpkg/status; : >root/var/lib/dpkg/available
for version in 1 2; do
    echo $version >package/usr/share/p/text
    control="Package: p\nVersion: $version\nArchitecture: all\nMaintainer: a\nDescription: d\n"
    printf "$control" >package/DEBIAN/control
    dpkg-deb --root-owner-group -b package repository/p$version.deb >p.log
    printf "$control" >>repository/Packages
    size=$(stat -c %s repository/p$version.deb) sum=$(sha256sum <repository/p$version.deb)
    printf "Filename: ./p$version.deb\nSize: $size\nSHA256: ${sum%% *}\n\n" >>repository/Packages
done
echo 'deb [trusted=yes] copy:/w/repository ./' >root/etc/apt/sources.list
apt() { apt-get -q -y -o Dir=/w/root -o Dir::State::status=/w/root/var/lib/dpkg/status \
    -o DPkg::Options::=--root=/w/root -o DPkg::Options::=--log=/dev/null \
    -o APT::Architecture=amd64 -o Binary::apt-get::APT::Keep-Downloaded-Packages=true "$@"; }
apt update >log
for work in 'install p=1' 'remove p' 'install p=1' upgrade; do
    apt $work >>log
    cat root/usr/share/p/text 2>/dev/null || echo removed
done
stat -c '%U %a' root/var/lib/apt/lists/partial root/var/cache/apt/archives/partial
grep -E '^(W|E):' log || echo content
"#;

#[test]
#[ignore = "needs a built guest"]
fn apt_installs_removes_and_upgrades_on_a_system_in_a_folder() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let volume = format!("{}:/w", path.display());
    let seen = run(&home, &["-v", &volume], &format!("cd /w; {APT}"));
    // What is fetched belongs to a user that apt changes to.
    assert_eq!(seen, "1\nremoved\n1\n2\n_apt 700\n_apt 700\ncontent\n");
    home.assert_nothing_left();

    // Outside it is a system of this machine's dpkg.
    let root = format!("--root={}", path.join("root").display());
    let output = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(output("dpkg", &[&root, "--verify"]), "");
    let format = ["-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}"];
    let admin = format!("--admindir={}", path.join("root/var/lib/dpkg").display());
    let known = output("dpkg-query", &[&[&*admin], &format[..]].concat());
    assert_eq!(known, "p 2 ii ");
    let partial = fs::metadata(path.join("root/var/lib/apt/lists/partial")).unwrap();
    assert_eq!(partial.uid(), rustix::process::geteuid().as_raw());
}

/// Installs an archive that has a package inside it, and a folder, and runs their programs.
const NPM: &str = r#"
export PATH=/npm/bin:/usr/bin:/bin HOME=/w/home npm_config_cache=/w/home/cache
mkdir -p home packed/bin packed/node_modules/inner linked app
echo '{"name":"packed","version":"1.0.0","bin":{"say":"bin/say.js"},"dependencies":{"inner":"1.0.0"},
    "bundleDependencies":["inner"],"scripts":{"postinstall":"echo ran >made"}}' >packed/package.json
printf '#!/usr/bin/env node\nconsole.log(require("inner"), require("linked"))\n' >packed/bin/say.js
echo '{"name":"inner","version":"1.0.0"}' >packed/node_modules/inner/package.json
echo 'module.exports = "from inside"' >packed/node_modules/inner/index.js
echo '{"name":"linked","version":"1.0.0"}' >linked/package.json
echo 'module.exports = "by a link"' >linked/index.js
tar czf packed.tgz --transform s,^packed,package, packed
echo '{"name":"app","version":"1.0.0","dependencies":{"packed":"file:../packed.tgz","linked":"file:../linked"}}' \
    >app/package.json
cd app; npm install --offline --no-audit --no-fund --loglevel=warn >log 2>&1 || cat log
node_modules/.bin/say
"#;

#[test]
#[ignore = "needs a built guest"]
fn npm_installs_packages_and_links_their_programs_in_a_folder() {
    let home = Home::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tool = Command::new(top.join("scripts/tool")).arg("npm").output();
    let tool = tool.unwrap();
    assert!(tool.status.success(), "{tool:?}");
    let npm = String::from_utf8(tool.stdout).unwrap();
    let npm = Path::new(npm.trim()).ancestors().nth(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let npm = format!("{}:/npm:ro,cached", npm.display());
    let volume = format!("{}:/w", path.display());
    let options = ["-m", "1g", "-v", &npm, "-v", &volume];
    let seen = run(&home, &options, &format!("cd /w; {NPM}"));
    assert_eq!(seen, "from inside by a link\n");
    home.assert_nothing_left();

    let modules = path.join("app/node_modules");
    let link = |name: &str| fs::read_link(modules.join(name)).unwrap();
    assert_eq!(link(".bin/say"), Path::new("../packed/bin/say.js"));
    assert_eq!(link("linked"), Path::new("../../linked"));
    let say = fs::metadata(modules.join("packed/bin/say.js")).unwrap();
    assert_eq!(say.permissions().mode() & 0o111, 0o111);
    assert_eq!(say.uid(), rustix::process::geteuid().as_raw());
    assert!(modules.join("packed/node_modules/inner/index.js").exists());
    let made = fs::read_to_string(modules.join("packed/made")).unwrap();
    assert_eq!(made, "ran\n");
}

/// Lists the files of trees with all that `stat` says of them, and sums the list up.
const LIST: &str = r#"
list() { find "$@" -type f -printf '%p %s %m %T@\n' | LC_ALL=C sort | sha256sum; }
"#;

/// Lists a tree and changes it; lists what has changed when it was changed outside too.
const WALK: &str = r#"
export PATH=/usr/bin:/bin; cd /w; eval "$LIST"
list .; read next
rm -r 0/0; mv 1/0 moved; echo longer >>2/0/0; chmod 600 2/0/1; mkdir -p new/in; : >new/in/it
find . -type f | wc -l; read next
find . -type f | wc -l; list 0 2 moved new
"#;

#[test]
#[ignore = "needs a built guest"]
fn fifty_thousand_files_are_the_same_inside_and_outside_before_and_after_changes() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (outer, inner) in (0..10).flat_map(|outer| (0..50).map(move |inner| (outer, inner))) {
        let directory = path.join(format!("{outer}/{inner}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..100 {
            fs::write(
                directory.join(file.to_string()),
                format!("{inner} {file}\n"),
            )
            .unwrap();
        }
    }
    let list = |trees: &str| {
        let mut list = Command::new("sh");
        let script = format!("{LIST} list {trees}");
        let output = list.args(["-c", &script]).current_dir(path).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let (volume, variable) = (format!("{}:/w", path.display()), format!("LIST={LIST}"));
    let options = ["-i", "-v", &volume, "-e", &variable];
    let mut mica = sandbox(&home, &options, WALK);
    mica.stdin(Stdio::piped());
    let mut inside = Running::new(mica);
    let mut stdin = inside.stdin().unwrap();
    assert_eq!(inside.line(), list(".").trim_end());
    stdin.write_all(b"next\n").unwrap();
    // A directory of a hundred files is gone, one is elsewhere, and there is a new file.
    assert_eq!(inside.line(), "49901");
    assert!(path.join("moved/99").exists() && !path.join("1/0").exists());
    fs::remove_dir_all(path.join("3/0")).unwrap();
    fs::rename(path.join("4/0"), path.join("0/0")).unwrap();
    fs::write(path.join("2/0/0"), "shorter").unwrap();
    fs::write(path.join("new/in/other"), "new").unwrap();
    stdin.write_all(b"next\n").unwrap();
    assert_eq!(inside.line(), "49802");
    assert_eq!(inside.line(), list("0 2 moved new").trim_end());
    assert_eq!(inside.wait(), 0);
    home.assert_nothing_left();
}

/// Runs a script in a sandbox that has this machine's programs.
fn run(home: &Home, options: &[&str], script: &str) -> String {
    Finished::of(sandbox(home, options, script)).ok()
}

/// Returns a `mica` that runs a script in a sandbox that has this machine's programs.
fn sandbox(home: &Home, options: &[&str], script: &str) -> Command {
    let programs = "--rm --backend qemu --net none -v /usr:/usr:ro,cached \
                    --symlink usr/lib:/lib --symlink usr/lib64:/lib64";
    let programs: Vec<&str> = programs.split_whitespace().collect();
    let script = format!("set -e; {script}");
    let command = ["box", "sh", "-c", &script];
    home.mica(&[&["run"], &programs[..], options, &command].concat())
}
