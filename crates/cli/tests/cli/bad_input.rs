//! Bad input to every call: one table of cases drives `mica` and the SDK. Each call fails with an error
//! of the right kind and its cause, and changes nothing.

mod commands;
mod files;
mod life;
mod machines;
mod stored;
mod world;

use std::time::Duration;

use micabox::{Error, ErrorKind};
use world::World;

use crate::support::Home;

/// What a case does with the SDK.
type Act = fn(&World) -> Result<(), Error>;

/// A call that fails, by both ways.
struct Case {
    /// The command line of `mica`; [`World::words`] has its placeholders. Empty if it has no such call,
    /// or can't say this.
    mica: &'static str,
    code: i32,
    /// A part of both messages; `|` separates that of `mica` if it finds the problem by itself.
    words: &'static str,
    /// None if the SDK's types can't say this.
    sdk: Option<Act>,
    kind: ErrorKind,
}

/// A call that both have.
const fn case(
    mica: &'static str,
    code: i32,
    kind: ErrorKind,
    words: &'static str,
    sdk: Act,
) -> Case {
    let sdk = Some(sdk);
    Case {
        mica,
        code,
        words,
        sdk,
        kind,
    }
}

/// A call that only the SDK has.
const fn sdk(kind: ErrorKind, words: &'static str, sdk: Act) -> Case {
    case("", 0, kind, words, sdk)
}

/// A command line that says what the SDK's types can't.
const fn mica(mica: &'static str, code: i32, words: &'static str) -> Case {
    Case {
        mica,
        code,
        words,
        sdk: None,
        kind: ErrorKind::Invalid,
    }
}

/// Shows a message without most of a long word.
fn shown(text: &str) -> String {
    let runs = text.split("xxxx").filter(|part| !part.is_empty());
    runs.collect::<Vec<_>>().join("xxxx..")
}

/// Performs the cases, and returns what is wrong with their results.
fn problems(world: &World, cases: &[Case]) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let (ours, theirs) = case
            .words
            .split_once('|')
            .unwrap_or((case.words, case.words));
        if !case.mica.is_empty() {
            let words = world.words(case.mica);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let finished = world.home.output(&words);
            let (code, text) = (finished.code(), finished.stderr());
            let is_told = text.contains(ours) && finished.stdout().is_empty();
            // A message of a program that died would have other words.
            if code != case.code || !is_told || text.len() > 4000 {
                problems.push(format!(
                    "`mica {}`: {code}, not {}; not `{ours}`: {}{}",
                    case.mica,
                    case.code,
                    finished.stdout(),
                    shown(&text)
                ));
            }
        }
        let Some(act) = case.sdk else {
            continue;
        };
        match act(world) {
            Ok(()) => problems.push(format!("case {number}, `{}`: it works", case.mica)),
            Err(error) => {
                let (kind, text) = (error.kind(), error.to_string());
                if kind != case.kind || !text.contains(theirs) {
                    problems.push(format!(
                        "case {number}, `{}`: {kind:?}, not {:?}; not `{theirs}`: {}",
                        case.mica,
                        case.kind,
                        shown(&text)
                    ));
                }
            }
        }
    }
    problems
}

#[test]
#[ignore = "needs a built guest"]
fn bad_input_is_an_error_of_the_right_kind_in_mica_and_in_the_sdk() {
    let home = Home::new();
    let world = World::new(&home);
    let before = world.state();
    let tables = [
        commands::CASES,
        files::CASES,
        life::CASES,
        machines::CASES,
        stored::CASES,
    ];
    let problems: Vec<_> = tables
        .iter()
        .flat_map(|cases| problems(&world, cases))
        .collect();
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
    // What failed has changed nothing, and the sandboxes work as before.
    assert_eq!(world.state(), before);
    assert_eq!(
        home.output(&["exec", "it", "echo", "alive"]).ok(),
        "alive\n"
    );
    for name in ["it", "paused"] {
        world.get(name).unwrap().stop(Duration::ZERO).unwrap();
    }
    home.output(&["rm", "it", "paused", "stopped", "ended", "created"])
        .ok();
    home.output(&["snapshot", "rm", "shot"]).ok();
    home.assert_nothing_left();
}
