//! Contents of files: to a sandbox.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use bytes::{Buf, Bytes};
use flate2::read::GzDecoder;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use micabox::WriteOptions;
use multer::{Constraints, Multipart, SizeLimit};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::accounts::Place;
use super::transfer::asked;
use crate::e2b::http::{self, Answer, Request, blocking, header};
use crate::e2b::incoming::Incoming;
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::sandbox::Served;

/// Most files of a request.
const FILES: usize = 1000;

/// Bytes that are written at a time.
const PIECE: usize = 64 << 10;

/// Pieces that wait for the sandbox.
const PIECES: usize = 16;

/// Writes the file or files of a request.
pub async fn upload(served: Served, request: Request) -> Answer {
    let (path, user) = asked(request.uri())?;
    let place = blocking(move || Place::of(&served, user.as_deref())).await?;
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
    let body = request.into_body();
    let written = match boundary {
        Some(boundary) => parts(&place, path, body, boundary).await?,
        None => {
            let path = path.ok_or_else(|| Problem::invalid("the path is missing"))?;
            vec![whole(&place, &path, body, is_packed).await?]
        }
    };
    Ok(http::json(StatusCode::OK, &written))
}

/// The body is the file.
async fn whole(
    place: &Place,
    path: &str,
    mut body: Incoming,
    is_packed: bool,
) -> Result<Value, Problem> {
    let path = place.path(path)?;
    let writing = Writing::begin(place, path.clone(), is_packed);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::invalid(error.to_string()))?;
        if let Ok(data) = frame.into_data()
            && !writing.write(data).await
        {
            break;
        }
    }
    writing.finish().await?;
    Ok(described(&path))
}

/// The body has a part for each file, whose name is its path.
async fn parts(
    place: &Place,
    path: Option<String>,
    body: Incoming,
    boundary: String,
) -> Result<Vec<Value>, Problem> {
    let broken = |error: multer::Error| Problem::invalid(error.to_string());
    // Contents are not kept here, and may be as long as the sandbox has room.
    let limits = Constraints::new().size_limit(SizeLimit::new());
    let body = http_body_util::BodyDataStream::new(body);
    let mut parts = Multipart::with_constraints(body, boundary, limits);
    let mut written = Vec::new();
    while let Some(mut part) = parts.next_field().await.map_err(broken)? {
        if part.name() != Some("file") {
            continue;
        }
        if written.len() == FILES {
            let message = format!("a request may have {FILES} files");
            return Err(Problem::new(Kind::TooLarge, message));
        }
        let name = match (&path, part.file_name()) {
            (Some(path), _) => path.clone(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => return Err(Problem::invalid("a file has no name")),
        };
        let path = place.path(&name)?;
        let writing = Writing::begin(place, path.clone(), false);
        while let Some(data) = part.chunk().await.map_err(broken)? {
            if !writing.write(data).await {
                break;
            }
        }
        writing.finish().await?;
        written.push(described(&path));
    }
    if written.is_empty() {
        return Err(Problem::invalid("the request has no file"));
    }
    Ok(written)
}

fn described(path: &std::path::Path) -> Value {
    let name = path.file_name().unwrap_or_default();
    json!({"name": name.to_string_lossy(), "type": "file", "path": path.to_string_lossy()})
}

/// A file that is written in a thread. If this is dropped, so is the rest of the file.
struct Writing {
    /// None at the file's end; without it the client is gone.
    pieces: mpsc::Sender<Option<Bytes>>,
    thread: JoinHandle<Result<(), Problem>>,
}

impl Writing {
    fn begin(place: &Place, path: PathBuf, is_packed: bool) -> Self {
        let (pieces, rest) = mpsc::channel(PIECES);
        let files = place.files().clone();
        let thread = tokio::task::spawn_blocking(move || {
            let options = WriteOptions {
                parents: true,
                ..WriteOptions::default()
            };
            let mut file = files.create(&path, options)?;
            let pieces = Pieces {
                rest,
                piece: Bytes::new(),
                is_over: false,
            };
            let copied = if is_packed {
                copy(&mut GzDecoder::new(pieces), &mut file)
            } else {
                copy(&mut { pieces }, &mut file)
            };
            match copied {
                // The sandbox has the better reason.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    Err(Problem::invalid(format!("the body: {error}")))
                }
                _ => Ok(file.finish()?),
            }
        });
        Self { pieces, thread }
    }

    /// Returns whether more is wanted.
    async fn write(&self, data: Bytes) -> bool {
        self.pieces.send(Some(data)).await.is_ok()
    }

    async fn finish(self) -> Result<(), Problem> {
        let _ = self.pieces.send(None).await;
        let written = self.thread.await;
        written.unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "a thread has failed")))
    }
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => to.write_all(buffer.get(..count).unwrap_or_default())?,
        }
    }
}

/// The pieces of a body, for a thread.
struct Pieces {
    rest: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    is_over: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_over {
            match self.rest.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.is_over = true,
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        let count = self.piece.len().min(buffer.len());
        let taken = self.piece.split_to(count);
        if let Some(place) = buffer.get_mut(..count) {
            taken.as_ref().copy_to_slice(place);
        }
        Ok(count)
    }
}
