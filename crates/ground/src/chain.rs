//! An error and its causes as text.

use std::error::Error;

/// Formats an error and its causes in one line. A cause that the text includes already is not repeated.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Failed(&'static str, Option<Box<Failed>>);

    impl fmt::Display for Failed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let disk = || Some(Box::new(Failed("disk full", None)));
        let write = Failed("cannot write: disk full", disk());
        assert_eq!(chain(&write), "cannot write: disk full");
        let save = Failed(
            "cannot save",
            Some(Box::new(Failed("cannot write", disk()))),
        );
        assert_eq!(chain(&save), "cannot save: cannot write: disk full");
    }
}
