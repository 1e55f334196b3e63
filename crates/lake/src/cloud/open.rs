//! Opening Google Cloud Storage and Azure Blob Storage: settings, credentials, names.

use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::{ClientOptions, RetryConfig};

use super::StoreLake;
use crate::error::{LakeError, Result};
use crate::options::LakeOptions;
use crate::url::LakeUrl;

/// Opens `gs://bucket/prefix`. Credentials are those of the environment (`GOOGLE_SERVICE_ACCOUNT`,
/// `GOOGLE_APPLICATION_CREDENTIALS`) or of the machine.
pub(crate) fn open_gcs(url: &LakeUrl, options: &LakeOptions) -> Result<StoreLake<GoogleCloudStorage>> {
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
    Ok(StoreLake::new(store, root, format!("gs://{}/{root}", url.bucket)))
}

/// Opens `az://container/prefix` or `az://container@account/prefix`. The account and its key are those of the
/// options or of the environment (`AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY` and their like).
pub(crate) fn open_azure(url: &LakeUrl, options: &LakeOptions) -> Result<StoreLake<MicrosoftAzure>> {
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
    Ok(StoreLake::new(store, root, format!("az://{}/{root}", url.bucket)))
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
