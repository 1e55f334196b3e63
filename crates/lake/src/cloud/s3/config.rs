//! Where a bucket is and how it is spoken to, from the url, the options and the environment.

use crate::error::{LakeError, Result};
use crate::options::{Checksum, LakeOptions};
use crate::url::LakeUrl;

/// A bucket, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub bucket: String,
    /// What every key begins with: empty, or with a slash at its end.
    pub root: String,
    /// Like `https://s3.eu-west-1.amazonaws.com`, for words.
    pub endpoint: String,
    pub scheme: String,
    /// Host and port.
    pub host: String,
    /// What the path of every request begins with; ends with a slash.
    pub base_path: String,
    pub region: String,
    pub checksum: Checksum,
    pub payload_signed: bool,
    pub conditional: bool,
    pub storage_class: Option<String>,
}

/// The settings that a url may hold behind its `?`.
const SETTINGS: [&str; 7] =
    ["endpoint", "region", "path_style", "checksum", "payload_signed", "conditional", "storage_class"];

impl Config {
    /// `env` looks up a variable of the environment, `profile` a value of the profile file.
    pub fn new(
        url: &LakeUrl,
        options: &LakeOptions,
        env: impl Fn(&str) -> Option<String>,
        profile: impl Fn(&str) -> Option<String>,
    ) -> Result<Config> {
        if let Some((name, _)) = url.query.iter().find(|(name, _)| !SETTINGS.contains(&name.as_str())) {
            return Err(LakeError::invalid(format!(
                "`{name}` is no setting of an s3 url; there are {}",
                SETTINGS.join(", ")
            )));
        }
        let query =
            |name: &str| url.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
        let flag = |name: &str| match query(name).as_deref() {
            None => Ok(None),
            Some("true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(other) => Err(LakeError::invalid(format!("{name}={other}; it is true or false"))),
        };
        let checksum = match query("checksum").as_deref() {
            None => options.checksum.unwrap_or_default(),
            Some("crc64nvme") => Checksum::Crc64Nvme,
            Some("none") => Checksum::None,
            Some(other) => {
                return Err(LakeError::invalid(format!("checksum={other}; it is crc64nvme or none")));
            }
        };
        let region = options
            .region
            .clone()
            .or_else(|| query("region"))
            .or_else(|| env("AWS_REGION"))
            .or_else(|| env("AWS_DEFAULT_REGION"))
            .or_else(|| profile("region"))
            .unwrap_or_else(|| "us-east-1".to_owned());
        let own_endpoint = options
            .endpoint
            .clone()
            .or_else(|| query("endpoint"))
            .or_else(|| env("AWS_ENDPOINT_URL_S3"))
            .or_else(|| env("AWS_ENDPOINT_URL"))
            .or_else(|| profile("endpoint_url"));
        let bucket = url.bucket.clone();
        // With dots in its name a bucket does not fit the certificate of `*.s3.region.amazonaws.com`.
        let path_style = options
            .path_style
            .or(flag("path_style")?)
            .unwrap_or(own_endpoint.is_some() || bucket.contains('.'));
        let endpoint = own_endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let (scheme, rest) = match endpoint.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) if !rest.is_empty() => (scheme.to_owned(), rest),
            _ => {
                return Err(LakeError::invalid(format!(
                    "the endpoint `{endpoint}` is not like http://host:port or https://host"
                )));
            }
        };
        let (host, path) =
            rest.split_once('/').map_or((rest, String::new()), |(host, path)| (host, format!("/{path}")));
        let (host, base_path) = if path_style {
            (host.to_owned(), format!("{path}/{bucket}/"))
        } else {
            (format!("{bucket}.{host}"), format!("{path}/"))
        };
        let root =
            String::from_utf8(url.path.clone()).map_err(|_| LakeError::invalid("the prefix is not UTF-8"))?;
        let payload_signed = options.payload_signed.or(flag("payload_signed")?).unwrap_or(scheme == "http");
        Ok(Config {
            bucket,
            root: if root.is_empty() { root } else { format!("{root}/") },
            endpoint,
            scheme,
            host,
            base_path,
            region,
            checksum,
            payload_signed,
            conditional: options.conditional.or(flag("conditional")?).unwrap_or(true),
            storage_class: storage_class(options.storage_class.clone().or_else(|| query("storage_class")))?,
        })
    }
}

/// Refuses what could not be the name of one.
fn storage_class(class: Option<String>) -> Result<Option<String>> {
    let is_name = |class: &String| {
        (1..=64).contains(&class.len())
            && class.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    match class {
        Some(class) if !is_name(&class) => {
            Err(LakeError::invalid(format!("storage_class={class}; it is like STANDARD_IA or GLACIER_IR")))
        }
        class => Ok(class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str, options: &LakeOptions, env: &[(&str, &str)]) -> Result<Config> {
        let env =
            |name: &str| env.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_string());
        Config::new(&LakeUrl::parse(url).unwrap(), options, env, |_| None)
    }

    fn check(url: &str, env: &[(&str, &str)], host: &str, base_path: &str, region: &str) -> Config {
        let config = config(url, &LakeOptions::default(), env).unwrap();
        assert_eq!(
            (config.host.as_str(), config.base_path.as_str(), config.region.as_str()),
            (host, base_path, region)
        );
        config
    }

    #[test]
    fn amazon_and_own_endpoints() {
        let aws = check(
            "s3://box/a/b",
            &[("AWS_REGION", "eu-west-1")],
            "box.s3.eu-west-1.amazonaws.com",
            "/",
            "eu-west-1",
        );
        assert_eq!((aws.root.as_str(), aws.payload_signed, aws.scheme.as_str()), ("a/b/", false, "https"));
        check("s3://my.box?region=x", &[("AWS_REGION", "y")], "s3.x.amazonaws.com", "/my.box/", "x");
        let own = check(
            "s3://box?endpoint=http%3A%2F%2F127.0.0.1:9000%2F",
            &[],
            "127.0.0.1:9000",
            "/box/",
            "us-east-1",
        );
        assert_eq!((own.payload_signed, own.root.as_str()), (true, ""));
        check("s3://box", &[("AWS_ENDPOINT_URL", "http://h:1/base")], "h:1", "/base/box/", "us-east-1");
        check(
            "s3://box?path_style=false",
            &[("AWS_ENDPOINT_URL_S3", "http://h:1")],
            "box.h:1",
            "/",
            "us-east-1",
        );
        let plain = check(
            "s3://box?checksum=none&conditional=false",
            &[],
            "box.s3.us-east-1.amazonaws.com",
            "/",
            "us-east-1",
        );
        assert_eq!((plain.checksum, plain.conditional), (Checksum::None, false));
    }

    #[test]
    fn wrong_settings_are_named() {
        for (url, hint) in [
            ("s3://box?regoin=x", "regoin"),
            ("s3://box?checksum=md5", "crc64nvme or none"),
            ("s3://box?path_style=maybe", "true or false"),
            ("s3://box?endpoint=localhost:9000", "http://host:port"),
        ] {
            let error = config(url, &LakeOptions::default(), &[]).unwrap_err();
            assert!(error.message.contains(hint), "{url}: {error}");
        }
    }
}
