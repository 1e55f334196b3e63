//! What a datagram carries: a message of SWIM, a question for members, or members.

use bytes::{Buf, BufMut};
use foca::Member;
use stoker_format::NodeId;

use super::codec::{CodecError, get_member, put_member};
use super::identity::Identity;
use super::seal::BODY_BYTES_MAX;

const SWIM: u8 = 1;
const ASK: u8 = 2;
const MEMBERS: u8 = 3;

/// The body of a datagram.
#[derive(Debug)]
pub(super) enum Message<'b> {
    /// Bytes that foca made.
    Swim(&'b [u8]),
    /// "Who is there, after this node?"
    Ask(Ask),
    /// Some members; also a goodbye, and the answer to a node that does not know that it was replaced.
    Members(Members),
}

/// A question for the members that come after a node, in the order of ids.
#[derive(Debug, PartialEq)]
pub(super) struct Ask {
    pub(super) after: NodeId,
    /// A sum of what the asker knows; equal sums need no answer but a sign of life.
    pub(super) digest: u64,
    /// The asker first; then the asked one, if the asker holds it for down and it has to know.
    pub(super) members: Vec<Member<Identity>>,
}

/// A page of members.
#[derive(Debug, PartialEq)]
pub(super) struct Members {
    /// The id after which the next page begins, if there is more.
    pub(super) next: Option<NodeId>,
    pub(super) members: Vec<Member<Identity>>,
}

impl<'b> Message<'b> {
    pub(super) fn decode(mut body: &'b [u8]) -> Result<Message<'b>, CodecError> {
        let short = |_| CodecError::Short;
        match body.try_get_u8().map_err(short)? {
            SWIM => Ok(Message::Swim(body)),
            ASK => {
                let after = get_node(&mut body)?;
                let digest = body.try_get_u64().map_err(short)?;
                Ok(Message::Ask(Ask { after, digest, members: get_members(body)? }))
            }
            MEMBERS => {
                let next = match body.try_get_u8().map_err(short)? {
                    0 => None,
                    1 => Some(get_node(&mut body)?),
                    _ => return Err(CodecError::Value),
                };
                Ok(Message::Members(Members { next, members: get_members(body)? }))
            }
            _ => Err(CodecError::Value),
        }
    }
}

/// A body with a message of SWIM.
pub(super) fn swim(bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(1 + bytes.len());
    body.put_u8(SWIM);
    body.put_slice(bytes);
    body
}

impl Ask {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = vec![ASK];
        body.put_slice(&self.after.0);
        body.put_u64(self.digest);
        put_members(&self.members, &mut body);
        body
    }
}

impl Members {
    /// A body with a few members that need no page.
    pub(super) fn encode(members: &[Member<Identity>]) -> Vec<u8> {
        let mut body = vec![MEMBERS, 0];
        put_members(members, &mut body);
        body
    }

    /// A body with `first` and as many of the following as fit.
    pub(super) fn encode_page(
        first: &[Member<Identity>],
        following: impl Iterator<Item = Member<Identity>>,
    ) -> Vec<u8> {
        let mut page = Vec::with_capacity(BODY_BYTES_MAX);
        put_members(first, &mut page);
        let room = BODY_BYTES_MAX - 1 - 1 - 16;
        let mut last = None;
        let mut next = None;
        for member in following {
            let before = page.len();
            put_members(std::slice::from_ref(&member), &mut page);
            if page.len() > room {
                page.truncate(before);
                next = last;
                break;
            }
            last = Some(member.id().node);
        }
        let mut body = vec![MEMBERS, u8::from(next.is_some())];
        if let Some(next) = next {
            body.put_slice(&next.0);
        }
        body.put_slice(&page);
        body
    }
}

fn put_members(members: &[Member<Identity>], mut body: &mut Vec<u8>) {
    for member in members {
        put_member(member, &mut body).expect("a vector has room");
    }
}

/// Members up to the end; a datagram bounds how many.
fn get_members(mut body: &[u8]) -> Result<Vec<Member<Identity>>, CodecError> {
    let mut members = Vec::new();
    while !body.is_empty() {
        members.push(get_member(&mut body)?);
    }
    Ok(members)
}

fn get_node(body: &mut &[u8]) -> Result<NodeId, CodecError> {
    let mut node = NodeId::ZERO;
    body.try_copy_to_slice(&mut node.0).map_err(|_| CodecError::Short)?;
    Ok(node)
}
