//! Searches an index for a platform's image.

use std::collections::VecDeque;

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex};

use super::{ManifestError, platform_of};
use crate::platform::{self, Platform};

/// Most indexes nested in each other.
const MAX_DEPTH: usize = 4;
/// Most documents that are read to find one image.
const MAX_DOCUMENTS: usize = 64;

/// The search for one platform's image in an index, and in the indexes within it.
///
/// The caller reads the documents: `next_document` returns the next descriptor, [`Self::index`]
/// and [`Self::image`] take what was read.
pub struct Search {
    wanted: Platform,
    queue: VecDeque<(Descriptor, usize)>,
    /// Number of descriptors returned so far.
    documents: usize,
    /// Depth of the document returned last, and whether an index specifies its platform.
    depth: usize,
    vouched: bool,
    offered: Vec<Platform>,
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
        }
    }

    /// Adds the entries of an index: the one that `next_document` returned, or the first.
    ///
    /// # Errors
    ///
    /// [`ManifestError::TooDeep`].
    pub fn index(&mut self, index: &ImageIndex) -> Result<(), ManifestError> {
        self.entries(index.manifests())
    }

    /// Adds descriptors that are alternatives to each other.
    ///
    /// # Errors
    ///
    /// [`ManifestError::TooDeep`].
    pub fn entries(&mut self, entries: &[Descriptor]) -> Result<(), ManifestError> {
        if self.depth >= MAX_DEPTH {
            return Err(ManifestError::TooDeep);
        }
        let mut with_platform = Vec::new();
        let mut without = Vec::new();
        for entry in entries {
            match entry.platform() {
                Some(platform) => with_platform.push((Platform::from(platform), entry)),
                None => without.push(entry),
            }
        }
        let best = platform::best(
            &self.wanted,
            with_platform
                .iter()
                .map(|(offered, entry)| (offered, *entry)),
        );
        // Attestations have the platform unknown/unknown, which no caller requests.
        self.offered.extend(
            with_platform
                .iter()
                .map(|(platform, _)| platform)
                .filter(|platform| platform.os() != "unknown")
                .cloned(),
        );
        // An entry without a platform may be an index, or its config may specify the platform.
        let candidates: Vec<&Descriptor> = best.into_iter().chain(without).collect();
        // Depth first: the entries of an index come before the index's neighbours.
        for entry in candidates.into_iter().rev() {
            self.queue.push_front((entry.clone(), self.depth + 1));
        }
        Ok(())
    }

    /// Returns the document to read next. If there is none left, the search has failed, and the
    /// error is the reason.
    ///
    /// # Errors
    ///
    /// [`ManifestError::NoPlatform`], [`ManifestError::NoImage`], [`ManifestError::TooDeep`].
    pub fn next_document(&mut self) -> Result<Descriptor, ManifestError> {
        let Some((descriptor, depth)) = self.queue.pop_front() else {
            if self.offered.is_empty() {
                return Err(ManifestError::NoImage);
            }
            let mut offered = std::mem::take(&mut self.offered);
            offered.sort_by_key(Platform::to_string);
            offered.dedup();
            return Err(ManifestError::NoPlatform {
                wanted: self.wanted.clone(),
                offered,
            });
        };
        self.documents += 1;
        if self.documents > MAX_DOCUMENTS {
            return Err(ManifestError::TooDeep);
        }
        self.depth = depth;
        self.vouched = descriptor.platform().is_some();
        Ok(descriptor)
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

    fn index(entries: &[Option<&str>]) -> ImageIndex {
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
            .map(|entry| entry.size())
            .collect();
        assert_eq!(order, [2, 1, 4]);
        let error = search.next_document().unwrap_err();
        assert!(
            matches!(error, ManifestError::NoImage),
            "listed once: {error}"
        );
    }

    #[test]
    fn the_search_reads_nested_indexes_first_up_to_a_limit() {
        let mut search = wanting("linux/amd64");
        search.index(&index(&[None, Some("linux/amd64")])).unwrap();
        assert_eq!(search.next_document().unwrap().size(), 1);
        search
            .index(&index(&[Some("linux/arm64"), None, None]))
            .unwrap();
        let config = parse_config(br#"{"os": "linux", "architecture": "arm64"}"#).unwrap();
        assert_eq!(search.next_document().unwrap().size(), 1);
        assert!(!search.image(&config));
        assert_eq!(search.next_document().unwrap().size(), 2);
        assert_eq!(search.next_document().unwrap().size(), 0);
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
