//! What a view of an image is to be without: paths, and words for those that programs rarely need.

mod words;

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Digest, Hasher, printable};

/// Most patterns of one list, those that words stand for included.
const PATTERNS_MAX: usize = 1000;

/// Longest pattern in bytes: Linux has no longer paths (`PATH_MAX`, with its NUL).
const PATTERN_MAX: usize = 4095;

/// What a view of an image is without: patterns of absolute paths, in no order.
///
/// A pattern hides what it names, and everything below. `*` in a component stands for any bytes,
/// none and a leading dot included. `**` as the last component hides the files below, at any depth, and
/// leaves the directories. After a `!`, a pattern names what stays whatever else would hide it, with
/// everything below and the directories above. Symbolic links are not followed. A pattern may name
/// what an image does not have.
///
/// Four words stand for patterns: `docs`, `locales`, `man` and `caches`.
///
/// ```
/// # use micabox_oci::Trim;
/// let trim: Trim = "docs,locales,!/usr/share/locale/de,/opt/*/examples".parse()?;
/// assert!(trim.patterns().any(|pattern| pattern == "/usr/share/doc/*"));
/// assert!("docs,usr/src".parse::<Trim>().is_err());
/// # Ok::<(), micabox_oci::TrimError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Trim {
    patterns: BTreeSet<String>,
}

/// Why a path can't be trimmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot trim `{what}`: {problem}")]
pub struct TrimError {
    what: String,
    problem: &'static str,
}

impl Trim {
    /// Makes a list of words and patterns.
    ///
    /// # Errors
    ///
    /// [`TrimError`] for what is neither a word nor an absolute path, for `/` itself, for a path with
    /// `..`, a NUL or more than 4095 bytes, and for more than 1000 patterns.
    pub fn new<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> Result<Self, TrimError> {
        let mut trim = Self::default();
        for word in words {
            let word = word.as_ref();
            match words::patterns(word) {
                Some(patterns) => trim.patterns.extend(patterns.map(str::to_owned)),
                None => {
                    let pattern = checked(word).map_err(|problem| refused(word, problem))?;
                    trim.patterns.insert(pattern);
                }
            }
            if trim.patterns.len() > PATTERNS_MAX {
                return Err(refused(word, "there are more than 1000 patterns"));
            }
        }
        Ok(trim)
    }

    /// Returns the list with everything that is in either one.
    ///
    /// # Errors
    ///
    /// [`TrimError`] if that is more than 1000 patterns.
    pub fn and(self, other: Self) -> Result<Self, TrimError> {
        Self::new(self.patterns.into_iter().chain(other.patterns))
    }

    /// Returns whether nothing is to be hidden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns the patterns, sorted, without words.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.patterns.iter().map(String::as_str)
    }

    /// Returns a digest of the patterns: equal lists have the same, in whatever words they were given.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::new();
        for pattern in &self.patterns {
            // No pattern has a NUL, so the input is unambiguous.
            hasher.update(pattern.as_bytes());
            hasher.update(b"\0");
        }
        hasher.finish()
    }
}

/// Parses words and patterns with commas between them.
impl FromStr for Trim {
    type Err = TrimError;

    fn from_str(text: &str) -> Result<Self, TrimError> {
        Self::new(text.split(','))
    }
}

impl TryFrom<Vec<String>> for Trim {
    type Error = TrimError;

    fn try_from(patterns: Vec<String>) -> Result<Self, TrimError> {
        Self::new(patterns)
    }
}

impl From<Trim> for Vec<String> {
    fn from(trim: Trim) -> Self {
        trim.patterns.into_iter().collect()
    }
}

fn refused(word: &str, problem: &'static str) -> TrimError {
    TrimError {
        what: printable(word),
        problem,
    }
}

/// Returns a pattern in its only spelling, without needless slashes and dots.
fn checked(pattern: &str) -> Result<String, &'static str> {
    let (mark, path) = match pattern.strip_prefix('!') {
        Some(path) => ("!", path),
        None => ("", pattern),
    };
    if !path.starts_with('/') {
        return Err("expected an absolute path, or docs, locales, man or caches");
    }
    if path.contains('\0') {
        return Err("a path has no NUL");
    }
    let names = path.split('/');
    let names: Vec<_> = names.filter(|name| !matches!(*name, "" | ".")).collect();
    let Some((_, directories)) = names.split_last() else {
        return Err("nothing would be left of the root");
    };
    if names.contains(&"..") {
        return Err("a path with `..` has another spelling");
    }
    if directories.contains(&"**") {
        return Err("`**` can only be the last component");
    }
    let pattern = format!("{mark}/{}", names.join("/"));
    if pattern.len() > PATTERN_MAX {
        return Err("it is longer than any path");
    }
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_say_the_same_are_equal() {
        let trim = |text: &str| text.parse::<Trim>().unwrap();
        assert_eq!(trim("docs,man,docs"), trim("man,docs"));
        assert_eq!(trim("//opt/./x/"), trim("/opt/x"));
        assert_eq!(
            trim("/a,!/a/b").patterns().collect::<Vec<_>>(),
            ["!/a/b", "/a"]
        );
        assert_eq!(
            trim("docs").digest(),
            trim("docs,/usr/share/doc/*").digest()
        );
        assert_ne!(trim("/a").digest(), trim("!/a").digest());
        assert_eq!(trim("/a").and(trim("/b")).unwrap(), trim("/a,/b"));
        for word in ["docs", "locales", "man", "caches"] {
            // They are in that spelling already.
            let again = trim(word).patterns().collect::<Vec<_>>().join(",");
            assert_eq!(trim(&again), trim(word));
        }
    }

    #[test]
    fn a_list_survives_in_json_and_is_checked_there() {
        let trim: Trim = "man,/opt/*".parse().unwrap();
        let text = serde_json::to_string(&trim).unwrap();
        assert_eq!(serde_json::from_str::<Trim>(&text).unwrap(), trim);
        assert!(serde_json::from_str::<Trim>(r#"["/a/../b"]"#).is_err());
    }

    #[test]
    fn paths_that_mean_nothing_are_refused() {
        let long = format!("/{}", "x".repeat(PATTERN_MAX));
        let many = (0..=PATTERNS_MAX).map(|number| format!("/{number}"));
        let many = many.collect::<Vec<_>>().join(",");
        for (text, problem) in [
            ("", "absolute"),
            ("docs,", "absolute"),
            ("DOCS", "absolute"),
            ("usr/share", "absolute"),
            ("!docs", "absolute"),
            ("/", "root"),
            ("!/", "root"),
            ("//./", "root"),
            ("/a/../b", ".."),
            ("/a\0b", "NUL"),
            ("/**/a", "last"),
            (&long, "longer"),
            (&many, "1000"),
        ] {
            let error = text.parse::<Trim>().unwrap_err().to_string();
            assert!(error.contains(problem) && error.len() < 400, "{error}");
        }
    }
}
