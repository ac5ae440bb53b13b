//! What failures are to programs: the table of all languages, `sdk/cases.json`, and the page that shows it.

use std::fs;

use micabox::{Error, ErrorKind, Lost};
use micabox_owner::protocol::{Failure, Kind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn read(file: &str) -> String {
    fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn table() -> Value {
    serde_json::from_str(&read("sdk/cases.json")).unwrap()
}

fn of<T: DeserializeOwned>(word: &Value) -> T {
    serde_json::from_value(word.clone()).unwrap_or_else(|error| panic!("{word}: {error}"))
}

fn rows<'a>(table: &'a Value, of: &str) -> &'a [Value] {
    table["kinds"][of].as_array().unwrap()
}

#[test]
fn kinds_are_those_of_the_table_of_all_languages() {
    let table = table();
    for row in rows(&table, "serve") {
        let kind: ErrorKind = of(&row["kind"]);
        assert_eq!(serde_json::to_value(kind).unwrap(), row["kind"]);
    }
    let last = ErrorKind::Host as usize;
    assert_eq!(
        rows(&table, "serve").len(),
        last + 1,
        "one is not in the table"
    );
}

#[test]
fn a_failure_of_an_owner_is_to_a_program_what_the_table_says() {
    let table = table();
    for row in rows(&table, "owner") {
        let word: Kind = of(&row["word"]);
        let failed = Error::from(Failure::new(word, "why"));
        assert_eq!(failed.kind(), of(&row["kind"]), "{row}");
        assert_eq!(ErrorKind::from(word), of(&row["kind"]), "{row}");
    }
    let unknown: ErrorKind = of(&table["kinds"]["unknown"]["kind"]);
    assert_eq!(
        Error::from(Failure::new(Kind::Unknown, "why")).kind(),
        unknown
    );
}

#[test]
fn a_reason_has_the_kind_of_the_table() {
    let table = table();
    let boot = json!({"step": "mount", "target": "/", "errno": 5, "detail": "", "part": "Root"});
    let killed = json!({"killed": {"signal": 9, "by_us": true, "message": ""}});
    let lost = [
        json!({"boot_failed": boot}),
        json!("silent"),
        json!({"machine": "triple_fault"}),
        json!({"machine": killed}),
        json!({"protocol": "why"}),
        json!({"unflushed": "why"}),
        json!("closed"),
        json!("stopped"),
    ];
    for reason in lost {
        let word = reason.as_object().map_or_else(
            || reason.as_str().unwrap().to_owned(),
            |reason| reason.keys().next().unwrap().clone(),
        );
        let lost: Lost = of(&json!({"reason": reason, "console": ""}));
        check(&table, "lost", &word, Failure::from(lost));
    }
    for word in [
        "not_found",
        "not_executable",
        "no_such_user",
        "bad_workdir",
        "file",
        "other",
    ] {
        let start = json!({"reason": word, "errno": 1, "message": "why"});
        let failure = json!({"kind": "start", "message": "why", "start": start});
        check(&table, "start", word, of(&failure));
    }
}

fn check(table: &Value, kind: &str, reason: &str, failure: Failure) {
    let row = rows(table, "owner").iter().find(|row| row["word"] == kind);
    let row = row.unwrap();
    let expected = row["reasons"].get(reason).unwrap_or(&row["kind"]);
    assert_eq!(
        Error::from(failure).kind(),
        of(expected),
        "{kind}: {reason}"
    );
}

#[test]
fn the_page_of_the_protocol_has_the_tables() {
    let (table, page) = (table(), read("docs/protocol.md"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let serve = rows(&table, "serve");
    let serve = serve
        .iter()
        .map(|row| format!("| `{}` | {} |", text(&row["kind"]), text(&row["means"])));
    let owner = rows(&table, "owner").iter().map(|row| {
        let mut kinds = format!("`{}`", text(&row["kind"]));
        for (reason, kind) in row["reasons"].as_object().into_iter().flatten() {
            kinds += &format!("; `{}` if `{reason}`", text(kind));
        }
        format!(
            "| `{}` | {kinds} | {} |",
            text(&row["word"]),
            text(&row["means"])
        )
    });
    let tables = [
        ("| kind | meaning |\n|---|---|\n", serve.collect::<Vec<_>>()),
        (
            "| kind | to a program | meaning |\n|---|---|---|\n",
            owner.collect(),
        ),
    ];
    for (head, rows) in tables {
        let expected = format!("{head}{}\n\n", rows.join("\n"));
        assert!(
            page.contains(&expected),
            "docs/protocol.md lacks this:\n{expected}"
        );
    }
    let limits = table["limits"].as_object().unwrap();
    for (name, limit) in limits.iter().filter(|(name, _)| *name != "about") {
        assert!(
            page.contains(&format!("\n| `{name}` | {limit} |")),
            "{name}"
        );
    }
}
