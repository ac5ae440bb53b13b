//! What E2B has of a sandbox and mica has not, in one of the sandbox's labels.

use std::collections::BTreeMap;

use micabox::Record;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::problem::Problem;
use super::token;

/// The label's name.
pub const NAME: &str = "e2b";

/// Most bytes of it. All of a sandbox's labels may have 64 KiB.
const MOST: usize = 48 << 10;

/// The label, in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The template's name, as the client gave it.
    pub template: String,
    /// What the client keeps of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The token for its files and commands.
    pub token: String,
    /// The token for its ports, where they are not public.
    pub traffic: String,
    /// What happens at its deadline.
    pub on_timeout: OnTimeout,
    /// Whether a request to it while it is paused resumes it.
    #[serde(default)]
    pub auto_resume: bool,
    /// Whether its ports are open to all who know its ID.
    pub is_public: bool,
    /// Whether the client allowed or forbade the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet: Option<bool>,
    /// By which its client knows the request that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The options of all sandboxes when it was made.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

/// What happens to a sandbox at its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// It ends.
    #[default]
    Kill,
    /// It is paused.
    Pause,
}

impl Label {
    /// Begins the label of a new sandbox.
    pub fn new(template: String) -> Result<Self, Problem> {
        let failed =
            |error: std::io::Error| Problem::new(super::problem::Kind::Internal, error.to_string());
        Ok(Self {
            template,
            metadata: BTreeMap::new(),
            token: token::random().map_err(failed)?,
            traffic: token::random().map_err(failed)?,
            on_timeout: OnTimeout::Kill,
            auto_resume: false,
            is_public: true,
            internet: None,
            key: None,
            options: Map::new(),
        })
    }

    /// The label of a copy: the same with other tokens.
    pub fn of_copy(&self) -> Result<Self, Problem> {
        let fresh = Self::new(self.template.clone())?;
        Ok(Self {
            token: fresh.token,
            traffic: fresh.traffic,
            key: None,
            ..self.clone()
        })
    }

    /// Reads the label of a sandbox; None if it is not one of ours.
    pub fn of(record: &Record) -> Option<Self> {
        serde_json::from_str(record.spec.labels.get(NAME)?).ok()
    }

    /// The label's text.
    pub fn text(&self) -> Result<String, Problem> {
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.len() > MOST {
            return Err(Problem::invalid("the metadata is too large"));
        }
        Ok(text)
    }
}
