//! Sandboxes and their files as resources: `mica://sandbox/ID` and `mica://sandbox/ID/files/PATH`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use micabox::ErrorKind;
use micabox_async::{Sandbox, blocking};
use percent_encoding::percent_decode_str;
use rmcp::model::{ErrorData, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use super::files;
use crate::mcp::server::Server;
use micabox_program::failure::{Failure, cut};

/// What all names begin with.
const SANDBOX: &str = "mica://sandbox/";

/// What separates a sandbox from a path.
const FILES: &str = "/files/";

/// Lists the sandboxes that run.
pub fn list(server: &Server) -> Result<Vec<Resource>, Failure> {
    let all = server.sandboxes.list()?.into_iter();
    let running = all.filter(|record| record.status.is_live());
    let resources = running.map(|record| {
        Resource::new(format!("{SANDBOX}{}", record.id), &record.name)
            .with_description(format!("Sandbox of {}, {}", record.base, record.status))
            .with_mime_type("application/json")
    });
    Ok(resources.collect())
}

/// Returns the forms of names.
pub fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(format!("{SANDBOX}{{id}}"), "sandbox")
            .with_description("The record of a sandbox, by its name or ID")
            .with_mime_type("application/json"),
        // With its slashes (RFC 6570, 3.2.3).
        ResourceTemplate::new(format!("{SANDBOX}{{id}}{FILES}{{+path}}"), "file")
            .with_description("A file of a running sandbox, by its path from the root"),
    ]
}

/// Reads a resource.
pub async fn read(server: &Server, uri: &str) -> Result<ReadResourceResult, Failure> {
    let unknown = || {
        let forms = format!("{SANDBOX}ID or {SANDBOX}ID{FILES}PATH");
        Failure::of_kind(
            ErrorKind::NotFound,
            format!("no resource {uri}: expected {forms}"),
        )
    };
    let rest = uri.strip_prefix(SANDBOX).ok_or_else(unknown)?;
    let (sandbox, path) = match rest.split_once(FILES) {
        Some((sandbox, path)) => (sandbox, Some(path)),
        None => (rest, None),
    };
    let decode = |text| {
        percent_decode_str(text)
            .decode_utf8()
            .map_err(|_| unknown())
    };
    let (all, name) = (server.sandboxes.clone(), decode(sandbox)?.into_owned());
    let sandbox = blocking(move || all.get(&name)).await?;
    let contents = match path {
        None => {
            let record = serde_json::to_string_pretty(sandbox.record());
            let record = record.map_err(|error| Failure::of(&error).context("making JSON"))?;
            ResourceContents::text(record, uri).with_mime_type("application/json")
        }
        Some(path) => {
            let path = format!("/{}", decode(path)?.trim_start_matches('/'));
            let sandbox = Sandbox::of(sandbox).await?;
            let (bytes, is_more) = files::read(&sandbox.files(), &path, 0, files::MOST).await?;
            if is_more {
                let long = format!("{path} has more than {} bytes", files::MOST);
                return Err(Failure::new(long).hint("read_file reads parts of it"));
            }
            match String::from_utf8(bytes) {
                Ok(text) => ResourceContents::text(text, uri),
                Err(error) => ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri)
                    .with_mime_type("application/octet-stream"),
            }
        }
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

/// Makes the protocol's error, which is all there is for resources.
pub fn error(failure: &Failure) -> ErrorData {
    let mut text = cut(failure.message().to_owned());
    if let Some(step) = failure.next_step() {
        text = format!("{text}; {step}");
    }
    match failure.kind {
        Some(ErrorKind::NotFound) => ErrorData::resource_not_found(text, None),
        _ => ErrorData::internal_error(text, None),
    }
}
