//! The user that a command runs as: resolves `docker run --user` in the image's own files.
//!
//! The rules are Docker's (moby's `user.GetExecUser`), with one difference: a line of `/etc/passwd`
//! or `/etc/group` whose numbers are missing or invalid is skipped. Docker reads the number as 0,
//! which makes a typo root.

use std::collections::BTreeSet;

use crate::quoted::shown;

/// Largest user or group ID, as in Docker; the kernel's -1 means "unchanged".
const MAX_ID: u32 = i32::MAX as u32;

/// A user as the kernel needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, including `gid`: otherwise a process could drop that group, and with
    /// it permissions that the group is denied (CVE-2022-36109).
    pub groups: Vec<u32>,
    pub home: Vec<u8>,
}

/// The error for a user or group that is neither a name in the image's files nor a number.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown(pub String);

struct PasswdLine<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

struct GroupLine<'a> {
    name: &'a [u8],
    gid: u32,
    members: &'a [u8],
}

/// Returns the error for an unknown name or a number that is too large.
fn unknown(what: &str, name: &str, file: &str) -> Unknown {
    let shown = shown(name.as_bytes());
    Unknown(if name.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("{what} ID {shown} is too large: the largest is {MAX_ID}")
    } else {
        format!("{what} {shown} is not in the image's {file}")
    })
}

/// Finds `spec` (`""`, `user`, `user:group`, names or numbers) in the contents of
/// `/etc/passwd` and `/etc/group`.
pub fn resolve(spec: &str, passwd: &[u8], group: &[u8]) -> Result<Identity, Unknown> {
    let (user, wanted_group) = spec.split_once(':').unwrap_or((spec, ""));
    let user = if user.is_empty() { "0" } else { user };
    let number = parse_id(user.as_bytes());
    let entry = passwd_lines(passwd)
        .find(|line| line.name == user.as_bytes() || number.is_some_and(|uid| uid == line.uid));

    let (uid, mut gid, home) = match (&entry, number) {
        (Some(line), _) => (line.uid, line.gid, line.home),
        (None, Some(uid)) => (uid, 0, &b"/"[..]),
        (None, None) => {
            return Err(unknown("user", user, "/etc/passwd"));
        }
    };

    let mut groups = Vec::new();
    if !wanted_group.is_empty() {
        gid = find_group(wanted_group, group)?;
    } else if let Some(entry) = &entry {
        groups.extend(
            group_lines(group)
                .filter(|line| line.members.split(|&b| b == b',').any(|m| m == entry.name))
                .map(|line| line.gid),
        );
    }
    groups.insert(0, gid);
    let mut seen = BTreeSet::new();
    groups.retain(|&gid| seen.insert(gid));

    let home = if home.is_empty() { b"/" } else { home };
    Ok(Identity {
        uid,
        gid,
        groups,
        home: home.to_vec(),
    })
}

/// Adds `names`, names or numbers, to the identity's groups.
pub fn add_groups(identity: &mut Identity, names: &[String], group: &[u8]) -> Result<(), Unknown> {
    for name in names {
        let gid = find_group(name, group)?;
        if !identity.groups.contains(&gid) {
            identity.groups.push(gid);
        }
    }
    Ok(())
}

/// Finds a group by its name or its number, which need not be in the file.
fn find_group(name: &str, group: &[u8]) -> Result<u32, Unknown> {
    let number = parse_id(name.as_bytes());
    group_lines(group)
        .find(|line| line.name == name.as_bytes() || number.is_some_and(|gid| gid == line.gid))
        .map(|line| line.gid)
        .or(number)
        .ok_or_else(|| unknown("group", name, "/etc/group"))
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split(|&byte| byte == b'\n')
        .map(|line| line.trim_ascii())
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
}

fn passwd_lines(file: &[u8]) -> impl Iterator<Item = PasswdLine<'_>> {
    lines(file).filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let _password = fields.next()?;
        let uid = parse_id(fields.next()?)?;
        let gid = parse_id(fields.next()?)?;
        let _comment = fields.next();
        let home = fields.next().unwrap_or_default();
        Some(PasswdLine {
            name,
            uid,
            gid,
            home,
        })
    })
}

fn group_lines(file: &[u8]) -> impl Iterator<Item = GroupLine<'_>> {
    lines(file).filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let _password = fields.next()?;
        let gid = parse_id(fields.next()?)?;
        let members = fields.next().unwrap_or_default();
        Some(GroupLine { name, gid, members })
    })
}

fn parse_id(text: &[u8]) -> Option<u32> {
    // `u32::from_str` would accept a plus sign.
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let id = std::str::from_utf8(text).ok()?.parse().ok()?;
    (id <= MAX_ID).then_some(id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\n\
        # a comment:x:7:7::/:\n\
        \n\
        broken\n\
        worse:x:zero:0::/:\n\
        plus:x:+5:5::/:\n\
        app:x:1000:1000:App,,,:/srv/app:/bin/false\r\n\
        twin:x:1000:1001::/twin:\n\
        nohome:x:5:6\n\
        3000:x:42:43::/number:\n";
    const GROUP: &[u8] = b"root:x:0:\n\
        app:x:1000:\n\
        audio:x:29:app,nohome\n\
        video:x:44:nohome,app\n\
        again:x:29:app\n\
        almost:x:99:apple,my app\n\
        short:x\n\
        bad:x:-1:app\n";

    fn ids(spec: &str) -> Result<(u32, u32, Vec<u32>), Unknown> {
        resolve(spec, PASSWD, GROUP).map(|id| (id.uid, id.gid, id.groups))
    }

    #[test]
    fn names_of_users_bring_their_groups() {
        assert_eq!(ids("app"), Ok((1000, 1000, vec![1000, 29, 44])));
        assert_eq!(ids("nohome"), Ok((5, 6, vec![6, 29, 44])));
        assert_eq!(ids("root"), Ok((0, 0, vec![0])));
    }

    #[test]
    fn an_empty_user_is_root() {
        assert_eq!(ids(""), Ok((0, 0, vec![0])));
        assert_eq!(ids(":29"), Ok((0, 29, vec![29])));
        assert_eq!(
            resolve("", b"", b"").unwrap(),
            Identity {
                uid: 0,
                gid: 0,
                groups: vec![0],
                home: b"/".to_vec()
            }
        );
    }

    #[test]
    fn numeric_users_need_no_entry_but_use_one() {
        assert_eq!(ids("1000"), Ok((1000, 1000, vec![1000, 29, 44])));
        assert_eq!(ids("1234"), Ok((1234, 0, vec![0])));
        assert_eq!(ids("1234:5678"), Ok((1234, 5678, vec![5678])));
        assert_eq!(ids("2147483647"), Ok((2_147_483_647, 0, vec![0])));
        // A name that looks like a number takes precedence over the number.
        assert_eq!(ids("3000"), Ok((42, 43, vec![43])));
    }

    #[test]
    fn a_given_group_replaces_the_others() {
        assert_eq!(ids("app:audio"), Ok((1000, 29, vec![29])));
        assert_eq!(ids("app:44"), Ok((1000, 44, vec![44])));
        assert_eq!(ids("app:7777"), Ok((1000, 7777, vec![7777])));
        assert_eq!(ids("app:"), ids("app"));
    }

    #[test]
    fn malformed_users_are_refused() {
        for spec in [
            "nobody",
            "broken",
            "worse",
            "plus",
            "-1",
            "+1",
            "2147483648",
            "4294967295",
            "99999999999999999999",
            "app:none",
            "app:short",
            "app:-1",
            "app:bad",
            "app:29:30",
            " app",
            "#",
        ] {
            assert!(ids(spec).is_err(), "{spec:?}");
        }
        assert_eq!(
            ids("nobody").unwrap_err().0,
            "user nobody is not in the image's /etc/passwd"
        );
        assert_eq!(
            ids("4294967294").unwrap_err().0,
            "user ID 4294967294 is too large: the largest is 2147483647"
        );
        assert_eq!(
            ids("0:2147483648").unwrap_err().0,
            "group ID 2147483648 is too large: the largest is 2147483647"
        );
    }

    #[test]
    fn home_is_the_entrys_or_the_root() {
        let home = |spec| resolve(spec, PASSWD, GROUP).unwrap().home;
        assert_eq!(home("app"), b"/srv/app");
        assert_eq!(home("1000:0"), b"/srv/app");
        assert_eq!(home("nohome"), b"/");
        assert_eq!(home("1234"), b"/");
    }

    proptest! {
        #[test]
        fn arbitrary_passwd_files_give_a_valid_identity(
            spec in "\\PC{0,12}",
            passwd in prop::collection::vec(any::<u8>(), 0..300),
            group in "([a-z:,0-9\n]|:x:){0,60}",
        ) {
            if let Ok(identity) = resolve(&spec, &passwd, group.as_bytes()) {
                prop_assert!(identity.uid <= MAX_ID);
                prop_assert!(identity.groups.contains(&identity.gid));
                prop_assert!(!identity.home.is_empty());
            }
        }
    }
}
