//! Comma-separated values.

use super::WordError;

/// Splits a line of CSV, in which a field with a comma is in double quotes.
pub(super) fn fields(text: &str) -> Result<Vec<String>, WordError> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let field = match rest.strip_prefix('"') {
            None => {
                let (field, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                rest = after;
                field.to_owned()
            }
            Some(quoted) => {
                let (field, after) = unquoted(quoted).ok_or("a quote is not closed")?;
                rest = after;
                field
            }
        };
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(fields),
            None => return Err("expected a comma after the quotes".into()),
        }
    }
}

/// Returns the field that ends at the next single quote, and what comes after.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Some((field, after)),
        }
    }
}
