//! Takes a `multipart/form-data` body apart, in whatever pieces it arrives. Fields are small and kept; the file streams.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::refusal::{Code, Refusal, Result};

/// Most bytes of all fields and headers in front of the file.
const FIELDS_BYTES_MAX: usize = 64 << 10;
/// Most fields.
const FIELDS_MAX: usize = 100;
const BOUNDARY_LEN_MAX: usize = 200;

/// What comes out of the form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FormStep {
    /// Bring more.
    More,
    /// A field: its name in lower case, its value.
    Field(String, String),
    /// The file begins: its name as the client's form gave it. The type that stands beside it is not signed, and does not count.
    FileStart { filename: String },
    /// A piece of the file.
    FileData(Bytes),
    /// The file is complete. What follows does not count.
    End,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Preamble,
    Headers,
    Field(String),
    File,
    Done,
}

/// Decodes one form.
pub(crate) struct FormDecoder {
    /// Line break, two hyphens and the boundary.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
    fields: usize,
    fields_bytes: usize,
}

impl FormDecoder {
    /// Takes the boundary from a content type.
    pub(crate) fn new(content_type: &str) -> Result<FormDecoder> {
        let boundary = content_type
            .split(';')
            .skip(1)
            .filter_map(|parameter| parameter.trim().split_once('='))
            .find(|(name, _)| name.eq_ignore_ascii_case("boundary"))
            .map(|(_, value)| value.trim_matches('"'))
            .filter(|boundary| !boundary.is_empty() && boundary.len() <= BOUNDARY_LEN_MAX)
            .ok_or_else(|| malformed("the content type has no boundary"))?;
        // The first delimiter may stand at the very start, so the body gets the line break that it lacks.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Ok(FormDecoder { delimiter, buffer, state: State::Preamble, fields: 0, fields_bytes: 0 })
    }

    /// Brings more of the body.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The next thing.
    pub(crate) fn step(&mut self) -> Result<FormStep> {
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::Preamble => {
                    let Some(at) = find(&self.buffer, &self.delimiter) else {
                        return self.more(State::Preamble);
                    };
                    self.advance(at + self.delimiter.len());
                    self.state = State::Headers;
                }
                State::Headers => match self.headers()? {
                    Some(step) => return Ok(step),
                    None => return self.more(State::Headers),
                },
                State::Field(name) => {
                    let Some(at) = find(&self.buffer, &self.delimiter) else {
                        return self.more(State::Field(name));
                    };
                    let value = String::from_utf8(self.buffer[..at].to_vec())
                        .map_err(|_| malformed("a field is not UTF-8"))?;
                    self.advance(at + self.delimiter.len());
                    self.state = State::Headers;
                    return Ok(FormStep::Field(name, value));
                }
                State::File => return Ok(self.file()),
                State::Done => return Ok(FormStep::End),
            }
        }
    }

    fn more(&mut self, state: State) -> Result<FormStep> {
        if self.fields_bytes + self.buffer.len() > FIELDS_BYTES_MAX {
            return Err(Refusal::new(
                Code::MaxMessageLengthExceeded,
                "Your POST request fields preceding the upload file were too large.",
            ));
        }
        self.state = state;
        Ok(FormStep::More)
    }

    fn advance(&mut self, len: usize) {
        self.fields_bytes += len;
        self.buffer.advance(len);
    }

    /// What is behind a delimiter: the headers of a part, or the end of the form.
    fn headers(&mut self) -> Result<Option<FormStep>> {
        if self.buffer.starts_with(b"--") {
            return Err(malformed("it has no file"));
        }
        let Some(len) = find(&self.buffer, b"\r\n\r\n") else {
            return Ok(None);
        };
        let text =
            String::from_utf8(self.buffer[..len].to_vec()).map_err(|_| malformed("a header is not UTF-8"))?;
        self.advance(len + 4);
        self.fields += 1;
        if self.fields > FIELDS_MAX {
            return Err(malformed("it has too many fields"));
        }
        let (mut name, mut filename) = (None, None);
        for line in text.split("\r\n").filter(|line| !line.trim().is_empty()) {
            let (header, value) = line.split_once(':').ok_or_else(|| malformed("a header has no value"))?;
            if header.trim().eq_ignore_ascii_case("content-disposition") {
                name = parameter(value, "name");
                filename = parameter(value, "filename");
            }
        }
        let name = name.ok_or_else(|| malformed("a field has no name"))?.to_ascii_lowercase();
        if name == "file" {
            self.state = State::File;
            return Ok(Some(FormStep::FileStart { filename: filename.unwrap_or_default() }));
        }
        self.state = State::Field(name);
        self.step().map(Some)
    }

    fn file(&mut self) -> FormStep {
        if let Some(at) = find(&self.buffer, &self.delimiter) {
            let data = self.buffer.split_to(at).freeze();
            if data.is_empty() {
                self.state = State::Done;
                return FormStep::End;
            }
            self.state = State::File;
            return FormStep::FileData(data);
        }
        self.state = State::File;
        // The end of what is here may be the start of a delimiter.
        let len = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
        if len == 0 { FormStep::More } else { FormStep::FileData(self.buffer.split_to(len).freeze()) }
    }
}

/// A parameter of a header, with or without quotes.
fn parameter(value: &str, name: &str) -> Option<String> {
    let mut rest = value;
    while let Some(at) = rest.find(';') {
        rest = rest[at + 1..].trim_start();
        let Some(text) = rest.strip_prefix(name).and_then(|rest| rest.trim_start().strip_prefix('=')) else {
            continue;
        };
        return Some(match text.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap_or_default().to_owned(),
            None => text.split(';').next().unwrap_or_default().trim().to_owned(),
        });
    }
    None
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|byte| *byte == needle[0]) {
        if haystack[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn malformed(words: &str) -> Refusal {
    Refusal::new(
        Code::MalformedPOSTRequest,
        format!("The body of your POST request is not well-formed multipart/form-data: {words}."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"--XX\r\nContent-Disposition: form-data; name=\"Key\"\r\n\r\na/${filename}\r\n--XX\r\n\
        Content-Disposition: form-data; name=policy\r\n\r\n\r\n--XX\r\nContent-Disposition: form-data; name=\"file\"; \
        filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\nline\r\n--X not yet\r\n--XX\r\nmore\r\n--XX--\r\n";

    fn decode(content_type: &str, pieces: &[&[u8]]) -> Result<(Vec<FormStep>, Vec<u8>, bool)> {
        let mut decoder = FormDecoder::new(content_type)?;
        let (mut steps, mut content) = (Vec::new(), Vec::new());
        for piece in pieces {
            decoder.feed(piece);
            loop {
                match decoder.step()? {
                    FormStep::More | FormStep::End => break,
                    FormStep::FileData(data) => content.extend_from_slice(&data),
                    step => steps.push(step),
                }
            }
        }
        Ok((steps, content, decoder.state == State::Done))
    }

    const TYPE: &str = "multipart/form-data; boundary=XX";

    #[test]
    fn split_anywhere_it_is_the_same() {
        let expected = vec![
            FormStep::Field("key".to_owned(), "a/${filename}".to_owned()),
            FormStep::Field("policy".to_owned(), String::new()),
            FormStep::FileStart { filename: "f.txt".to_owned() },
        ];
        for at in 0..=BODY.len() {
            let (steps, content, done) = decode(TYPE, &[&BODY[..at], &BODY[at..]]).unwrap();
            assert_eq!(
                (steps, content.as_slice(), done),
                (expected.clone(), &b"line\r\n--X not yet"[..], true),
                "{at}"
            );
        }
        let bytes: Vec<&[u8]> = BODY.chunks(1).collect();
        assert_eq!(decode(TYPE, &bytes).unwrap().1, b"line\r\n--X not yet");
    }

    #[test]
    fn a_cut_form_is_not_done() {
        let end = BODY.len() - b"\r\n--XX\r\nmore\r\n--XX--\r\n".len();
        for len in 0..=end {
            assert!(!matches!(decode(TYPE, &[&BODY[..len]]), Ok((_, _, true))), "{len}");
        }
    }

    #[test]
    fn malformed_forms_are_refused() {
        let big = vec![b'x'; 70_000];
        let big_field = [&b"--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n"[..], &big].concat();
        for (content_type, body, code) in [
            ("multipart/form-data", BODY, Code::MalformedPOSTRequest),
            ("multipart/form-data; boundary=", BODY, Code::MalformedPOSTRequest),
            (TYPE, b"--XX--\r\n", Code::MalformedPOSTRequest),
            (TYPE, b"--XX\r\nno colon\r\n\r\n", Code::MalformedPOSTRequest),
            (TYPE, b"--XX\r\nContent-Disposition: form-data\r\n\r\n", Code::MalformedPOSTRequest),
            (TYPE, &big, Code::MaxMessageLengthExceeded),
            (TYPE, &big_field, Code::MaxMessageLengthExceeded),
        ] {
            assert_eq!(decode(content_type, &[body]).unwrap_err().code, code);
        }
    }

    proptest::proptest! {
        #[test]
        fn damage_never_panics(at in 0..BODY.len(), byte: u8, cut in 0..BODY.len()) {
            let mut body = BODY.to_vec();
            body[at] = byte;
            let _ = decode(TYPE, &[&body[..cut], &body[cut..]]);
        }
    }
}
