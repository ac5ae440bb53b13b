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

    /// Returns the image of a template: its own name, unless there is another image for it.
    pub fn image<'a>(&'a self, template: &'a str) -> &'a str {
        self.0.get(template).map_or(template, String::as_str)
    }

    /// Returns the names with an image of another name.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, image)| (&**name, &**image))
    }
}

/// Reads `NAME=IMAGE`.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, image)) if !name.is_empty() && !image.is_empty() => {
            Ok((name.to_owned(), image.to_owned()))
        }
        _ => Err("not of the form NAME=IMAGE".to_owned()),
    }
}
