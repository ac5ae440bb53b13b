//! GnuPG, with keys in a directory of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A user's keys. Their agent ends when this is dropped.
pub struct Gpg(tempfile::TempDir);

impl Drop for Gpg {
    fn drop(&mut self) {
        // Its agent outlives it otherwise.
        let mut ending = Command::new("gpgconf");
        ending
            .args(["--kill", "all"])
            .env("GNUPGHOME", self.0.path());
        let _ = ending.status();
    }
}

impl Default for Gpg {
    fn default() -> Self {
        Self::new()
    }
}

impl Gpg {
    /// Makes an empty directory for keys.
    ///
    /// # Panics
    /// If it can't be made.
    #[must_use]
    pub fn new() -> Self {
        // Short, since sockets are in it, and for its owner only.
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns the directory (`GNUPGHOME`).
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// Runs gpg. Returns whether it succeeded, its output, and what it says besides.
    ///
    /// # Panics
    /// If gpg is not installed.
    #[must_use]
    pub fn try_run(&self, arguments: &[&str], input: &[u8]) -> (bool, Vec<u8>, String) {
        fs::write(self.0.path().join("input"), input).unwrap();
        let input = fs::File::open(self.0.path().join("input")).unwrap();
        let output = Command::new("gpg")
            .args([
                "--batch",
                "--quiet",
                "--pinentry-mode",
                "loopback",
                "--passphrase",
                "",
            ])
            .args(["--trust-model", "always"])
            .args(arguments)
            .env("GNUPGHOME", self.0.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::from(input))
            .output()
            .expect("gpg is installed; run scripts/setup");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), output.stdout, said)
    }

    /// Runs gpg, and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let (is_done, output, said) = self.try_run(arguments, input);
        assert!(is_done, "{arguments:?}: {said}");
        output
    }

    /// Makes a key for signing that does not expire, with more options before it. Returns its fingerprint.
    ///
    /// # Panics
    /// If gpg fails.
    pub fn key(&self, user: &str, kind: &str, more: &[&str]) -> String {
        self.run(
            &[more, &["--quick-gen-key", user, kind, "sign", "never"]].concat(),
            b"",
        );
        self.fingerprints(user)[0].clone()
    }

    /// Returns the fingerprints of a key and its subkeys.
    ///
    /// # Panics
    /// If there is no such key.
    #[must_use]
    pub fn fingerprints(&self, user: &str) -> Vec<String> {
        let listed = self.run(&["--with-colons", "--list-keys", user], b"");
        let listed = String::from_utf8(listed).unwrap();
        let lines = listed.lines().filter(|line| line.starts_with("fpr:"));
        lines
            .map(|line| line.split(':').nth(9).unwrap().to_owned())
            .collect()
    }

    /// Returns a user's public key.
    #[must_use]
    pub fn export(&self, user: &str) -> Vec<u8> {
        self.run(&["--export", user], b"")
    }

    /// Makes a message of a document and its signature.
    #[must_use]
    pub fn sign(&self, document: &[u8], options: &[&str]) -> Vec<u8> {
        self.run(&[options, &["--sign"]].concat(), document)
    }
}
