//! `--format`: Docker's placeholders for a list's fields, without the rest of Go's templates.
//!
//! | text | stands for |
//! |---|---|
//! | `{{.Field}}` | a field |
//! | `{{json .Field}}` | the same as a JSON string |
//! | `{{.Label "name"}}` | the value of a label |
//! | `{{json .}}`, or `json` alone | all fields as a JSON object |
//! | `table` before the rest | columns under headings, with `\t` between |

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use micabox_program::failure::Failure;
use micabox_program::output::{Table, write_stdout};
use micabox_program::visible;

/// The help of a list's `--format`.
pub const HELP: &str = "Print a line for each, of Docker's placeholders [{{.ID}}, {{json .}}, json, 'table \
                        {{.ID}}\\t{{.Size}}']";

/// A list's fields: their names, and the headings of their columns.
pub type Fields = &'static [(&'static str, &'static str)];

/// A parsed format.
#[derive(Debug)]
pub struct Template {
    fields: Fields,
    parts: Vec<Part>,
    is_table: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(&'static str),
    JsonField(&'static str),
    Label(String),
    Json,
}

impl Part {
    /// Makes text between placeholders, which has tabs and line feeds.
    fn text(text: &str) -> Self {
        let pieces: Vec<_> = text.split('\t').map(visible::lines).collect();
        Self::Text(pieces.join("\t"))
    }
}

/// A row of a list.
pub trait Row {
    /// Returns the value of one of the list's fields.
    fn field(&self, name: &str) -> String;

    /// Returns the value of a label; nothing if there is none.
    fn label(&self, name: &str) -> String {
        let _ = name;
        String::new()
    }
}

/// Formats labels as lists do.
pub fn labels(labels: &BTreeMap<String, String>) -> String {
    let labels: Vec<_> = labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    labels.join(",")
}

/// The headings as a row.
struct Headings(Fields);

impl Row for Headings {
    fn field(&self, name: &str) -> String {
        let found = self.0.iter().find(|(field, _)| *field == name);
        found.map_or(String::new(), |(_, heading)| (*heading).to_owned())
    }

    fn label(&self, name: &str) -> String {
        name.to_owned()
    }
}

impl Template {
    /// Parses a format for a list with these fields.
    pub fn parse(text: &str, fields: Fields) -> Result<Self, Failure> {
        let text = text.replace("\\t", "\t").replace("\\n", "\n");
        let (is_table, mut rest) = match text.strip_prefix("table") {
            Some(rest) if rest.is_empty() || rest.starts_with([' ', '\t']) => (true, rest.trim()),
            _ if text == "json" => (false, "{{json .}}"),
            _ => (false, text.as_str()),
        };
        let mut parts = Vec::new();
        while let Some((before, after)) = rest.split_once("{{") {
            let (inside, after) = after
                .split_once("}}")
                .ok_or_else(|| Failure::new("--format: `{{` without `}}`"))?;
            parts.push(Part::text(before));
            parts.push(placeholder(inside.trim(), fields)?);
            rest = after;
        }
        parts.push(Part::text(rest));
        parts.retain(|part| *part != Part::Text(String::new()));
        Ok(Self {
            fields,
            parts,
            is_table,
        })
    }

    /// Parses the value of a `--format`. None means the list as it is without one, as do `table` alone and ''.
    pub fn wanted(text: Option<&str>, fields: Fields) -> Result<Option<Self>, Failure> {
        let text = text.filter(|text| !text.is_empty());
        let template = text.map(|text| Self::parse(text, fields)).transpose()?;
        Ok(template.filter(|template| !template.is_table || !template.parts.is_empty()))
    }

    /// Prints rows, see [`Template::render`].
    pub fn print<R: Row>(&self, rows: &[R]) -> Result<(), Failure> {
        write_stdout(self.render(rows).as_bytes())
    }

    /// Formats rows, one a line, below the headings of a table. What is hidden in values is escaped.
    pub fn render<R: Row>(&self, rows: &[R]) -> String {
        if !self.is_table {
            return rows.iter().map(|row| self.line(row) + "\n").collect();
        }
        let headings = self.line(&Headings(self.fields));
        let mut table = Table::new(&headings.split('\t').collect::<Vec<_>>());
        for row in rows {
            table.row(self.line(row).split('\t').map(str::to_owned));
        }
        table.render()
    }

    fn line(&self, row: &impl Row) -> String {
        let json = |text: String| Value::String(text).to_string();
        let mut line = String::new();
        for part in &self.parts {
            // A value can't look like another row or column.
            let value = match part {
                Part::Text(text) => {
                    line.push_str(text);
                    continue;
                }
                Part::Field(name) => row.field(name),
                Part::JsonField(name) => json(row.field(name)),
                Part::Label(name) => row.label(name),
                Part::Json => {
                    let fields = self.fields.iter();
                    let fields = fields.map(|(name, _)| ((*name).into(), row.field(name).into()));
                    let document = Value::Object(Map::from_iter(fields)).to_string();
                    line.push_str(&visible::json(&document));
                    continue;
                }
            };
            line.push_str(&visible::line(&value));
        }
        line
    }
}

fn placeholder(inside: &str, fields: Fields) -> Result<Part, Failure> {
    let field = |name: &str| {
        let known = fields.iter().find(|(field, _)| *field == name);
        known.map(|(field, _)| *field).ok_or_else(|| {
            let all: Vec<_> = fields.iter().map(|(name, _)| format!(".{name}")).collect();
            Failure::new(format!("--format: no field `.{name}` in this list"))
                .hint(format!("there are {}", all.join(", ")))
        })
    };
    let words: Vec<_> = inside
        .splitn(2, char::is_whitespace)
        .map(str::trim)
        .collect();
    match words.as_slice() {
        ["json", "."] => Ok(Part::Json),
        ["json", name] if name.starts_with('.') => {
            field(name.trim_start_matches('.')).map(Part::JsonField)
        }
        [".Label", name] => {
            let quoted = name
                .strip_prefix('"')
                .and_then(|name| name.strip_suffix('"'));
            quoted
                .map(|name| Part::Label(name.to_owned()))
                .ok_or_else(|| Failure::new(format!("--format: {name} is not a quoted name")))
        }
        [name] if name.len() > 1 && name.starts_with('.') => {
            field(name.trim_start_matches('.')).map(Part::Field)
        }
        _ => Err(
            Failure::new(format!("--format: `{{{{{inside}}}}}` is not a placeholder")).hint(
                "there are {{.Field}}, {{json .Field}}, {{json .}} and {{.Label \"name\"}}; \
                 for more, use --json with jq",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields = &[("ID", "ID"), ("Names", "NAME")];

    struct One;

    impl Row for One {
        fn field(&self, name: &str) -> String {
            match name {
                "ID" => "12".into(),
                _ => "a\tb\n\"".into(),
            }
        }

        fn label(&self, name: &str) -> String {
            format!("<{name}>")
        }
    }

    #[test]
    fn placeholders_are_replaced_and_values_stay_on_their_line() {
        for (format, text) in [
            ("{{.ID}}", "12\n"),
            ("{{ .ID }}: {{.Names}}!", "12: a\\tb\\n\"!\n"),
            ("{{json .Names}}", "\"a\\\\tb\\\\n\\\\\"\"\n"),
            ("{{.Label \"x\"}}\\t{{.ID}}", "<x>\t12\n"),
            ("table {{.ID}}\\t{{.Label \"x\"}}", "ID   x\n12   <x>\n"),
            ("plain", "plain\n"),
        ] {
            let template = Template::parse(format, FIELDS).unwrap();
            let rendered = template.render(&[One]);
            if format.contains("json") {
                let value: String = serde_json::from_str(rendered.trim_end()).unwrap();
                assert_eq!(value, "a\tb\n\"", "{format}");
            } else {
                assert_eq!(rendered, text, "{format}");
            }
        }
        let all = Template::parse("json", FIELDS).unwrap().render(&[One]);
        let all: Value = serde_json::from_str(&all).unwrap();
        assert_eq!(all, serde_json::json!({"ID": "12", "Names": "a\tb\n\""}));
        let wanted = |text| Template::wanted(text, FIELDS).unwrap().is_some();
        assert!(!wanted(None) && !wanted(Some("table")) && wanted(Some("table {{.ID}}")));
    }

    #[test]
    fn what_is_no_placeholder_is_named() {
        for (format, named) in [
            ("{{.Nmae}}", ".Nmae"),
            ("{{.ID", "}}"),
            ("{{range .}}", "range ."),
            ("{{}}", "{{}}"),
            ("{{.}}", "{{.}}"),
            ("{{json}}", "{{json}}"),
            ("{{.Label x}}", "x"),
        ] {
            let failure = Template::parse(format, FIELDS).unwrap_err();
            assert!(format!("{failure:?}").contains(named), "{failure:?}");
        }
    }
}
