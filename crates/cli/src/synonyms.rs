//! Docker's commands of two words, such as `image ls`, for scripts that have them; and what to do in place of those
//! that there are not.

use std::ffi::OsString;

use micabox::ErrorKind;

use micabox_program::failure::Failure;

/// Commands that are the same without `container`.
const CONTAINER: [&str; 22] = [
    "attach", "commit", "cp", "create", "diff", "exec", "kill", "logs", "pause", "port", "rename",
    "restart", "rm", "run", "start", "stats", "stop", "top", "unpause", "update", "wait", "ps",
];

/// Commands that are the same without `image`.
const IMAGE: [&str; 6] = ["history", "load", "pull", "push", "save", "tag"];

/// Commands of Docker's that mica does not have: their first words, why not, and what there is.
const NONE: &[(&[&str], &str, &str)] = &[
    (
        &["image prune"],
        "",
        "`mica store prune` removes images without a name, and with --all those that no sandbox uses",
    ),
    (
        &["container prune"],
        "",
        "`mica rm $(mica ps -q --filter status=exited)` removes sandboxes that have ended",
    ),
    (
        &["system prune"],
        "",
        "`mica store prune` removes images, `mica volume prune` volumes, and `mica rm` sandboxes",
    ),
    (
        &["build", "buildx", "builder", "image build"],
        "mica makes no images of Dockerfiles",
        "build it with another tool and load its archive: `docker save IMAGE | mica load`; `mica commit` makes an \
         image of what a sandbox has changed",
    ),
    (
        &["network"],
        "there are no networks between sandboxes",
        "publish ports with `mica run -p`; `--net none` gives a sandbox no network",
    ),
    (
        &["search"],
        "registries are searched on their own sites",
        "`mica pull NAME` gets an image",
    ),
    (
        &["compose", "stack", "service", "swarm"],
        "sandboxes have no network in common, and nothing of mica's runs to manage them",
        "run each with `mica run -d`, and publish ports with -p",
    ),
    (
        &["export", "container export"],
        "",
        "`mica cp SANDBOX:/ - > FILE` writes all its files as an archive",
    ),
    (
        &["import", "image import"],
        "",
        "`mica load` takes an image's archive, and `mica run --patch-tar FILE` an archive of files",
    ),
    (
        &["image", "container", "system"],
        "",
        "`mica --help` lists all commands",
    ),
];

/// Returns the message for a command that only Docker has, if the words begin with one.
pub fn refusal(words: &[OsString]) -> Option<Failure> {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str());
    let first = word(1)?;
    let both = word(2).map(|second| format!("{first} {second}"));
    let find = |words: &str| {
        let mut rows = NONE.iter();
        rows.find(|(known, ..)| known.contains(&words))
    };
    let named = both.as_deref().and_then(|both| Some((both, find(both)?)));
    let (name, (_, why, hint)) = named.or_else(|| Some((first, find(first)?)))?;
    // A word that no table knows is repeated.
    let name = both
        .as_deref()
        .filter(|_| hint.contains("--help"))
        .unwrap_or(name);
    let colon = if why.is_empty() { "" } else { ": " };
    let message = format!("there is no `mica {name}`{colon}{why}");
    Some(Failure::of_kind(ErrorKind::Invalid, message).hint(*hint))
}

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
    fn what_only_docker_has_is_refused_with_what_there_is() {
        let said = |text: &str| {
            let words: Vec<_> = text.split(' ').map(OsString::from).collect();
            refusal(&words).map(|failure| {
                let hint = failure.next_step().unwrap_or_default();
                format!("{}; {hint}", failure.message())
            })
        };
        for (theirs, wanted) in [
            (
                "mica image prune -f",
                "there is no `mica image prune`; `mica store prune`",
            ),
            (
                "mica container prune",
                "there is no `mica container prune`; `mica rm",
            ),
            (
                "mica system prune -a",
                "there is no `mica system prune`; `mica store prune`",
            ),
            (
                "mica build .",
                "there is no `mica build`: mica makes no images",
            ),
            (
                "mica image build .",
                "there is no `mica image build`: mica makes no images",
            ),
            (
                "mica buildx version",
                "there is no `mica buildx`: mica makes",
            ),
            (
                "mica network ls",
                "there is no `mica network`: there are no networks",
            ),
            ("mica search x", "there is no `mica search`: registries"),
            (
                "mica image frobnicate",
                "there is no `mica image frobnicate`; `mica --help`",
            ),
            ("mica image", "there is no `mica image`; `mica --help`"),
        ] {
            let said = said(theirs).unwrap_or_default();
            assert!(said.starts_with(wanted), "{theirs}: {said}");
        }
        for ours in [
            "mica",
            "mica images",
            "mica run build",
            "mica --help",
            "mica volume prune",
        ] {
            assert_eq!(said(ours), None);
        }
    }

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
