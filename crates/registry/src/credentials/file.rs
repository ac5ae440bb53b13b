//! Docker's configuration file, as Docker reads it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use super::Credential;
use micabox_oci::json;

/// Largest configuration file that is read, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Accepts what encoders leave out or leave over.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

/// The fields that are about credentials.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DockerFile {
    auths: BTreeMap<String, Entry>,
    creds_store: String,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl DockerFile {
    /// Reads a file; `None` if there is none, or an empty one.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, String> {
        let text = read(path).map_err(|error| error.to_string())?;
        // Without the message, which quotes values.
        let parse = |text: Vec<u8>| {
            if text.starts_with(b"\xef\xbb\xbf") {
                return Err("it begins with a byte order mark, which JSON does not have".to_owned());
            }
            json::from_slice(&text).map_err(|error| match error.line() {
                0 => "it is JSON of another structure than Docker's".to_owned(),
                line => format!("it is not valid JSON in line {line}"),
            })
        };
        text.map(parse).transpose()
    }

    /// Returns the names under which the file may have the credentials, most specific first.
    ///
    /// Docker stores credentials by registry; the containers tools also by repository or a parent
    /// of it. The latter names are returned only if the file has them, so that no helper runs for
    /// every part of a path.
    pub(super) fn keys(&self, registry: &str, repository: &str, own: &[&str]) -> Vec<String> {
        let has =
            |key: &String| self.auths.contains_key(key) || self.cred_helpers.contains_key(key);
        let ends = repository.match_indices('/').map(|(end, _)| end);
        let mut keys: Vec<String> = ends
            .chain([repository.len()])
            .filter_map(|end| Some(format!("{registry}/{}", repository.get(..end)?)))
            .filter(has)
            .collect();
        keys.reverse();
        keys.extend(own.iter().map(|key| (*key).to_owned()));
        keys
    }

    /// Returns the helper to ask for `key`: its own, or the store of all. An empty name is none,
    /// also in place of the store.
    pub(super) fn helper(&self, key: &str) -> Option<&str> {
        let helper = self.cred_helpers.get(key).unwrap_or(&self.creds_store);
        Some(helper.as_str()).filter(|helper| !helper.is_empty())
    }

    /// Returns the credentials that the file itself has under `key`, however it is spelled.
    pub(super) fn entry(&self, key: &str) -> Result<Option<Credential>, String> {
        let same = || {
            let host = host(key);
            let mut entries = self.auths.iter();
            entries
                .find(|(key, _)| is_of_host(key) && self::host(key) == host)
                .map(|(_, entry)| entry)
        };
        match self.auths.get(key).or_else(same) {
            Some(entry) => entry.credential(),
            None => Ok(None),
        }
    }
}

impl Entry {
    /// Returns what the entry has: the first of a registry's token, a token for tokens, and a
    /// password. Fields that are empty are none.
    fn credential(&self) -> Result<Option<Credential>, String> {
        if !self.registrytoken.is_empty() {
            return Ok(Some(Credential::RegistryToken(self.registrytoken.clone())));
        }
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credential::IdentityToken(self.identitytoken.clone())));
        }
        let (username, password) = match self.auth.as_str() {
            "" => (self.username.clone(), self.password.clone()),
            auth => decode(auth).ok_or("the entry is damaged: log in again")?,
        };
        let known = !username.is_empty();
        Ok(known.then_some(Credential::Password { username, password }))
    }
}

/// Decodes a name and a password. Like Go's decoder this one ignores line breaks; both alphabets
/// and missing padding occur, too.
fn decode(auth: &str) -> Option<(String, String)> {
    let text: String = auth.split_ascii_whitespace().collect();
    let alphabet = if text.contains(['-', '_']) {
        &URL_SAFE
    } else {
        &STANDARD
    };
    let pair = GeneralPurpose::new(alphabet, LENIENT).decode(text).ok()?;
    let pair = String::from_utf8(pair).ok()?;
    let (username, password) = pair.split_once(':')?;
    // Docker pads stored passwords with NUL bytes.
    let password = password.trim_matches('\0');
    (!username.is_empty()).then(|| (username.to_owned(), password.to_owned()))
}

/// Returns the `host[:port]` of a key, which may be a URL. The default registry has several.
fn host(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    match rest.split('/').next().unwrap_or_default() {
        "docker.io" | "registry-1.docker.io" => "index.docker.io",
        host => host,
    }
}

/// Returns whether a key is of a whole host, and not of one of its repositories: it is a URL or has
/// no path but the API's version.
fn is_of_host(key: &str) -> bool {
    let path = match key.split_once("://") {
        Some(_) => "",
        None => key.split_once('/').map_or("", |(_, path)| path),
    };
    matches!(path.trim_end_matches('/'), "" | "v1" | "v2")
}

fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    opened.take(MAX_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other("it is larger than 4 MiB"));
    }
    // `podman login` and Docker leave empty files behind.
    Ok(Some(text).filter(|text| !text.trim_ascii().is_empty()))
}
