//! What stands between `{{` and `}}`: values, and functions of them.

use std::iter::Peekable;
use std::vec::IntoIter;

use serde_json::Value;

use super::{MOST_NESTED, Scope};

/// An expression.
#[derive(Debug)]
pub(super) enum Expression {
    /// A field of what the place is about, and its field, and so on.
    Dot(Vec<String>),
    /// The same of a variable.
    Variable(String, Vec<String>),
    /// The same of another expression's value.
    Of(Box<Expression>, Vec<String>),
    Literal(Value),
    Call(&'static str, Vec<Expression>),
}

/// The functions, and how many values they take: at least, and at most.
const FUNCTIONS: [(&str, usize, usize); 12] = [
    ("json", 1, 1),
    ("len", 1, 1),
    ("join", 2, 2),
    ("index", 2, usize::MAX),
    ("println", 0, usize::MAX),
    ("upper", 1, 1),
    ("lower", 1, 1),
    ("eq", 2, usize::MAX),
    ("ne", 2, 2),
    ("and", 1, usize::MAX),
    ("or", 1, usize::MAX),
    ("not", 1, 1),
];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A field, a variable, a function's name or a number.
    Word(String),
    Text(String),
    Open,
    /// A closing parenthesis, and the fields directly behind it.
    Close(Vec<String>),
    Pipe,
}

/// The words of an expression.
#[derive(Debug)]
pub(super) struct Tokens(Peekable<IntoIter<Token>>);

impl Tokens {
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_end = |char: char| char.is_whitespace() || "()|\"".contains(char);
            let (token, length) = match first {
                '(' => (Token::Open, 1),
                '|' => (Token::Pipe, 1),
                ')' => {
                    let after = rest.get(1..).unwrap_or_default();
                    let end = after.find(is_end).unwrap_or(after.len());
                    let fields = after.get(..end).unwrap_or_default();
                    (Token::Close(path(fields)?), 1 + end)
                }
                '"' => {
                    let mut strings = serde_json::Deserializer::from_str(rest).into_iter();
                    let Some(Ok(text)) = strings.next() else {
                        return Err(format!("{rest} is not a quoted text"));
                    };
                    (Token::Text(text), strings.byte_offset())
                }
                _ => {
                    let end = rest.find(is_end).unwrap_or(rest.len());
                    let word = rest.get(..end).unwrap_or_default();
                    (Token::Word(word.to_owned()), end)
                }
            };
            tokens.push(token);
            rest = rest.get(length..).unwrap_or_default().trim_start();
        }
        Ok(Self(tokens.into_iter().peekable()))
    }

    /// Takes the variables that a range sets: `$value :=` or `$key, $value :=`.
    pub(super) fn variables(&mut self) -> [Option<String>; 2] {
        let word = |token: Option<&Token>| match token {
            Some(Token::Word(word)) => word.clone(),
            _ => String::new(),
        };
        let tokens: Vec<Token> = self.0.clone().take(3).collect();
        let words: Vec<String> = (0..3).map(|at| word(tokens.get(at))).collect();
        let name = |word: &str| word.strip_prefix('$').map(str::to_owned);
        match words.as_slice() {
            [key, value, assign] if key.ends_with(',') && assign == ":=" => {
                self.0.nth(2);
                [name(key.trim_end_matches(',')), name(value)]
            }
            [value, assign, _] if assign == ":=" => {
                self.0.nth(1);
                [None, name(value)]
            }
            _ => [None, None],
        }
    }

    /// Takes functions of functions, until the end or a closing parenthesis.
    fn pipeline(&mut self, depth: usize) -> Result<Expression, String> {
        let mut value = self.call(None, depth)?;
        for pipes in 0.. {
            if self.0.next_if_eq(&Token::Pipe).is_none() {
                break;
            }
            if pipes == MOST_NESTED {
                return Err("too many functions of functions".into());
            }
            value = self.call(Some(value), depth)?;
        }
        Ok(value)
    }

    /// Takes a value, or a function and its values, of which `last` is the last one.
    fn call(&mut self, last: Option<Expression>, depth: usize) -> Result<Expression, String> {
        let name = match self.0.peek() {
            Some(Token::Word(word)) => word.clone(),
            _ => String::new(),
        };
        let Some((name, least, most)) = FUNCTIONS.iter().find(|(known, ..)| *known == name) else {
            let value = self.operand(depth)?;
            return match (last, self.0.peek()) {
                (None, None | Some(Token::Pipe | Token::Close(_))) => Ok(value),
                _ => Err(format!(
                    "`{name}` is not a function; there are {}",
                    FUNCTIONS.map(|(name, ..)| name).join(", ")
                )),
            };
        };
        self.0.next();
        let mut values = Vec::new();
        while !matches!(self.0.peek(), None | Some(Token::Pipe | Token::Close(_))) {
            values.push(self.operand(depth)?);
        }
        values.extend(last);
        if !(*least..=*most).contains(&values.len()) {
            return Err(format!("`{name}` takes another number of values"));
        }
        Ok(Expression::Call(name, values))
    }

    fn operand(&mut self, depth: usize) -> Result<Expression, String> {
        if depth > MOST_NESTED {
            return Err("too many parentheses in each other".into());
        }
        match self.0.next() {
            Some(Token::Text(text)) => Ok(Expression::Literal(text.into())),
            Some(Token::Open) => {
                let value = self.pipeline(depth + 1)?;
                match self.0.next() {
                    Some(Token::Close(fields)) if fields.is_empty() => Ok(value),
                    Some(Token::Close(fields)) => Ok(Expression::Of(Box::new(value), fields)),
                    _ => Err("`(` without `)`".into()),
                }
            }
            Some(Token::Word(word)) => operand(&word),
            _ => Err("a value is missing".into()),
        }
    }
}

fn operand(word: &str) -> Result<Expression, String> {
    if let Some(variable) = word.strip_prefix('$') {
        let (name, fields) = match variable.find('.') {
            Some(at) => variable.split_at(at),
            None => (variable, ""),
        };
        return Ok(Expression::Variable(name.to_owned(), path(fields)?));
    }
    if word.starts_with('.') {
        return Ok(Expression::Dot(path(word)?));
    }
    let literal = serde_json::from_str(word).map(Expression::Literal);
    literal.map_err(|_| {
        format!(
            "`{word}` is neither a field, which begins with a dot, nor a function; there are {}",
            FUNCTIONS.map(|(name, ..)| name).join(", ")
        )
    })
}

/// Parses `.A.B`, or `.` alone.
fn path(text: &str) -> Result<Vec<String>, String> {
    let Some(fields) = text.strip_prefix('.') else {
        return if text.is_empty() {
            Ok(Vec::new())
        } else {
            Err(format!("`{text}` is not a field, which begins with a dot"))
        };
    };
    match fields {
        "" => Ok(Vec::new()),
        fields if fields.split('.').any(str::is_empty) => Err(format!("`{text}` is not a field")),
        fields => Ok(fields.split('.').map(str::to_owned).collect()),
    }
}

impl Expression {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::of(Tokens::of(text)?)
    }

    /// Parses all of `tokens`.
    pub(super) fn of(mut tokens: Tokens) -> Result<Self, String> {
        let value = tokens.pipeline(0)?;
        match tokens.0.next() {
            None => Ok(value),
            Some(_) => Err("`)` without `(`".into()),
        }
    }

    /// Whether the value is JSON, with its own escapes.
    pub(super) fn is_json(&self) -> bool {
        matches!(self, Self::Call("json", _))
    }

    pub(super) fn value(&self, scope: &Scope) -> Result<Value, String> {
        match self {
            Self::Dot(fields) => field(&scope.dot, fields, scope),
            Self::Variable(name, fields) => {
                let mut known = scope.variables.iter().rev();
                let (_, value) = known
                    .find(|(known, _)| known == name)
                    .ok_or_else(|| format!("`${name}` is not set"))?;
                field(value, fields, scope)
            }
            Self::Of(of, fields) => field(&of.value(scope)?, fields, scope),
            Self::Literal(value) => Ok(value.clone()),
            Self::Call(name, values) => {
                let values: Result<Vec<_>, _> =
                    values.iter().map(|value| value.value(scope)).collect();
                call(name, &values?)
            }
        }
    }
}

/// Returns the field of a field and so on; null if there is none, unless that is an error.
fn field(value: &Value, fields: &[String], scope: &Scope) -> Result<Value, String> {
    let mut found = value;
    for name in fields {
        match named(found, name) {
            Some(value) => found = value,
            None if scope.is_strict && is_record(found) => {
                return Err(format!("there is no field `.{name}`"));
            }
            None => return Ok(Value::Null),
        }
    }
    Ok(found.clone())
}

fn named<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = value.as_object()?;
    fields.get(name).or_else(|| {
        // Go's names of fields and those in JSON differ in capital letters: `ID` is `Id`.
        let mut fields = fields.iter().filter(|_| is_record(value));
        let found = fields.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    })
}

/// Whether an object has fields, where labels and ports have keys of any kind.
fn is_record(value: &Value) -> bool {
    let is_field = |name: &String| name.starts_with(|first: char| first.is_ascii_uppercase());
    let fields = value.as_object();
    fields.is_some_and(|fields| !fields.is_empty() && fields.keys().all(is_field))
}

fn call(name: &str, values: &[Value]) -> Result<Value, String> {
    let first = values.first().unwrap_or(&Value::Null);
    Ok(match name {
        "json" => first.to_string().into(),
        "len" => match first {
            Value::String(text) => text.len().into(),
            Value::Array(values) => values.len().into(),
            Value::Object(fields) => fields.len().into(),
            Value::Null => 0.into(),
            other => return Err(format!("`len` of {other}")),
        },
        "join" => match (first, values.get(1)) {
            (Value::Array(parts), Some(Value::String(between))) => {
                let parts: Vec<String> = parts.iter().map(plain).collect();
                parts.join(between).into()
            }
            (Value::Null, _) => "".into(),
            _ => return Err("`join` takes a list and a text".into()),
        },
        "index" => values
            .iter()
            .skip(1)
            .try_fold(first.clone(), |value, key| {
                let found = match (&value, key) {
                    (Value::Array(values), Value::Number(at)) => {
                        let at = at.as_u64().and_then(|at| usize::try_from(at).ok());
                        at.and_then(|at| values.get(at))
                            .ok_or_else(|| format!("`index` {key} of a list of {}", values.len()))?
                    }
                    (value, Value::String(name)) => value.get(name).unwrap_or(&Value::Null),
                    _ => return Err(format!("`index` {key} of what is no list")),
                };
                Ok(found.clone())
            })?,
        "println" => {
            let values: Vec<String> = values.iter().map(plain).collect();
            (values.join(" ") + "\n").into()
        }
        "upper" => plain(first).to_uppercase().into(),
        "lower" => plain(first).to_lowercase().into(),
        "eq" => values.iter().skip(1).any(|value| value == first).into(),
        "ne" => (values.get(1) != Some(first)).into(),
        "and" => chosen(values, |value| !is_true(value)),
        "or" => chosen(values, is_true),
        _ => (!is_true(first)).into(),
    })
}

/// Returns the first value that decides, or the last one.
fn chosen(values: &[Value], decides: impl Fn(&Value) -> bool) -> Value {
    let first = values.iter().find(|value| decides(value));
    first.or(values.last()).cloned().unwrap_or_default()
}

/// Whether a value is neither empty, zero nor false, as templates have it.
pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// Formats a value as templates do.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(plain).collect();
            format!("[{}]", values.join(" "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", plain(value)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}
