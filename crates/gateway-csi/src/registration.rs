//! How a kubelet learns of the driver: a socket in its folder of plugins, which it asks who is there.

use std::path::{Path, PathBuf};

use crate::Options;
use crate::answer::Answer;
use crate::proto::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::table::Services;

/// Versions that kubelets know.
const VERSIONS: &[&str] = &["1.0.0"];

/// What the kubelet is told.
pub struct Registration {
    driver: String,
    socket: PathBuf,
}

/// The socket in the kubelet's folder.
pub fn socket(folder: &Path, driver: &str) -> PathBuf {
    folder.join(format!("{driver}-reg.sock"))
}

impl Registration {
    pub fn of(options: &Options) -> Registration {
        let seen = options.node.as_ref().and_then(|node| node.kubelet_socket.clone());
        Registration {
            driver: options.driver.clone(),
            socket: seen.unwrap_or_else(|| options.socket.clone()),
        }
    }

    pub fn info(services: &Services, _: InfoRequest) -> Answer<PluginInfo> {
        let me =
            services.registration.as_ref().ok_or_else(|| tonic::Status::unimplemented("no registration"))?;
        Ok(PluginInfo {
            kind: "CSIPlugin".to_owned(),
            name: me.driver.clone(),
            endpoint: me.socket.display().to_string(),
            supported_versions: VERSIONS.iter().map(ToString::to_string).collect(),
        })
    }

    pub fn heard(status: &RegistrationStatus) -> RegistrationStatusResponse {
        if status.plugin_registered {
            tracing::info!("registered with the kubelet");
        } else {
            tracing::error!(error = %status.error, "the kubelet refused the driver");
        }
        RegistrationStatusResponse {}
    }
}
