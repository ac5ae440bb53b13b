//! `mica images`

use micabox::words::boolean;
use micabox_image::Reference;
use micabox_image::store::ImageSummary;

use crate::moment;
use crate::template::{self, Fields, Row, Template};
use micabox_program::failure::Outcome;
use micabox_program::output::{Table, print, print_json, size};
use micabox_program::settings;

/// Digits of a digest in a list.
const SHORT: usize = 12;

/// List images
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Accepted as with Docker: there are no intermediate images
    #[arg(short, long, hide = true)]
    all: bool,

    /// Accepted as with Docker: digests are shown anyway
    #[arg(long, hide = true)]
    digests: bool,

    /// Show only images that match; may be repeated [reference=debian*, dangling=true]
    #[arg(short, long = "filter", value_name = "KEY=VALUE", value_parser = filter)]
    filters: Vec<Filter>,

    /// Print whole digests
    #[arg(long)]
    no_trunc: bool,

    /// Print only digests
    #[arg(short, long, conflicts_with_all = ["json", "format"])]
    quiet: bool,

    #[arg(long, value_name = "FORMAT", conflicts_with = "json", help = template::HELP)]
    format: Option<String>,

    /// Print all fields as JSON
    #[arg(long)]
    json: bool,

    /// Show only images with this name: NAME or NAME:TAG
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// What images must match.
#[derive(Clone, Debug)]
enum Filter {
    /// A pattern for a name, with `*` and `?`.
    Reference(String),
    /// Whether the image has no name.
    Dangling(bool),
}

/// Docker's fields, and those that only such an image has.
const FIELDS: Fields = &[
    ("Repository", "REPOSITORY"),
    ("Tag", "TAG"),
    ("ID", "IMAGE ID"),
    ("Digest", "DIGEST"),
    ("CreatedSince", "CREATED"),
    ("CreatedAt", "CREATED AT"),
    ("Size", ">SIZE"),
    ("Platform", "PLATFORM"),
    ("Layers", ">LAYERS"),
];

/// An image under one of its names.
struct Named<'a> {
    image: &'a ImageSummary,
    name: Option<&'a Reference>,
    /// Whether digests are not cut.
    is_whole: bool,
}

/// Lists images.
pub fn execute(args: &Args) -> Outcome {
    let template = Template::wanted(args.format.as_deref(), FIELDS)?;
    let mut images = settings::store()?.images()?;
    images.retain(|image| args.matches(image));
    let rows = || args.rows(&images);
    if args.json {
        print_json(&images)?;
    } else if args.quiet {
        let digests = images
            .iter()
            .map(|image| format!("{}\n", image.manifest_digest));
        print(&digests.collect::<String>())?;
    } else if let Some(template) = template {
        template.print(&rows())?;
    } else {
        print(&table(&rows()))?;
    }
    Ok(0)
}

impl Args {
    /// Returns whether an image is to be listed.
    fn matches(&self, image: &ImageSummary) -> bool {
        let is_dangling = image.references.is_empty();
        let is_wanted = self.filters.iter().all(|filter| match filter {
            Filter::Reference(_) => true,
            Filter::Dangling(wanted) => *wanted == is_dangling,
        });
        let asks_for_names = self.patterns().next().is_some();
        let is_named = image.references.iter().any(|name| self.names(name));
        is_wanted && (is_named || (is_dangling && !asks_for_names))
    }

    /// Returns the patterns of the filters for names, which are alternatives.
    fn references(&self) -> impl Iterator<Item = &str> {
        self.filters.iter().filter_map(|filter| match filter {
            Filter::Reference(pattern) => Some(pattern.as_str()),
            Filter::Dangling(_) => None,
        })
    }

    fn patterns(&self) -> impl Iterator<Item = &str> {
        self.references().chain(self.name.as_deref())
    }

    /// Returns whether a name is asked for.
    fn names(&self, name: &Reference) -> bool {
        let pattern = self.name.as_deref();
        let mut references = self.references().peekable();
        pattern.is_none_or(|pattern| is_called(name, pattern))
            && (references.peek().is_none() || references.any(|pattern| is_called(name, pattern)))
    }

    /// Returns a row for each name that is asked for.
    fn rows<'a>(&self, images: &'a [ImageSummary]) -> Vec<Named<'a>> {
        let mut rows = Vec::new();
        for image in images {
            let row = |name| Named {
                image,
                name,
                is_whole: self.no_trunc,
            };
            let names = image.references.iter().filter(|name| self.names(name));
            if image.references.is_empty() {
                rows.push(row(None));
            } else {
                rows.extend(names.map(|name| row(Some(name))));
            }
        }
        rows.sort_by_cached_key(Named::title);
        rows
    }
}

/// Returns whether an image's name is that of a pattern, which may leave the tag out.
fn is_called(name: &Reference, pattern: &str) -> bool {
    let (familiar, full) = (name.familiar(), name.to_string());
    let without_tag = |text: &str| {
        let tag = name.tag().map(|tag| format!(":{tag}")).unwrap_or_default();
        text.strip_suffix(&tag).unwrap_or(text).to_owned()
    };
    let names = [without_tag(&familiar), without_tag(&full), familiar, full];
    names
        .iter()
        .any(|name| fits(name.as_bytes(), pattern.as_bytes()))
}

/// Returns whether a text fits a pattern with `*` and `?`, which stand for no slash.
fn fits(text: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where the last `*` is, and the text that it may stand for one more byte of.
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        match (pattern.get(of), text.get(at)) {
            (Some(b'*'), _) => {
                star = Some((of, at));
                of += 1;
            }
            (Some(b'?'), Some(byte)) if *byte != b'/' => {
                at += 1;
                of += 1;
            }
            (Some(wanted), Some(byte)) if wanted == byte => {
                at += 1;
                of += 1;
            }
            _ => match star {
                Some((back, end)) if text.get(end).is_some_and(|byte| *byte != b'/') => {
                    star = Some((back, end + 1));
                    at = end + 1;
                    of = back + 1;
                }
                _ => return false,
            },
        }
    }
    pattern.iter().skip(of).all(|byte| *byte == b'*')
}

fn filter(text: &str) -> Result<Filter, String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    match (key, value) {
        ("reference", pattern) => Ok(Filter::Reference(pattern.to_owned())),
        ("dangling", value) => boolean(value)
            .map(Filter::Dangling)
            .ok_or_else(|| "expected true or false".into()),
        _ => Err("no such key; there are reference, dangling".into()),
    }
}

impl Named<'_> {
    fn title(&self) -> String {
        self.name.map_or("<none>".into(), Reference::familiar)
    }
}

impl Row for Named<'_> {
    fn field(&self, name: &str) -> String {
        let image = self.image;
        let none = || "<none>".to_owned();
        let created = || image.created.as_deref();
        match name {
            "Repository" => match self.name {
                Some(name) => {
                    let familiar = self.title();
                    let name = name.tag().and_then(|tag| familiar.strip_suffix(tag));
                    let name = name.and_then(|name| name.strip_suffix(':'));
                    let (before, _) = familiar.split_once('@').unwrap_or((&familiar, ""));
                    name.unwrap_or(before).to_owned()
                }
                None => none(),
            },
            "Tag" => self
                .name
                .and_then(Reference::tag)
                .map_or_else(none, str::to_owned),
            "ID" if !self.is_whole => short(&image.manifest_digest.hex()),
            "ID" | "Digest" => image.manifest_digest.to_string(),
            "CreatedSince" => created().and_then(moment::since).unwrap_or_else(none),
            "CreatedAt" => created().map_or_else(none, str::to_owned),
            "Size" => size(image.size),
            "Platform" => image.platform.clone(),
            "Layers" => image.layers.to_string(),
            _ => String::new(),
        }
    }
}

fn table(rows: &[Named<'_>]) -> String {
    let mut table = Table::new(&["IMAGE", "DIGEST", "PLATFORM", ">LAYERS", ">SIZE"]);
    for row in rows {
        let digest = &row.image.manifest_digest;
        table.row([
            row.title(),
            if row.is_whole {
                digest.to_string()
            } else {
                short(&digest.hex())
            },
            row.image.platform.clone(),
            row.image.layers.to_string(),
            size(row.image.size),
        ]);
    }
    table.render()
}

/// Returns the first digits of a digest, which are enough for people.
pub fn short(hex: &str) -> String {
    hex.get(..SHORT).unwrap_or(hex).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_a_pattern_of_it_with_or_without_its_tag() {
        let name: Reference = "example.com/team/app:1.2".parse().unwrap();
        let hub: Reference = "debian:12".parse().unwrap();
        for (name, pattern, fits) in [
            (&hub, "debian", true),
            (&hub, "debian:12", true),
            (&hub, "debian:1", false),
            (&hub, "deb*", true),
            (&hub, "*:12", true),
            (&hub, "d?bian:*", true),
            (&hub, "ubuntu", false),
            (&hub, "docker.io/library/debian", true),
            (&name, "example.com/team/app", true),
            (&name, "example.com/*/app", true),
            (&name, "*/app", false),
            (&name, "app", false),
            (&name, "", false),
        ] {
            assert_eq!(is_called(name, pattern), fits, "{name} {pattern}");
        }
        // Many stars take no time that grows with their number's power.
        let stars = "*a".repeat(5000);
        assert!(!super::fits("a".repeat(4999).as_bytes(), stars.as_bytes()));
    }
}
