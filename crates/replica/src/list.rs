//! Lists in pages: names of repositories, tags.

use hyper::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Most names of a page.
const PAGE: usize = 1000;

/// The page that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Number of names.
    most: usize,
    /// The last name of the page before.
    last: Option<String>,
    /// The other parameters, each after `&`.
    others: String,
}

impl Page {
    /// Reads `n` and `last`. A number that is none, or too large, is the largest page.
    pub fn of(uri: &Uri) -> Self {
        let mut page = Self {
            most: PAGE,
            last: None,
            others: String::new(),
        };
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            match &*name {
                "n" => page.most = value.parse().unwrap_or(PAGE).min(PAGE),
                "last" => page.last = Some(value.into_owned()),
                _ => {
                    let mut pair = form_urlencoded::Serializer::new(String::new());
                    page.others += "&";
                    page.others += &pair.append_pair(&name, &value).finish();
                }
            }
        }
        page
    }

    /// Returns the page's names of all, which are sorted, and the value of `Link` if there are more.
    pub fn cut(&self, mut names: Vec<String>, path: &str) -> (Vec<String>, Option<String>) {
        if let Some(last) = &self.last {
            names.retain(|name| name > last);
        }
        let has_more = names.len() > self.most;
        names.truncate(self.most);
        let link = names.last().filter(|_| has_more).map(|last| {
            let last = utf8_percent_encode(last, NON_ALPHANUMERIC);
            let (most, others) = (self.most, &self.others);
            format!("<{path}?n={most}&last={last}{others}>; rel=\"next\"")
        });
        (names, link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_to_the_end() {
        let names: Vec<String> = ["a", "a/b", "c", "d"].map(String::from).into();
        let mut uri: Uri = "/v2/_catalog?n=2&ns=a%3A1".parse().unwrap();
        let (page, link) = Page::of(&uri).cut(names.clone(), "/v2/_catalog");
        assert_eq!(page, ["a", "a/b"]);
        let link = link.unwrap();
        assert_eq!(link, "</v2/_catalog?n=2&last=a%2Fb&ns=a%3A1>; rel=\"next\"");
        uri = link[1..].split('>').next().unwrap().parse().unwrap();
        let (page, link) = Page::of(&uri).cut(names.clone(), "/v2/_catalog");
        assert_eq!((page, link), (vec!["c".to_owned(), "d".to_owned()], None));
        uri = "/v2/_catalog?n=0".parse().unwrap();
        assert_eq!(Page::of(&uri).cut(names.clone(), ""), (vec![], None));
        uri = "/v2/_catalog?n=x&last=%ff".parse().unwrap();
        assert_eq!(Page::of(&uri).cut(names, "").1, None);
    }
}
