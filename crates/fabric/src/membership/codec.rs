//! The bytes of SWIM messages and members.
//!
//! A message starts with its kind and its sender, so that both can be read without the rest. Only the sender and news
//! carry profiles: a receiver knows the nodes that it is asked to ping.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf, BufMut};
use foca::{Header, Member, Message, State};
use stoker_format::NodeId;

use super::identity::{ADDRESSES_MAX, Identity, META_BYTES_MAX, Profile};

pub(super) const PING: u8 = 0;
const ACK: u8 = 1;
const PING_REQUEST: u8 = 2;
const INDIRECT_PING: u8 = 3;
const INDIRECT_ACK: u8 = 4;
const FORWARDED_ACK: u8 = 5;
const GOSSIP: u8 = 6;
const TURN_UNDEAD: u8 = 7;

const V4: u8 = 4;
const V6: u8 = 6;

/// The wire form, as foca calls for it. Knows who we are, to notice that somebody else is.
#[derive(Debug)]
pub(super) struct Codec {
    pub(super) node: NodeId,
    pub(super) boot: u64,
}

/// Why bytes were not understood, or values not written.
#[derive(Debug)]
pub(super) enum CodecError {
    /// The bytes end too early.
    Short,
    /// A value that none of ours writes.
    Value,
    /// No room.
    Full,
    /// A member that a newer boot of our own node would be.
    Superseded(Identity),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::Short => f.write_str("the message is cut short"),
            CodecError::Value => f.write_str("the message has an unknown value"),
            CodecError::Full => f.write_str("the message is full"),
            CodecError::Superseded(other) => write!(f, "boot {} of this node is live", other.boot),
        }
    }
}

impl std::error::Error for CodecError {}

impl foca::Codec<Identity> for Codec {
    type Error = CodecError;

    fn encode_header(&mut self, header: &Header<Identity>, mut to: impl BufMut) -> Result<(), CodecError> {
        let (kind, number, other) = match &header.message {
            Message::Ping(number) => (PING, *number, None),
            Message::Ack(number) => (ACK, *number, None),
            Message::PingReq { target, probe_number } => (PING_REQUEST, *probe_number, Some(target)),
            Message::IndirectPing { origin, probe_number } => (INDIRECT_PING, *probe_number, Some(origin)),
            Message::IndirectAck { target, probe_number } => (INDIRECT_ACK, *probe_number, Some(target)),
            Message::ForwardedAck { origin, probe_number } => (FORWARDED_ACK, *probe_number, Some(origin)),
            Message::Gossip => (GOSSIP, 0, None),
            Message::TurnUndead => (TURN_UNDEAD, 0, None),
            Message::Announce | Message::Feed | Message::Broadcast => return Err(CodecError::Value),
        };
        room(&to, 1)?;
        to.put_u8(kind);
        put_identity(&header.src, &mut to)?;
        room(&to, 3)?;
        to.put_u16(header.src_incarnation);
        to.put_u8(number);
        put_name(&header.dst, &mut to)?;
        other.map_or(Ok(()), |other| put_name(other, &mut to))
    }

    fn decode_header(&mut self, mut from: impl Buf) -> Result<Header<Identity>, CodecError> {
        let kind = get_u8(&mut from)?;
        let src = get_identity(&mut from)?;
        let src_incarnation = from.try_get_u16().map_err(|_| CodecError::Short)?;
        let probe_number = get_u8(&mut from)?;
        let dst = get_name(&mut from)?;
        let message = match kind {
            PING => Message::Ping(probe_number),
            ACK => Message::Ack(probe_number),
            PING_REQUEST => Message::PingReq { target: get_name(&mut from)?, probe_number },
            INDIRECT_PING => Message::IndirectPing { origin: get_name(&mut from)?, probe_number },
            INDIRECT_ACK => Message::IndirectAck { target: get_name(&mut from)?, probe_number },
            FORWARDED_ACK => Message::ForwardedAck { origin: get_name(&mut from)?, probe_number },
            GOSSIP => Message::Gossip,
            TURN_UNDEAD => Message::TurnUndead,
            _ => return Err(CodecError::Value),
        };
        Ok(Header { src, src_incarnation, dst, message })
    }

    fn encode_member(&mut self, member: &Member<Identity>, to: impl BufMut) -> Result<(), CodecError> {
        put_member(member, to)
    }

    fn decode_member(&mut self, from: impl Buf) -> Result<Member<Identity>, CodecError> {
        let member = get_member(from)?;
        if member.id().node == self.node && member.id().boot > self.boot {
            return Err(CodecError::Superseded(member.id().clone()));
        }
        Ok(member)
    }
}

/// Node and boot of the sender of a SWIM message.
pub(super) fn peek_sender(mut from: &[u8]) -> Result<(NodeId, u64), CodecError> {
    get_u8(&mut from)?;
    let sender = get_name(from)?;
    Ok((sender.node, sender.boot))
}

pub(super) fn put_member(member: &Member<Identity>, mut to: impl BufMut) -> Result<(), CodecError> {
    put_identity(member.id(), &mut to)?;
    room(&to, 3)?;
    to.put_u16(member.incarnation());
    to.put_u8(match member.state() {
        State::Alive => 0,
        State::Suspect => 1,
        State::Down => 2,
    });
    Ok(())
}

pub(super) fn get_member(mut from: impl Buf) -> Result<Member<Identity>, CodecError> {
    let identity = get_identity(&mut from)?;
    let incarnation = from.try_get_u16().map_err(|_| CodecError::Short)?;
    let state = match get_u8(&mut from)? {
        0 => State::Alive,
        1 => State::Suspect,
        2 => State::Down,
        _ => return Err(CodecError::Value),
    };
    Ok(Member::new(identity, incarnation, state))
}

fn put_identity(identity: &Identity, mut to: impl BufMut) -> Result<(), CodecError> {
    put_name(identity, &mut to)?;
    let profile = &identity.profile;
    room(&to, 3 + 19 * profile.addresses.len() + profile.meta.len())?;
    to.put_u8(profile.addresses.len() as u8);
    for address in &profile.addresses {
        match address.ip() {
            IpAddr::V4(ip) => {
                to.put_u8(V4);
                to.put_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                to.put_u8(V6);
                to.put_slice(&ip.octets());
            }
        }
        to.put_u16(address.port());
    }
    to.put_u16(profile.meta.len() as u16);
    to.put_slice(&profile.meta);
    Ok(())
}

fn get_identity(mut from: impl Buf) -> Result<Identity, CodecError> {
    let name = get_name(&mut from)?;
    let count = usize::from(get_u8(&mut from)?);
    if count == 0 || count > ADDRESSES_MAX {
        return Err(CodecError::Value);
    }
    let addresses = (0..count).map(|_| get_address(&mut from)).collect::<Result<Vec<_>, _>>()?;
    let length = usize::from(from.try_get_u16().map_err(|_| CodecError::Short)?);
    if length > META_BYTES_MAX {
        return Err(CodecError::Value);
    }
    let mut meta = vec![0; length];
    from.try_copy_to_slice(&mut meta).map_err(|_| CodecError::Short)?;
    Ok(Identity { profile: Arc::new(Profile { addresses, meta }), ..name })
}

/// An identity without its profile.
fn put_name(identity: &Identity, mut to: impl BufMut) -> Result<(), CodecError> {
    room(&to, 28)?;
    to.put_slice(&identity.node.0);
    to.put_u64(identity.boot);
    to.put_u32(identity.renewal);
    Ok(())
}

fn get_name(mut from: impl Buf) -> Result<Identity, CodecError> {
    let node = NodeId(get_bytes(&mut from)?);
    let boot = from.try_get_u64().map_err(|_| CodecError::Short)?;
    let renewal = from.try_get_u32().map_err(|_| CodecError::Short)?;
    Ok(Identity { node, boot, renewal, profile: Arc::default() })
}

fn get_address(mut from: impl Buf) -> Result<SocketAddr, CodecError> {
    let ip = match get_u8(&mut from)? {
        V4 => IpAddr::from(get_bytes::<4>(&mut from)?),
        V6 => IpAddr::from(get_bytes::<16>(&mut from)?),
        _ => return Err(CodecError::Value),
    };
    Ok(SocketAddr::new(ip, from.try_get_u16().map_err(|_| CodecError::Short)?))
}

fn get_bytes<const N: usize>(mut from: impl Buf) -> Result<[u8; N], CodecError> {
    let mut bytes = [0; N];
    from.try_copy_to_slice(&mut bytes).map_err(|_| CodecError::Short)?;
    Ok(bytes)
}

fn get_u8(mut from: impl Buf) -> Result<u8, CodecError> {
    from.try_get_u8().map_err(|_| CodecError::Short)
}

fn room(to: &impl BufMut, bytes: usize) -> Result<(), CodecError> {
    if to.remaining_mut() < bytes { Err(CodecError::Full) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use foca::Codec as _;

    use super::*;

    fn identity(node: u8, boot: u64) -> Identity {
        let addresses = vec!["10.0.0.1:7".parse().unwrap(), "[2001:db8::1]:8".parse().unwrap()];
        Identity::new(NodeId([node; 16]), boot, Profile::new(addresses, vec![node; 9]).unwrap())
    }

    #[test]
    fn members_come_back_as_they_went() {
        for state in [State::Alive, State::Suspect, State::Down] {
            let member = Member::new(identity(1, 5), 7, state);
            let mut bytes = Vec::new();
            put_member(&member, &mut bytes).unwrap();
            let back = get_member(&bytes[..]).unwrap();
            assert_eq!(back, member);
            assert_eq!(back.id().profile, member.id().profile, "which equality does not cover");
            for end in 0..bytes.len() {
                assert!(get_member(&bytes[..end]).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn a_newer_boot_of_our_own_node_is_not_handed_to_foca() {
        let mut codec = Codec { node: NodeId([1; 16]), boot: 5 };
        let check = |codec: &mut Codec, node, boot, superseded| {
            let mut bytes = Vec::new();
            put_member(&Member::alive(identity(node, boot)), &mut bytes).unwrap();
            let outcome = codec.decode_member(&bytes[..]);
            assert_eq!(matches!(outcome, Err(CodecError::Superseded(_))), superseded, "{node} {boot}");
        };
        check(&mut codec, 1, 6, true);
        check(&mut codec, 1, 5, false);
        check(&mut codec, 1, 4, false);
        check(&mut codec, 2, 6, false);
    }
}
