//! Parses `-e` and `--env-file`, with Docker's rules.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use micabox::EnvChange;

use micabox_program::failure::Failure;

/// Returns all changes in the order in which they apply: files first, then `-e`.
pub fn changes(files: &[PathBuf], flags: &[OsString]) -> Result<Vec<EnvChange>, Failure> {
    let host = |name: &OsStr| env::var_os(name);
    let mut changes = Vec::new();
    for path in files {
        let text = fs::read(path)
            .map_err(|error| Failure::of(&error).context(&format!("reading {}", path.display())))?;
        changes.extend(parse_file(path, &text, host)?);
    }
    for flag in flags {
        changes.push(parse_flag(flag, host)?);
    }
    Ok(changes)
}

/// Parses a flag: `NAME=VALUE` sets a variable; `NAME` takes the host's value, or unsets the
/// variable if there is none.
fn parse_flag(
    flag: &OsStr,
    host: impl Fn(&OsStr) -> Option<OsString>,
) -> Result<EnvChange, Failure> {
    let (name, value) = split(flag.as_bytes());
    if name.is_empty() {
        return Err(Failure::new(format!(
            "-e {}: no variable name",
            flag.display()
        )));
    }
    let name = OsString::from_vec(name.to_vec());
    Ok(match value {
        Some(value) => EnvChange::Set(name, OsString::from_vec(value.to_vec())),
        None => match host(&name) {
            Some(value) => EnvChange::Set(name, value),
            None => EnvChange::Unset(name),
        },
    })
}

/// Parses a file with one variable on each line; empty lines and those that begin with `#` are
/// skipped. The value is everything after `=`, quotes and blanks included. A lone name takes the
/// host's value, and is ignored if there is none.
fn parse_file(
    path: &Path,
    text: &[u8],
    host: impl Fn(&OsStr) -> Option<OsString>,
) -> Result<Vec<EnvChange>, Failure> {
    let wrong = |number: usize, what: &str| {
        Failure::new(format!("{}, line {}: {what}", path.display(), number + 1))
    };
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut changes = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if std::str::from_utf8(line).is_err() {
            return Err(wrong(number, "not UTF-8"));
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, value) = split(line);
        if name.is_empty() {
            return Err(wrong(number, "no variable name"));
        }
        if name.iter().any(u8::is_ascii_whitespace) {
            return Err(wrong(number, "blanks in a variable name"));
        }
        let name = OsString::from_vec(name.to_vec());
        match value {
            Some(value) => {
                changes.push(EnvChange::Set(name, OsString::from_vec(value.to_vec())));
            }
            None => changes.extend(host(&name).map(|value| EnvChange::Set(name, value))),
        }
    }
    Ok(changes)
}

/// Splits text at the first `=`.
fn split(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut parts = text.splitn(2, |byte| *byte == b'=');
    (parts.next().unwrap_or_default(), parts.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &OsStr) -> Option<OsString> {
        (name == "HOST").then(|| "from host".into())
    }

    fn set(name: &str, value: &str) -> EnvChange {
        EnvChange::Set(name.into(), value.into())
    }

    #[test]
    fn environment_flags_set_inherit_and_unset() {
        let parse = |flag: &str| parse_flag(OsStr::new(flag), host);
        assert_eq!(parse("A=b=c").unwrap(), set("A", "b=c"));
        assert_eq!(parse("A=").unwrap(), set("A", ""));
        assert_eq!(parse("HOST").unwrap(), set("HOST", "from host"));
        assert_eq!(parse("GONE").unwrap(), EnvChange::Unset("GONE".into()));
        parse("=x").unwrap_err();
        parse("").unwrap_err();
    }

    #[test]
    fn environment_files_have_a_variable_a_line() {
        let text = "\u{feff}# comment\n\n  A=1 # no comment \r\nB=\"quoted\"\nHOST\nGONE\nC=";
        let changes = parse_file(Path::new("f"), text.as_bytes(), host).unwrap();
        assert_eq!(
            changes,
            [
                set("A", "1 # no comment "),
                set("B", "\"quoted\""),
                set("HOST", "from host"),
                set("C", ""),
            ]
        );
    }

    #[test]
    fn a_wrong_line_of_an_environment_file_is_named() {
        for (text, line) in [
            ("A=1\n=x", 2),
            ("A B=1", 1),
            ("\n\nA \n", 3),
            ("\u{ff}\n", 0),
        ] {
            let bytes = match line {
                0 => vec![b'A', 0xff],
                _ => text.into(),
            };
            let result = parse_file(Path::new("f"), &bytes, host);
            assert!(result.is_err(), "{text:?}");
        }
    }
}
