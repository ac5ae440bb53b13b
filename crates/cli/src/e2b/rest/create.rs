//! `POST /sandboxes`

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::StatusCode;
use micabox::{Cancel, ErrorKind, Reference, Restore, Sandbox, Sandboxes};
use micabox_image::progress::Silent;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::network::{self, Rules};
use super::view;
use crate::e2b::http::{self, Answer, blocking};
use crate::e2b::label::{self, Label, OnTimeout};
use crate::e2b::problem::Problem;
use crate::e2b::sandbox::Served;
use crate::e2b::{Server, deadline};
use crate::log;
use crate::serve::message::Create;
use crate::serve::{flags, sandboxes};

/// Most entries of a map that a client sends.
const ENTRIES: usize = 1000;

/// The body.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct New {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<u64>,
    #[serde(default)]
    auto_pause: bool,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    internet: Option<bool>,
    #[serde(default)]
    network: Rules,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
struct AutoResume {
    enabled: bool,
}

/// Makes a sandbox from an image or a snapshot.
pub async fn create(server: &Arc<Server>, new: New) -> Answer {
    new.check()?;
    let seconds = deadline::seconds(new.timeout, deadline::DEFAULT)?;
    let label = new.label()?;
    let options = new.options(server, &label)?;
    let image = server.templates.image(&new.template).to_owned();
    let all = server.sandboxes.clone();
    let text = label.text()?;
    let served = blocking(move || {
        let made = make(&all, &image, options, &text)?;
        keep(&all, made)
    })
    .await?;
    server.give_first(&served, seconds).await?;
    Ok(http::json(
        StatusCode::CREATED,
        &view::access(server, &served),
    ))
}

/// Lets a new sandbox go on without this process, and finds it as others will.
pub fn keep(all: &Sandboxes, made: Sandbox) -> Result<Served, Problem> {
    let id = made.record().id.clone();
    made.detach()?;
    crate::e2b::sandbox::find(all, &id)
}

fn make(
    all: &Sandboxes,
    image: &str,
    mut options: Map<String, Value>,
    label: &str,
) -> Result<Sandbox, Problem> {
    let snapshot = all.snapshot(image).ok();
    if let Some(snapshot) = snapshot
        .as_ref()
        .filter(|snapshot| snapshot.memory.is_some())
        && let Restore::Memory(builder) = Restore::new(all.store(), snapshot)?
    {
        // It continues with what it had.
        return Ok(log::in_owner(builder, true)
            .label(label::NAME, label)
            .create()?);
    }
    if snapshot.is_none()
        && let Err(error) = image.parse::<Reference>()
    {
        return Err(Problem::invalid(format!("the template's name: {error}")));
    }
    let image = match snapshot {
        Some(snapshot) => {
            options.remove("upper");
            options.insert("from".to_owned(), snapshot.name.into());
            None
        }
        None => Some(image.to_owned()),
    };
    let create = Create { image, options };
    let made = flags::parse(&create)
        .and_then(|wanted| sandboxes::create(&wanted, Cancel::default(), Arc::new(Silent)));
    made.map_err(|failure| match failure.kind {
        Some(ErrorKind::NotFound) => {
            Problem::not_found(format!("no template has this name: {}", failure.message()))
        }
        _ => failure.into(),
    })
}

impl New {
    fn check(&self) -> Result<(), Problem> {
        let is_asked = |value: &Option<Value>| {
            let empty = [Value::Null, json!({}), json!({"tokens": {}})];
            value.as_ref().is_some_and(|value| !empty.contains(value))
        };
        let asked = [
            (is_asked(&self.mcp), "MCP servers (mcp)"),
            (is_asked(&self.iam), "workload identities (iam)"),
            (
                self.volume_mounts
                    .as_ref()
                    .is_some_and(|all| !all.is_empty()),
                "E2B's volumes (volumeMounts)",
            ),
            (
                self.auto_pause && self.auto_pause_memory == Some(false),
                "a pause without memory",
            ),
        ];
        if let Some((_, what)) = asked.into_iter().find(|(is_asked, _)| *is_asked) {
            return Err(Problem::unsupported(format!(
                "this server does not do {what}"
            )));
        }
        let maps = [&self.metadata, &self.env_vars];
        let many = |map: &&Option<BTreeMap<_, _>>| map.as_ref().is_some_and(|m| m.len() > ENTRIES);
        if maps.iter().any(many) {
            return Err(Problem::invalid(format!(
                "metadata and envVars may have {ENTRIES} entries"
            )));
        }
        Ok(())
    }

    fn label(&self) -> Result<Label, Problem> {
        Ok(Label {
            metadata: self.metadata.clone().unwrap_or_default(),
            on_timeout: if self.auto_pause {
                OnTimeout::Pause
            } else {
                OnTimeout::Kill
            },
            auto_resume: self.auto_resume.as_ref().is_some_and(|auto| auto.enabled),
            is_public: self.network.allow_public_traffic != Some(false),
            internet: self.internet,
            ..Label::new(self.template.clone())?
        })
    }

    /// The options of `mica run`: the server's, and what the client asks for.
    fn options(&self, server: &Server, label: &Label) -> Result<Map<String, Value>, Problem> {
        let mut options = server.options.clone();
        options.insert("rm".to_owned(), json!(true));
        options.insert("label".to_owned(), json!({label::NAME: label.text()?}));
        let variables = self.env_vars.iter().flatten();
        let mut env = match options.remove("env") {
            Some(Value::Array(values)) => values,
            Some(value) => vec![value],
            None => Vec::new(),
        };
        for (name, value) in variables {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(Problem::invalid(format!(
                    "{name:?} is not the name of a variable, or its value has a NUL byte"
                )));
            }
            env.push(format!("{name}={value}").into());
        }
        options.insert("env".to_owned(), env.into());
        network::apply(&self.network, self.internet, &mut options)?;
        Ok(options)
    }
}
