//! A command's environment: the host's variables, and Docker's defaults.

use std::ffi::{CString, NulError};

/// Docker's PATH if neither image nor user set one.
pub const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names and values.
#[derive(Clone, Debug)]
pub struct Environment(Vec<(Vec<u8>, Vec<u8>)>);

impl Environment {
    /// Creates an environment from the host's variables.
    pub fn new(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        Self(pairs)
    }

    /// Returns the value of `name`; the last one if there are several, as for programs that read
    /// the environment into a map.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0
            .iter()
            .rev()
            .find_map(|(key, value)| (key == name).then_some(value.as_slice()))
    }

    /// Sets `name` if it is missing or empty.
    pub fn set_default(&mut self, name: &[u8], value: &[u8]) {
        if self.get(name).is_none_or(<[u8]>::is_empty) {
            self.0.retain(|(key, _)| key != name);
            self.0.push((name.to_vec(), value.to_vec()));
        }
    }

    /// Returns `name=value` strings for execve(2).
    ///
    /// # Errors
    /// A name or value has a NUL byte.
    pub fn to_strings(&self) -> Result<Vec<CString>, NulError> {
        self.0
            .iter()
            .map(|(name, value)| CString::new([name.as_slice(), b"=", value].concat()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_variables_replace_none_that_are_set() {
        let pair = |name: &str, value: &str| (name.into(), value.into());
        let mut environment = Environment::new(vec![
            pair("PATH", "/a"),
            pair("HOME", ""),
            pair("A", "1"),
            pair("A", "2"),
        ]);
        environment.set_default(b"PATH", b"/b");
        environment.set_default(b"HOME", b"/root");
        environment.set_default(b"TERM", b"xterm");
        assert_eq!(environment.get(b"A"), Some(&b"2"[..]));
        let strings = environment.to_strings().unwrap();
        let strings: Vec<_> = strings.iter().map(|s| s.to_str().unwrap()).collect();
        assert_eq!(
            strings,
            ["PATH=/a", "A=1", "A=2", "HOME=/root", "TERM=xterm"]
        );
    }

    #[test]
    fn a_nul_byte_in_a_variable_is_refused() {
        let environment = Environment::new(vec![(b"A".to_vec(), b"b\0c".to_vec())]);
        assert!(environment.to_strings().is_err());
    }
}
