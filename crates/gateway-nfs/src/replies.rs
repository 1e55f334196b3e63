//! Answers that were given to requests that must not be carried out twice. A client that lost its connection asks again:
//! it gets the answer of the first time, not an error because its file is gone already.

use std::net::IpAddr;
use std::sync::Mutex;

use bytes::Bytes;
use stoker_format::crc64;

use crate::lru::Lru;
use crate::rpc::Call;

const REPLIES_MAX: usize = 4096;

/// A request is the same one if all of this is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    client: IpAddr,
    xid: u32,
    procedure: u32,
    args: u64,
}

impl Request {
    pub fn of(client: IpAddr, call: &Call) -> Request {
        Request { client, xid: call.xid, procedure: call.procedure, args: crc64(&call.args) }
    }
}

/// What is known of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nothing; it is begun from now on.
    New,
    /// It is being worked on, and its answer goes to whoever asked first.
    Begun,
    Answered(Bytes),
}

pub struct Replies {
    kept: Mutex<(Lru<Request, Option<Bytes>>, u64)>,
}

impl Replies {
    pub fn new() -> Replies {
        Replies { kept: Mutex::new((Lru::new(REPLIES_MAX), 0)) }
    }

    pub fn begin(&self, request: &Request) -> Known {
        let mut kept = self.kept.lock().unwrap();
        match kept.0.get(request) {
            Some(Some(reply)) => Known::Answered(reply.clone()),
            Some(None) => Known::Begun,
            None => {
                let _ = kept.0.put(request.clone(), None);
                Known::New
            }
        }
    }

    pub fn end(&self, request: Request, reply: Bytes) {
        let _ = self.kept.lock().unwrap().0.put(request, Some(reply));
    }

    /// It was not carried out after all.
    pub fn forget(&self, request: &Request) {
        self.kept.lock().unwrap().0.remove(request);
    }

    /// Forgets what was not asked for since the last time.
    pub fn sweep(&self) {
        let mut kept = self.kept.lock().unwrap();
        let since = kept.1;
        kept.0.take_before(since);
        kept.1 = kept.0.moment();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_request_has_the_same_answer() {
        let call = |xid, args: &'static [u8]| Call {
            xid,
            program: 1,
            version: 3,
            procedure: 12,
            caller: None,
            args: Bytes::from_static(args),
        };
        let client: IpAddr = "10.0.0.1".parse().unwrap();
        let (replies, first) = (Replies::new(), Request::of(client, &call(1, b"a")));
        assert_eq!((replies.begin(&first), replies.begin(&first)), (Known::New, Known::Begun));
        replies.end(first.clone(), Bytes::from_static(b"done"));
        assert_eq!(replies.begin(&first), Known::Answered(Bytes::from_static(b"done")));
        assert_eq!(replies.begin(&Request::of(client, &call(1, b"b"))), Known::New);
        assert_eq!(replies.begin(&Request::of("10.0.0.2".parse().unwrap(), &call(1, b"a"))), Known::New);
        replies.sweep();
        replies.sweep();
        assert_eq!(replies.begin(&first), Known::New);
    }
}
