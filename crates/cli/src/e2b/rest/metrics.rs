//! What sandboxes use, as of now: there is no history.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::{StatusCode, Uri};
use micabox::Upper;
use serde_json::{Map, Value, json};

use crate::e2b::Server;
use crate::e2b::http::{self, Answer, blocking, waiting};
use crate::e2b::problem::Problem;
use crate::e2b::query::Query;
use crate::e2b::sandbox::{self, Served};
use crate::output::rfc3339;

/// How long processors are measured.
const MOMENT: Duration = Duration::from_millis(100);

/// Most sandboxes of a request.
const MANY: usize = 100;

/// Measures one, if now is between the moments that the client asks about.
pub async fn of_one(server: &Arc<Server>, id: &str, uri: &Uri) -> Answer {
    let query = Query::of(uri, &["start", "end"])?;
    let (start, end) = (query.parsed::<i64>("start")?, query.parsed::<i64>("end")?);
    let served = server.found(id).await?;
    let measured = waiting(id, move || {
        let now = i64::try_from(now()).unwrap_or(i64::MAX);
        if start.is_some_and(|start| start > now) || end.is_some_and(|end| end < now) {
            return Ok(Vec::new());
        }
        Ok(measure(&served)?.into_iter().collect())
    });
    Ok(http::json(StatusCode::OK, &measured.await?))
}

/// Seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// Measures those whose IDs are in the query.
pub async fn of_many(server: &Arc<Server>, uri: &Uri) -> Answer {
    let query = Query::of(uri, &["sandbox_ids"])?;
    let ids = query.list("sandbox_ids").unwrap_or_default();
    let ids: Vec<String> = ids.into_iter().map(str::to_owned).collect();
    if ids.len() > MANY {
        return Err(Problem::invalid(format!("more than {MANY} sandboxes")));
    }
    let all = server.sandboxes.clone();
    let measured = blocking(move || {
        let mut measured = Map::new();
        for id in ids {
            if let Ok(served) = sandbox::find(&all, &id) {
                measured.extend(measure(&served)?.map(|values| (id, values)));
            }
        }
        Ok(json!({"sandboxes": measured}))
    });
    Ok(http::json(StatusCode::OK, &measured.await?))
}

/// Measures one; none where nothing counts its memory, which has no place to say so in an answer.
fn measure(served: &Served) -> Result<Option<Value>, Problem> {
    let record = served.record();
    let before = served.sandbox.stats()?;
    std::thread::sleep(MOMENT);
    let after = served.sandbox.stats()?;
    let spent = after.processor_time.saturating_sub(before.processor_time);
    let share = Duration::from_micros(spent).as_secs_f64() / MOMENT.as_secs_f64() * 100.0;
    let seconds = now();
    let disk = match &record.upper {
        Upper::Disk { size } => *size,
        _ => 0,
    };
    let memory = after.own_memory.zip(after.shared_memory);
    Ok(memory.map(|(own, shared)| {
        json!({
            "timestamp": rfc3339(seconds),
            "timestampUnix": seconds,
            "cpuCount": record.cpus,
            "cpuUsedPct": share / f64::from(record.cpus.max(1)),
            "memUsed": own,
            "memTotal": served.memory_mib() << 20,
            "memCache": shared,
            // Only the guest knows.
            "diskUsed": 0,
            "diskTotal": disk,
        })
    }))
}
