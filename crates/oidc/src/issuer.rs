//! One provider: what it says of itself, its keys, and tokens that it signed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::claims::{Claims, Demands};
use crate::fetch::{self, Ask};
use crate::jwks::{Found, KeySet};
use crate::jwt::Token;
use crate::keeper::{Keeper, Next};
use crate::role::Role;
use crate::{ConsoleOptions, Rejected};

/// A provider as it is configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IssuerOptions {
    /// How it is called here.
    pub name: String,
    /// What tokens have as `iss`, and below which its discovery document is.
    pub issuer: String,
    /// What tokens may have as `aud`.
    pub audiences: Vec<String>,
    /// The claim with the groups of a user.
    pub groups_claim: String,
    /// Most that clocks may differ.
    pub skew_s: u32,
    /// How long known keys go on while the provider does not answer.
    pub stale_max: Duration,
    /// Authorities of its certificate; those that the machine trusts if none.
    pub ca_file: Option<PathBuf>,
    /// What its users may become.
    pub roles: Vec<Role>,
    /// Whom of them the console lets in.
    pub console: Option<ConsoleOptions>,
}

/// What a provider says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Discovered {
    /// Where its keys are.
    pub jwks_uri: String,
    /// Where people log in.
    pub authorization_endpoint: Option<String>,
    /// Where a code becomes a token.
    pub token_endpoint: Option<String>,
}

/// A provider.
pub struct Issuer {
    options: IssuerOptions,
    keeper: Mutex<Keeper>,
    discovered: Mutex<Option<Arc<Discovered>>>,
    fetching: tokio::sync::Mutex<()>,
}

/// Refuses an address that no provider has.
pub fn check_url(text: &str) -> Result<(), String> {
    let uri = fetch::check(text)?;
    match uri.query() {
        Some(_) => Err(format!("`{text}` has a query, and the name of an issuer has none")),
        None => Ok(()),
    }
}

impl Issuer {
    /// A provider of which nothing is known yet.
    pub fn new(options: IssuerOptions) -> Issuer {
        Issuer {
            options,
            keeper: Mutex::default(),
            discovered: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
        }
    }

    /// How it is configured.
    pub fn options(&self) -> &IssuerOptions {
        &self.options
    }

    /// What a token for one of the audiences says.
    pub async fn verify(&self, token: &str, audiences: &[String], now_s: i64) -> Result<Claims, Rejected> {
        let token = Token::parse(token)?;
        let now = Duration::from_secs(u64::try_from(now_s).unwrap_or(0));
        let mut keys = self.keys(now, false).await?;
        let mut found = keys.check(&token);
        if found == Found::Unknown {
            keys = self.keys(now, true).await?;
            found = keys.check(&token);
        }
        if let Some(rejected) = Option::<Rejected>::from(found) {
            return Err(rejected);
        }
        let skew_s = i64::from(self.options.skew_s);
        Claims::check(token.claims, &Demands { issuer: &self.options.issuer, audiences, skew_s, now_s })
    }

    fn keeper(&self) -> std::sync::MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, now: Duration, is_unknown: bool) -> Next {
        self.keeper().next(now, is_unknown, self.options.stale_max)
    }

    /// Its keys, fetched if they have to be.
    async fn keys(&self, now: Duration, is_unknown: bool) -> Result<Arc<KeySet>, Rejected> {
        let refused = |why: String| {
            Err(Rejected::Unreachable(format!("the issuer cannot be asked for its keys: {why}")))
        };
        let meanwhile = match self.next(now, is_unknown) {
            Next::Use(keys) => return Ok(keys),
            Next::Refuse(why) => return refused(why),
            Next::Fetch(meanwhile) => meanwhile,
        };
        let _fetching = match (self.fetching.try_lock(), meanwhile) {
            (Ok(guard), _) => guard,
            // A name that nobody knew a moment ago may be in what comes; whatever else is asked for is answered by what is there.
            (Err(_), Some(keys)) if !is_unknown => return Ok(keys),
            (Err(_), _) => self.fetching.lock().await,
        };
        match self.next(now, is_unknown) {
            Next::Use(keys) => return Ok(keys),
            Next::Refuse(why) => return refused(why),
            Next::Fetch(_) => {}
        }
        self.keeper().tries(now);
        let fetched = self.fetch().await;
        if let Err(why) = &fetched {
            tracing::warn!(issuer = self.options.name, "keys of an issuer are not fetched: {why}");
        }
        let mut keeper = self.keeper();
        keeper.fetched(now, fetched);
        match keeper.next(now, false, self.options.stale_max) {
            Next::Use(keys) | Next::Fetch(Some(keys)) => Ok(keys),
            Next::Refuse(why) => refused(why),
            Next::Fetch(None) => refused("they are too old".to_owned()),
        }
    }

    async fn fetch(&self) -> Result<KeySet, String> {
        let discovered = self.discover().await?;
        let document = self.document(&discovered.jwks_uri).await?;
        KeySet::parse(&document).map_err(|why| format!("{}: {why}", discovered.jwks_uri))
    }

    /// Asks it what it says of itself, now.
    pub async fn discover(&self) -> Result<Arc<Discovered>, String> {
        let issuer = &self.options.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let document = self.document(&url).await?;
        let discovered = Arc::new(discovered(&document, issuer).map_err(|why| format!("{url}: {why}"))?);
        *self.discovered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&discovered));
        Ok(discovered)
    }

    /// Asks it for its keys, now.
    pub async fn key_set(&self) -> Result<KeySet, String> {
        self.fetch().await
    }

    /// What it said of itself, the last time that it was asked.
    pub(crate) async fn discovered(&self) -> Result<Arc<Discovered>, String> {
        let known = self.discovered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Some(known) => Ok(known),
            None => self.discover().await,
        }
    }

    async fn document(&self, url: &str) -> Result<bytes::Bytes, String> {
        let ask = Ask { url, form: None, authorization: None, ca_file: self.options.ca_file.as_deref() };
        match ask.send().await? {
            (200, body) => Ok(body),
            (status, _) => Err(format!("{url}: it answers {status}")),
        }
    }
}

fn discovered(document: &[u8], issuer: &str) -> Result<Discovered, String> {
    let document: Value = serde_json::from_slice(document)
        .map_err(|error| format!("what it says of itself is no JSON: {error}"))?;
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    match text("issuer") {
        Some(own) if own == issuer => {}
        Some(own) => {
            let own: String = own.chars().filter(|char| !char.is_control()).take(200).collect();
            return Err(format!("it calls itself `{own}`; configure that as `issuer`"));
        }
        None => return Err("it does not say who it is (`issuer`)".to_owned()),
    }
    let url = |name: &str| match text(name) {
        None => Ok(None),
        Some(url) => {
            fetch::check(url).map(|_| Some(url.to_owned())).map_err(|why| format!("`{name}`: {why}"))
        }
    };
    Ok(Discovered {
        jwks_uri: url("jwks_uri")?.ok_or("it does not say where its keys are (`jwks_uri`)")?,
        authorization_endpoint: url("authorization_endpoint")?,
        token_endpoint: url("token_endpoint")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_is_another_one_is_refused() {
        let document =
            r#"{"issuer":"https://a","jwks_uri":"https://a/keys","token_endpoint":"https://a/token"}"#;
        let good = discovered(document.as_bytes(), "https://a").unwrap();
        assert_eq!(
            (good.jwks_uri.as_str(), good.token_endpoint.as_deref()),
            ("https://a/keys", Some("https://a/token"))
        );
        assert_eq!(good.authorization_endpoint, None);
        for (from, to, about) in [
            ("https://a\"", "https://b\"", "calls itself"),
            ("issuer", "isuer", "does not say who"),
            ("https://a/keys", "http://a/keys", "not safe"),
            ("https://a/keys", "file:///etc/passwd", "not a url"),
            ("jwks_uri", "jwks", "where its keys are"),
            ("{", "[", "no JSON"),
        ] {
            let why = discovered(document.replacen(from, to, 1).as_bytes(), "https://a").unwrap_err();
            assert!(why.contains(about), "{to}: {why}");
        }
    }
}
