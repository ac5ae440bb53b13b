//! Parses `--label` and `--label-file`, with Docker's rules.

use std::fs;
use std::path::PathBuf;

use micabox_program::failure::Failure;

/// Returns all labels in the order in which they apply: files first, then flags. A label without a
/// value has an empty one.
pub fn of(files: &[PathBuf], flags: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut labels = Vec::new();
    for path in files {
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::of(&error).context(&format!("reading {}", path.display())))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let label = parse(line).map_err(|why| {
                Failure::new(format!("{}, line {}: {why}", path.display(), number + 1))
            })?;
            labels.push(label);
        }
    }
    for flag in flags {
        labels.push(parse(flag).map_err(|why| Failure::new(format!("--label {flag}: {why}")))?);
    }
    Ok(labels)
}

fn parse(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    match name {
        "" => Err("a label has no name"),
        name if name.contains(char::is_whitespace) => Err("blanks in a label's name"),
        name => Ok((name.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_files_come_first_and_a_wrong_line_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("labels");
        fs::write(&path, "# comment\n\na=1\n  b\nc=x = y\n").unwrap();
        let labels = of(std::slice::from_ref(&path), &["a=2".into()]).unwrap();
        let expected = [("a", "1"), ("b", ""), ("c", "x = y"), ("a", "2")];
        assert_eq!(
            labels,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        for wrong in ["a=1\n=x\n", "a=1\na b=c\n"] {
            fs::write(&path, wrong).unwrap();
            let failure = of(std::slice::from_ref(&path), &[]).unwrap_err();
            assert!(format!("{failure:?}").contains("line 2"), "{failure:?}");
        }
    }
}
