//! Opening Google Cloud Storage and Azure Blob Storage: settings, credentials, names.

use std::sync::Arc;

use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ClientOptions, RetryConfig};

use super::StoreLake;
use crate::error::{LakeError, Result};
use crate::options::LakeOptions;
use crate::url::LakeUrl;

/// Opens `gs://bucket/prefix`. Credentials are those of the environment (`GOOGLE_SERVICE_ACCOUNT`,
/// `GOOGLE_APPLICATION_CREDENTIALS`) or of the machine.
pub(crate) fn open_gcs(url: &LakeUrl, options: &LakeOptions) -> Result<StoreLake> {
    no_query(url)?;
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&url.bucket)
        .with_retry(retry())
        .with_client_options(client(options))
        .with_skip_signature(options.anonymous);
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let store = builder.build().map_err(|error| {
        bad("gs", &error, "set GOOGLE_APPLICATION_CREDENTIALS, or give this machine a service account")
    })?;
    let root = root(url)?;
    let store = Arc::new(store);
    Ok(StoreLake::new(store.clone(), store.clone(), store, root, format!("gs://{}/{root}", url.bucket)))
}

/// Opens `az://container/prefix` or `az://container@account/prefix`. The account and its key are those of the
/// options or of the environment (`AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY` and their like).
pub(crate) fn open_azure(url: &LakeUrl, options: &LakeOptions) -> Result<StoreLake> {
    no_query(url)?;
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(&url.bucket)
        .with_retry(retry())
        .with_client_options(client(options))
        .with_skip_signature(options.anonymous);
    if let Some(account) = url.account.as_ref().or(options.access_key_id.as_ref()) {
        builder = builder.with_account(account);
    }
    if let Some(key) = &options.secret_access_key {
        builder = builder.with_access_key(key);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let store = builder.build().map_err(|error| {
        bad("az", &error, "name the account (az://container@account) and set AZURE_STORAGE_ACCOUNT_KEY")
    })?;
    let root = root(url)?;
    let store = Arc::new(store);
    Ok(StoreLake::new(store.clone(), store.clone(), store, root, format!("az://{}/{root}", url.bucket)))
}

/// The retries are ours.
fn retry() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn client(options: &LakeOptions) -> ClientOptions {
    let is_plain = options.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    // The deadline of a request is that of the retries, which knows how large it is.
    ClientOptions::new().with_allow_http(is_plain).with_timeout_disabled()
}

fn no_query(url: &LakeUrl) -> Result<()> {
    match url.query.first() {
        Some((name, _)) => Err(LakeError::invalid(format!("`{name}`: this lake has no settings behind `?`"))),
        None => Ok(()),
    }
}

fn root(url: &LakeUrl) -> Result<&str> {
    std::str::from_utf8(&url.path).map_err(|_| LakeError::invalid("the prefix of a lake is UTF-8"))
}

fn bad(scheme: &str, error: &object_store::Error, hint: &str) -> LakeError {
    LakeError::denied(format!("cannot open a {scheme} lake: {error}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lake, LakeErrorKind};

    #[test]
    fn lakes_are_opened_without_a_word_to_them() {
        let key = Some("a2V5".to_owned());
        let options = LakeOptions { secret_access_key: key, ..LakeOptions::default() };
        let azure = open_azure(&LakeUrl::parse("az://box@me/a/b").unwrap(), &options).unwrap();
        assert_eq!(azure.describe(), "az://box/a/b");
        let open = LakeOptions { anonymous: true, ..LakeOptions::default() };
        let gcs = open_gcs(&LakeUrl::parse("gs://box/a").unwrap(), &open).unwrap();
        assert_eq!(gcs.describe(), "gs://box/a");
    }

    #[test]
    fn what_is_missing_is_named() {
        let url = LakeUrl::parse("az://box/a").unwrap();
        let error = open_azure(&url, &LakeOptions::default()).err().unwrap();
        assert_eq!(error.kind, LakeErrorKind::Denied);
        assert!(error.message.contains("az://container@account"), "{error}");
        let url = LakeUrl::parse("gs://box?region=x").unwrap();
        let error = open_gcs(&url, &LakeOptions::default()).err().unwrap();
        assert!(error.message.contains("`region`"), "{error}");
    }
}
