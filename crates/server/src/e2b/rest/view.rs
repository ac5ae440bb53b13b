//! How the API describes a sandbox.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::e2b::deadline;
use crate::e2b::http::{self, Response};
use crate::e2b::label::OnTimeout;
use crate::e2b::sandbox::Served;
use crate::e2b::server::Server;
use micabox_program::output::rfc3339;

/// The version of E2B's server in a sandbox whose calls these are: clients ask for what it has.
pub const ENVD_VERSION: &str = "0.6.4";

/// MiB of a disk whose size is not limited but by the machine's memory.
const NO_DISK: u64 = 0;

/// The end of a sandbox that has no deadline, as while it is paused. Clients need a date.
const NEVER: &str = "9999-12-31T00:00:00Z";

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

/// A moment since 1970, as clients send it back to ask for what was started after it.
fn with_millis(moment: Duration) -> String {
    let seconds = rfc3339(moment.as_secs());
    format!(
        "{}.{:03}Z",
        seconds.trim_end_matches('Z'),
        moment.subsec_millis()
    )
}

/// A line of a list.
pub fn listed(served: &Served) -> Map<String, Value> {
    let record = served.record();
    let until = deadline::shown(served).map(|until| rfc3339(until.as_secs()));
    let disk = match &record.spec.upper {
        micabox::Upper::Disk { size } => size >> 20,
        _ => NO_DISK,
    };
    let view = json!({
        "templateID": served.label.template,
        "alias": served.label.template,
        "sandboxID": served.id(),
        "clientID": "local",
        "startedAt": with_millis(served.started()),
        "endAt": until.as_deref().unwrap_or(NEVER),
        "cpuCount": record.cpus(),
        "memoryMB": served.memory_mib(),
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
