//! Docker's commands of two words, such as `image ls`, for scripts that have them.

use std::ffi::OsString;

/// Commands that are the same without `container`.
const CONTAINER: [&str; 22] = [
    "attach", "commit", "cp", "create", "diff", "exec", "kill", "logs", "pause", "port", "rename",
    "restart", "rm", "run", "start", "stats", "stop", "top", "unpause", "update", "wait", "ps",
];

/// Commands that are the same without `image`.
const IMAGE: [&str; 6] = ["history", "load", "pull", "push", "save", "tag"];

/// Replaces a command of two words by mica's.
pub fn resolve(mut words: Vec<OsString>) -> Vec<OsString> {
    let word = |at: usize| {
        words
            .get(at)
            .and_then(|word| word.to_str())
            .unwrap_or_default()
    };
    let ours: &[&str] = match (word(1), word(2)) {
        ("image", "ls" | "list") => &["images"],
        ("image", "rm" | "remove") => &["rmi"],
        ("image", "inspect") => &["inspect", "--type", "image"],
        ("container", "ls" | "list") => &["ps"],
        ("container", "remove") => &["rm"],
        ("container", "inspect") => &["inspect", "--type", "container"],
        ("system", "df") => &["store", "df"],
        ("system", "info") => &["info"],
        ("system", "events") => &["events"],
        ("image", same) if IMAGE.contains(&same) => &[""],
        ("container", same) if CONTAINER.contains(&same) => &[""],
        _ => return words,
    };
    match ours {
        // The second word is the command.
        [""] => drop(words.remove(1)),
        ours => drop(words.splice(1..3, ours.iter().map(OsString::from))),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockers_commands_of_two_words_are_micas() {
        for (theirs, ours) in [
            ("mica image ls -q", "mica images -q"),
            ("mica image inspect x", "mica inspect --type image x"),
            ("mica image tag a b", "mica tag a b"),
            ("mica container ls -a", "mica ps -a"),
            ("mica container run --rm x", "mica run --rm x"),
            ("mica system df", "mica store df"),
            ("mica run image ls", "mica run image ls"),
            ("mica image frobnicate", "mica image frobnicate"),
            ("mica image", "mica image"),
            ("mica", "mica"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(resolve(words(theirs)), words(ours));
        }
    }
}
