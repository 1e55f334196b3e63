//! What a lake has under a key, and whose word its metadata is.

use stoker_lake::{Lake, ObjectInfo};

use crate::core::Core;

impl Core {
    /// What a lake has under a key. Of what it says of itself in our name, only what this cluster wrote.
    pub async fn head(
        &self,
        lake: &dyn Lake,
        key: &[u8],
    ) -> Result<Option<ObjectInfo>, stoker_lake::LakeError> {
        let mut object = lake.head(key).await?;
        if object.as_mut().is_some_and(|object| self.signer.strip(object)) {
            tracing::debug!(key = %key.escape_ascii(), "metadata in our name that this cluster did not write is left out");
        }
        Ok(object)
    }
}
