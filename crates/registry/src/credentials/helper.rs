//! Credential helpers: programs that are asked for a registry's credentials, by [Docker's
//! protocol][protocol].
//!
//! [protocol]: https://github.com/docker/docker-credential-helpers

use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::Credential;
use micabox_oci::json;

/// The user's name with which a helper marks a token.
const TOKEN: &str = "<token>";
/// The sentence with which a helper says that it has nothing.
const NOTHING: &str = "credentials not found";
/// Bytes of a helper's error message that an error repeats.
const MAX_COMPLAINT: usize = 300;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks the helper called `name` for the credentials of `key`; `None` if it has none. An error is
/// the reason why it gave no answer.
pub(super) fn ask(name: &str, key: &str) -> Result<Option<Credential>, String> {
    // A path would not be looked up in PATH.
    if name.contains('/') {
        let problem = "the credential helper's name is a path";
        return Err(problem.to_owned());
    }
    let program = format!("docker-credential-{name}");
    let not_run = |_| {
        format!(
            "the credential helper that it names ({program}) cannot be run: install it or remove \
             it from the file"
        )
    };
    let mut process = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    if let Some(mut stdin) = process.stdin.take() {
        // One that doesn't read the key has said all that it will.
        let _ = stdin.write_all(key.as_bytes());
    }
    let output = process.wait_with_output().map_err(not_run)?;
    if output.status.success() {
        let answer: Answer = json::from_slice(&output.stdout)
            .map_err(|_| "the credential helper's answer is not in Docker's format".to_owned())?;
        return Ok(match answer.username.as_str() {
            "" => None,
            TOKEN => Some(Credential::IdentityToken(answer.secret)),
            _ => Some(Credential::Password {
                username: answer.username,
                password: answer.secret,
            }),
        });
    }
    // On either stream, since not every helper follows the protocol exactly.
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if stdout.contains(NOTHING) || stderr.contains(NOTHING) {
        return Ok(None);
    }
    let complaint = if stderr.trim().is_empty() {
        stdout
    } else {
        stderr
    };
    let complaint = complaint.trim().chars().filter(|c| !c.is_control());
    let complaint: String = complaint.take(MAX_COMPLAINT).collect();
    Err(format!("`{program} get` failed: {complaint}"))
}
