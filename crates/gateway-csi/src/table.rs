//! Every call by its path.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use prost::Message;
use tonic::body::Body;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::Options;
use crate::answer::Answer;
use crate::controller::Controller;
use crate::door::Door;
use crate::identity::Identity;
use crate::node::Node;
use crate::registration::Registration;

/// Letters of a refusal; ids that are cited can be of any length.
const MESSAGE_LEN_MAX: usize = 1000;

/// What is served on a socket.
pub struct Services {
    pub identity: Identity,
    pub controller: Option<Arc<Controller>>,
    pub node: Option<Arc<Node>>,
    pub registration: Option<Registration>,
}

impl Services {
    /// Nothing but who it is.
    pub fn none(options: &Options, door: Arc<Door>) -> Services {
        let identity = Identity { driver: options.driver.clone(), has_controller: options.controller, door };
        Services { identity, controller: None, node: None, registration: None }
    }
}

/// Answers one call. What a service does not have, or nobody knows, is `UNIMPLEMENTED`.
pub async fn answer(services: Arc<Services>, request: http::Request<Incoming>) -> http::Response<Body> {
    let path = request.uri().path().to_owned();
    let request = request.map(Body::new);
    if let Some(call) = path.strip_prefix("/csi.v1.Identity/") {
        let me = services;
        return match call {
            "GetPluginInfo" => unary(request, move |q| async move { me.identity.plugin_info(q) }).await,
            "GetPluginCapabilities" => {
                unary(request, move |q| async move { me.identity.capabilities(q) }).await
            }
            "Probe" => unary(request, move |q| async move { me.identity.probe(q).await }).await,
            _ => unknown(&path),
        };
    }
    if let Some(call) = path.strip_prefix("/csi.v1.Controller/") {
        let Some(me) = services.controller.clone() else { return unknown(&path) };
        return match call {
            "CreateVolume" => unary(request, move |q| async move { me.create(q).await }).await,
            "DeleteVolume" => unary(request, move |q| async move { me.delete(q).await }).await,
            "ValidateVolumeCapabilities" => {
                unary(request, move |q| async move { me.validate(q).await }).await
            }
            "ListVolumes" => unary(request, move |q| async move { me.list(q).await }).await,
            "ControllerGetVolume" => unary(request, move |q| async move { me.get(q).await }).await,
            "GetCapacity" => unary(request, move |q| async move { me.capacity(q).await }).await,
            "ControllerGetCapabilities" => unary(request, move |q| async move { me.capabilities(q) }).await,
            "CreateSnapshot" => unary(request, move |q| async move { me.snapshot_create(q).await }).await,
            "DeleteSnapshot" => unary(request, move |q| async move { me.snapshot_delete(q).await }).await,
            "ListSnapshots" => unary(request, move |q| async move { me.snapshot_list(q).await }).await,
            "GetSnapshot" => unary(request, move |q| async move { me.snapshot_get(q).await }).await,
            "ControllerExpandVolume" => unary(request, move |q| async move { me.expand(q).await }).await,
            "ControllerModifyVolume" => unary(request, move |q| async move { me.modify(q).await }).await,
            _ => unknown(&path),
        };
    }
    if let Some(call) = path.strip_prefix("/csi.v1.Node/") {
        let Some(me) = services.node.clone() else { return unknown(&path) };
        return match call {
            "NodeStageVolume" => unary(request, move |q| async move { me.stage(q).await }).await,
            "NodeUnstageVolume" => unary(request, move |q| async move { me.unstage(q).await }).await,
            "NodePublishVolume" => unary(request, move |q| async move { me.publish(q).await }).await,
            "NodeUnpublishVolume" => unary(request, move |q| async move { me.unpublish(q).await }).await,
            "NodeGetVolumeStats" => unary(request, move |q| async move { me.stats(q).await }).await,
            "NodeGetCapabilities" => unary(request, move |q| async move { me.capabilities(q) }).await,
            "NodeGetInfo" => unary(request, move |q| async move { me.info(q).await }).await,
            _ => unknown(&path),
        };
    }
    if let (Some(call), Some(_)) =
        (path.strip_prefix("/pluginregistration.Registration/"), &services.registration)
    {
        let me = services;
        return match call {
            "GetInfo" => unary(request, move |q| async move { Registration::info(&me, q) }).await,
            "NotifyRegistrationStatus" => {
                unary(request, move |q| async move { Ok(Registration::heard(&q)) }).await
            }
            _ => unknown(&path),
        };
    }
    unknown(&path)
}

fn unknown(path: &str) -> http::Response<Body> {
    Status::unimplemented(format!("this driver does not serve {path}")).into_http()
}

/// One message in, one out.
async fn unary<Q, A, F, G>(request: http::Request<Body>, act: F) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
    F: FnOnce(Q) -> G,
    G: Future<Output = Answer<A>> + Send + 'static,
{
    let codec = ProstCodec::<A, Q>::default();
    tonic::server::Grpc::new(codec).unary(Unary(Some(act)), request).await
}

/// A refusal that fits into the headers of an answer, whatever it cites.
fn short(status: Status) -> Status {
    match status.message().char_indices().nth(MESSAGE_LEN_MAX) {
        None => status,
        Some((at, _)) => Status::new(status.code(), format!("{} ...", &status.message()[..at])),
    }
}

struct Unary<F>(Option<F>);

impl<Q, A, F, G> Service<Request<Q>> for Unary<F>
where
    A: Send + 'static,
    F: FnOnce(Q) -> G,
    G: Future<Output = Answer<A>> + Send + 'static,
{
    type Response = Response<A>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let Some(act) = self.0.take() else {
            return Box::pin(std::future::ready(Err(Status::internal("one call had two messages"))));
        };
        let done = act(request.into_inner());
        Box::pin(async move { done.await.map(Response::new).map_err(short) })
    }
}
