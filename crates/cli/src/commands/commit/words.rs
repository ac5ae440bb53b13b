//! Words of a Dockerfile's instruction: quotes, backslashes and variables, as a shell has them.

use std::iter::Peekable;
use std::str::Chars;

/// Variables of the image's configuration: `NAME=VALUE` each.
pub struct Environment<'a>(pub &'a [String]);

impl Environment<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter_map(|set| set.split_once('='));
        let found = values.find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }
}

/// Most variables within each other's defaults.
const MAX_DEPTH: usize = 16;

/// Splits a line at blanks that are neither quoted nor escaped. Quotes, backslashes and variables
/// stay for [`expand`].
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (char, quote) {
            ('\'' | '"', None) => quote = Some(char),
            (char, Some(open)) if char == open => quote = None,
            ('\\', None | Some('"')) => {
                word.push(char);
                word.extend(chars.next());
                continue;
            }
            (char, None) if char.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            _ => {}
        }
        word.push(char);
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// Returns a word without its quotes and backslashes, and with the values of its variables:
/// `$NAME`, `${NAME}`, and with a default, an alternative or an error if there is no value
/// (`${NAME:-x}`, `${NAME:+x}`, `${NAME:?x}`, each also without the colon, which is about an empty
/// value).
pub fn expand(word: &str, env: &Environment<'_>) -> Result<String, String> {
    let mut chars = word.chars().peekable();
    expand_until(&mut chars, None, env, 0)
}

type Input<'a> = Peekable<Chars<'a>>;

/// Expands until `end`, which is taken, or the end of the text.
fn expand_until(
    chars: &mut Input<'_>,
    end: Option<char>,
    env: &Environment<'_>,
    depth: usize,
) -> Result<String, String> {
    if depth > MAX_DEPTH {
        return Err("its variables are within too many others".to_owned());
    }
    let mut out = String::new();
    let mut quoted = false;
    while let Some(char) = chars.next() {
        match char {
            '"' => quoted = !quoted,
            '\'' if !quoted => loop {
                match chars.next() {
                    Some('\'') => break,
                    Some(char) => out.push(char),
                    None => return Err("a quote is not closed".to_owned()),
                }
            },
            '\\' if quoted => match chars.next() {
                Some(char @ ('"' | '$' | '\\')) => out.push(char),
                other => {
                    out.push('\\');
                    out.extend(other);
                }
            },
            '\\' => out.extend(chars.next()),
            '$' => out.push_str(&variable(chars, env, depth)?),
            char if Some(char) == end && !quoted => return Ok(out),
            char => out.push(char),
        }
    }
    match (quoted, end) {
        (true, _) => Err("a quote is not closed".to_owned()),
        (_, Some(_)) => Err("expected ${NAME}".to_owned()),
        (_, None) => Ok(out),
    }
}

/// Expands what follows a dollar sign.
fn variable(chars: &mut Input<'_>, env: &Environment<'_>, depth: usize) -> Result<String, String> {
    if chars.next_if_eq(&'{').is_none() {
        return Ok(match name(chars).as_str() {
            "" => "$".to_owned(),
            name => env.get(name).unwrap_or_default().to_owned(),
        });
    }
    let name = name(chars);
    if name.is_empty() {
        return Err("expected ${NAME}".to_owned());
    }
    let mut value = env.get(&name);
    let mut operator = chars.next();
    if operator == Some(':') {
        value = value.filter(|value| !value.is_empty());
        operator = chars.next().filter(|char| matches!(char, '-' | '+' | '?'));
    } else if operator == Some('}') {
        return Ok(value.unwrap_or_default().to_owned());
    }
    let Some(operator @ ('-' | '+' | '?')) = operator else {
        return Err(format!(
            "${{{name}...}}: of the shell's operators there are -, + and ?, with or without a colon"
        ));
    };
    let word = expand_until(chars, Some('}'), env, depth + 1)?;
    match (operator, value) {
        ('-', None) => Ok(word),
        ('+', None) => Ok(String::new()),
        ('+', Some(_)) => Ok(word),
        (_, Some(value)) => Ok(value.to_owned()),
        (_, None) if word.is_empty() => Err(format!("the variable {name} has no value")),
        (_, None) => Err(format!("{name}: {word}")),
    }
}

/// Takes a variable's name.
fn name(chars: &mut Input<'_>) -> String {
    let mut name = String::new();
    let is_of_name = |char: &char| char.is_ascii_alphanumeric() || *char == '_';
    while let Some(char) = chars.next_if(is_of_name) {
        name.push(char);
        // `$12` is the first argument, which there is none of, and a 2.
        if name.len() == 1 && char.is_ascii_digit() {
            break;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(word: &str) -> Result<String, String> {
        let env = [
            "A=1".to_owned(),
            "EMPTY=".to_owned(),
            "P=/bin:/opt".to_owned(),
        ];
        expand(word, &Environment(&env))
    }

    #[test]
    fn variables_in_words_have_values_defaults_and_errors() {
        for (word, value) in [
            ("$A", "1"),
            ("x${A}y", "x1y"),
            ("$AB", ""),
            ("$P:/usr", "/bin:/opt:/usr"),
            ("${NONE:-x}", "x"),
            ("${NONE-x y}", "x y"),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY-x}", ""),
            ("${A:+x}", "x"),
            ("${NONE:+x}", ""),
            ("${EMPTY+x}", "x"),
            ("${A:?gone}", "1"),
            ("${NONE:-${ALSO:-$A}}", "1"),
            ("${NONE:-\"}\"}", "}"),
            ("'$A'", "$A"),
            ("\"$A\"", "1"),
            ("\\$A", "$A"),
            ("\"\\$A \\\" \\x\"", "$A \" \\x"),
            ("a\\ b", "a b"),
            ("$", "$"),
            ("$.", "$."),
            ("$1x", "x"),
        ] {
            assert_eq!(expanded(word).as_deref(), Ok(value), "{word}");
        }
        for (word, part) in [
            ("${", "expected ${NAME}"),
            ("${}", "expected ${NAME}"),
            ("${A", "operators"),
            ("${A:-x", "expected ${NAME}"),
            ("${A:x}", "operators"),
            ("${A#1}", "operators"),
            ("${NONE:?must be set}", "NONE: must be set"),
            ("${NONE?}", "no value"),
            ("'x", "quote"),
            ("\"x", "quote"),
        ] {
            let error = expanded(word).unwrap_err();
            assert!(error.contains(part), "{word}: {error}");
        }
        let deep = "${X:-".repeat(1000);
        assert!(expanded(&deep).is_err());
    }

    #[test]
    fn lines_are_split_at_blanks_that_are_not_quoted() {
        let words = split("a  'b c'=\"d e\" f\\ g \"\\\" h\" i=").unwrap();
        assert_eq!(words, ["a", "'b c'=\"d e\"", "f\\ g", "\"\\\" h\"", "i="]);
        assert!(split("a 'b").is_err());
        assert!(split(" \t").unwrap().is_empty());
    }
}
