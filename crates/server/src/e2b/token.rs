//! What a client has to know: the API's key, a sandbox's tokens, and signatures of addresses of files.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use micabox_ground::hex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use micabox_program::failure::Failure;

/// The file below the store with the key.
const FILE: &str = "e2b-key";

/// The API's key. It is made once, so that clients may keep it.
#[derive(Debug)]
pub struct Key(String);

impl Key {
    /// Reads the key, or makes it.
    pub fn of(store: &Path) -> Result<Self, Failure> {
        let path = store.join(FILE);
        let failed = |error: io::Error| {
            Failure::of(&error).context(&format!("the key in {}", path.display()))
        };
        match fs::read_to_string(&path) {
            Ok(key) if !key.trim().is_empty() => return Ok(Self(key.trim().to_owned())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let key = format!("e2b_{}", random().map_err(failed)?);
        let mut file = tempfile::Builder::new();
        let file = file.prefix(".e2b-key").tempfile_in(store).map_err(failed)?;
        (&file).write_all(key.as_bytes()).map_err(failed)?;
        // Another server may have been faster: its key counts.
        match file.persist_noclobber(&path) {
            Ok(_) => Ok(Self(key)),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                let key = fs::read_to_string(&path).map_err(failed)?;
                Ok(Self(key.trim().to_owned()))
            }
            Err(error) => Err(failed(error.error)),
        }
    }

    /// Returns the key, for its owner.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether a client knows it.
    pub fn is(&self, given: Option<&str>) -> bool {
        matches(&self.0, given)
    }
}

/// Compares in a time that does not tell where the difference is.
pub fn matches(secret: &str, given: Option<&str>) -> bool {
    let digest = |text: &str| Sha256::digest(text.as_bytes());
    given.is_some_and(|given| digest(secret).ct_eq(&digest(given)).into())
}

/// Makes a token: 40 hexadecimal digits.
pub fn random() -> io::Result<String> {
    Ok(hex(micabox_ground::random::<20>()?))
}

/// What precedes the digest of a signature, and characters of one.
const VERSION: &str = "v1_";
const DIGEST: usize = 43;

/// The signature of an address of a file, as E2B's clients compute it.
#[derive(Debug, Default)]
pub struct Signed {
    pub path: String,
    /// `read` or `write`.
    pub operation: &'static str,
    pub user: String,
    /// Seconds since 1970 at which it is over, in digits.
    pub expiration: Option<String>,
    pub signature: String,
}

/// What a signature is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// It was made with the token.
    Valid,
    /// It was, and its time is over.
    Expired,
    /// It was not.
    Wrong,
}

impl Signed {
    /// Returns whether it may be one, which needs no token to be known.
    pub fn is_formed(&self) -> bool {
        let digest = self.signature.strip_prefix(VERSION);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "+/".contains(c);
        digest.is_some_and(|digest| digest.len() == DIGEST && digest.chars().all(is_plain))
    }

    /// Returns what it is worth with this token.
    pub fn check(&self, token: &str) -> Signature {
        let Self {
            path,
            operation,
            user,
            ..
        } = self;
        let mut text = format!("{path}:{operation}:{user}:{token}");
        let mut is_over = false;
        if let Some(expiration) = &self.expiration {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(u64::MAX, |since| since.as_secs());
            is_over = !expiration.parse().is_ok_and(|until: u64| until > now);
            text = format!("{text}:{expiration}");
        }
        let digest = STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes()));
        if !matches(&format!("{VERSION}{digest}"), Some(&self.signature)) {
            Signature::Wrong
        } else if is_over {
            Signature::Expired
        } else {
            Signature::Valid
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_e2bs_clients() {
        // get_signature("/a b", "read", "user", "token", None) of the Python package.
        let mut signed = Signed {
            path: "/a b".to_owned(),
            operation: "read",
            user: "user".to_owned(),
            expiration: None,
            signature: "v1_3y7zC7/SVa0mfOWGah2e4+8/STWMnZ8YMEZ8XJy2GHA".to_owned(),
        };
        assert!(signed.is_formed());
        assert_eq!(signed.check("token"), Signature::Valid);
        assert_eq!(signed.check("tokem"), Signature::Wrong);
        signed.operation = "write";
        assert_eq!(signed.check("token"), Signature::Wrong);
    }

    #[test]
    fn what_is_no_signature_is_known_without_a_token() {
        let plain = "x".repeat(DIGEST);
        for (signature, is_formed) in [
            (format!("v1_{plain}"), true),
            (format!("v1_{plain}x"), false),
            (format!("v2_{plain}"), false),
            (format!("v1_{}=", &plain[1..]), false),
            (format!("v1_{}é", &plain[2..]), false),
            (plain, false),
            (String::new(), false),
        ] {
            let signed = Signed {
                signature,
                ..Signed::default()
            };
            assert_eq!(signed.is_formed(), is_formed, "{signed:?}");
        }
    }

    #[test]
    fn an_address_whose_time_is_over_is_not_valid() {
        use Signature::{Expired, Valid, Wrong};
        for (expiration, worth) in [("1", Expired), ("99999999999", Valid), ("never", Expired)] {
            let text = format!("/a:read::token:{expiration}");
            let digest = STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes()));
            let signed = Signed {
                path: "/a".to_owned(),
                operation: "read",
                user: String::new(),
                expiration: Some(expiration.to_owned()),
                signature: format!("v1_{digest}"),
            };
            assert_eq!(signed.check("token"), worth, "{expiration}");
            // Who has no signature is not told of times.
            assert_eq!(signed.check("other"), Wrong, "{expiration}");
        }
    }
}
