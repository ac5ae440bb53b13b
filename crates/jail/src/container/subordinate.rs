//! The users that a user who is not root may have beside their own: subordinate IDs (subuid(5), subgid(5)),
//! which set-user-ID programs map (newuidmap(1), newgidmap(1)).

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, getuid};

use super::USERS;

const PROGRAMS: [&str; 2] = ["newuidmap", "newgidmap"];

/// Ranges of a user's that are large enough for a container's users and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subordinate {
    /// The first user and the first group, of [`USERS`] each.
    first: [u32; 2],
    /// What maps users, and groups.
    programs: [PathBuf; 2],
}

impl Subordinate {
    /// Finds the calling user's ranges, and the programs that map them.
    ///
    /// # Errors
    /// What is missing.
    pub fn find() -> Result<Self, String> {
        let user = getuid().as_raw();
        let name = name_of(&fs::read("/etc/passwd").unwrap_or_default(), user);
        let range = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            first_range(&text, &name, user)
                .ok_or_else(|| format!("{path} gives this user no {USERS} IDs in a row"))
        };
        let first = [range("/etc/subuid")?, range("/etc/subgid")?];
        let path = env::var_os("PATH").unwrap_or_default();
        let find = |name: &str| {
            let mut paths = env::split_paths(&path).map(|directory| directory.join(name));
            paths
                .find(|path| path.is_file())
                .ok_or_else(|| format!("{name} is not installed (package uidmap)"))
        };
        let [users, groups] = PROGRAMS.map(find);
        Ok(Self {
            first,
            programs: [users?, groups?],
        })
    }

    /// Maps the users and groups of a process's namespace: 0 to 65,535 to the ranges. Both programs run at
    /// once: each takes more than a millisecond, mostly to be executed.
    pub(super) fn map(&self, pid: Pid) -> io::Result<()> {
        let start = |program: &PathBuf, first: u32| {
            Command::new(program)
                .args([pid.as_raw_nonzero().to_string(), "0".to_owned()])
                .args([first.to_string(), USERS.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
        };
        let started = self.programs.iter().zip(self.first);
        let started: Vec<_> = started.map(|(of, first)| start(of, first)).collect();
        let ended = started.into_iter().map(|child| child?.wait_with_output());
        // All are waited for before an error is returned: none stays a zombie.
        let ended: Vec<_> = ended.collect();
        for (program, output) in self.programs.iter().zip(ended) {
            let output = output?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                let why = format!("{}: {}", program.display(), said.trim());
                return Err(io::Error::other(why));
            }
        }
        Ok(())
    }
}

/// Returns the name of a user in the lines of passwd(5).
fn name_of(passwd: &[u8], user: u32) -> Vec<u8> {
    let number = user.to_string();
    let lines = passwd.split(|byte| *byte == b'\n');
    let found = lines.filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next()?;
        (fields.nth(1)? == number.as_bytes()).then(|| name.to_vec())
    });
    found.into_iter().next().unwrap_or_default()
}

/// Returns the first ID of a user's first range that is large enough. A line begins with a name or a number.
fn first_range(text: &str, name: &[u8], user: u32) -> Option<u32> {
    let number = user.to_string();
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let whose = fields.next()?;
        let is_ours = whose == number || (!name.is_empty() && whose.as_bytes() == name);
        let (first, count): (u32, u32) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_enough = count >= USERS && first.checked_add(USERS).is_some();
        (is_ours && is_enough).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_name_or_number_if_it_is_large_enough() {
        let passwd = b"root:x:0:0::/:/bin/sh\nme:x:1234:5::/:\n1234:x:7:7::/:\n";
        assert_eq!(name_of(passwd, 1234), b"me");
        assert_eq!(name_of(passwd, 9), b"");
        let text = "you:1:65536\nme:100000:1000\n# \nme:200000:65536\n1234:300000:70000\n";
        assert_eq!(first_range(text, b"me", 1234), Some(200_000));
        assert_eq!(first_range(text, b"", 1234), Some(300_000));
        assert_eq!(first_range("me:4294967000:65536\n", b"me", 1), None);
        assert_eq!(first_range("me\nme:x:1\n:1:65536\n", b"", 1), None);
    }
}
