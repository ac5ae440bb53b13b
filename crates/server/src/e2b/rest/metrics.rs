//! What sandboxes use, as of now: there is no history.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{StatusCode, Uri};
use micabox::{Stats, Upper};
use micabox_ground::clock;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::e2b::delivery::Client;
use crate::e2b::http::{self, Answer, waiting};
use crate::e2b::places::OF_API;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::query::Query;
use crate::e2b::sandbox::{self, Served};
use crate::e2b::server::Server;
use micabox_program::output::rfc3339;

/// How long processors are measured.
const MOMENT: Duration = Duration::from_millis(100);

/// Most sandboxes of a request.
const MANY: usize = 100;

/// Measures one, if now is between the moments that the client asks about.
pub async fn of_one(server: &Arc<Server>, id: &str, uri: &Uri) -> Answer {
    let query = Query::of(uri, &["start", "end"])?;
    let (start, end) = (query.parsed::<i64>("start")?, query.parsed::<i64>("end")?);
    let served = server.found(id).await?;
    let now = i64::try_from(clock::now().as_secs()).unwrap_or(i64::MAX);
    if start.is_some_and(|start| start > now) || end.is_some_and(|end| end < now) {
        return Ok(http::json(StatusCode::OK, &json!([])));
    }
    let measured = measure(id, move || vec![served]).await?;
    let shown: Vec<_> = measured.into_iter().map(|(_, values)| values).collect();
    Ok(http::json(StatusCode::OK, &shown))
}

/// Measures those whose IDs are in the query, unless its client goes.
pub async fn of_many(server: &Arc<Server>, uri: &Uri, mut client: Client) -> Answer {
    let query = Query::of(uri, &["sandbox_ids"])?;
    let ids = query.list("sandbox_ids").unwrap_or_default();
    let ids: BTreeSet<String> = ids.into_iter().map(str::to_owned).collect();
    if ids.len() > MANY {
        return Err(Problem::invalid(format!("more than {MANY} sandboxes")));
    }
    let all = server.sandboxes.clone();
    let find = move || {
        let found = ids.iter().filter_map(|id| sandbox::find(&all, id).ok());
        found.collect()
    };
    let measured = tokio::select! {
        measured = measure(OF_API, find) => measured?,
        () = client.gone() => return Err(Problem::new(Kind::Gone, "the client has left")),
    };
    let measured: Map<_, _> = measured.into_iter().collect();
    Ok(http::json(StatusCode::OK, &json!({"sandboxes": measured})))
}

/// Measures sandboxes, all in the same moment, in which no thread waits. Those are left out where nothing counts the
/// memory, which has no place to say so in an answer. No other sandbox is asked once this is dropped.
async fn measure(
    account: &str,
    find: impl FnOnce() -> Vec<Served> + Send + 'static,
) -> Result<Vec<(String, Value)>, Problem> {
    let (here, _wanted) = oneshot::channel::<()>();
    let (here, before) = waiting(account, move || {
        let mut before = Vec::new();
        for served in find() {
            before.push((look(&served, &here)?, Instant::now(), served));
        }
        Ok((here, before))
    })
    .await?;
    sleep(MOMENT).await;
    waiting(account, move || {
        let mut shown = Vec::new();
        for (before, since, served) in before {
            let after = look(&served, &here)?;
            let values = values(&served, &before, &after, since.elapsed());
            shown.extend(values.map(|values| (served.id().to_owned(), values)));
        }
        Ok(shown)
    })
    .await
}

/// Asks a sandbox, unless the client has disconnected.
fn look(served: &Served, here: &oneshot::Sender<()>) -> Result<Stats, Problem> {
    if here.is_closed() {
        return Err(Problem::new(Kind::Gone, "the client has left"));
    }
    Ok(served.sandbox.stats()?)
}

fn values(served: &Served, before: &Stats, after: &Stats, time: Duration) -> Option<Value> {
    let record = served.record();
    let spent = after.processor_time.saturating_sub(before.processor_time);
    let share = Duration::from_micros(spent).as_secs_f64() / time.as_secs_f64() * 100.0;
    let seconds = clock::now().as_secs();
    let disk = match &record.spec.upper {
        Upper::Disk { size } => *size,
        _ => 0,
    };
    let memory = after.own_memory.zip(after.shared_memory);
    memory.map(|(own, shared)| {
        json!({
            "timestamp": rfc3339(seconds),
            "timestampUnix": seconds,
            "cpuCount": record.cpus(),
            "cpuUsedPct": share / f64::from(record.cpus().max(1)),
            "memUsed": own,
            "memTotal": served.memory_mib() << 20,
            "memCache": shared,
            // Only the guest knows.
            "diskUsed": 0,
            "diskTotal": disk,
        })
    })
}
