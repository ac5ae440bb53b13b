//! How the API describes a sandbox.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::e2b::http::{self, Response};
use crate::e2b::label::OnTimeout;
use crate::e2b::sandbox::Served;
use crate::e2b::{Server, deadline};
use crate::output::rfc3339;

/// The version of E2B's server in a sandbox whose calls these are: clients ask for what it has.
pub const ENVD_VERSION: &str = "0.6.4";

/// MiB of a disk whose size is not limited but by the machine's memory.
const NO_DISK: u64 = 0;

/// The reply to a request that creates a sandbox or connects to one.
pub fn access(server: &Server, served: &Served) -> Value {
    json!({
        "templateID": served.label.template,
        "sandboxID": served.id(),
        "clientID": "local",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": served.label.token,
        "trafficAccessToken": served.label.traffic,
        "domain": server.domain,
    })
}

/// A line of a list.
pub fn listed(served: &Served) -> Map<String, Value> {
    let record = served.record();
    let started = u64::try_from(record.created).unwrap_or(0);
    // One without a deadline, as a paused one, is not about to end.
    let until = deadline::of(served).unwrap_or(Duration::from_secs(started + deadline::LONGEST));
    let disk = match &record.upper {
        micabox::Upper::Disk { size } => size >> 20,
        _ => NO_DISK,
    };
    let view = json!({
        "templateID": served.label.template,
        "alias": served.label.template,
        "sandboxID": served.id(),
        "clientID": "local",
        "startedAt": rfc3339(started),
        "endAt": rfc3339(until.as_secs()),
        "cpuCount": record.cpus,
        "memoryMB": record.memory_mib,
        "diskSizeMB": disk,
        "state": if served.is_paused() { "paused" } else { "running" },
        "envdVersion": ENVD_VERSION,
        "metadata": served.label.metadata,
    });
    match view {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// All that is said of one.
pub fn detail(server: &Server, served: &Served) -> Response {
    let mut view = listed(served);
    view.insert("domain".to_owned(), json!(server.domain));
    let label = &served.label;
    let on_timeout = match label.on_timeout {
        OnTimeout::Kill => "kill",
        OnTimeout::Pause => "pause",
    };
    view.insert("envdAccessToken".to_owned(), json!(label.token));
    view.insert("allowInternetAccess".to_owned(), json!(label.internet));
    view.insert(
        "lifecycle".to_owned(),
        json!({"onTimeout": on_timeout, "autoResume": label.auto_resume}),
    );
    http::json(StatusCode::OK, &view)
}
