//! Templates: the images that are here, clients' snapshots, and names for either.

use std::sync::Arc;

use chrono::DateTime;
use hyper::{StatusCode, Uri};
use micabox::{Sandboxes, Snapshot};
use micabox_image::store::ImageSummary;
use serde_json::{Value, json};

use super::list::{self, Page};
use super::view::ENVD_VERSION;
use crate::e2b::http::{self, Answer, blocking};
use crate::e2b::problem::Problem;
use crate::e2b::query::Query;
use crate::e2b::saved;
use crate::e2b::server::Server;
use micabox_program::output::rfc3339;

/// The parameters of a list. Who has the key is the only team.
const PARAMETERS: [&str; 3] = ["teamID", "limit", "nextToken"];

/// Lists images by their names, and snapshots. Other images are pulled when a sandbox is made from them.
pub async fn list(server: &Arc<Server>, uri: &Uri) -> Answer {
    let query = Query::of(uri, &PARAMETERS)?;
    let page = Page::of(&query)?;
    let server = Arc::clone(server);
    blocking(move || {
        let all = &server.sandboxes;
        let images = all.store().images()?;
        let mut shown = Vec::new();
        for image in &images {
            let names = image.references.iter().map(|name| name.familiar());
            shown.extend(names.map(|name| of_image(&server, &name, &name, image)));
        }
        let snapshots = all.snapshots()?;
        let ours = snapshots.iter().filter(|snapshot| saved::is_ours(snapshot));
        shown.extend(ours.map(|snapshot| of_snapshot(&server, &snapshot.name, snapshot)));
        for (name, of) in server.templates.names() {
            shown.extend(named(&server, name, of, &images, &snapshots));
        }
        let (shown, next) = page.cut(shown);
        Ok(list::reply(&shown, next))
    })
    .await
}

/// Describes what the server's flags have named, if it is here.
fn named(
    server: &Server,
    name: &str,
    of: &str,
    images: &[ImageSummary],
    snapshots: &[Snapshot],
) -> Option<Value> {
    let Ok(image) = server.sandboxes.store().image(of) else {
        let snapshot = snapshots.iter().find(|snapshot| snapshot.name == of)?;
        return Some(of_snapshot(server, name, snapshot));
    };
    let digest = image.manifest_digest;
    let image = images
        .iter()
        .find(|image| image.manifest_digest == digest)?;
    Some(of_image(server, of, name, image))
}

fn of_image(server: &Server, id: &str, name: &str, image: &ImageSummary) -> Value {
    let made = image.created.as_deref();
    let made = made.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
    let made = made.map_or(0, |made| made.timestamp());
    let options = &server.options;
    let mut view = view(id, name, made, &image.manifest_digest.to_string());
    view["cpuCount"] = options.cpus.into();
    view["memoryMB"] = options.memory_mib.into();
    view["diskSizeMB"] = options.disk_mib.into();
    view
}

fn of_snapshot(server: &Server, name: &str, snapshot: &Snapshot) -> Value {
    let machine = snapshot.memory.as_ref();
    let options = &server.options;
    let mut view = view(&snapshot.name, name, snapshot.created, &snapshot.name);
    view["cpuCount"] = machine
        .and_then(|machine| machine.spec.machine.cpus)
        .unwrap_or(options.cpus)
        .into();
    view["memoryMB"] = machine
        .map_or(options.memory_mib, |machine| {
            u64::from(machine.spec.machine.memory_mib)
        })
        .into();
    view["diskSizeMB"] = (snapshot.size >> 20).into();
    view
}

/// What is said of each. Nothing counts how often it is used.
fn view(id: &str, name: &str, made: i64, build: &str) -> Value {
    let made = rfc3339(u64::try_from(made).unwrap_or(0));
    json!({
        "templateID": id,
        "buildID": build,
        "aliases": [name],
        "names": [name],
        "public": false,
        "createdAt": made,
        "updatedAt": made,
        "createdBy": null,
        "lastSpawnedAt": null,
        "spawnCount": 0,
        "buildCount": 1,
        "buildStatus": "ready",
        "envdVersion": ENVD_VERSION,
    })
}

/// Finds a template by name: an image or a snapshot that is here.
pub async fn find(server: &Arc<Server>, name: &str) -> Answer {
    let (again, given) = (Arc::clone(server), name.to_owned());
    let is_there = blocking(move || Ok(is_here(&again, &again.sandboxes, &given)));
    if !is_there.await? {
        return Err(Problem::not_found(format!("no template `{name}` is here")));
    }
    let view = json!({"templateID": name, "public": false});
    Ok(http::json(StatusCode::OK, &view))
}

fn is_here(server: &Server, all: &Sandboxes, template: &str) -> bool {
    match server.templates.named(template) {
        Some(name) => all.snapshot(name).is_ok() || all.store().image(name).is_ok(),
        None => saved::find(all, template).is_some() || all.store().image(template).is_ok(),
    }
}
