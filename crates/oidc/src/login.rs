//! How somebody logs in with a browser: the code flow with PKCE. (D228)
//!
//! The browser is sent to the provider with a `state` and the hash of a `verifier`, and comes back with a code. The code is worth something only
//! together with the verifier, which never leaves this process, and the token that it becomes has to carry the `nonce` that was asked for.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;

use crate::fetch::{Ask, encoded, form};
use crate::issuer::Issuer;
use crate::{Claims, Rejected, invalid};

/// Longest code that is passed on.
const CODE_LEN_MAX: usize = 4_096;

/// Whom the console lets in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsoleOptions {
    /// What the provider calls the console.
    pub client_id: String,
    /// What proves that it is the console; none for a public client, whom PKCE protects.
    pub client_secret: Option<String>,
    /// What is asked for, beside `openid`.
    pub scopes: Vec<String>,
    /// Groups that run the cluster.
    pub operators: Vec<String>,
    /// Groups that may look at it.
    pub viewers: Vec<String>,
    /// Where the console is for browsers, as `https://stoker.example.com:9001`; none to take what the browser asked for.
    pub url: Option<String>,
}

/// A login that has begun.
#[derive(Clone)]
pub struct Started {
    /// Where to send the browser.
    pub url: String,
    /// What it has to bring back.
    pub state: String,
    nonce: String,
    verifier: String,
    redirect: String,
}

/// Logins by one provider.
#[derive(Clone)]
pub struct Login {
    issuer: Arc<Issuer>,
    options: ConsoleOptions,
}

impl Login {
    /// By a provider, if the console takes its users.
    pub fn of(issuer: &Arc<Issuer>) -> Option<Login> {
        let options = issuer.options().console.clone()?;
        Some(Login { issuer: Arc::clone(issuer), options })
    }

    /// How the provider is called here.
    pub fn name(&self) -> &str {
        &self.issuer.options().name
    }

    /// Whom it lets in.
    pub fn options(&self) -> &ConsoleOptions {
        &self.options
    }

    /// Begins one that comes back to this address.
    pub async fn start(&self, redirect: &str) -> Result<Started, Rejected> {
        let discovered = self.issuer.discovered().await.map_err(Rejected::Unreachable)?;
        let Some(endpoint) = &discovered.authorization_endpoint else {
            return invalid("the issuer has no page to log in");
        };
        let (state, nonce, verifier) = (random()?, random()?, random()?);
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        let scope = std::iter::once("openid").chain(self.options.scopes.iter().map(String::as_str));
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &self.options.client_id),
            ("redirect_uri", redirect),
            ("scope", &scope.collect::<Vec<_>>().join(" ")),
            ("state", &state),
            ("nonce", &nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let mark = if endpoint.contains('?') { '&' } else { '?' };
        let url = format!("{endpoint}{mark}{query}");
        Ok(Started { url, state, nonce, verifier, redirect: redirect.to_owned() })
    }

    /// Takes the code that the browser brought back: who it is.
    pub async fn finish(&self, started: &Started, code: &str, now_s: i64) -> Result<Claims, Rejected> {
        if code.is_empty() || code.len() > CODE_LEN_MAX {
            return invalid("the issuer sent no code");
        }
        let discovered = self.issuer.discovered().await.map_err(Rejected::Unreachable)?;
        let Some(endpoint) = &discovered.token_endpoint else {
            return invalid("the issuer has no place where a code becomes a token");
        };
        let ConsoleOptions { client_id, client_secret, .. } = &self.options;
        let mut pairs = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", started.redirect.as_str()),
            ("code_verifier", started.verifier.as_str()),
        ];
        let authorization = client_secret.as_ref().map(|secret| {
            format!("Basic {}", STANDARD.encode(format!("{}:{}", encoded(client_id), encoded(secret))))
        });
        if authorization.is_none() {
            pairs.push(("client_id", client_id));
        }
        let ca_file = self.issuer.options().ca_file.as_deref();
        let ask = Ask { url: endpoint, form: Some(form(&pairs)), authorization, ca_file };
        let (status, body) = ask.send().await.map_err(Rejected::Unreachable)?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |name: &str| answer.get(name).and_then(Value::as_str);
        let Some(token) = text("id_token").filter(|_| status == 200) else {
            let why = text("error").unwrap_or("no id_token");
            let why: String = why.chars().filter(|char| !char.is_control()).take(100).collect();
            return invalid(format!("the issuer did not take the code: {status} {why}"));
        };
        let audience = std::slice::from_ref(client_id);
        let claims = self.issuer.verify(token, audience, now_s).await?;
        // A token for several has to say that it was given to this one.
        if claims.text("azp").is_some_and(|party| party != client_id) {
            return Err(Rejected::Claim("the token was given to another client (`azp`)".to_owned()));
        }
        if claims.text("nonce") != Some(started.nonce.as_str()) {
            return invalid("the token belongs to another login (`nonce`)");
        }
        Ok(claims)
    }

    /// Whether these claims are those of somebody who runs the cluster, or who may look at it; none for neither.
    pub fn is_operator(&self, claims: &Claims) -> Option<bool> {
        let groups = &self.issuer.options().groups_claim;
        if claims.has_one(groups, &self.options.operators) {
            return Some(true);
        }
        claims.has_one(groups, &self.options.viewers).then_some(false)
    }
}

/// A word that nobody guesses.
fn random() -> Result<String, Rejected> {
    let mut bytes = [0; 32];
    let failed = |_| Rejected::Unreachable("the system gives no random bytes".to_owned());
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
