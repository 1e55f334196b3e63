//! From errors of `object_store` to errors that say what to do.

use object_store::Error;

use crate::error::LakeError;

/// The error of a call about one key.
pub(super) fn translate(action: &str, key: &[u8], error: Error) -> LakeError {
    let message = format!("cannot {action} `{}`: {}", String::from_utf8_lossy(key), with_causes(&error));
    let (is_busy, is_bucket_missing) = (is_busy(&error), is_bucket_missing(&error));
    match error {
        Error::NotFound { .. } if is_bucket_missing => LakeError::not_found(format!(
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
        _ if is_busy => LakeError::busy(message),
        _ => LakeError::unavailable(message),
    }
}

/// What a store answered, which `object_store` keeps in the text of one cause alone, at its beginning. The key is in other texts, and in
/// bodies, where it is escaped: what a user calls an object is not taken for what the store says.
fn said(error: &dyn std::error::Error) -> Option<(u16, String)> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if let Some(rest) = text.strip_prefix("Server returned non-2xx status code: ") {
            let (status, body) = rest.split_once(": ").unwrap_or((rest, ""));
            return Some((status.get(..3)?.parse().ok()?, body.to_owned()));
        }
        if let Some(body) = text.strip_prefix("Server returned error response: ") {
            return Some((200, body.to_owned()));
        }
        cause = error.source();
    }
    None
}

fn is_busy(error: &Error) -> bool {
    let codes = ["<Code>SlowDown</Code>", "<Code>ServerBusy</Code>"];
    said(error).is_some_and(|(status, body)| {
        matches!(status, 429 | 503) || codes.iter().any(|code| body.contains(code))
    })
}

fn is_bucket_missing(error: &Error) -> bool {
    let codes = [
        "<Code>NoSuchBucket</Code>",
        "<Code>ContainerNotFound</Code>",
        "The specified bucket does not exist",
    ];
    said(error).is_some_and(|(_, body)| codes.iter().any(|code| body.contains(code)))
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
                Error::NotFound {
                    path: path(),
                    source: source(
                        "Server returned non-2xx status code: 404 Not Found: <Error><Code>ContainerNotFound</Code></Error>",
                    ),
                },
                LakeErrorKind::NotFound,
                "make it",
            ),
            (Error::AlreadyExists { path: path(), source: source("x") }, LakeErrorKind::Changed, ""),
            (Error::Precondition { path: path(), source: source("x") }, LakeErrorKind::Changed, ""),
            (Error::PermissionDenied { path: path(), source: source("x") }, LakeErrorKind::Denied, "role"),
            (Error::Unauthenticated { path: path(), source: source("x") }, LakeErrorKind::Denied, "renew"),
            (Error::NotSupported { source: source("x") }, LakeErrorKind::Invalid, ""),
            (
                generic("Server returned non-2xx status code: 503 Service Unavailable: x"),
                LakeErrorKind::Busy,
                "503",
            ),
            (generic("connection reset"), LakeErrorKind::Unavailable, "reset"),
        ] {
            let error = translate("read", b"k", error);
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.message.contains(hint), "{error}");
        }
    }

    #[test]
    fn a_key_is_not_taken_for_an_answer() {
        let url = "Error performing PUT http://lake/b/503-SlowDown-NoSuchBucket in 1ms - connection reset";
        let error = Error::Generic { store: "S3", source: source(url) };
        let error = translate("write", b"503-SlowDown-NoSuchBucket", error);
        assert_eq!(error.kind, LakeErrorKind::Unavailable, "{error}");
        let body = "Server returned non-2xx status code: 404 Not Found: <Error><Code>NoSuchKey</Code><Key>NoSuchBucket</Key></Error>";
        let error = Error::NotFound { path: "NoSuchBucket".into(), source: source(body) };
        let error = translate("read", b"NoSuchBucket", error);
        assert!(error.kind == LakeErrorKind::NotFound && !error.message.contains("make it"), "{error}");
    }
}
