//! What confines commands, in Docker's words.

use std::str::FromStr;

use super::{WordError, boolean};

/// An option of `--security-opt`, of which a sandbox has no more than Docker's defaults and `no-new-privileges`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityOption {
    /// Whether no program can give more rights than its caller has.
    NoNewPrivileges(bool),
    /// Nothing confines commands as this part of Docker's does.
    Unconfined(&'static str),
    /// What is so on every backend.
    Default,
}

impl FromStr for SecurityOption {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
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
}
