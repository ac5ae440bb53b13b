//! A registry on loopback that misbehaves on demand.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use micabox_image::{Digest, Reference};

use crate::image::TestImage;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Path with the query.
    pub target: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The connection failed within the body; no response is sent.
    pub broken: bool,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        found.next().map(|(_, value)| value.as_str())
    }

    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    pub fn is_blob(&self) -> bool {
        self.path().contains("/blobs/")
    }

    pub fn is_manifest(&self) -> bool {
        self.path().contains("/manifests/")
    }

    /// Returns the first byte of the requested range, if there is one.
    pub fn range_start(&self) -> Option<usize> {
        Some(self.range(usize::MAX)?.start)
    }

    /// Returns the requested range of a blob of `total` bytes, if there is one.
    pub fn range(&self, total: usize) -> Option<Range<usize>> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-').unwrap();
        let end = match last {
            "" => total,
            last => last.parse::<usize>().unwrap() + 1,
        };
        Some(first.parse().unwrap()..end.min(total))
    }
}

/// What happens after the last byte that is sent of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Close,
    /// Nothing, until the client gives up.
    Stall,
    /// The same, before any byte of the response.
    Silent,
    /// The body continues for as long as the client reads.
    Endless,
}

/// A response.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The Content-Length, if there is one.
    pub length: Option<usize>,
    pub end: End,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            length: Some(body.len()),
            body,
            end: End::Close,
        }
    }

    /// An error in the registries' format.
    pub fn error(status: u16, message: &str) -> Self {
        let body = serde_json::json!({"errors": [{"code": "TEST", "message": message}]});
        Self::new(status, body.to_string())
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn redirect(to: impl Into<String>) -> Self {
        Self::new(307, "").header("location", to)
    }

    /// Sends no more than `count` bytes of the body that the header promises.
    pub fn cut(mut self, count: usize, end: End) -> Self {
        self.body.truncate(count);
        self.end = end;
        self
    }

    pub fn without_length(mut self) -> Self {
        self.length = None;
        self
    }
}

type Rule = Box<dyn FnMut(&Request) -> Option<Reply> + Send>;

#[derive(Default)]
struct State {
    contents: HashMap<String, (String, Vec<u8>)>,
    rules: Vec<Rule>,
    requests: Vec<Request>,
    /// Configs: blobs that aren't layers.
    configs: Vec<String>,
    /// Layers that are being served, and the highest number so far.
    active: usize,
    peak: usize,
    /// Requests for layers so far.
    asked: usize,
    /// Serves layers only once this many were requested at the same time.
    gather: usize,
    /// Serves ranges but the first only once this many requests for layers have come.
    ranges_wait_for: usize,
    ignores_ranges: bool,
    /// Numbers of body bytes after which the next PATCH requests fail.
    breaks: Vec<usize>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The registry. Ends with the test process.
pub struct Registry {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Registry {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let registry = Self {
            address,
            shared: Arc::clone(&shared),
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &shared));
            }
        });
        registry
    }

    /// Creates a registry with one image, as `x:1`.
    pub fn with(image: &TestImage) -> Self {
        let registry = Self::new();
        registry.push("x", "1", image);
        registry
    }

    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn reference(&self, rest: &str) -> Reference {
        format!("{}/{rest}", self.address).parse().unwrap()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    pub fn push(&self, repository: &str, tag: &str, image: &TestImage) {
        for (blob, bytes) in image.blobs() {
            self.put(
                &format!("/v2/{repository}/blobs/{blob}"),
                "application/octet-stream",
                bytes,
            );
        }
        self.state()
            .configs
            .push(Digest::of(&image.config).to_string());
        self.put_manifest(repository, tag, image.manifest.clone());
    }

    pub fn put_manifest(&self, repository: &str, tag: &str, manifest: Vec<u8>) {
        let json: serde_json::Value = serde_json::from_slice(&manifest).unwrap_or_default();
        let media_type = json["mediaType"].as_str();
        // Not every media type in a document fits into a header.
        let media_type = media_type.filter(|text| !text.contains(char::is_control));
        let media_type = media_type.unwrap_or("application/json").to_owned();
        let digest = Digest::of(&manifest);
        for name in [tag.to_owned(), digest.to_string()] {
            let path = format!("/v2/{repository}/manifests/{name}");
            self.put(&path, &media_type, manifest.clone());
        }
    }

    pub fn put(&self, path: &str, media_type: &str, bytes: Vec<u8>) {
        let contents = (media_type.to_owned(), bytes);
        self.state().contents.insert(path.to_owned(), contents);
    }

    /// Replies to requests with `rule`'s result, if it has one. Earlier rules take precedence.
    pub fn rule(&self, rule: impl FnMut(&Request) -> Option<Reply> + Send + 'static) {
        self.state().rules.push(Box::new(rule));
    }

    /// Applies `fault` to the responses to the first `count` requests for blobs other than configs.
    pub fn blob_fault(
        &self,
        image: &TestImage,
        count: usize,
        fault: impl Fn(&Request, Reply) -> Reply + Send + 'static,
    ) {
        let config = Digest::of(&image.config).to_string();
        let blobs: HashMap<String, Vec<u8>> = image
            .blobs()
            .map(|(blob, bytes)| (blob.to_string(), bytes))
            .collect();
        let mut left = count;
        self.rule(move |request| {
            let name = request.path().rsplit('/').next().unwrap();
            if !request.is_blob() || name == config || left == 0 {
                return None;
            }
            left -= 1;
            Some(fault(request, Reply::new(200, blobs[name].clone())))
        });
    }

    pub fn ignore_ranges(&self) {
        self.state().ignores_ranges = true;
    }

    pub fn break_upload(&self, after: usize) {
        self.state().breaks.push(after);
    }

    pub fn gather(&self, count: usize) {
        self.state().gather = count;
    }

    pub fn ranges_wait_for(&self, requests: usize) {
        self.state().ranges_wait_for = requests;
    }

    pub fn peak(&self) -> usize {
        self.state().peak
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    /// Requests for blobs other than this image's config.
    pub fn layer_requests(&self, image: &TestImage) -> Vec<Request> {
        let config = Digest::of(&image.config).to_string();
        let mut requests = self.requests();
        requests.retain(|request| request.is_blob() && !request.target.contains(&config));
        requests
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    let request = read(&mut stream, shared)?;
    let is_layer;
    let reply = {
        let mut state = shared.state.lock().unwrap();
        let name = request.path().rsplit('/').next().unwrap();
        is_layer = request.is_blob() && !state.configs.iter().any(|config| config == name);
        state.requests.push(request.clone());
        if is_layer {
            state.active += 1;
            state.asked += 1;
            state.peak = state.peak.max(state.active);
            shared.changed.notify_all();
            let is_later = request.range_start().is_some_and(|start| start > 0);
            while state.peak < state.gather || is_later && state.asked < state.ranges_wait_for {
                state = shared.changed.wait(state).unwrap();
            }
        }
        let mut rules = std::mem::take(&mut state.rules);
        let said = rules.iter_mut().find_map(|rule| rule(&request));
        state.rules = rules;
        said.unwrap_or_else(|| stored(&state, &request))
    };
    // A client that has the last byte may ask for the next layer before this thread goes on.
    let before_end = || {
        if is_layer {
            shared.state.lock().unwrap().active -= 1;
        }
    };
    if request.broken {
        before_end();
    } else {
        write(&mut stream, &request, &reply, before_end);
    }
    Some(())
}

fn read(stream: &mut TcpStream, shared: &Shared) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    if reader.fill_buf().ok()?.first() == Some(&0x16) {
        // The beginning of TLS. Go's server replies like this, too.
        let _ = reader
            .get_mut()
            .write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
        return None;
    }
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let mut request = Request {
        method,
        target,
        headers,
        body: Vec::new(),
        broken: false,
    };
    let mut length = request
        .header("content-length")
        .map_or(0, |length| length.parse().unwrap());
    if request.method == "PATCH"
        && let Some(after) = shared.state.lock().unwrap().breaks.pop()
    {
        request.broken = true;
        length = length.min(after);
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

/// Returns a correct registry's response.
fn stored(state: &State, request: &Request) -> Reply {
    let Some((media_type, bytes)) = state.contents.get(request.path()) else {
        return Reply::error(404, "not here");
    };
    let total = bytes.len();
    let range = request.range(total).filter(|_| !state.ignores_ranges);
    let reply = match range {
        None => Reply::new(200, bytes.clone()),
        Some(range) if range.start >= total => {
            return Reply::new(416, "").header("content-range", format!("bytes */{total}"));
        }
        Some(range) => {
            let header = format!("bytes {}-{}/{total}", range.start, range.end - 1);
            Reply::new(206, &bytes[range]).header("content-range", header)
        }
    };
    reply.header("content-type", media_type)
}

/// Calls `before_end` before it sends the last byte.
fn write(stream: &mut TcpStream, request: &Request, reply: &Reply, before_end: impl FnOnce()) {
    if reply.end == End::Silent {
        before_end();
        let _ = stream.read(&mut [0]);
        return;
    }
    let mut head = format!("HTTP/1.1 {} Test\r\nconnection: close\r\n", reply.status);
    if let Some(length) = reply.length {
        head += &format!("content-length: {length}\r\n");
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let body: &[u8] = if request.method == "HEAD" {
        b""
    } else {
        &reply.body
    };
    let bytes = [head.as_bytes(), body].concat();
    let (rest, last) = bytes.split_at(bytes.len() - 1);
    // Many tests have a client that closes the connection.
    let sent = stream.write_all(rest);
    before_end();
    let sent = sent.and_then(|()| stream.write_all(last));
    match reply.end {
        End::Stall if sent.is_ok() => {
            let _ = stream.read(&mut [0]);
        }
        End::Endless => while stream.write_all(&[b' '; 65536]).is_ok() {},
        _ => {}
    }
}
