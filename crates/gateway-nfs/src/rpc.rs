//! Calls and replies of ONC RPC version 2 (RFC 5531).

use bytes::Bytes;

use crate::access::Identity;
use crate::xdr::{Garbage, Reader, Result, Writer};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const AUTH_BYTES_MAX: usize = 400;
const MACHINE_NAME_MAX: usize = 255;
const GROUPS_MAX: u32 = 16;

/// The programs that are spoken here.
pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;
pub const PROGRAM_VERSION: u32 = 3;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Call {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    /// Who asks, as the client says; none if it says nothing.
    pub caller: Option<Identity>,
    pub args: Bytes,
}

/// Why a call is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another version of RPC.
    RpcVersion,
    /// It says who it is in a way that is not spoken here.
    Credentials,
    ProgramUnknown,
    /// The program is here, in this version only.
    ProgramVersion,
    ProcedureUnknown,
    /// The arguments cannot be read.
    Arguments,
}

/// Reads a call. What is no call at all is garbage, and whoever sent it is not worth an answer.
pub fn parse(record: Bytes) -> Result<std::result::Result<Call, (u32, Refusal)>> {
    let mut input = Reader::new(record);
    let xid = input.u32()?;
    if input.u32()? != CALL {
        return Err(Garbage);
    }
    if input.u32()? != RPC_VERSION {
        return Ok(Err((xid, Refusal::RpcVersion)));
    }
    let (program, version, procedure) = (input.u32()?, input.u32()?, input.u32()?);
    let flavor = input.u32()?;
    let credentials = input.opaque(AUTH_BYTES_MAX)?;
    // The verifier says nothing with these flavors.
    input.u32()?;
    input.opaque(AUTH_BYTES_MAX)?;
    let caller = match flavor {
        AUTH_NONE => None,
        AUTH_SYS => match identity(credentials) {
            Ok(identity) => Some(identity),
            Err(Garbage) => return Ok(Err((xid, Refusal::Credentials))),
        },
        _ => return Ok(Err((xid, Refusal::Credentials))),
    };
    Ok(Ok(Call { xid, program, version, procedure, caller, args: input.rest() }))
}

fn identity(bytes: Bytes) -> Result<Identity> {
    let mut input = Reader::new(bytes);
    input.u32()?;
    input.opaque(MACHINE_NAME_MAX)?;
    let (uid, gid) = (input.u32()?, input.u32()?);
    let count = input.u32()?;
    if count > GROUPS_MAX {
        return Err(Garbage);
    }
    let groups = (0..count).map(|_| input.u32()).collect::<Result<Vec<_>>>()?;
    Ok(Identity { uid, gid, groups })
}

/// The front of a reply to a call that was carried out; what it says follows.
pub fn accepted(xid: u32, capacity: usize) -> Writer {
    let mut out = front(xid, capacity);
    out.u32(0);
    out
}

fn front(xid: u32, capacity: usize) -> Writer {
    let mut out = Writer::with_capacity(24 + capacity);
    for word in [xid, REPLY, 0, AUTH_NONE, 0] {
        out.u32(word);
    }
    out
}

/// The reply to a call that is not carried out.
pub fn refused(xid: u32, refusal: Refusal) -> Bytes {
    let denied: &[u32] = match refusal {
        Refusal::RpcVersion => &[1, 0, RPC_VERSION, RPC_VERSION],
        Refusal::Credentials => &[1, 1, 1],
        _ => &[],
    };
    if !denied.is_empty() {
        let mut out = Writer::default();
        out.u32(xid);
        out.u32(REPLY);
        denied.iter().for_each(|word| out.u32(*word));
        return out.freeze();
    }
    let mut out = front(xid, 12);
    match refusal {
        Refusal::ProgramUnknown => out.u32(1),
        Refusal::ProgramVersion => {
            [2, PROGRAM_VERSION, PROGRAM_VERSION].iter().for_each(|word| out.u32(*word))
        }
        Refusal::ProcedureUnknown => out.u32(3),
        _ => out.u32(4),
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(flavor: u32, credentials: &[u8]) -> Bytes {
        let mut out = Writer::default();
        for word in [9, CALL, RPC_VERSION, NFS, 3, 1, flavor] {
            out.u32(word);
        }
        out.opaque(credentials);
        out.u32(0);
        out.opaque(b"");
        out.u32(77);
        out.freeze()
    }

    fn sys(groups: u32) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(0);
        out.opaque(b"machine");
        out.u32(1000);
        out.u32(100);
        out.u32(groups);
        (0..groups).for_each(|group| out.u32(group));
        out.freeze().to_vec()
    }

    #[test]
    fn a_call_says_who_asks_for_what() {
        let parsed = parse(call(AUTH_SYS, &sys(2))).unwrap().unwrap();
        assert_eq!((parsed.xid, parsed.program, parsed.procedure), (9, NFS, 1));
        assert_eq!(parsed.caller, Some(Identity { uid: 1000, gid: 100, groups: vec![0, 1] }));
        assert_eq!(parsed.args.as_ref(), [0, 0, 0, 77]);
        assert_eq!(parse(call(AUTH_NONE, b"")).unwrap().unwrap().caller, None);
    }

    #[test]
    fn who_cannot_be_understood_is_refused() {
        let refusal = |bytes| parse(bytes).unwrap().unwrap_err();
        assert_eq!(refusal(call(6, b"")), (9, Refusal::Credentials), "Kerberos");
        assert_eq!(refusal(call(AUTH_SYS, &sys(17))), (9, Refusal::Credentials), "too many groups");
        assert_eq!(refusal(call(AUTH_SYS, b"abc")), (9, Refusal::Credentials));
        assert!(parse(call(AUTH_SYS, &[0; 404])).is_err(), "longer than credentials may be");
        let mut other = call(AUTH_NONE, b"").to_vec();
        other[11] = 3;
        assert_eq!(refusal(other.clone().into()), (9, Refusal::RpcVersion));
        other[7] = 1;
        assert!(parse(other.into()).is_err(), "a reply");
    }

    proptest! {
        #[test]
        fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(bytes.into());
        }

        #[test]
        fn damaged_calls_do_no_harm(at in 0usize..60, value: u8, keep in 0usize..80) {
            let mut bytes = call(AUTH_SYS, &sys(3)).to_vec();
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(keep.min(bytes.len()));
            let _ = parse(bytes.into());
        }
    }
}
