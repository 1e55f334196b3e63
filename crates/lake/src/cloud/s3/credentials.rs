//! Whose keys sign the requests.
//!
//! In this order: the options, `AWS_ACCESS_KEY_ID` and its companions, the profile of `~/.aws/credentials`, then
//! what `object_store` finds: web identity, container and instance credentials, which it renews by itself.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::{ClientOptions, RetryConfig};
use stoker_sigv4::Credentials;

use crate::error::{LakeError, Result};
use crate::options::LakeOptions;

/// Where the keys come from.
pub(super) enum CredentialSource {
    /// Requests are not signed.
    Anonymous,
    Fixed(Arc<Credentials>),
    Renewed {
        provider: AwsCredentialProvider,
        access_key_id: Mutex<Option<String>>,
    },
}

impl CredentialSource {
    pub fn new(
        options: &LakeOptions,
        region: &str,
        env: impl Fn(&str) -> Option<String>,
        profile: impl Fn(&str) -> Option<String>,
    ) -> Result<CredentialSource> {
        if options.anonymous {
            return Ok(CredentialSource::Anonymous);
        }
        let from_env = (env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"), env("AWS_SESSION_TOKEN"));
        let from_profile =
            || (profile("aws_access_key_id"), profile("aws_secret_access_key"), profile("aws_session_token"));
        let own =
            (options.access_key_id.clone(), options.secret_access_key.clone(), options.session_token.clone());
        for (access_key_id, secret_access_key, session_token) in [own, from_env, from_profile()] {
            match (access_key_id, secret_access_key) {
                (Some(access_key), Some(secret_key)) => {
                    let credentials = Credentials { access_key, secret_key, session_token };
                    return Ok(CredentialSource::Fixed(Arc::new(credentials)));
                }
                (None, None) => {}
                _ => {
                    return Err(LakeError::denied(
                        "an access key and its secret belong together; one of them is missing",
                    ));
                }
            }
        }
        let retry =
            RetryConfig { max_retries: 2, retry_timeout: Duration::from_secs(10), ..RetryConfig::default() };
        let client = ClientOptions::new().with_connect_timeout(Duration::from_secs(2)).with_allow_http(true);
        let store = AmazonS3Builder::from_env()
            .with_bucket_name("credentials")
            .with_region(region)
            .with_retry(retry)
            .with_client_options(client)
            .build()
            .map_err(|error| LakeError::denied(format!("no credentials: {error}")))?;
        let provider = store.credentials().clone();
        Ok(CredentialSource::Renewed { provider, access_key_id: Mutex::new(None) })
    }

    /// The keys of now; `None` for requests that are not signed.
    pub async fn get(&self) -> Result<Option<Arc<Credentials>>> {
        match self {
            CredentialSource::Anonymous => Ok(None),
            CredentialSource::Fixed(credentials) => Ok(Some(credentials.clone())),
            CredentialSource::Renewed { provider, access_key_id } => {
                let credential = provider.get_credential().await.map_err(|error| {
                    LakeError::denied(format!(
                        "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write a profile, or give \
                         this machine a role: {error}"
                    ))
                })?;
                *access_key_id.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(credential.key_id.clone());
                Ok(Some(Arc::new(Credentials {
                    access_key: credential.key_id.clone(),
                    secret_key: credential.secret_key.clone(),
                    session_token: credential.token.clone(),
                })))
            }
        }
    }

    /// The access key, for messages.
    pub fn access_key_id(&self) -> Option<String> {
        match self {
            CredentialSource::Anonymous => None,
            CredentialSource::Fixed(credentials) => Some(credentials.access_key.clone()),
            CredentialSource::Renewed { access_key_id, .. } => {
                access_key_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
            }
        }
    }
}

/// The values of one profile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile(Vec<(String, String)>);

impl Profile {
    /// The profile that the environment chooses, from the usual two files. Missing files are empty.
    pub fn read(env: impl Fn(&str) -> Option<String>) -> Profile {
        let home = env("HOME").map(|home| PathBuf::from(home).join(".aws"));
        let name = env("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let mut profile = Profile::default();
        for (variable, file) in
            [("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")]
        {
            let path = env(variable).map(PathBuf::from).or_else(|| home.as_ref().map(|home| home.join(file)));
            if let Some(text) = path.and_then(|path| std::fs::read_to_string(path).ok()) {
                profile.add(&text, &name);
            }
        }
        profile
    }

    pub fn get(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    }

    fn add(&mut self, text: &str, name: &str) {
        let mut is_ours = false;
        for line in text.lines() {
            if let Some(section) = line.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let section = section.trim();
                is_ours = section == name || section.strip_prefix("profile ").map(str::trim) == Some(name);
            } else if is_ours
                // Indented lines belong to a nested table.
                && !line.starts_with([' ', '\t', '#', ';'])
                && let Some((key, value)) = line.split_once('=')
            {
                self.0.push((key.trim().to_owned(), value.trim().to_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_like_amazon_writes_them() {
        let mut profile = Profile::default();
        let credentials =
            "[default]\naws_access_key_id = A\n[work]\naws_access_key_id=B\naws_secret_access_key = s=1\n";
        let config = "# words\n[profile work]\nregion = eu-west-1\ns3 =\n  endpoint_url = no\n[profile other]\nregion = x\n";
        profile.add(credentials, "work");
        profile.add(config, "work");
        assert_eq!(profile.get("aws_access_key_id").as_deref(), Some("B"));
        assert_eq!(profile.get("aws_secret_access_key").as_deref(), Some("s=1"));
        assert_eq!(profile.get("region").as_deref(), Some("eu-west-1"));
        assert_eq!(profile.get("endpoint_url"), None);
    }

    #[test]
    fn options_win_over_the_environment_and_that_over_the_profile() {
        let keys = |options: &LakeOptions, env: bool| {
            let env = |name: &str| (env && name.starts_with("AWS_")).then(|| "env".to_owned());
            let profile = |name: &str| name.starts_with("aws_").then(|| "profile".to_owned());
            CredentialSource::new(options, "r", env, profile).map(|source| source.access_key_id())
        };
        let own = LakeOptions {
            access_key_id: Some("own".into()),
            secret_access_key: Some("s".into()),
            ..LakeOptions::default()
        };
        assert_eq!(keys(&own, true), Ok(Some("own".into())));
        assert_eq!(keys(&LakeOptions::default(), true), Ok(Some("env".into())));
        assert_eq!(keys(&LakeOptions::default(), false), Ok(Some("profile".into())));
        assert_eq!(keys(&LakeOptions { anonymous: true, ..LakeOptions::default() }, true), Ok(None));
        let half = LakeOptions { access_key_id: Some("own".into()), ..LakeOptions::default() };
        assert_eq!(keys(&half, true).unwrap_err().kind, crate::LakeErrorKind::Denied);
    }
}
