//! What each operation needs: one table, applied to every request before it is dispatched. What else an operation turns out to be about, such as
//! the source of a copy or the keys in a body, the store decides that the request is given.

use stoker_access::{Action, Resource};

use crate::auth::Credential;
use crate::operation::Operation;
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::target::Target;
use crate::versions::key_asked;

/// What an operation is about, of what its first line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    /// No bucket.
    Nothing,
    /// That a bucket is there.
    Bucket,
    /// All of a bucket.
    Whole,
    /// The keys of a bucket that start with the parameter `prefix`.
    Prefix,
    /// An object.
    Key,
}

/// What an operation needs; none if nobody may ask for it by a request that is signed.
fn needs(operation: Operation) -> Option<(Action, On)> {
    use Operation as O;
    Some(match operation {
        O::ListBuckets => (Action::Volumes, On::Nothing),
        O::CreateBucket => (Action::VolumeCreate, On::Whole),
        O::DeleteBucket => (Action::VolumeDelete, On::Whole),
        O::HeadBucket | O::GetBucketLocation | O::GetBucketVersioning => (Action::Volume, On::Bucket),
        O::ListObjects | O::ListObjectsV2 => (Action::List, On::Prefix),
        O::ListObjectVersions => (Action::Versions, On::Prefix),
        O::ListMultipartUploads => (Action::Uploads, On::Prefix),
        O::DeleteObjects => (Action::Delete, On::Bucket),
        O::GetObject => (Action::Open, On::Key),
        O::HeadObject | O::GetObjectAttributes | O::GetObjectTagging => (Action::Stat, On::Key),
        O::GetObjectAcl | O::GetObjectLegalHold | O::GetObjectRetention => (Action::Stat, On::Key),
        O::PutObject | O::PostObject => (Action::Create, On::Key),
        O::CopyObject => (Action::Copy, On::Key),
        O::DeleteObject => (Action::Delete, On::Key),
        O::PutObjectTagging | O::DeleteObjectTagging | O::PutObjectAcl | O::RestoreObject => {
            (Action::SetAttributes, On::Key)
        }
        O::PutObjectLegalHold | O::PutObjectRetention => (Action::SetVersionLock, On::Key),
        O::CreateMultipartUpload => (Action::UploadCreate, On::Key),
        O::UploadPart => (Action::UploadPart, On::Key),
        O::UploadPartCopy => (Action::UploadPartCopy, On::Key),
        O::ListParts => (Action::UploadParts, On::Key),
        O::CompleteMultipartUpload => (Action::UploadComplete, On::Key),
        O::AbortMultipartUpload => (Action::UploadAbort, On::Key),
        O::GetBucketAccelerateConfiguration
        | O::GetBucketAcl
        | O::GetBucketCors
        | O::GetBucketEncryption
        | O::GetBucketLifecycleConfiguration
        | O::GetBucketLogging
        | O::GetBucketNotificationConfiguration
        | O::GetBucketOwnershipControls
        | O::GetBucketPolicy
        | O::GetBucketPolicyStatus
        | O::GetBucketReplication
        | O::GetBucketRequestPayment
        | O::GetBucketTagging
        | O::GetBucketWebsite
        | O::GetObjectLockConfiguration
        | O::GetPublicAccessBlock
        | O::ListBucketAnalyticsConfigurations
        | O::ListBucketIntelligentTieringConfigurations
        | O::ListBucketInventoryConfigurations
        | O::ListBucketMetricsConfigurations => (Action::VolumeSetting, On::Bucket),
        O::DeleteBucketCors
        | O::DeleteBucketEncryption
        | O::DeleteBucketLifecycle
        | O::DeleteBucketOwnershipControls
        | O::DeleteBucketPolicy
        | O::DeleteBucketReplication
        | O::DeleteBucketTagging
        | O::DeleteBucketWebsite
        | O::DeletePublicAccessBlock
        | O::PutBucketAcl
        | O::PutBucketCors
        | O::PutBucketLifecycleConfiguration
        | O::PutBucketOwnershipControls
        | O::PutBucketPolicy
        | O::PutBucketTagging
        | O::PutBucketVersioning
        | O::PutObjectLockConfiguration
        | O::PutPublicAccessBlock => (Action::SetVolumeSetting, On::Whole),
        // Of STS, which is asked in another way.
        O::AssumeRoleWithWebIdentity | O::GetCallerIdentity | O::GetSessionToken => return None,
        O::Preflight | O::Unknown => return None,
    })
}

/// Refuses what the signer of a request may not do.
pub(crate) async fn check(
    credential: &Credential,
    operation: Operation,
    target: &Target,
    query: &Query,
) -> Result<()> {
    let denied = || Refusal::new(Code::AccessDenied, "Access Denied");
    let (action, on) = needs(operation).ok_or_else(denied)?;
    let view = &credential.view;
    match (on, target) {
        (On::Nothing, Target::Root) => view.permit(action, "", |_| Resource::Cluster).await?,
        (On::Bucket, Target::Volume(volume)) => {
            view.permit(action, volume, |full| Resource::Glimpse(full)).await?
        }
        (On::Whole, Target::Volume(volume)) => {
            view.permit(action, volume, |full| Resource::Volume(full)).await?
        }
        (On::Prefix, Target::Volume(volume)) => {
            let prefix = query.get("prefix").unwrap_or_default();
            view.permit_key(action, volume, prefix.as_bytes()).await?;
        }
        (On::Key, Target::Object(volume, key)) => {
            // Of an id that is none the operation says so.
            let asked = key_asked(key, query).unwrap_or_else(|_| key.clone());
            view.permit_key(action, volume, asked.as_bytes()).await?;
        }
        _ => return Err(denied()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use stoker_access::Kind;

    use super::*;
    use crate::settings;

    /// What is called a read only looks, and what is called a change does not.
    #[test]
    fn every_operation_is_in_the_table_and_says_what_its_name_says() {
        for operation in Operation::ALL {
            let Some((action, on)) = needs(*operation) else {
                use Operation as O;
                let is_unsigned = matches!(operation, O::Preflight | O::Unknown);
                let is_sts = matches!(
                    operation,
                    O::AssumeRoleWithWebIdentity | O::GetCallerIdentity | O::GetSessionToken
                );
                assert!(is_unsigned || is_sts, "{operation:?}");
                continue;
            };
            let name = operation.name();
            let reads = ["Get", "Head", "List"].iter().any(|verb| name.starts_with(verb));
            assert_eq!(action.kind() == Kind::Write, !reads, "{operation:?}");
            assert_ne!(action.kind(), Kind::Operate, "{operation:?}");
            assert_eq!(
                name.contains("Object") && on == On::Bucket,
                matches!(operation, Operation::DeleteObjects | Operation::GetObjectLockConfiguration)
            );
            if settings::asked_of(*operation).is_some() {
                assert_eq!(settings::is_change(*operation), !reads, "{operation:?}");
            }
        }
    }
}
