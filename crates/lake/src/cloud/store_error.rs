//! From errors of `object_store` to errors that say what to do.

use object_store::Error;

use crate::error::LakeError;

/// The error of a call about one key.
pub(super) fn translate(action: &str, key: &[u8], error: Error) -> LakeError {
    let message = format!("cannot {action} `{}`: {}", String::from_utf8_lossy(key), with_causes(&error));
    match error {
        Error::NotFound { .. } if is_bucket_missing(&message) => LakeError::not_found(format!(
            "the bucket or container does not exist; make it, or correct the lake's url: {message}"
        )),
        Error::NotFound { .. } => LakeError::not_found(message),
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
            LakeError::changed(message)
        }
        Error::PermissionDenied { .. } => LakeError::denied(format!(
            "the credentials have no permission for this; extend their role: {message}"
        )),
        Error::Unauthenticated { .. } => {
            LakeError::denied(format!("the credentials are wrong or have expired; renew them: {message}"))
        }
        Error::NotSupported { .. }
        | Error::NotImplemented { .. }
        | Error::InvalidPath { .. }
        | Error::UnknownConfigurationKey { .. } => LakeError::invalid(message),
        _ if is_busy(&message) => LakeError::busy(message),
        _ => LakeError::unavailable(message),
    }
}

/// `object_store` keeps the status of a failed request only in its words.
fn is_busy(message: &str) -> bool {
    ["429 Too Many Requests", "503 Service Unavailable", "ServerBusy", "SlowDown", "rateLimitExceeded"]
        .iter()
        .any(|word| message.contains(word))
}

fn is_bucket_missing(message: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"]
        .iter()
        .any(|word| message.contains(word))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        // Most errors already repeat the words of their cause.
        if !text.contains(&words) {
            text.push_str(&format!(": {words}"));
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LakeErrorKind;

    fn source(text: &str) -> Box<dyn std::error::Error + Send + Sync> {
        text.into()
    }

    #[test]
    fn every_error_has_a_kind() {
        let path = || "k".to_owned();
        let generic = |text| Error::Generic { store: "GCS", source: source(text) };
        for (error, kind, hint) in [
            (Error::NotFound { path: path(), source: source("x") }, LakeErrorKind::NotFound, "`k`"),
            (
                Error::NotFound { path: path(), source: source("ContainerNotFound") },
                LakeErrorKind::NotFound,
                "make it",
            ),
            (Error::AlreadyExists { path: path(), source: source("x") }, LakeErrorKind::Changed, ""),
            (Error::Precondition { path: path(), source: source("x") }, LakeErrorKind::Changed, ""),
            (Error::PermissionDenied { path: path(), source: source("x") }, LakeErrorKind::Denied, "role"),
            (Error::Unauthenticated { path: path(), source: source("x") }, LakeErrorKind::Denied, "renew"),
            (Error::NotSupported { source: source("x") }, LakeErrorKind::Invalid, ""),
            (generic("status 503 Service Unavailable: x"), LakeErrorKind::Busy, "503"),
            (generic("connection reset"), LakeErrorKind::Unavailable, "reset"),
        ] {
            let error = translate("read", b"k", error);
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.message.contains(hint), "{error}");
        }
    }
}
