//! Login shells, in which E2B's clients run commands: the profile of most images sets PATH anew, without what the image
//! has in it.

use std::ffi::OsString;

use micabox::Command;

/// What precedes the script of a login shell.
const LOGIN: [&str; 2] = ["-l", "-c"];

/// The directories that profiles have in PATH.
const USUAL: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Has a login shell search the directories of the command's PATH first that its profile may not have.
pub fn keep_path(command: &mut Command) {
    let path = command.env.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or("", |(_, path)| path.to_str().unwrap_or_default());
    let own = path
        .split(':')
        .filter(|place| place.starts_with('/') && !USUAL.contains(place));
    let own: Vec<&str> = own.collect();
    let [_, login @ .., script] = command.argv.as_mut_slice() else {
        return;
    };
    if own.is_empty() || login != LOGIN {
        return;
    }
    let quoted = own.join(":").replace('\'', r"'\''");
    let mut longer = OsString::from(format!("PATH='{quoted}':\"$PATH\"; "));
    longer.push(&*script);
    *script = longer;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_shell_finds_the_programs_of_the_image() {
        let mut command = Command::new(["/bin/bash", "-l", "-c", "go version"]);
        command.env = vec![("PATH".into(), "/go's/bin:/usr/bin:.:/opt".into())];
        let plain = command.clone();
        keep_path(&mut command);
        assert_eq!(
            command.argv.last().unwrap(),
            r#"PATH='/go'\''s/bin:/opt':"$PATH"; go version"#
        );
        for (argv, path) in [
            (plain.argv, "/usr/bin:/bin"),
            (vec!["echo".into(), "-c".into(), "go".into()], "/go"),
            (vec!["-l".into()], "/go"),
        ] {
            let mut other = Command::new(argv);
            other.env = vec![("PATH".into(), path.into())];
            let before = other.clone();
            keep_path(&mut other);
            assert_eq!(other, before);
        }
    }
}
