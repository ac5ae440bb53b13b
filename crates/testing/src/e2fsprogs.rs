//! Checks images with e2fsprogs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use crate::run;

/// Returns one of e2fsprogs' programs, which Debian keeps out of a user's PATH.
pub fn tool(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|program| program.exists())
        .unwrap_or_else(|| panic!("{name} is installed (Debian package e2fsprogs)"));
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").env("TZ", "UTC");
    command.env("E2FSCK_TIME", (now() + 2).to_string());
    command
}

/// Returns the seconds since 1970. e2fsck takes a little more for the present: a machine whose
/// processors' clocks differ by milliseconds can have written a superblock a second later than now.
fn now() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_epoch.expect("a clock that is set").as_secs()
}

/// The verdict of `e2fsck -fn`.
#[derive(Debug)]
pub struct Verdict {
    /// It exits with 0 and would change nothing.
    pub clean: bool,
    /// It exits with 0: changes that it would make are not errors.
    pub passed: bool,
    /// Its output.
    pub text: String,
}

impl Verdict {
    fn of(output: &Output) -> Self {
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let passed = output.status.success() && !text.contains("trying backup");
        Self {
            passed,
            clean: passed && !text.contains("? no"),
            text,
        }
    }
}

/// Runs `e2fsck -fn`. `None` if it was stopped: it loops on some broken images.
pub fn e2fsck(image: &Path) -> Option<Verdict> {
    let e2fsck = tool("e2fsck");
    // Time of a processor: on a busy machine, a sound image takes longer by the clock.
    let output = Command::new("prlimit")
        .arg("--cpu=20")
        .arg(e2fsck.get_program())
        .arg("-fn")
        .arg(image)
        .envs(
            e2fsck
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .output()
        .expect("prlimit and e2fsck run");
    output.status.code().map(|_| Verdict::of(&output))
}

/// Fails if `e2fsck -fn` has any remark about an image.
///
/// # Panics
/// With its output.
#[track_caller]
pub fn assert_clean(image: &Path) {
    let output = tool("e2fsck").arg("-fn").arg(image).output();
    let verdict = Verdict::of(&output.expect("e2fsck starts"));
    let chatter = |line: &&str| {
        !(line.is_empty()
            || line.starts_with("Pass ")
            || line.starts_with("e2fsck 1.")
            || line.contains("non-contiguous"))
    };
    let remarks: Vec<_> = verdict.text.lines().filter(chatter).collect();
    assert!(verdict.clean && remarks.is_empty(), "{}", verdict.text);
}

/// Returns the lines of `dumpe2fs -h` as keys and values.
#[track_caller]
pub fn superblock(image: &Path) -> BTreeMap<String, String> {
    let said = run(tool("dumpe2fs").arg("-h").arg(image));
    said.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

/// Runs one debugfs request.
#[track_caller]
pub fn debugfs(image: &Path, request: &str) -> String {
    run(tool("debugfs").args(["-R", request]).arg(image))
}

/// Returns e2fsprogs' own library of broken filesystems, by name.
pub fn broken_images() -> BTreeMap<String, PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/e2fsck-images");
    let output = Command::new(&script).output().expect("the script starts");
    let directory = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {directory}", script.display());
    std::fs::read_dir(directory.trim())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect()
}
