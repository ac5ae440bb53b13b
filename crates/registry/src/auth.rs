//! Answers a registry's challenges: Basic, or Bearer with a token from its token server, as
//! in the [distribution project's token specification][tokens].
//!
//! [tokens]: https://distribution.github.io/distribution/spec/auth/token/

use std::time::Duration;

use http_auth::ChallengeRef;
use http_auth::parser::ChallengeParser;
use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;
use url::{Url, form_urlencoded};

use crate::credentials::{Credential, CredentialError, Credentials};
use crate::error::{Reason, Unauthorized};
use crate::http::{Answer, Http, is_markup};
use crate::outgoing::Outgoing;
use micabox_oci::{json, printable};

const CLIENT_ID: &str = "micabox";
/// Largest answer of a token server, in bytes.
const MAX_TOKEN: u64 = 1 << 20;
/// Time limit of a credential helper; its user may have to type a pass phrase.
const HELPER_TIMEOUT: Duration = Duration::from_secs(120);

/// A request to a registry, which can be sent repeatedly.
pub(crate) struct Request<'a> {
    pub method: Method,
    pub url: &'a Url,
    pub headers: HeaderMap,
    /// The request's body.
    pub body: Option<&'a Outgoing>,
    /// The registry's own address. Our credentials are not sent to an upload address elsewhere
    /// that it names.
    pub home: &'a Url,
}

impl Request<'_> {
    async fn send(
        &self,
        http: &Http,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, Reason> {
        let (method, url, headers) = (&self.method, self.url, &self.headers);
        let at_home = url.origin() == self.home.origin();
        let authorization = authorization.filter(|_| at_home);
        let mut answer = http
            .send(method, url, headers, authorization, self.body)
            .await?;
        if !at_home {
            answer.came_from(url);
        }
        Ok(answer)
    }
}

/// Logs in to one registry, for one repository.
pub(crate) struct Authenticator {
    registry: String,
    repository: String,
    /// Scopes to request of a token server in place of those in the challenge: a push needs more
    /// than its first request does.
    scopes: Vec<String>,
    credentials: Credentials,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The authorization that the registry accepted last, or a new one that wasn't used yet.
    authorization: Option<HeaderValue>,
    /// The result of the credentials' lookup, once it was done.
    credential: Option<Result<Option<Credential>, CredentialError>>,
}

impl Authenticator {
    pub(crate) fn new(registry: &str, repository: &str, credentials: Credentials) -> Self {
        Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            scopes: Vec::new(),
            credentials,
            state: Mutex::default(),
        }
    }

    /// Logs in with a credential, for no repository.
    pub(crate) fn with(registry: &str, credential: Credential) -> Self {
        let state = State {
            authorization: None,
            credential: Some(Ok(Some(credential))),
        };
        Self {
            state: Mutex::new(state),
            ..Self::new(registry, "", Credentials::none())
        }
    }

    /// Returns whether the registry has asked for a login, and taken it.
    pub(crate) async fn has_logged_in(&self) -> bool {
        self.state.lock().await.authorization.is_some()
    }

    /// Extends the scope to pushing to the repository, and mounting blobs of others.
    pub(crate) fn for_push<'a>(mut self, others: impl IntoIterator<Item = &'a str>) -> Self {
        self.scopes = vec![format!("repository:{}:pull,push", self.repository)];
        let scope = |repository| format!("repository:{repository}:pull");
        self.scopes.extend(others.into_iter().map(scope));
        self
    }

    /// Sends a request to the registry, and logs in if the registry requires it.
    ///
    /// No credentials are sent before the registry's challenge: it names the token server and the
    /// scope.
    pub(crate) async fn send(&self, http: &Http, request: &Request<'_>) -> Result<Answer, Reason> {
        let authorization = self.state.lock().await.authorization.clone();
        let answer = request.send(http, authorization.as_ref()).await?;
        if answer.status().as_u16() != 401 {
            return Ok(answer);
        }
        if let Some(host) = answer.elsewhere() {
            // Our credentials are for the registry: no other host may name a place to send them.
            return Err(Reason::Redirect(format!(
                "it leads to {host}, which needs a login"
            )));
        }
        // Another request may have logged in while this one was under way: it holds the lock until
        // then, and its authorization is newer.
        let mut state = self.state.lock().await;
        if state.authorization == authorization {
            let challenges = Challenge::all(answer.headers());
            state.authorization = Some(self.log_in(http, &mut state, &challenges).await?);
        }
        let authorization = state.authorization.clone();
        drop(state);
        let answer = request.send(http, authorization.as_ref()).await?;
        if answer.status().as_u16() == 401 {
            let mut state = self.state.lock().await;
            // Tokens expire. The next request starts afresh.
            if state.authorization == authorization {
                state.authorization = None;
            }
            return Err(Reason::Unauthorized(self.refused(&state)));
        }
        Ok(answer)
    }

    async fn log_in(
        &self,
        http: &Http,
        state: &mut State,
        challenges: &[Challenge],
    ) -> Result<HeaderValue, Reason> {
        if state.credential.is_none() {
            state.credential = Some(self.look_up().await);
        }
        let credential = match &state.credential {
            Some(Ok(credential)) => credential.as_ref(),
            // Public images need no credentials; this failure matters only where one is refused.
            Some(Err(_)) | None => None,
        };
        let find = |scheme| challenges.iter().find(|challenge| challenge.is(scheme));
        if let Some(Credential::RegistryToken(token)) = credential {
            return secret(format!("Bearer {token}"));
        }
        if let Some(bearer) = find("bearer") {
            return self.token(http, state, credential, bearer).await;
        }
        if find("basic").is_some() {
            return match credential {
                Some(Credential::Password { username, password }) => basic(username, password),
                Some(_) => Err(Reason::Unauthorized(Unauthorized::Scheme(
                    "a password, but there is only an identity token".into(),
                ))),
                None => Err(Reason::Unauthorized(self.refused(state))),
            };
        }
        let schemes: Vec<&str> = challenges.iter().map(|one| one.scheme.as_str()).collect();
        let schemes = printable(&schemes.join(", "));
        Err(Reason::Unauthorized(Unauthorized::Scheme(schemes)))
    }

    /// Looks up the credentials, on a thread of its own: a helper may take long, and after the
    /// timeout nothing waits for it.
    async fn look_up(&self) -> Result<Option<Credential>, CredentialError> {
        let (sender, receiver) = oneshot::channel();
        let credentials = self.credentials.clone();
        let (registry, repository) = (self.registry.clone(), self.repository.clone());
        std::thread::spawn(move || {
            let _ = sender.send(credentials.lookup(&registry, &repository));
        });
        match timeout(HELPER_TIMEOUT, receiver).await {
            Ok(Ok(found)) => found,
            _ => Err(CredentialError {
                registry: self.registry.clone(),
                file: "the credential helper".into(),
                problem: format!("no answer within {} seconds", HELPER_TIMEOUT.as_secs()),
            }),
        }
    }

    async fn token(
        &self,
        http: &Http,
        state: &State,
        credential: Option<&Credential>,
        challenge: &Challenge,
    ) -> Result<HeaderValue, Reason> {
        let realm = challenge.get("realm").unwrap_or_default();
        let mut url = Url::parse(realm)
            .map_err(|_| Reason::Token(format!("has no usable address: `{}`", printable(realm))))?;
        let own_scope = [format!("repository:{}:pull", self.repository)];
        let scopes: Vec<&str> = match (&self.scopes[..], challenge.get("scope")) {
            ([], Some(scope)) => vec![scope],
            ([], None) if self.repository.is_empty() => Vec::new(),
            ([], None) => own_scope.iter().map(String::as_str).collect(),
            (scopes, _) => scopes.iter().map(String::as_str).collect(),
        };
        let service = challenge.get("service");
        // A form has one field for all scopes, a URL one parameter for each.
        let all_scopes = scopes.join(" ");

        let mut pairs: Vec<(&str, &str)> = Vec::new();
        pairs.extend(service.map(|service| ("service", service)));
        let answer = match credential {
            Some(Credential::IdentityToken(token)) => {
                pairs.extend([
                    ("scope", all_scopes.as_str()),
                    ("grant_type", "refresh_token"),
                    ("client_id", CLIENT_ID),
                    ("refresh_token", token),
                ]);
                http.post(&url, form(&pairs)).await?
            }
            other => {
                pairs.extend(scopes.iter().map(|scope| ("scope", *scope)));
                let mut authorization = None;
                if let Some(Credential::Password { username, password }) = other {
                    pairs.push(("account", username));
                    authorization = Some(basic(username, password)?);
                }
                url.query_pairs_mut().extend_pairs(pairs);
                let headers = HeaderMap::new();
                http.send(&Method::GET, &url, &headers, authorization.as_ref(), None)
                    .await?
            }
        };
        self.read_token(state, answer).await
    }

    async fn read_token(&self, state: &State, mut answer: Answer) -> Result<HeaderValue, Reason> {
        match answer.status().as_u16() {
            200 => {}
            400 | 401 | 403 => return Err(Reason::Unauthorized(self.refused(state))),
            _ => {
                return Err(answer
                    .refusal(|_| Reason::Token("isn't there (404)".to_owned()))
                    .await);
            }
        }
        #[derive(Deserialize)]
        struct Token {
            // One field is the distribution project's, the other OAuth2's; some servers send both.
            token: String,
            access_token: String,
        }
        let body = answer.body(MAX_TOKEN).await?;
        let token = json::from_slice::<Token>(&body)
            .ok()
            .and_then(|found| {
                let mut tokens = [found.token, found.access_token].into_iter();
                tokens.find(|token| !token.is_empty())
            })
            .ok_or_else(|| {
                let sent = if is_markup(&body) {
                    "sent a web page, as proxies and login pages do, and no token"
                } else {
                    "sent no token"
                };
                Reason::Token(sent.to_owned())
            })?;
        secret(format!("Bearer {token}"))
    }

    /// Returns why the registry refuses the request after the login.
    fn refused(&self, state: &State) -> Unauthorized {
        match &state.credential {
            Some(Ok(Some(credential))) => Unauthorized::Refused {
                registry: self.registry.clone(),
                user: match credential {
                    Credential::Password { username, .. } => Some(username.clone()),
                    Credential::IdentityToken(_) | Credential::RegistryToken(_) => None,
                },
            },
            Some(Err(error)) => Unauthorized::Unavailable(error.clone()),
            Some(Ok(None)) | None if self.scopes.is_empty() => {
                Unauthorized::Anonymous(self.registry.clone())
            }
            Some(Ok(None)) | None => Unauthorized::AnonymousPush(self.registry.clone()),
        }
    }
}

fn form(pairs: &[(&str, &str)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(pairs).finish()
}

fn basic(username: &str, password: &str) -> Result<HeaderValue, Reason> {
    use base64::Engine;
    let pair = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
    secret(format!("Basic {pair}"))
}

fn secret(text: String) -> Result<HeaderValue, Reason> {
    let mut value = HeaderValue::try_from(text)
        .map_err(|_| Reason::Token("sent a token that isn't one".to_owned()))?;
    // Keeps it out of debug output.
    value.set_sensitive(true);
    Ok(value)
}

/// One way of logging in that a registry offers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    /// Parses the challenges in the headers of a 401. Malformed ones are left out.
    pub(crate) fn all(headers: &HeaderMap) -> Vec<Self> {
        let values = headers.get_all(WWW_AUTHENTICATE).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| ChallengeParser::new(value).map_while(Result::ok))
            .map(|challenge: ChallengeRef| Self {
                scheme: challenge.scheme.to_owned(),
                parameters: challenge
                    .params
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), value.to_unescaped()))
                    .collect(),
            })
            .collect()
    }

    fn is(&self, scheme: &str) -> bool {
        self.scheme.eq_ignore_ascii_case(scheme)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenges(values: &[&'static str]) -> Vec<Challenge> {
        let headers = values
            .iter()
            .map(|value| (WWW_AUTHENTICATE, HeaderValue::from_static(value)));
        Challenge::all(&headers.collect())
    }

    #[test]
    fn authentication_challenges_are_parsed() {
        let found = challenges(&[
            r#"Bearer realm="https://auth.example.com/token?x=1,2",service="registry \"a\"",scope="repository:a/b:pull,push""#,
            "basic realm=\"x\"",
        ]);
        assert_eq!(found.len(), 2);
        assert!(found[0].is("bearer") && found[1].is("Basic"));
        assert_eq!(
            found[0].get("realm"),
            Some("https://auth.example.com/token?x=1,2")
        );
        assert_eq!(found[0].get("Service"), Some("registry \"a\""));
        assert_eq!(found[0].get("scope"), Some("repository:a/b:pull,push"));
        assert_eq!(found[1].get("scope"), None);
        // Two challenges in one header.
        assert_eq!(
            challenges(&["Basic realm=\"x\", Bearer realm=\"y\""]).len(),
            2
        );
    }

    #[test]
    fn malformed_challenges_are_ignored() {
        for nonsense in ["", ",,,", "Bearer realm=\"unclosed", "=", "Bearer realm"] {
            for challenge in challenges(&[nonsense]) {
                assert_eq!(challenge.get("realm"), None, "{nonsense}");
            }
        }
    }

    #[test]
    fn secrets_become_header_values_or_errors() {
        let value = basic("user", "pass:word").unwrap();
        assert_eq!(value, "Basic dXNlcjpwYXNzOndvcmQ=");
        assert!(!format!("{value:?}").contains("dXNl"));
        assert!(secret("Bearer a\r\nX-Evil: 1".to_owned()).is_err());
    }
}
