//! Whether the lake can be used, asked before anything is served.

use std::time::Duration;

use stoker_lake::{LakeError, LakeErrorKind, LakeOptions};

use crate::failure::Failure;

/// How long a lake may take to answer before it counts as out of reach.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A lake that may be used.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It answered.
    Fine,
    /// It did not, and may do so later: why.
    Silent(String),
}

/// Asks for one name. What only a person can change is a failure; what may pass is not.
pub async fn ask(url: &str, options: &LakeOptions) -> Result<Answer, Failure> {
    let mut options = options.clone();
    options.retry.tries_max = options.retry.tries_max.min(2);
    let look = async {
        let lake = stoker_lake::open(url, &options).await?;
        lake.list(b"", None, None, 1).await
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, look).await {
        Ok(Ok(_)) => Ok(Answer::Fine),
        Ok(Err(error)) => judge(url, error),
        Err(_) => Ok(Answer::Silent(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))),
    }
}

fn judge(url: &str, error: LakeError) -> Result<Answer, Failure> {
    let hint = match error.kind {
        LakeErrorKind::Denied => {
            "check the credentials (environment, profile, instance role), the region (AWS_REGION) and what they may do with \
             the bucket"
        }
        LakeErrorKind::NotFound => "make the bucket or directory, or mount it; then start again",
        LakeErrorKind::Invalid => {
            "a lake is s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"
        }
        LakeErrorKind::Changed
        | LakeErrorKind::Busy
        | LakeErrorKind::Unavailable
        | LakeErrorKind::Corrupt
        | LakeErrorKind::Full => return Ok(Answer::Silent(error.message)),
    };
    Err(Failure::new(format!("the lake {url} cannot be used: {}", error.message)).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_does_not_stop_a_start() {
        for kind in LakeErrorKind::ALL {
            let refused = judge("s3://b", LakeError::new(kind, "words")).is_err();
            let by_person = [LakeErrorKind::Denied, LakeErrorKind::NotFound, LakeErrorKind::Invalid];
            assert_eq!(refused, by_person.contains(&kind), "{kind:?}");
        }
    }
}
