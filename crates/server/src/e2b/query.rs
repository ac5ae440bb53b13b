//! Parameters of a request's query. What is not known is refused: a client that asks for less would get all.

use std::collections::BTreeMap;
use std::str::FromStr;

use hyper::Uri;

use crate::e2b::problem::Problem;

/// The parameters.
#[derive(Debug, Default)]
pub struct Query(BTreeMap<String, Vec<String>>);

impl Query {
    /// Reads a query that may have these parameters.
    pub fn of(uri: &Uri, known: &[&str]) -> Result<Self, Problem> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            if !known.contains(&&*name) {
                return Err(Problem::unsupported(format!(
                    "this server does not know the parameter `{name}` here"
                )));
            }
            let values = all.entry(name.into_owned()).or_default();
            values.push(value.into_owned());
        }
        Ok(Self(all))
    }

    /// Returns a parameter that is there once at most.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        match self.0.get(name).map(Vec::as_slice) {
            None => Ok(None),
            Some([one]) => Ok(Some(one)),
            Some(_) => Err(Problem::invalid(format!("{name} is there more than once"))),
        }
    }

    /// Returns a parameter that is something else than text.
    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let wrong = |text| Problem::invalid(format!("{name} can't be `{text}`"));
        self.text(name)?
            .map(|text| text.parse().map_err(|_| wrong(text)))
            .transpose()
    }

    /// Returns a list: one parameter with commas, or several.
    pub fn list(&self, name: &str) -> Option<Vec<&str>> {
        let values = self.0.get(name)?;
        Some(values.iter().flat_map(|value| value.split(',')).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Result<Query, Problem> {
        let uri = format!("/x?{text}").parse().unwrap();
        Query::of(&uri, &["limit", "state"])
    }

    #[test]
    fn a_parameter_that_is_not_known_is_refused_by_its_name() {
        assert!(query("limits=1").unwrap_err().message.contains("`limits`"));
        assert!(query("limit=1&x").unwrap_err().message.contains("`x`"));
        query("").unwrap();
    }

    #[test]
    fn a_parameter_is_a_list_or_there_once() {
        let some = query("state=a,b&state=c&limit=7").unwrap();
        assert_eq!(some.list("state").unwrap(), ["a", "b", "c"]);
        assert_eq!(some.parsed::<u8>("limit").unwrap(), Some(7));
        assert_eq!(some.text("none").unwrap(), None);
        query("limit=x").unwrap().parsed::<u8>("limit").unwrap_err();
        query("limit=1&limit=2").unwrap().text("limit").unwrap_err();
    }
}
