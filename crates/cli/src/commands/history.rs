//! `mica history`

use micabox_image::store::Image;
use serde::Serialize;

use super::images::short;
use crate::moment;
use crate::template::{self, Fields, Row, Template};
use micabox_program::failure::Outcome;
use micabox_program::output::{print_json, size};
use micabox_program::settings;

/// Most characters of a command in the table.
const MAX_COMMAND: usize = 45;

/// Docker's word for an image of a step that has none.
const MISSING: &str = "<missing>";

/// Show the steps that made an image, the last one first
///
/// They are what the image's config says of itself; nothing checks them. A size is that of the layer in the
/// store, and 0 B for a step without files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print whole commands and digests
    #[arg(long)]
    no_trunc: bool,

    /// Print only digests
    #[arg(short, long, conflicts_with_all = ["json", "format"])]
    quiet: bool,

    /// Accepted as with Docker: sizes and times are for people
    #[arg(short = 'H', long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    human: Option<bool>,

    #[arg(long, value_name = "FORMAT", conflicts_with = "json", help = template::HELP)]
    format: Option<String>,

    /// Print all fields as JSON
    #[arg(long)]
    json: bool,

    /// The image: a name or a digest
    #[arg(value_name = "IMAGE")]
    image: String,
}

/// Docker's fields.
const FIELDS: Fields = &[
    ("ID", "IMAGE"),
    ("CreatedSince", "CREATED"),
    ("CreatedAt", "CREATED AT"),
    ("CreatedBy", "CREATED BY"),
    ("Size", "SIZE"),
    ("Comment", "COMMENT"),
];

/// Bytes of a block of a layer.
const BLOCK: u64 = 4096;

const TABLE: &str = "table {{.ID}}\t{{.CreatedSince}}\t{{.CreatedBy}}\t{{.Size}}\t{{.Comment}}";

/// A step.
#[derive(Debug, PartialEq, Serialize)]
struct Step {
    /// The image's digest, for the last step.
    id: Option<String>,
    created: Option<String>,
    created_by: String,
    /// Bytes of the layer's image.
    size: u64,
    comment: String,
    #[serde(skip)]
    is_whole: bool,
}

/// Shows an image's history.
pub fn execute(args: &Args) -> Outcome {
    let format = if args.quiet {
        Some("{{.ID}}")
    } else {
        args.format.as_deref()
    };
    let template = Template::wanted(format, FIELDS)?;
    let image = settings::store()?.image(&args.image)?;
    let steps = steps(&image, args.no_trunc);
    if args.json {
        print_json(&steps)?;
        return Ok(0);
    }
    let template = template.map_or_else(|| Template::parse(TABLE, FIELDS), Ok);
    template?.print(&steps)?;
    Ok(0)
}

/// Returns an image's steps, the last one first.
fn steps(image: &Image, is_whole: bool) -> Vec<Step> {
    let sizes = image.layers.iter().map(|layer| layer.record.blocks);
    let sizes: Vec<u64> = sizes.map(|blocks| blocks.saturating_mul(BLOCK)).collect();
    let history = image.config.history().iter().flatten();
    let has_layers: Vec<bool> = history
        .clone()
        .map(|step| step.empty_layer() != Some(true))
        .collect();
    let mut history = history;
    let mut steps: Vec<Step> = sizes_of_steps(&has_layers, &sizes)
        .into_iter()
        .map(|size| {
            let step = history.next();
            let text = |text: Option<&Option<String>>| text.cloned().flatten();
            Step {
                id: None,
                created: text(step.map(|step| step.created())),
                created_by: text(step.map(|step| step.created_by())).unwrap_or_default(),
                size,
                comment: text(step.map(|step| step.comment())).unwrap_or_default(),
                is_whole,
            }
        })
        .collect();
    steps.reverse();
    if let Some(last) = steps.first_mut() {
        last.id = Some(image.manifest_digest.to_string());
    }
    steps
}

/// Returns the sizes of steps, those of layers that a history lacks included. A history may have more steps with
/// layers than there are layers.
fn sizes_of_steps(has_layers: &[bool], sizes: &[u64]) -> Vec<u64> {
    let mut sizes = sizes.iter().copied();
    let mut of_steps: Vec<u64> = has_layers
        .iter()
        .map(|has| has.then(|| sizes.next()).flatten().unwrap_or(0))
        .collect();
    of_steps.extend(sizes);
    of_steps
}

impl Row for Step {
    fn field(&self, name: &str) -> String {
        let created = self.created.as_deref();
        match name {
            "ID" => match self.id.as_deref() {
                None => MISSING.into(),
                Some(id) if self.is_whole => id.to_owned(),
                Some(id) => short(id.strip_prefix("sha256:").unwrap_or(id)),
            },
            "CreatedSince" => created.and_then(moment::since).unwrap_or("N/A".into()),
            "CreatedAt" => created.unwrap_or("N/A").to_owned(),
            "CreatedBy" if self.is_whole => self.created_by.clone(),
            "CreatedBy" => {
                let mut command: String = self.created_by.chars().take(MAX_COMMAND).collect();
                if command.len() < self.created_by.len() {
                    command.push('…');
                }
                command
            }
            "Size" => size(self.size),
            "Comment" => self.comment.clone(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_of_an_image_may_have_another_length_than_its_layers() {
        assert_eq!(sizes_of_steps(&[true, false, true], &[7, 9]), [7, 0, 9]);
        assert_eq!(sizes_of_steps(&[], &[7, 9]), [7, 9]);
        assert_eq!(sizes_of_steps(&[true, true, true], &[7]), [7, 0, 0]);
        assert_eq!(sizes_of_steps(&[true], &[7, 9]), [7, 9]);
    }
}
