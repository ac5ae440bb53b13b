//! `--security-opt`, of which a sandbox has no more than Docker's defaults and `no-new-privileges`.

use micabox::BackendChoice;

use super::boolean;
use super::sandbox::SandboxArgs;
use crate::failure::Failure;

/// A value of `--security-opt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityOption {
    /// Whether no program can give more rights than its caller has.
    NoNewPrivileges(bool),
    /// Nothing confines commands as this part of Docker's does.
    Unconfined(&'static str),
    /// What is so on every backend.
    Default,
}

/// Parses a value of `--security-opt`.
pub fn security_option(text: &str) -> Result<SecurityOption, String> {
    let (name, value) = text.split_once(['=', ':']).unwrap_or((text, ""));
    Ok(match (name, value) {
        ("no-new-privileges", "") => SecurityOption::NoNewPrivileges(true),
        ("no-new-privileges", value) => {
            let value = boolean(value).ok_or("expected true or false")?;
            SecurityOption::NoNewPrivileges(value)
        }
        ("seccomp", "unconfined") => SecurityOption::Unconfined("seccomp"),
        ("systempaths", "unconfined") => SecurityOption::Unconfined("systempaths"),
        ("seccomp", "builtin") | ("apparmor", "unconfined") | ("label", "disable") => {
            SecurityOption::Default
        }
        _ => {
            return Err(
                "there are no profiles but the default ones: expected no-new-privileges, \
                 seccomp=unconfined, apparmor=unconfined, label=disable or systempaths=unconfined \
                 (--cap-drop limits root inside)"
                    .into(),
            );
        }
    })
}

impl SandboxArgs {
    /// Returns whether no program of the sandbox's can give more rights than its caller has.
    pub fn no_new_privileges(&self) -> bool {
        let options = self.security_opt.iter().rev();
        let mut given = options.filter_map(|option| match option {
            SecurityOption::NoNewPrivileges(value) => Some(*value),
            _ => None,
        });
        given.next().unwrap_or_default()
    }

    /// Fails if commands on this machine's own kernel are to be less confined than they are.
    pub fn check_security(&self) -> Result<(), Failure> {
        if self.machine.backend != BackendChoice::Host {
            return Ok(());
        }
        let refused = |option: &SecurityOption| match option {
            SecurityOption::NoNewPrivileges(false) => Some("no-new-privileges=false".to_owned()),
            SecurityOption::Unconfined(name) => Some(format!("{name}=unconfined")),
            _ => None,
        };
        match self.security_opt.iter().find_map(refused) {
            None => Ok(()),
            Some(option) => Err(Failure::new(format!(
                "`--security-opt {option}` is not supported with --backend host: what shares this machine's \
                 kernel is always confined"
            ))
            .hint("a machine of its own has none of this: omit --backend host")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;

    #[test]
    fn security_options_are_defaults_and_no_new_privileges() {
        let options = |backend: &str, options: &[&str]| {
            let mut words = vec!["--backend", backend];
            words.extend(
                options
                    .iter()
                    .flat_map(|option| ["--security-opt", *option]),
            );
            words.push("box");
            let sandbox = parse(&words).ok()?.sandbox;
            sandbox.check_security().ok()?;
            Some(sandbox.confinement().no_new_privileges)
        };
        assert_eq!(options("qemu", &[]), Some(false));
        for on in [
            "no-new-privileges",
            "no-new-privileges:true",
            "no-new-privileges=1",
        ] {
            assert_eq!(options("qemu", &[on]), Some(true), "{on}");
            assert_eq!(options("host", &[on]), Some(true), "{on}");
        }
        let both = ["no-new-privileges", "no-new-privileges=false"];
        assert_eq!(options("qemu", &both), Some(false));
        assert_eq!(options("host", &both), None);
        for own in [
            "seccomp=unconfined",
            "seccomp:unconfined",
            "systempaths=unconfined",
        ] {
            assert_eq!(options("qemu", &[own]), Some(false), "{own}");
            assert_eq!(options("host", &[own]), None, "{own}");
        }
        for anywhere in ["seccomp=builtin", "apparmor=unconfined", "label=disable"] {
            assert_eq!(options("host", &[anywhere]), Some(false), "{anywhere}");
        }
        for bad in [
            "",
            "x",
            "seccomp=p.json",
            "label=type:x",
            "no-new-privileges=x",
        ] {
            assert_eq!(options("qemu", &[bad]), None, "{bad}");
        }
    }
}
