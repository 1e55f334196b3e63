//! The MOUNT protocol, version 3 (RFC 1813, appendix I): a path becomes the handle that everything begins with.

use std::net::IpAddr;
use std::sync::Arc;

use stoker_files::{Errno, Kind, ROOT};

use crate::access::{EXECUTE, Identity};
use crate::admission::NfsClient;
use crate::connection::Service;
use crate::export::Export;
use crate::handle::Handle;
use crate::nfs::Status;
use crate::record::Reply;
use crate::rpc::{self, Call, Refusal};
use crate::xdr::{Garbage, Reader, Writer};

const PATH_LEN_MAX: usize = 1024;
const AUTH_SYS: u32 = 1;
const NAME_TOO_LONG: u32 = 63;
const SERVER_FAULT: u32 = 10_006;

pub async fn answer(service: &Arc<Service>, client: &NfsClient, call: Call) -> Result<Reply, Refusal> {
    let peer = client.address;
    let mut out = rpc::accepted(call.xid, 256);
    let mut input = Reader::new(call.args);
    match call.procedure {
        // NULL, UMNT and UMNTALL: nobody keeps a list of who has mounted.
        0 | 3 | 4 => {}
        1 => {
            let path = input.opaque(PATH_LEN_MAX).map_err(|Garbage| Refusal::Arguments)?;
            match mount(service, peer, call.caller, &path).await {
                Ok(handle) => {
                    client.prove();
                    out.u32(0);
                    out.opaque(&handle.encode(service.volumes.handle_key()));
                    out.u32(1);
                    out.u32(AUTH_SYS);
                }
                Err(status) => {
                    tracing::info!("NFS client {peer} may not mount {}: {status}", path.escape_ascii());
                    out.u32(status);
                }
            }
        }
        // DUMP: an empty list.
        2 => out.bool(false),
        5 => exports(service, &mut out).await,
        _ => return Err(Refusal::ProcedureUnknown),
    }
    Ok(out.freeze().into())
}

/// `/VOLUME` or a directory in it, if who asks may go there.
async fn mount(
    service: &Arc<Service>,
    peer: IpAddr,
    caller: Option<Identity>,
    path: &[u8],
) -> Result<Handle, u32> {
    let code = |errno: Errno| match Status::from(errno) {
        Status::NameTooLong => NAME_TOO_LONG,
        status => status as u32,
    };
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let volume =
        names.next().and_then(|name| std::str::from_utf8(name).ok()).ok_or(Status::NoEntry as u32)?;
    let volume = match service.volumes.by_name(volume).await {
        Ok(Some(volume)) => volume,
        Ok(None) => return Err(Status::NoEntry as u32),
        Err(fault) => {
            tracing::error!("{fault}");
            return Err(SERVER_FAULT);
        }
    };
    if !volume.export.allows(peer) {
        return Err(Status::Access as u32);
    }
    let who = volume.export.identity(caller);
    let mut at = ROOT;
    for name in names {
        // Otherwise a path would lead where handles do not.
        let directory = volume.files.getattr(at).await.map_err(code)?;
        if !who.may(&directory, volume.files.acl(at).as_ref(), EXECUTE) {
            return Err(Status::Access as u32);
        }
        let attr = volume.files.lookup(at, name).await.map_err(code)?;
        volume.note(attr.ino);
        if attr.kind != Kind::Directory {
            return Err(Status::NotDirectory as u32);
        }
        at = attr.ino;
    }
    Ok(Handle::directory(volume.id, at))
}

async fn exports(service: &Arc<Service>, out: &mut Writer) {
    let shown = service.volumes.shown().await.unwrap_or_else(|fault| {
        tracing::error!("{fault}");
        Vec::new()
    });
    for (name, Export { allow, .. }) in shown {
        out.bool(true);
        out.opaque(format!("/{name}").as_bytes());
        for network in allow {
            out.bool(true);
            out.opaque(network.to_string().as_bytes());
        }
        out.bool(false);
    }
    out.bool(false);
}
