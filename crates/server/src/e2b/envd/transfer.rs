//! Contents of files: from a sandbox.

use std::io;

use bytes::Bytes;
use micabox::FileKind;
use micabox_listen::Paced;
use tokio::io::AsyncReadExt;

use super::accounts::{Caller, checked};
use crate::e2b::http::{self, Answer, Nothing, Request};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::query::Query;
use crate::e2b::sandbox::Served;
use crate::e2b::server::Server;

/// Bytes of a file without a size that are read before it is known that it has contents.
const PIECE: usize = 16 << 10;

/// The parameters of a file's address.
const PARAMETERS: [&str; 4] = ["path", "username", "signature", "signature_expiration"];

/// The file's path, and the user who reads or writes it.
pub fn asked(uri: &hyper::Uri) -> Result<(Option<String>, Option<String>), Problem> {
    let query = Query::of(uri, &PARAMETERS)?;
    for name in PARAMETERS {
        query.text(name)?;
    }
    let user = query.text("username")?.map(checked);
    let path = query.text("path")?.map(str::to_owned);
    Ok((path, user.transpose()?))
}

/// Sends a file, as its client reads it.
pub async fn download(server: &Server, served: Served, request: Request) -> Answer {
    let (path, user) = asked(request.uri())?;
    let room = server.bounds.transfers.wait(served.id(), 1).await?;
    request.body().call().keep(room);
    let Nothing {} = http::read(request.into_body()).await?;
    let caller = Caller::of(&served, user.as_deref()).await?;
    let path = caller.path(&path.unwrap_or_default()).await?;
    let stat = caller.files().stat(&path).await?;
    if stat.kind == FileKind::Directory {
        let message = format!("path '{}' is a directory", path.display());
        return Err(Problem::invalid(message));
    }
    let mut file = caller.files().open(&path).await?;
    // A file of /proc has contents, and no size.
    let mut first = vec![0; PIECE];
    let mut count = 0;
    if stat.kind == FileKind::File && stat.size == 0 {
        let failed = |error: io::Error| Problem::new(Kind::Internal, error.to_string());
        count = file.read(&mut first).await.map_err(failed)?;
        if count == 0 {
            // With its length, which clients look at.
            return Ok(sent(http::full(Bytes::new())));
        }
    }
    first.truncate(count);
    Ok(sent(http::reading(io::Cursor::new(first).chain(file))))
}

fn sent(body: http::Body) -> http::Response {
    let mut reply = hyper::Response::new(body);
    http::set_type(&mut reply, "application/octet-stream");
    reply.extensions_mut().insert(Paced);
    reply
}
