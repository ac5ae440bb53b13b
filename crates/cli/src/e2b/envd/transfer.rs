//! Contents of files: from a sandbox.

use std::io::{self, Read};

use bytes::Bytes;
use micabox::FileKind;

use super::accounts::{Place, checked};
use crate::e2b::http::{self, Answer, Request, blocking, query};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// The file's path, and the user who reads or writes it.
pub fn asked(uri: &hyper::Uri) -> Result<(Option<String>, Option<String>), Problem> {
    let user = query(uri, "username").map(|name| checked(&name));
    Ok((query(uri, "path"), user.transpose()?))
}

/// Sends a file.
pub async fn download(served: Served, request: Request) -> Answer {
    let (path, user) = asked(request.uri())?;
    let path = path.unwrap_or_default();
    let opened = blocking(move || {
        let place = Place::of(&served, user.as_deref())?;
        let path = place.path(&path)?;
        let stat = place.files().stat(&path)?;
        if stat.kind == FileKind::Directory {
            let message = format!("path '{}' is a directory", path.display());
            return Err(Problem::invalid(message));
        }
        let mut file = place.files().open(&path)?;
        // A file of /proc has contents, and no size.
        let mut first = Vec::new();
        if stat.kind == FileKind::File && stat.size == 0 {
            let read = file.by_ref().take(PIECE as u64).read_to_end(&mut first);
            read.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
            if first.is_empty() {
                return Ok(None);
            }
        }
        Ok(Some((file, first)))
    });
    let Some((mut file, first)) = opened.await? else {
        // With its length, which clients look at.
        let mut reply = hyper::Response::new(http::full(Bytes::new()));
        http::set_type(&mut reply, "application/octet-stream");
        return Ok(reply);
    };
    let (pieces, body) = http::later();
    let mut reply = hyper::Response::new(body);
    http::set_type(&mut reply, "application/octet-stream");
    tokio::task::spawn_blocking(move || {
        if !first.is_empty() && pieces.blocking_send(Ok(first.into())).is_err() {
            return;
        }
        loop {
            let mut buffer = vec![0; PIECE];
            let piece = match file.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    buffer.truncate(count);
                    Ok(Bytes::from(buffer))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_over = piece.is_err();
            // A client that is gone wants no more of it.
            if pieces.blocking_send(piece).is_err() || is_over {
                return;
            }
        }
    });
    Ok(reply)
}
