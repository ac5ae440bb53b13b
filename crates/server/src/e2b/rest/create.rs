//! `POST /sandboxes`

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hyper::{HeaderMap, StatusCode};
use micabox::{Cancel, Sandbox, Sandboxes};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::make::{Plan, Source};
use super::network::Rules;
use super::view;
use crate::e2b::deadline;
use crate::e2b::delivery::{self, Client};
use crate::e2b::http::{self, Answer, blocking};
use crate::e2b::label::{Label, OnTimeout};
use crate::e2b::map;
use crate::e2b::places::OF_API;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::{self, Served};
use crate::e2b::server::Server;

/// The body.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct New {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<u64>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    /// Whether its files and commands need a token.
    secure: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    internet: Option<bool>,
    network: Option<Rules>,
    #[serde(default, deserialize_with = "map::unique")]
    metadata: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "map::unique")]
    env_vars: BTreeMap<String, String>,
    #[serde(default)]
    mcp: Asked,
    #[serde(default)]
    iam: Asked,
    volume_mounts: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AutoResume {
    enabled: bool,
}

/// Whether something is asked for that is not done here: null, `{}` and `{"tokens": {}}` ask for nothing.
#[derive(Debug, Default)]
struct Asked(bool);

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // What is there twice asks for something, whichever of both counts.
        let asked = match <Option<Fields>>::deserialize(from)? {
            None => false,
            Some(Fields(all)) => match &*all {
                [] => false,
                [(name, value)] => name != "tokens" || *value != json!({}),
                _ => true,
            },
        };
        Ok(Self(asked))
    }
}

/// An object's fields, those that are there twice too.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut all = Vec::new();
                while let Some(field) = map.next_entry()? {
                    all.push(field);
                }
                Ok(Fields(all))
            }
        }
        from.deserialize_map(All)
    }
}

/// Makes a sandbox from an image or a snapshot. It ends if its client goes before it is told of it.
pub async fn create(
    server: &Arc<Server>,
    headers: &HeaderMap,
    new: New,
    mut client: Client,
) -> Answer {
    new.check()?;
    let once = server.keys.begin(headers)?;
    if let Some(once) = &once
        && let Some(made) = made_with(server, &once.key).await?
    {
        return Ok(http::json(
            StatusCode::CREATED,
            &view::access(server, &made),
        ));
    }
    let seconds = deadline::seconds(new.timeout, deadline::DEFAULT)?;
    let mut label = new.label(server)?;
    label.key = once.as_ref().map(|once| once.key.clone());
    // Its owner has it before the sandbox is left to itself: none is without one if this server ends now.
    let life = deadline::life(label.on_timeout, seconds);
    let rules = new.network.as_ref();
    let network = rules.unwrap_or(&Rules::default()).wish(new.internet)?;
    let variables = new.variables()?;
    let room = tokio::select! {
        room = server.bounds.made.wait(OF_API, 1) => room?,
        () = client.gone() => return Err(Problem::new(Kind::Gone, "the client has left")),
    };
    let (all, cancel) = (server.sandboxes.clone(), Cancel::default());
    let (again, cancelled) = (Arc::clone(server), cancel.clone());
    let making = blocking(move || {
        let _room = room;
        let plan = Plan {
            source: Source::find(&again, &all, &label.template),
            registries: match again.templates.named(&label.template) {
                Some(_) => None,
                None => Some(again.registries.clone()),
            },
            label,
            given: again.options.all.clone(),
            life,
            variables,
            network,
        };
        let made = plan.make(&all, cancelled)?;
        keep(&all, made)
    });
    tokio::pin!(making);
    let served = tokio::select! {
        served = &mut making => served,
        () = client.gone() => {
            // A pull too.
            cancel.cancel();
            making.await
        }
    }?;
    server.expect(&served, seconds);
    // The first request finds the connection, which is made while the client reads the answer.
    let fresh = served.clone();
    tokio::spawn(async move { fresh.connect().await.map(drop) });
    let view = view::access(server, &served);
    Ok(delivery::json(
        server,
        StatusCode::CREATED,
        &view,
        vec![served],
    ))
}

/// Finds the sandbox that an earlier request with this key has made.
async fn made_with(server: &Server, key: &str) -> Result<Option<Served>, Problem> {
    let (all, key) = (server.sandboxes.clone(), key.to_owned());
    blocking(move || {
        let mut all = sandbox::all(&all)?.into_iter();
        Ok(all.find(|served| served.label.key.as_ref() == Some(&key)))
    })
    .await
}

/// Lets a new sandbox go on without this process, and finds it as others will.
pub fn keep(all: &Sandboxes, made: Sandbox) -> Result<Served, Problem> {
    let id = made.record().id.clone();
    made.detach()?;
    sandbox::find(all, &id)
}

impl New {
    fn check(&self) -> Result<(), Problem> {
        let asked = [
            (self.mcp.0, "MCP servers (mcp)"),
            (self.iam.0, "workload identities (iam)"),
            (
                self.volume_mounts
                    .as_ref()
                    .is_some_and(|all| !all.is_empty()),
                "E2B's volumes (volumeMounts)",
            ),
            (
                self.pauses() && self.auto_pause_memory == Some(false),
                "a pause without memory (autoPauseMemory)",
            ),
            (
                self.secure == Some(false),
                "sandboxes whose files and commands need no token (secure)",
            ),
        ];
        if let Some((_, what)) = asked.into_iter().find(|(is_asked, _)| *is_asked) {
            return Err(Problem::unsupported(format!(
                "this server does not do {what}"
            )));
        }
        Ok(())
    }

    fn pauses(&self) -> bool {
        self.auto_pause == Some(true)
    }

    fn label(&self, server: &Server) -> Result<Label, Problem> {
        let rules = self.network.as_ref();
        Ok(Label {
            metadata: self.metadata.clone(),
            on_timeout: if self.pauses() {
                OnTimeout::Pause
            } else {
                OnTimeout::Kill
            },
            auto_resume: self.auto_resume.as_ref().is_some_and(|auto| auto.enabled),
            is_public: rules.is_none_or(|rules| rules.allow_public_traffic != Some(false)),
            internet: self.internet,
            options: server.options.all.clone(),
            ..Label::new(self.template.clone())?
        })
    }

    /// The variables that the client gives, with their values.
    fn variables(&self) -> Result<Vec<String>, Problem> {
        let given = self.env_vars.iter();
        let variables = given.map(|(name, value)| {
            let is_name = !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_control());
            if !is_name || value.contains('\0') {
                return Err(Problem::invalid(format!(
                    "envVars: {name:?} is not the name of a variable, or its value has a NUL byte"
                )));
            }
            Ok(format!("{name}={value}"))
        });
        variables.collect()
    }
}
