//! `--format` of documents, as of `mica inspect`: what scripts use of Go's templates, over JSON.
//!
//! | text | stands for |
//! |---|---|
//! | `{{.A.B}}`, `{{.}}`, `{{$.A}}` | a field's field; what the place is about; one of the whole document |
//! | `{{json .A}}`, `{{len .A}}`, `{{join .A ", "}}`, `{{index .A "key" 0}}` | functions; also `println`, `upper`, `lower`, `eq`, `ne`, `and`, `or`, `not` |
//! | `{{(index .A 0).B}}`, <code>{{.A &#124; json}}</code> | the field of a function's value; a value for a function |
//! | `{{if .A}}`, `{{with .A}}`, `{{range .A}}`, `{{range $key, $value := .A}}` | blocks until `{{end}}`, with `{{else}}` |

mod expression;

use serde_json::Value;

use expression::{Expression, Tokens, is_true, plain};
use micabox_program::failure::Failure;
use micabox_program::visible;

/// Most blocks, and most parentheses, inside each other.
const MOST_NESTED: usize = 32;

/// Most bytes of a document's text: ranges in ranges multiply.
const MOST_TEXT: usize = 16 << 20;

/// A parsed template.
#[derive(Debug)]
pub struct Document(Vec<Node>);

#[derive(Debug)]
enum Node {
    Text(String),
    Value(Expression),
    Block(Block),
}

#[derive(Debug)]
struct Block {
    kind: Kind,
    /// What a range sets: variables for the key or index, and for the value.
    variables: [Option<String>; 2],
    over: Expression,
    body: Vec<Node>,
    otherwise: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    If,
    With,
    Range,
}

/// How a list of nodes ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Text,
    Else,
    End,
}

/// What expressions refer to.
#[derive(Debug)]
struct Scope {
    dot: Value,
    /// The innermost last. The first is the document, without a name.
    variables: Vec<(String, Value)>,
    /// Whether a field that is not there is an error.
    is_strict: bool,
}

impl Document {
    /// Parses a template.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let text = match text {
            "json" => "{{json .}}".to_owned(),
            text => text.replace("\\t", "\t").replace("\\n", "\n"),
        };
        match nodes(&mut text.as_str(), 0).map_err(wrong)? {
            (nodes, Stop::Text) => Ok(Self(nodes)),
            _ => Err(wrong("`{{end}}` or `{{else}}` without its block".into())),
        }
    }

    /// Parses the value of a `--format`. None means the document as it is without one, as does ''.
    pub fn wanted(text: Option<&str>) -> Result<Option<Self>, Failure> {
        let text = text.filter(|text| !text.is_empty());
        text.map(Self::parse).transpose()
    }

    /// Formats a document, with a line feed behind it. What is hidden in values is escaped.
    pub fn render(&self, document: &Value) -> Result<String, Failure> {
        self.text(document, false)
    }

    /// As [`Document::render`]; a field that is not there is an error, as with `docker inspect`: scripts would
    /// take what is printed for its value.
    pub fn render_strictly(&self, document: &Value) -> Result<String, Failure> {
        self.text(document, true)
    }

    fn text(&self, document: &Value, is_strict: bool) -> Result<String, Failure> {
        let mut scope = Scope {
            dot: document.clone(),
            variables: vec![(String::new(), document.clone())],
            is_strict,
        };
        let mut text = String::new();
        write(&self.0, &mut scope, &mut text).map_err(wrong)?;
        text.push('\n');
        Ok(text)
    }
}

fn wrong(what: String) -> Failure {
    Failure::new(format!("--format: {what}"))
}

/// Parses nodes until the block's end, or that of the text.
fn nodes(rest: &mut &str, depth: usize) -> Result<(Vec<Node>, Stop), String> {
    if depth > MOST_NESTED {
        return Err("too many blocks in each other".into());
    }
    let mut nodes = Vec::new();
    while let Some((before, after)) = rest.split_once("{{") {
        let (inside, after) = after.split_once("}}").ok_or("`{{` without `}}`")?;
        // `{{-` and `-}}` take white space away.
        let (inside, trims_before) = match inside.strip_prefix('-') {
            Some(inside) => (inside, true),
            None => (inside, false),
        };
        let (inside, trims_after) = match inside.strip_suffix(" -") {
            Some(inside) => (inside, true),
            None => (inside, false),
        };
        let before = if trims_before {
            before.trim_end()
        } else {
            before
        };
        nodes.push(Node::Text(before.to_owned()));
        *rest = if trims_after {
            after.trim_start()
        } else {
            after
        };
        let inside = inside.trim();
        let (word, more) = inside.split_once(' ').unwrap_or((inside, ""));
        let kind = match word {
            "end" => return Ok((nodes, Stop::End)),
            "else" if more.is_empty() => return Ok((nodes, Stop::Else)),
            "if" => Kind::If,
            "with" => Kind::With,
            "range" => Kind::Range,
            _ => {
                nodes.push(Node::Value(Expression::parse(inside)?));
                continue;
            }
        };
        let mut tokens = Tokens::of(more)?;
        let variables = tokens.variables();
        let over = Expression::of(tokens)?;
        let (body, end) = self::nodes(rest, depth + 1)?;
        let (otherwise, end) = match end {
            Stop::Else => self::nodes(rest, depth + 1)?,
            end => (Vec::new(), end),
        };
        if end != Stop::End {
            return Err(format!("`{{{{{word}}}}}` without `{{{{end}}}}`"));
        }
        nodes.push(Node::Block(Block {
            kind,
            variables,
            over,
            body,
            otherwise,
        }));
    }
    nodes.push(Node::Text((*rest).to_owned()));
    *rest = "";
    Ok((nodes, Stop::Text))
}

fn write(nodes: &[Node], scope: &mut Scope, text: &mut String) -> Result<(), String> {
    for node in nodes {
        if text.len() > MOST_TEXT {
            return Err("the text is too long".into());
        }
        match node {
            Node::Text(piece) => text.push_str(piece),
            Node::Value(expression) => text.push_str(&shown(expression, scope)?),
            Node::Block(block) => block.write(scope, text)?,
        }
    }
    Ok(())
}

/// Returns an expression's value as text. JSON has escapes of its own, and lines are the template's.
fn shown(expression: &Expression, scope: &Scope) -> Result<String, String> {
    let value = plain(&expression.value(scope)?);
    Ok(if expression.is_json() {
        visible::json(&value).into_owned()
    } else {
        visible::lines(&value).into_owned()
    })
}

impl Block {
    fn write(&self, scope: &mut Scope, text: &mut String) -> Result<(), String> {
        let over = self.over.value(scope)?;
        match self.kind {
            Kind::If if is_true(&over) => write(&self.body, scope, text),
            Kind::With if is_true(&over) => self.write_with(Value::Null, over, scope, text),
            Kind::Range if is_true(&over) => match over {
                Value::Array(values) => values
                    .into_iter()
                    .enumerate()
                    .try_for_each(|(at, value)| self.write_with(at.into(), value, scope, text)),
                Value::Object(fields) => fields
                    .into_iter()
                    .try_for_each(|(name, value)| self.write_with(name.into(), value, scope, text)),
                other => Err(format!("there is no range over {}", plain(&other))),
            },
            _ => write(&self.otherwise, scope, text),
        }
    }

    /// Writes the body about a value.
    fn write_with(
        &self,
        key: Value,
        value: Value,
        scope: &mut Scope,
        text: &mut String,
    ) -> Result<(), String> {
        let before = scope.variables.len();
        for (name, value) in self.variables.iter().zip([&key, &value]) {
            let set = name.iter().map(|name| (name.clone(), value.clone()));
            scope.variables.extend(set);
        }
        let dot = std::mem::replace(&mut scope.dot, value);
        let written = write(&self.body, scope, text);
        scope.dot = dot;
        scope.variables.truncate(before);
        written
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(template: &str) -> Result<String, Failure> {
        Document::parse(template)?.render(&document())
    }

    fn document() -> Value {
        json!({
            "Id": "sha256:12", "Size": 7, "Tags": ["a:1", "b:2"], "None": null, "On": true,
            "State": {"Status": "running"}, "Config": {"Env": ["A=b"], "Labels": {"x.y": "z"}},
            "Ports": {"80/tcp": [{"HostPort": "8080"}], "90/tcp": null},
            "Text": "a\u{1b}[31m",
        })
    }

    #[test]
    fn a_field_that_is_not_there_is_an_error_where_scripts_would_take_it_for_a_value() {
        let strictly = |template: &str| Document::parse(template)?.render_strictly(&document());
        for (template, text) in [
            ("{{.ID}}", "sha256:12"),
            ("{{.None}} {{.None.Any}}", "<no value> <no value>"),
            ("{{.Config.Labels.missing}}", "<no value>"),
            ("{{if .Ports.missing}}yes{{else}}no{{end}}", "no"),
        ] {
            assert_eq!(
                strictly(template).unwrap(),
                format!("{text}\n"),
                "{template}"
            );
        }
        for (template, named) in [
            ("{{.Bogus}}", "`.Bogus`"),
            ("{{.State.Bogus}}", "`.Bogus`"),
            ("{{with .State}}{{.Size}}{{end}}", "`.Size`"),
        ] {
            let failure = strictly(template).unwrap_err();
            assert!(failure.message().contains(named), "{failure:?}");
        }
    }

    #[test]
    fn a_document_is_shown_as_the_template_says() {
        for (template, text) in [
            ("{{.Id}}", "sha256:12"),
            ("{{ .State.Status }} {{.Size}} {{.On}}", "running 7 true"),
            ("{{json .Tags}}", "[\"a:1\",\"b:2\"]"),
            ("{{.Config.Env | json}}", "[\"A=b\"]"),
            ("{{.Tags}}", "[a:1 b:2]"),
            ("{{.State}}", "map[Status:running]"),
            (
                "{{.None}} {{.Missing}} {{.State.Missing}}",
                "<no value> <no value> <no value>",
            ),
            ("{{index .Tags 1}}", "b:2"),
            ("{{index .Config.Labels \"x.y\"}}", "z"),
            ("{{(index (index .Ports \"80/tcp\") 0).HostPort}}", "8080"),
            (
                "{{len .Tags}} {{join .Tags \", \"}} {{upper .Id}}",
                "2 a:1, b:2 SHA256:12",
            ),
            ("{{range .Tags}}<{{.}}>{{end}}", "<a:1><b:2>"),
            (
                "{{range $at, $tag := .Tags}}{{$at}}{{$tag}}{{$.Size}} {{end}}",
                "0a:17 1b:27 ",
            ),
            (
                "{{range $port, $to := .Ports}}{{$port}}{{range $to}}={{.HostPort}}{{end}} {{end}}",
                "80/tcp=8080 90/tcp ",
            ),
            ("{{range .None}}x{{else}}nothing{{end}}", "nothing"),
            (
                "{{if eq .State.Status \"running\"}}up{{else}}down{{end}}",
                "up",
            ),
            ("{{if and .On (not .None)}}yes{{end}}", "yes"),
            ("{{with .Config}}{{len .Env}}{{end}}", "1"),
            ("a {{- .Size -}} b", "a7b"),
            ("{{println .Id}}", "sha256:12\n"),
            ("{{.Text}}", "a\\x1b[31m"),
        ] {
            assert_eq!(
                rendered(template).unwrap(),
                format!("{text}\n"),
                "{template}"
            );
        }
    }

    #[test]
    fn what_is_no_template_is_named() {
        let deep = "{{if .On}}".repeat(1000);
        let parentheses = format!("{{{{{}.On}}}}", "(".repeat(100_000));
        for (template, named) in [
            ("{{.Id", "}}"),
            ("{{end}}", "end"),
            ("{{if .On}}", "without `{{end}}`"),
            ("{{frobnicate .Id}}", "frobnicate"),
            ("{{index .Tags}}", "index"),
            ("{{index .Tags 9}}", "9"),
            ("{{join .Size \",\"}}", "join"),
            ("{{\"x}}", "\""),
            ("{{$nothing}}", "$nothing"),
            ("{{range .Size}}{{end}}", "range"),
            (&deep, "too many"),
            (&parentheses, "too many"),
        ] {
            let failure = rendered(template).unwrap_err();
            assert!(failure.message().contains(named), "{failure:?}");
        }
    }
}
