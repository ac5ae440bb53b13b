//! Who may read: any client, those with a token, or those with a certificate (which TLS has checked by then).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Shortest token, in bytes: shorter ones can be guessed.
const SHORTEST: usize = 16;

/// What a client without a token is told.
pub const CHALLENGE: &str = "Basic realm=\"mica store\"";

/// Who may read.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Digests of tokens, one of which a client must have; without any, every client may read.
    tokens: Vec<[u8; 32]>,
}

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file can't be read.
    #[error("cannot read the tokens in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no token in it.
    #[error("{} has no token: write one on a line of its own", .0.display())]
    Empty(PathBuf),
    /// A token is too short.
    #[error("line {line} of {}: a token of less than {SHORTEST} bytes can be guessed", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

impl Access {
    /// Reads tokens from a file: one on each line, empty lines and those that begin with `#` aside.
    ///
    /// # Errors
    ///
    /// [`AccessError`].
    pub fn from_file(path: &Path) -> Result<Self, AccessError> {
        let text = fs::read_to_string(path).map_err(|source| AccessError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let token = line.trim();
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            if token.len() < SHORTEST {
                return Err(AccessError::Short {
                    path: path.to_owned(),
                    line: number + 1,
                });
            }
            tokens.push(Sha256::digest(token.as_bytes()).into());
        }
        if tokens.is_empty() {
            return Err(AccessError::Empty(path.to_owned()));
        }
        Ok(Self { tokens })
    }

    /// Returns whether every client may read.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns whether a request may read: its password is a token, whatever the user's name, or its bearer token is.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        self.is_open() || given(headers).is_some_and(|token| self.knows(&token))
    }

    /// Compares with every token, in a time that tells nothing of them.
    fn knows(&self, token: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(token).into();
        let mut is_known = Choice::from(0);
        for token in &self.tokens {
            is_known |= token.ct_eq(&given);
        }
        is_known.into()
    }
}

fn given(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, value) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = STANDARD.decode(value).ok()?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    pair.get(colon + 1..).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn a_token_is_a_password_or_a_bearer() {
        let access = Access {
            tokens: vec![
                Sha256::digest(b"another-token-of-it").into(),
                Sha256::digest(b"0123456789:abcdef").into(),
            ],
        };
        let basic = |pair: &str| with(&format!("basic {}", STANDARD.encode(pair)));
        assert!(access.admits(&with("Bearer 0123456789:abcdef")));
        assert!(access.admits(&basic("anybody:0123456789:abcdef")));
        assert!(access.admits(&basic(":another-token-of-it")));
        for headers in [
            HeaderMap::new(),
            with("Bearer"),
            with("Bearer "),
            with("Digest 0123456789:abcdef"),
            with("Bearer 0123456789:abcde"),
            basic("0123456789:abcdef"),
            basic("no colon"),
            with("Basic ~~~"),
        ] {
            assert!(!access.admits(&headers), "{headers:?}");
        }
        assert!(Access::default().admits(&HeaderMap::new()));
    }
}
