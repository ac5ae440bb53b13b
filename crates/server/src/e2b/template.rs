//! Templates, which are images here.

use std::collections::BTreeMap;

/// The names that E2B's clients use unless told otherwise, and images in which their examples run.
const KNOWN: [(&str, &str); 2] = [
    ("base", "python:3.12-slim"),
    ("code-interpreter-v1", "python:3.12-slim"),
];

/// Images by the names of templates.
#[derive(Debug)]
pub struct Templates(BTreeMap<String, String>);

impl Templates {
    pub fn new(given: Vec<(String, String)>) -> Self {
        let known = KNOWN.map(|(name, image)| (name.to_owned(), image.to_owned()));
        Self(known.into_iter().chain(given).collect())
    }

    /// Returns the name of the image or snapshot that stands for a template, if there is one but its own.
    pub fn named(&self, template: &str) -> Option<&str> {
        self.0.get(template).map(String::as_str)
    }

    /// Returns the names with an image or a snapshot of another name.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, image)| (&**name, &**image))
    }
}
