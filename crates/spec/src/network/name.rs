//! Domain names that rules can mention.

use std::fmt;
use std::ops::Deref;

/// A domain name in lower case, without the last dot: letters, digits, `-` and `_` in
/// labels of 1 to 63 bytes, 253 bytes in all (RFC 1035, section 2.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(Box<str>);

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

impl Name {
    /// Reads a name, which may end in a dot; None for what is no such name.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let label_is_plain = |label: &str| {
            (1..=MAX_LABEL).contains(&label.len())
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        (text.len() <= MAX_NAME && text.split('.').all(label_is_plain))
            .then(|| Self(text.to_ascii_lowercase().into()))
    }

    /// Whether this name is `other`'s with more labels in front.
    #[must_use]
    pub fn is_below(&self, other: &Self) -> bool {
        self.0
            .strip_suffix(&*other.0)
            .is_some_and(|front| front.ends_with('.'))
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_bounded() {
        assert_eq!(&*Name::from_text("A.b-C_d.").unwrap(), "a.b-c_d");
        let label = "x".repeat(MAX_LABEL);
        assert!(Name::from_text(&label).is_some());
        assert!(Name::from_text(&format!("{label}x")).is_none());
        let long = [label.as_str(); 4].join(".");
        assert!(Name::from_text(&long).is_none());
        assert!(Name::from_text(&long[2..]).is_some());
        for bad in ["", ".", "a..b", ".a", "a b", "ü", "a\0"] {
            assert!(Name::from_text(bad).is_none(), "{bad:?}");
        }
    }
}
