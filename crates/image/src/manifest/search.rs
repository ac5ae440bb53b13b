//! Searches an index for a platform's image.

use std::collections::VecDeque;

use micabox_oci::ImageConfiguration;

use super::{Entry, Index, ManifestError, platform_of};
use crate::Platform;
use crate::printable;

/// Most indexes nested in each other.
const MAX_DEPTH: usize = 4;
/// Most documents that are read to find one image.
const MAX_DOCUMENTS: usize = 64;

/// The search for one platform's image in an index, and in the indexes within it.
///
/// The caller reads the documents: `next_document` returns the next descriptor, [`Self::index`],
/// [`Self::image`] and [`Self::pass_over`] take what was read.
pub struct Search {
    wanted: Platform,
    queue: VecDeque<(Entry, usize)>,
    /// Number of descriptors returned so far.
    documents: usize,
    /// Depth of the document returned last, and whether an index specifies its platform.
    depth: usize,
    vouched: bool,
    offered: Vec<Platform>,
    /// Why the first document was passed over, and whether an index vouches for its platform.
    passed: Option<(bool, ManifestError)>,
}

impl Search {
    /// Starts a search.
    #[must_use]
    pub fn new(wanted: Platform) -> Self {
        Self {
            wanted,
            queue: VecDeque::new(),
            documents: 0,
            depth: 0,
            vouched: false,
            offered: Vec::new(),
            passed: None,
        }
    }

    /// Adds the entries of an index: the one that `next_document` returned, or the first.
    ///
    /// # Errors
    ///
    /// [`ManifestError::TooDeep`].
    pub fn index(&mut self, index: &Index) -> Result<(), ManifestError> {
        self.entries(&index.entries)?;
        if let Some(problem) = &index.unreadable {
            self.vouched = false;
            self.pass_over(ManifestError::Malformed {
                document: "index",
                message: problem.clone(),
            });
        }
        Ok(())
    }

    /// Adds descriptors that are alternatives to each other.
    ///
    /// # Errors
    ///
    /// [`ManifestError::TooDeep`].
    pub fn entries(&mut self, entries: &[Entry]) -> Result<(), ManifestError> {
        if self.depth >= MAX_DEPTH {
            return Err(ManifestError::TooDeep);
        }
        let mut suitable = Vec::new();
        // An entry without a platform may be an index, or its config may specify the platform.
        let mut without = Vec::new();
        for entry in entries {
            if let Some(kind) = entry.artifact() {
                self.vouched = false;
                self.pass_over(ManifestError::Artifact(printable(kind)));
                continue;
            }
            let Some(platform) = entry.platform() else {
                without.push(entry);
                continue;
            };
            if let Some(rank) = self.wanted.suits(&platform) {
                suitable.push((rank, entry));
            }
            // Attestations have the platform unknown/unknown, which no caller requests.
            if platform.os() != "unknown" {
                self.offered.push(platform);
            }
        }
        // Of equal ones the first, in the index's order.
        suitable.sort_by_key(|(rank, _)| *rank);
        let suitable = suitable.into_iter().map(|(_, entry)| entry);
        // Depth first: the entries of an index come before the index's neighbours.
        for entry in suitable.chain(without).rev() {
            self.queue.push_front((entry.clone(), self.depth + 1));
        }
        Ok(())
    }

    /// Notes that the document returned last is no image that can be used, and why.
    pub fn pass_over(&mut self, error: ManifestError) {
        // An image for the platform says more than a signature beside it.
        match &self.passed {
            Some((vouched, _)) if *vouched || !self.vouched => {}
            _ => self.passed = Some((self.vouched, error)),
        }
    }

    /// Returns how many indexes have led to the document that `next_document` returned last: none to the first one.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the document to read next. If there is none left, the search has failed, and the
    /// error is the reason.
    ///
    /// # Errors
    ///
    /// The error of a document that was passed over; [`ManifestError::NoPlatform`],
    /// [`ManifestError::NoImage`], [`ManifestError::TooDeep`].
    pub fn next_document(&mut self) -> Result<Entry, ManifestError> {
        let Some((descriptor, depth)) = self.queue.pop_front() else {
            return Err(self.failure());
        };
        self.documents += 1;
        if self.documents > MAX_DOCUMENTS {
            return Err(ManifestError::TooDeep);
        }
        self.depth = depth;
        self.vouched = descriptor.platform().is_some();
        Ok(descriptor)
    }

    fn failure(&mut self) -> ManifestError {
        let mut offered = std::mem::take(&mut self.offered);
        match self.passed.take() {
            Some((vouched, error)) if vouched || offered.is_empty() => return error,
            _ if offered.is_empty() => return ManifestError::NoImage,
            _ => {}
        }
        offered.sort_by_key(Platform::to_string);
        offered.dedup();
        ManifestError::NoPlatform {
            wanted: Box::new(self.wanted.clone()),
            offered,
        }
    }

    /// Takes an image's config, and returns whether the image is for the wanted platform. The
    /// index takes precedence over the config, in which builders make mistakes.
    pub fn image(&mut self, config: &ImageConfiguration) -> bool {
        if self.vouched {
            return true;
        }
        let platform = platform_of(config);
        let suits = self.wanted.suits(&platform).is_some();
        if !suits {
            self.offered.push(platform);
        }
        suits
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Document, parse_config};
    use super::*;

    fn descriptor() -> Value {
        let digest = crate::Digest::of(b"");
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest})
    }

    fn index(entries: &[Option<&str>]) -> Index {
        let entries: Vec<Value> = entries
            .iter()
            .enumerate()
            .map(|(size, platform)| {
                let mut entry = descriptor();
                // Makes the entries distinguishable.
                entry["size"] = json!(size);
                if let Some(platform) = platform {
                    let (os, rest) = platform.split_once('/').unwrap();
                    let (architecture, variant) = rest.split_once('/').unwrap_or((rest, ""));
                    entry["platform"] =
                        json!({"os": os, "architecture": architecture, "variant": variant});
                }
                entry
            })
            .collect();
        let value = json!({"schemaVersion": 2, "manifests": entries});
        match Document::parse(value.to_string().as_bytes(), None) {
            Ok(Document::Index(index)) => *index,
            other => panic!("{other:?}"),
        }
    }

    fn wanting(platform: &str) -> Search {
        Search::new(platform.parse().unwrap())
    }

    #[test]
    fn the_search_prefers_the_best_platform_to_an_entry_without_one() {
        let mut search = wanting("linux/arm64");
        search
            .index(&index(&[
                Some("linux/amd64"),
                None,
                Some("linux/arm64/v8"),
                Some("unknown/unknown"),
                None,
            ]))
            .unwrap();
        let order: Vec<u64> = std::iter::from_fn(|| search.next_document().ok())
            .map(|entry| entry.size.unwrap())
            .collect();
        assert_eq!(order, [2, 1, 4]);
        let error = search.next_document().unwrap_err();
        assert!(
            matches!(error, ManifestError::NoImage),
            "listed once: {error}"
        );
    }

    #[test]
    fn the_search_goes_on_past_what_is_no_image_and_says_what_mattered() {
        let artifact = || ManifestError::Artifact("a signature".into());
        let mut search = wanting("linux/amd64/v3");
        let two = [Some("linux/amd64"), None, Some("linux/amd64/v2")];
        search.index(&index(&two)).unwrap();
        // The newest variant first, then the others in their order.
        for size in [2, 0, 1] {
            assert_eq!(search.next_document().unwrap().size, Some(size));
            search.pass_over(ManifestError::Artifact(size.to_string()));
        }
        let error = search.next_document().unwrap_err();
        assert_eq!(error, ManifestError::Artifact("2".into()));

        let mut search = wanting("linux/amd64");
        search.index(&index(&[None])).unwrap();
        search.next_document().unwrap();
        search.pass_over(artifact());
        assert_eq!(search.next_document().unwrap_err(), artifact());

        // Neither a signature nor an entry of another shape is why there is no image.
        let mut search = wanting("linux/amd64");
        let mut mixed = index(&[None, Some("linux/arm64")]);
        mixed.unreadable = Some("a string in the place of an object".into());
        search.index(&mixed).unwrap();
        search.next_document().unwrap();
        search.pass_over(artifact());
        let error = search.next_document().unwrap_err();
        assert!(matches!(error, ManifestError::NoPlatform { .. }), "{error}");
    }

    #[test]
    fn the_search_reads_nested_indexes_first_up_to_a_limit() {
        let mut search = wanting("linux/amd64");
        search.index(&index(&[None, Some("linux/amd64")])).unwrap();
        assert_eq!(search.next_document().unwrap().size, Some(1));
        search
            .index(&index(&[Some("linux/arm64"), None, None]))
            .unwrap();
        let config = parse_config(br#"{"os": "linux", "architecture": "arm64"}"#).unwrap();
        assert_eq!(search.next_document().unwrap().size, Some(1));
        assert!(!search.image(&config));
        assert_eq!(search.next_document().unwrap().size, Some(2));
        assert_eq!(search.next_document().unwrap().size, Some(0));
        let error = search.next_document().unwrap_err().to_string();
        assert!(
            error.contains("linux/amd64") && error.contains("linux/arm64"),
            "{error}"
        );

        let mut search = wanting("linux/amd64");
        let endless = index(&[None]);
        let mut outcome = search.index(&endless);
        while outcome.is_ok() {
            outcome = search.next_document().and_then(|_| search.index(&endless));
        }
        assert_eq!(outcome.unwrap_err(), ManifestError::TooDeep);
        let mut search = wanting("linux/amd64");
        search.index(&index(&[None; 1000])).unwrap();
        let error = std::iter::repeat_with(|| search.next_document()).find_map(Result::err);
        assert_eq!(error, Some(ManifestError::TooDeep));
    }

    #[test]
    fn an_index_vouches_for_what_a_config_gets_wrong() {
        let wrong = parse_config(br#"{"os": "linux", "architecture": "s390x"}"#).unwrap();
        let mut search = wanting("linux/amd64");
        assert!(!search.image(&wrong));
        let mut search = wanting("linux/amd64");
        search.index(&index(&[Some("linux/amd64")])).unwrap();
        search.next_document().unwrap();
        assert!(search.image(&wrong));
    }
}
