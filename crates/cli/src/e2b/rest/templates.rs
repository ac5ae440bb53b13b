//! Templates: the images that are here, and names for them.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::json;

use crate::e2b::Server;
use crate::e2b::http::{self, Answer, blocking};
use crate::e2b::problem::Problem;

/// Lists images by their names. Others are pulled when a sandbox is made from them.
pub async fn list(server: &Arc<Server>) -> Answer {
    let all = server.sandboxes.clone();
    let images = blocking(move || Ok(all.store().images()?)).await?;
    let names = images.iter().flat_map(|image| &image.references);
    let mut shown: Vec<_> = names
        .map(|name| name.familiar())
        .map(
            |name| json!({"templateID": name, "aliases": [name], "names": [name], "public": false}),
        )
        .collect();
    shown.extend(server.templates.names().map(
        |(name, image)| json!({"templateID": image, "aliases": [name], "names": [name], "public": false}),
    ));
    Ok(http::json(StatusCode::OK, &shown))
}

/// Finds a template by name: an image or a snapshot that is here.
pub async fn find(server: &Arc<Server>, name: &str) -> Answer {
    let image = server.templates.image(name).to_owned();
    let (all, given) = (server.sandboxes.clone(), name.to_owned());
    let is_there =
        blocking(move || Ok(all.snapshot(&given).is_ok() || all.store().image(&image).is_ok()));
    if !is_there.await? {
        return Err(Problem::not_found(format!("no template `{name}` is here")));
    }
    let view = json!({"templateID": name, "public": false});
    Ok(http::json(StatusCode::OK, &view))
}
