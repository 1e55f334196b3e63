//! Answers and their bodies.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::exchange::Exchange;
use crate::hot::FileBody;
use crate::refusal::Refusal;

/// Why a body could not be sent to its end; hyper then breaks the connection, so that nobody takes it for complete.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// An answer.
pub(crate) type Answer = Response<AnswerBody>;

enum Content {
    Empty,
    Whole(Bytes),
    File(FileBody),
    Foreign(s3s::Body),
}

/// The body of an answer. The exchange that it ends is counted when it is gone.
pub(crate) struct AnswerBody {
    content: Content,
    exchange: Option<Exchange>,
}

impl AnswerBody {
    fn new(content: Content) -> AnswerBody {
        AnswerBody { content, exchange: None }
    }

    /// Nothing.
    pub(crate) fn empty() -> AnswerBody {
        AnswerBody::new(Content::Empty)
    }

    /// Bytes that are all there.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> AnswerBody {
        let bytes = bytes.into();
        AnswerBody::new(if bytes.is_empty() { Content::Empty } else { Content::Whole(bytes) })
    }

    /// Bytes of a file, read while they are sent.
    pub(crate) fn file(body: FileBody) -> AnswerBody {
        AnswerBody::new(Content::File(body))
    }

    /// What s3s made.
    pub(crate) fn foreign(body: s3s::Body) -> AnswerBody {
        AnswerBody::new(Content::Foreign(body))
    }

    /// The bytes, if they are all there.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        match &self.content {
            Content::Whole(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// Lets the exchange end with this body.
    pub(crate) fn ends(&mut self, exchange: Exchange) {
        self.exchange = Some(exchange);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        // What is read while it is sent belongs to the request, too.
        let span = this.exchange.as_ref().map(|exchange| exchange.span().enter());
        let polled = match &mut this.content {
            Content::Empty => Poll::Ready(None),
            Content::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                this.content = Content::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Content::File(body) => body
                .poll_piece(cx)
                .map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(BodyError::from))),
            Content::Foreign(body) => Pin::new(body).poll_frame(cx),
        };
        drop(span);
        if let (Poll::Ready(Some(Ok(frame))), Some(exchange)) = (&polled, &mut this.exchange)
            && let Some(data) = frame.data_ref()
        {
            exchange.sent(data.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Whole(_) => false,
            Content::File(body) => body.left() == 0,
            Content::Foreign(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Empty => SizeHint::with_exact(0),
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::File(body) => SizeHint::with_exact(body.left()),
            Content::Foreign(body) => Body::size_hint(body),
        }
    }
}

/// An answer without a body.
pub(crate) fn bare(status: StatusCode) -> Answer {
    let mut answer = Response::new(AnswerBody::empty());
    *answer.status_mut() = status;
    answer
}

/// An answer with an XML body.
pub(crate) fn xml(status: StatusCode, document: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(AnswerBody::whole(document));
    *answer.status_mut() = status;
    answer.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    answer
}

/// An answer with a JSON body.
pub(crate) fn json(status: StatusCode, document: impl Into<Bytes>) -> Answer {
    let mut answer = xml(status, document);
    answer.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A refusal as an answer.
pub(crate) fn refused(refusal: &Refusal, resource: &str, request_id: &str, is_head: bool) -> Answer {
    let status = refusal.code.status();
    let mut answer = match is_head {
        true => bare(status),
        false => xml(status, refusal.to_xml(resource, request_id)),
    };
    for (name, text) in &refusal.headers {
        if let Ok(value) = HeaderValue::from_str(text) {
            answer.headers_mut().insert(*name, value);
        }
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}
