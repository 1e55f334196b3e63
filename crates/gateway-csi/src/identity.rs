//! Who the driver is.

use std::sync::Arc;

use crate::answer::Answer;
use crate::door::Door;
use crate::proto::*;

const CONTROLLER_SERVICE: i32 = 1;
const VOLUME_ACCESSIBILITY_CONSTRAINTS: i32 = 2;
const EXPANSION_ONLINE: i32 = 1;

/// The service.
pub struct Identity {
    pub driver: String,
    pub has_controller: bool,
    pub door: Arc<Door>,
}

impl Identity {
    pub fn plugin_info(&self, _: GetPluginInfoRequest) -> Answer<GetPluginInfoResponse> {
        Ok(GetPluginInfoResponse {
            name: self.driver.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        })
    }

    pub fn capabilities(&self, _: GetPluginCapabilitiesRequest) -> Answer<GetPluginCapabilitiesResponse> {
        let service =
            |kind| PluginCapability { service: Some(PluginService { kind }), volume_expansion: None };
        let mut capabilities = vec![service(VOLUME_ACCESSIBILITY_CONSTRAINTS)];
        if self.has_controller {
            capabilities.push(service(CONTROLLER_SERVICE));
            let online = PluginExpansion { kind: EXPANSION_ONLINE };
            capabilities.push(PluginCapability { service: None, volume_expansion: Some(online) });
        }
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }

    /// Ready if the node answers; a driver without one is healthy, and waits.
    pub async fn probe(&self, _: ProbeRequest) -> Answer<ProbeResponse> {
        Ok(ProbeResponse { ready: Some(BoolValue { value: self.door.open().await.is_ok() }) })
    }
}
