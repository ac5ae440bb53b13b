//! Why a request failed.

use micabox_wire::StartFailed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Lost;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// For programs.
    pub kind: Kind,
    /// For people.
    pub message: String,
    /// Why the command could not be started, if the kind is [`Kind::Start`] and the reason is known.
    #[serde(
        default,
        deserialize_with = "known",
        skip_serializing_if = "Option::is_none"
    )]
    pub start: Option<Box<StartFailed>>,
    /// Why the sandbox was lost, if the kind is [`Kind::Lost`] and the reason is known.
    #[serde(
        default,
        deserialize_with = "known",
        skip_serializing_if = "Option::is_none"
    )]
    pub lost: Option<Box<Lost>>,
}

/// Kinds of failures. `sdk/cases.json` says what each is to a program, and `micabox::ErrorKind` has it for Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "FailureKind"))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The request is not valid, or not now.
    Invalid,
    /// The machine could not be started.
    Machine,
    /// Something else uses what the sandbox needs: a port, a file, a name.
    InUse,
    /// The command could not be started.
    Start,
    /// Arguments and environment are longer than Linux accepts.
    TooLong,
    /// No command that runs has this process ID.
    NotFound,
    /// The sandbox is over, or is about to be.
    Ending,
    /// The sandbox is paused.
    Paused,
    /// The guest did not answer in time.
    Silent,
    /// The machine's monitor can't do that while the machine runs.
    Unsupported,
    /// The host has no control group that can limit the machine's process.
    Unlimited,
    /// The machine can't be saved, or did not stay frozen until [`Request::Thaw`](super::Request::Thaw).
    NotFrozen,
    /// The sandbox ended before the request was carried out.
    Lost,
    /// A command's output can't be written to where it was to go.
    Unwritten,
    /// One that this version does not know. Owners don't send it.
    #[serde(other)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    Unknown,
}

impl Failure {
    /// Makes a failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            start: None,
            lost: None,
        }
    }
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Self {
        Self {
            lost: Some(Box::new(lost.clone())),
            ..Self::new(Kind::Lost, lost.to_string())
        }
    }
}

impl From<StartFailed> for Failure {
    fn from(start: StartFailed) -> Self {
        Self {
            start: Some(Box::new(start.clone())),
            ..Self::new(Kind::Start, start.message)
        }
    }
}

/// Returns a part of a failure, if it has nothing that only a newer owner knows.
fn known<'de, D, T>(part: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let part = serde_json::Value::deserialize(part)?;
    Ok(serde_json::from_value(part).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::{MAX_WINDOW, Reply, WINDOW};

    fn table() -> Value {
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/cases.json");
        serde_json::from_str(&std::fs::read_to_string(table).unwrap()).unwrap()
    }

    #[test]
    fn words_of_kinds_are_those_of_the_table_of_all_languages() {
        let table = table();
        let rows = table["kinds"]["owner"].as_array().unwrap();
        for row in rows {
            let kind: Kind = serde_json::from_value(row["word"].clone()).unwrap();
            assert_ne!(kind, Kind::Unknown, "{row}");
            assert_eq!(serde_json::to_value(kind).unwrap(), row["word"]);
        }
        assert_eq!(
            rows.len(),
            Kind::Unknown as usize,
            "one is not in the table"
        );
    }

    #[test]
    fn windows_are_those_of_all_languages() {
        let limits = &table()["limits"];
        assert_eq!(limits["window"], WINDOW);
        assert_eq!(limits["largest_window"], MAX_WINDOW);
    }

    #[test]
    fn a_failure_of_a_newer_owner_is_understood_as_far_as_it_is_known() {
        let received = |failure: Value| match serde_json::from_value(failure).unwrap() {
            Reply::Failed(failure) => failure,
            other => panic!("{other:?}"),
        };
        let new =
            json!({"type": "failed", "kind": "of_a_later_version", "message": "why", "more": 1});
        assert_eq!(received(new), Failure::new(Kind::Unknown, "why"));
        let lost = json!({"reason": {"of_a_later_version": 1}, "console": ""});
        let lost = json!({"type": "failed", "kind": "lost", "message": "why", "lost": lost});
        assert_eq!(received(lost), Failure::new(Kind::Lost, "why"));
        let known = Failure::from(Lost::closed());
        let sent = serde_json::to_value(Reply::Failed(known.clone())).unwrap();
        assert_eq!(received(sent), known);
    }
}
