//! Contents of files: to a sandbox.

use std::io::{self, BufRead, Read};
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, Bytes};
use flate2::bufread::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use micabox::{Existing, WriteOptions};
use micabox_async::{FileWriter, FilesWriter};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::accounts::Caller;
use super::parts::Parts;
use super::transfer::asked;
use crate::e2b::http::{self, Answer, Request, header};
use crate::e2b::incoming::Incoming;
use crate::e2b::list::List;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;
use crate::e2b::server::Server;

/// How long a sandbox may take for a piece of a file.
const PATIENCE: Duration = Duration::from_secs(300);

/// How files are written.
const OPTIONS: WriteOptions = WriteOptions {
    existing: Existing::Truncate,
    mode: 0o644,
    parents: true,
};

/// Unpacked bytes that are written at a time.
const PIECE: usize = 64 << 10;

/// Writes the file or files of a request.
pub async fn upload(server: &Server, served: Served, request: Request) -> Answer {
    let (path, user) = asked(request.uri())?;
    let headers = request.headers();
    if headers
        .keys()
        .any(|name| name.as_str().starts_with("x-metadata-"))
    {
        return Err(Problem::unsupported(
            "this server does not keep metadata of files",
        ));
    }
    let kind = header(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind).ok();
    let is_packed = match header(headers, CONTENT_ENCODING.as_str()) {
        None | Some("identity") => false,
        Some("gzip") if boundary.is_none() => true,
        Some(other) => {
            let message = format!("bodies with the encoding {other:?} are not taken");
            return Err(Problem::unsupported(message));
        }
    };
    let room = server.bounds.transfers.wait(served.id(), 1).await?;
    request.body().call().keep(room);
    let caller = Caller::of(&served, user.as_deref()).await?;
    let body = request.into_body();
    match boundary {
        Some(boundary) => parts(&caller, path, body, boundary).await,
        None => {
            let path = path.ok_or_else(|| Problem::invalid("the path is missing"))?;
            let path = caller.path(&path).await?;
            whole(&caller, &path, body, is_packed).await?;
            Ok(http::json(StatusCode::OK, &[described(&path)]))
        }
    }
}

/// The body is the file.
async fn whole(
    caller: &Caller,
    path: &Path,
    mut body: Incoming,
    is_packed: bool,
) -> Result<(), Problem> {
    let mut file = caller.files().create(path, OPTIONS).await?;
    let mut packed = is_packed.then(|| MultiGzDecoder::new(Pieces::default()));
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(http::broken)?.into_data() else {
            continue;
        };
        let is_open = match &mut packed {
            None => put(&mut file, &data).await?,
            Some(packed) => {
                packed.get_mut().piece = data;
                unpack(packed, &mut file).await?
            }
        };
        if !is_open {
            break;
        }
    }
    if let Some(packed) = &mut packed {
        packed.get_mut().is_over = true;
        unpack(packed, &mut file).await?;
    }
    Ok(file.finish().await?)
}

/// Writes a piece. Returns whether more is wanted: otherwise the file's end has the reason.
async fn put(file: &mut FileWriter, data: &[u8]) -> Result<bool, Problem> {
    taken(file.write_all(data)).await
}

/// Waits until the sandbox takes a piece. Returns whether it wants more.
async fn taken(piece: impl Future<Output = io::Result<()>>) -> Result<bool, Problem> {
    let late = |_| Problem::new(Kind::Deadline, "the sandbox takes no more of the file");
    match timeout(PATIENCE, piece).await.map_err(late)? {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(Problem::invalid(error.to_string()))
        }
        taken => Ok(taken.is_ok()),
    }
}

fn described(path: &Path) -> Value {
    let name = path.file_name().unwrap_or_default();
    json!({"name": name.to_string_lossy(), "type": "file", "path": path.to_string_lossy()})
}

/// Writes what a piece of a packed body has. Returns whether more is wanted.
async fn unpack(from: &mut MultiGzDecoder<Pieces>, to: &mut FileWriter) -> Result<bool, Problem> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(count) => {
                let data = buffer.get(..count).unwrap_or_default();
                if !put(to, data).await? {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(http::broken(error)),
        }
    }
}

/// The bytes that have come of a packed body.
#[derive(Default)]
struct Pieces {
    piece: Bytes,
    is_over: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Pieces {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.piece.is_empty() && !self.is_over {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, count: usize) {
        self.piece.advance(count);
    }
}

/// The body has a part for each file, whose name is its path. What comes before a part that is refused is written.
async fn parts(caller: &Caller, path: Option<String>, body: Incoming, boundary: String) -> Answer {
    let mut written = List::new("[", body.call());
    let mut parts = Parts::new(body, boundary);
    let mut files = caller.files().create_many(OPTIONS).await?;
    let put = put_all(caller, path, &mut parts, &mut files, &mut written).await;
    files.finish().await?;
    put?;
    if written.is_empty() {
        return Err(Problem::invalid("the request has no file"));
    }
    Ok(written.finish("]"))
}

/// Writes all parts, or until no more is wanted: the files' end has the reason then.
async fn put_all(
    caller: &Caller,
    path: Option<String>,
    parts: &mut Parts,
    files: &mut FilesWriter,
    written: &mut List,
) -> Result<(), Problem> {
    while let Some(mut part) = parts.next().await? {
        if part.name() != Some("file") {
            let name = part.name().unwrap_or_default();
            return Err(Problem::invalid(format!("the part `{name}` is no `file`")));
        }
        let name = match (&path, part.file_name()) {
            (Some(path), _) => path.clone(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => return Err(Problem::invalid("a file has no name")),
        };
        let path = caller.path(&name).await?;
        if !taken(files.begin(&path, b"")).await? {
            return Ok(());
        }
        while let Some(data) = part.chunk().await? {
            if !taken(files.write(&data)).await? {
                return Ok(());
            }
        }
        written.add(&described(&path)).await?;
    }
    Ok(())
}
