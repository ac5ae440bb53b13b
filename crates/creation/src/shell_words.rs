//! Commands in words, for lists of sandboxes.

use std::ffi::OsString;

/// Quotes a command as a user could type it.
pub fn shell_words(argv: &[OsString]) -> String {
    let quote = |word: &OsString| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            // No control characters in lists.
            format!("'{}'", word.replace('\'', "'\\''").escape_debug())
                .replace("\\'", "'")
                .replace("\\\"", "\"")
        }
    };
    argv.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words_are_quoted_when_they_need_it() {
        let argv = ["sh", "-c", "echo \"a b\"\n", "", "x=1"].map(OsString::from);
        assert_eq!(shell_words(&argv), "sh -c 'echo \"a b\"\\n' '' x=1");
    }
}
