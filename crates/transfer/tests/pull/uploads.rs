//! The half of a registry that accepts blobs and manifests, with strict checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use micabox_image::Digest;
use serde_json::Value;

use crate::server::{Registry, Reply, Request};

/// Everything pushed to a registry, by repository.
#[derive(Default)]
pub struct Uploads {
    blobs: BTreeSet<(String, String)>,
    /// Media type and bytes by repository and tag.
    pub manifests: BTreeMap<(String, String), (String, Vec<u8>)>,
    sessions: BTreeMap<String, Vec<u8>>,
    next: usize,
    /// Largest accepted body, in bytes.
    pub limit: Option<usize>,
    /// Whether failed transfers are forgotten.
    pub forgetful: bool,
}

/// Makes `registry` accept pushes.
pub fn accept(registry: &Registry) -> Arc<Mutex<Uploads>> {
    let uploads = Arc::new(Mutex::new(Uploads::default()));
    let shared = Arc::clone(&uploads);
    registry.rule(move |request| shared.lock().unwrap().answer(request));
    uploads
}

impl Uploads {
    fn answer(&mut self, request: &Request) -> Option<Reply> {
        let rest = request.path().strip_prefix("/v2/")?;
        let (repository, what) = rest.split_once('/')?;
        let (repository, what) = (repository.to_owned(), what.to_owned());
        if self.limit.is_some_and(|limit| request.body.len() > limit) {
            return Some(Reply::error(413, "the proxy has a limit"));
        }
        match (request.method.as_str(), what.split_once('/')?) {
            ("POST", ("blobs", "uploads/")) => Some(self.start(request, repository)),
            ("PATCH" | "PUT" | "GET", ("uploads", session)) => {
                Some(self.session(request, &repository, session))
            }
            ("HEAD", ("blobs", digest)) => {
                let known = self.blobs.contains(&(repository, digest.to_owned()));
                Some(if known {
                    Reply::new(200, "").without_length()
                } else {
                    Reply::new(404, "")
                })
            }
            ("PUT", ("manifests", tag)) => Some(self.manifest(request, repository, tag)),
            _ => None,
        }
    }

    fn start(&mut self, request: &Request, repository: String) -> Reply {
        if let (Some(digest), Some(from)) = (query(request, "mount"), query(request, "from"))
            && self.blobs.contains(&(from, digest.clone()))
        {
            self.blobs.insert((repository, digest));
            return Reply::new(201, "");
        }
        self.next += 1;
        let session = self.next.to_string();
        self.sessions.insert(session.clone(), Vec::new());
        let location = format!("/v2/{repository}/uploads/{session}?state=a%2Fb");
        Reply::new(202, "").header("location", location)
    }

    fn session(&mut self, request: &Request, repository: &str, session: &str) -> Reply {
        let Some(bytes) = self.sessions.get_mut(session) else {
            return Reply::error(404, "upload unknown");
        };
        assert_eq!(query(request, "state").as_deref(), Some("a%2Fb"));
        if request.method == "PATCH"
            && let Some(range) = request.header("content-range")
        {
            let start: usize = range.split('-').next().unwrap().parse().unwrap();
            if start != bytes.len() {
                return Reply::new(416, "");
            }
        }
        bytes.extend(&request.body);
        if request.broken && self.forgetful {
            self.sessions.remove(session);
            return Reply::new(500, "");
        }
        if request.method == "PUT" {
            let digest = query(request, "digest").unwrap().replace("%3A", ":");
            if Digest::of(bytes).to_string() != digest {
                return Reply::error(400, "digest invalid");
            }
            self.sessions.remove(session);
            self.blobs.insert((repository.to_owned(), digest));
            return Reply::new(201, "");
        }
        let location = format!("/v2/{repository}/uploads/{session}?state=a%2Fb");
        let reply = Reply::new(if request.method == "GET" { 204 } else { 202 }, "");
        let last = bytes.len().saturating_sub(1);
        reply
            .header("location", location)
            .header("range", format!("0-{last}"))
    }

    fn manifest(&mut self, request: &Request, repository: String, tag: &str) -> Reply {
        let manifest: Value = serde_json::from_slice(&request.body).unwrap();
        let layers = manifest["layers"].as_array().unwrap();
        for descriptor in layers.iter().chain([&manifest["config"]]) {
            let digest = descriptor["digest"].as_str().unwrap().to_owned();
            if !self.blobs.contains(&(repository.clone(), digest)) {
                return Reply::error(400, "blob unknown");
            }
        }
        let media_type = request.header("content-type").unwrap().to_owned();
        let contents = (media_type, request.body.clone());
        let digest = Digest::of(&request.body);
        self.manifests
            .insert((repository, tag.to_owned()), contents);
        Reply::new(201, "").header("docker-content-digest", digest.to_string())
    }
}

/// Returns a parameter of the request's URL, undecoded.
fn query(request: &Request, name: &str) -> Option<String> {
    let (_, query) = request.target.split_once('?')?;
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(match name {
        "mount" => value.replace("%3A", ":"),
        _ => value.to_owned(),
    })
}
